"""``gpuspawner server doctor`` finds the one fault of each Kueue, and its remedy."""

import pytest
from manifests import PreparedApi, asked_for, rights_of

from gpuspawner.adoption.doctor.findings import State
from gpuspawner.adoption.doctor.queue_checks import KINDS, KUEUE_RIGHTS, judge_kueue
from gpuspawner.catalog import KueueQueues

API = "/apis/kueue.x-k8s.io/v1beta2"
PLACES = "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/jhub/localqueues/lq/pendingworkloads?limit=1"
PODS = "/api/v1/namespaces/jhub/pods?dryRun=All"
CLUSTER_QUEUE = f"{API}/clusterqueues/cq"
QUEUES = KueueQueues("lq", {"ml": "of-ml"}, priority_class="high")


def local(name):
    return {"metadata": {"name": name}, "spec": {"clusterQueue": "cq"}}


def schema(most):
    spec = {"properties": {"podSets": {"maxItems": most}}}
    return {"components": {"schemas": {"io.x-k8s.kueue.v1beta2.Workload": {"properties": {"spec": spec}}}}}


class Cluster(PreparedApi):
    """An API server with a Kueue without faults."""

    def __init__(self):
        answers = {
            "/apis/kueue.x-k8s.io": {"versions": [{"version": "v1beta2"}]},
            API: {"resources": [{"name": name} for name in KINDS]},
            f"/openapi/v3{API}": schema(18),
            **{f"{API}/namespaces/jhub/localqueues/{name}": local(name) for name in ("lq", "of-ml")},
            CLUSTER_QUEUE: {
                "metadata": {"name": "cq"},
                "spec": {},
                "status": {"conditions": [{"type": "Active", "status": "True"}]},
            },
            f"{API}/admissionchecks/far": {"spec": {"controllerName": "kueue.x-k8s.io/multikueue"}},
            f"{API}/workloadpriorityclasses/high": {"value": 7},
            PLACES: {"items": []},
            PODS: {"spec": {}},
        }
        super().__init__(answers)


def no_kueue(one):
    del one.answers["/apis/kueue.x-k8s.io"]


def old(one):
    one.answers[f"/openapi/v3{API}"] = schema(10)


def kind_missing(one):
    one.answers[API] = {"resources": [{"name": "workloads"}]}


def right_missing(one):
    one.missing = {("update", "workloads/status")}


def no_local_queue(one):
    del one.answers[f"{API}/namespaces/jhub/localqueues/of-ml"]


def no_cluster_queue(one):
    del one.answers[CLUSTER_QUEUE]


def leads_nowhere(one):
    del one.answers[f"{API}/namespaces/jhub/localqueues/of-ml"]["spec"]
    one.answers[f"{API}/clusterqueues/"] = {"items": []}  # as the API server has it


def inactive(one):
    conditions = [{"type": "Active", "status": "False", "message": "it references missing ResourceFlavor(s): x"}]
    one.answers[CLUSTER_QUEUE]["status"]["conditions"] = conditions


def elsewhere(one):
    one.answers[CLUSTER_QUEUE]["spec"] = {"admissionChecksStrategy": {"admissionChecks": [{"name": "far"}]}}


def moves(one):
    one.answers[CLUSTER_QUEUE]["spec"] = {"concurrentAdmissionPolicy": {"migration": {}}}


def on_hold(one):
    one.answers[CLUSTER_QUEUE]["spec"] = {"stopPolicy": "Hold"}


def no_class(one):
    del one.answers[f"{API}/workloadpriorityclasses/high"]


def no_places(one):
    del one.answers[PLACES]


def gated(one):
    one.answers[PODS] = {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}}


async def test_where_all_is_well_each_check_says_so():
    cluster = Cluster()
    found = await judge_kueue(cluster, "jhub", QUEUES)
    assert {one.state for one in found} == {State.GOOD}
    assert cluster.groups == {"kueue.x-k8s.io", "visibility.kueue.x-k8s.io"}
    assert [one.check for one in found] == [
        "Kueue", "Kueue's rights", "queue lq", "queue of-ml", "priority class", "places", "pods",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "checks", "words", "remedy"),
    [
        (no_kueue, {"Kueue"}, "the cluster has no Kueue", "0.19"),
        (old, {"Kueue"}, "older than 0.19", "0.19"),
        (kind_missing, {"Kueue"}, "does not serve Kueue's admissionchecks, clusterqueues", "0.19"),
        (right_missing, {"Kueue's rights"}, "The right to update workloads/status in namespace jhub", "rights.kueue"),
        (no_local_queue, {"queue of-ml"}, "There is no LocalQueue of-ml in namespace jhub", "Create it"),
        (
            no_cluster_queue,
            {"queue lq", "queue of-ml"},
            "There is no ClusterQueue cq, which the LocalQueue",
            "Create it",
        ),
        (leads_nowhere, {"queue of-ml"}, "The LocalQueue of-ml names no ClusterQueue", "Create it again"),
        (inactive, {"queue lq", "queue of-ml"}, "is not active: it references missing", "describe clusterqueue"),
        (elsewhere, {"queue lq", "queue of-ml"}, "MultiKueue", "Name another"),
        (moves, {"queue lq", "queue of-ml"}, "ConcurrentAdmission", "Name another"),
        (on_hold, {"queue lq", "queue of-ml"}, "stopPolicy is Hold", "stopPolicy: None"),
        (no_class, {"priority class"}, "There is no WorkloadPriorityClass high", "priority_class"),
        (no_places, {"places"}, "visibility API does not answer (404)", "APIService"),
        (gated, {"pods"}, "manages the pods of namespace jhub itself", "managedJobsNamespaceSelector"),
    ],
)
async def test_a_broken_kueue_is_found_with_its_remedy(broken, checks, words, remedy):
    cluster = Cluster()
    broken(cluster)
    found = [one for one in await judge_kueue(cluster, "jhub", QUEUES) if one.state is not State.GOOD]
    assert {one.check for one in found} == checks
    assert {one.state for one in found} == {State.BAD}
    assert all(words in one.words and remedy in one.remedy for one in found), found


async def test_an_unanswerable_question_is_no_fault():
    cluster = Cluster()
    for path in (API, PODS):
        del cluster.answers[path]
    found = {one.check: one for one in await judge_kueue(cluster, "jhub", QUEUES) if one.state is not State.GOOD}
    assert {name: one.state for name, one in found.items()} == {"Kueue": State.UNKNOWN, "pods": State.UNKNOWN}
    assert "--as" in found["pods"].remedy


async def test_an_unreadable_part_is_not_reported_as_missing():
    cluster = Cluster()
    cluster.missing = {("get", "localqueues"), ("get", "workloadpriorityclasses")}
    cluster.statuses = dict.fromkeys((f"{API}/namespaces/jhub/localqueues", f"{API}/workloadpriorityclasses"), 403)
    found = {one.check: one for one in await judge_kueue(cluster, "jhub", QUEUES) if one.state is not State.GOOD}
    unseen = ("queue lq", "queue of-ml", "priority class")
    states = {"Kueue's rights": State.BAD, **dict.fromkeys(unseen, State.UNKNOWN)}
    assert {name: one.state for name, one in found.items()} == states
    assert all(
        "did not say whether" in found[one].words
        and "(403)" in found[one].words
        and "Kueue's rights" in found[one].remedy
        for one in unseen
    )


async def test_an_api_server_that_does_not_answer_does_not_say_that_there_is_no_kueue():
    cluster = Cluster()
    cluster.statuses = {"/apis/kueue.x-k8s.io": 503}
    (finding,) = await judge_kueue(cluster, "jhub", QUEUES)
    assert (finding.state, "(503)" in finding.words) == (State.UNKNOWN, True)


def test_the_rights_that_are_asked_for_are_exactly_those_of_the_manifest():
    written = rights_of("kubernetes-kueue-rbac.yaml")
    assert asked_for(KUEUE_RIGHTS) == written
    assert len(KUEUE_RIGHTS) == len(written)
