"""``gpuspawner server doctor`` finds the one fault of each Volcano and KAI, and its remedy."""

import manifests
import pytest

from gpuspawner.adoption.doctor.findings import State
from gpuspawner.adoption.doctor.queue_checks import QUEUES, judge_pod_queues, rights_of
from gpuspawner.catalog import PodQueues
from gpuspawner.schedulers.pod_queues import SYSTEMS

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def queues(system):
    return PodQueues(system, teams={"ml": "of-ml"}, priority_class="high", priority_classes={"ml": "urgent"})


class Cluster(manifests.PreparedApi):
    """An API server with a scheduler without faults."""

    def __init__(self, system):
        self.system = SYSTEMS[system]
        self.kinds = f"/apis/{self.system.group_version}"
        self.queues = {name: f"{QUEUES[system]}/{name}" for name in (self.system.default_queue, "of-ml")}
        answers = {
            self.kinds: {"resources": [{"name": "podgroups"}, {"name": "podgroups/status"}]},
            **{path: {"status": {"state": "Open"} if system == "volcano" else {}} for path in self.queues.values()},
            **{f"{CLASSES}/{name}": {"value": 7} for name in ("high", "urgent")},
        }
        super().__init__(answers)


def not_there(one):
    del one.answers[one.kinds]


def other_kinds(one):
    one.answers[one.kinds] = {"resources": [{"name": "queues"}]}


def right_missing(one):
    one.missing = {("watch", "podgroups")}


def no_queue(one):
    del one.answers[one.queues["of-ml"]]


def closed(one):
    one.answers[one.queues["of-ml"]]["status"]["state"] = "Closed"


def no_class(one):
    del one.answers[f"{CLASSES}/urgent"]


@pytest.mark.parametrize(("system", "default"), [("volcano", "default"), ("kai", "default-queue")])
async def test_where_all_is_well_each_check_says_so(system, default):
    cluster = Cluster(system)
    found = await judge_pod_queues(cluster, "jhub", queues(system))
    assert cluster.groups == {cluster.system.group_version.partition("/")[0]}
    title = SYSTEMS[system].title
    names = [
        title,
        f"{title}'s rights",
        f"queue {default}",
        "queue of-ml",
        *map("priority class {}".format, ("high", "urgent")),
    ]
    assert [(one.check, one.state) for one in found] == [(name, State.GOOD) for name in names]
    assert found[3].words == f"The queue of-ml is there{' and open' if system == 'volcano' else ''}."


@pytest.mark.parametrize(
    ("broken", "check", "words", "remedy"),
    [
        (not_there, "Volcano", "does not serve the PodGroups of scheduling.volcano.sh/v1beta1", "Install Volcano"),
        (other_kinds, "Volcano", "does not serve the PodGroups", "Install Volcano"),
        (right_missing, "Volcano's rights", "The right to watch podgroups in namespace jhub", "podgroups-rbac"),
        (no_queue, "queue of-ml", "Volcano has no queue of-ml", "Create it"),
        (closed, "queue of-ml", "The queue of-ml is closed", "vcctl queue operate -a open -n of-ml"),
        (no_class, "priority class urgent", "There is no PriorityClass urgent", "Create it"),
    ],
)
async def test_a_broken_scheduler_is_found_with_its_remedy(broken, check, words, remedy):
    cluster = Cluster("volcano")
    broken(cluster)
    (one,) = [one for one in await judge_pod_queues(cluster, "jhub", queues("volcano")) if one.state is not State.GOOD]
    assert (one.check, one.state) == (check, State.BAD)
    assert words in one.words
    assert remedy in one.remedy


async def test_an_unanswerable_question_is_no_fault():
    cluster = Cluster("volcano")
    cluster.statuses = {cluster.queues["of-ml"]: 403, f"{CLASSES}/high": 403}
    found = {
        one.check: one
        for one in await judge_pod_queues(cluster, "jhub", queues("volcano"))
        if one.state is not State.GOOD
    }
    assert {name: one.state for name, one in found.items()} == {
        "queue of-ml": State.UNKNOWN,
        "priority class high": State.UNKNOWN,
    }
    cluster.statuses = {cluster.kinds: 500}
    (one,) = await judge_pod_queues(cluster, "jhub", queues("volcano"))
    assert one.state is State.UNKNOWN


def test_the_rights_that_are_asked_for_are_exactly_those_of_the_manifest():
    written = {
        (verb, resource, group) for verb, resource, _, group in manifests.rights_of("kubernetes-podgroups-rbac.yaml")
    }
    assert {(x.verb, x.resource, x.group) for one in SYSTEMS.values() for x in rights_of(one)} == written
