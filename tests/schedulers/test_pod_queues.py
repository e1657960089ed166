"""Volcano and KAI own the queue: a pod names its queue and waits, and users read why by its PodGroup."""

from dataclasses import replace

import pod_group_statuses as statuses
import pytest
from cluster_objects import a_node, a_workspace
from harness.waiting import until
from kube_api import KubeApi
from lease_builders import GIB, NOW, a_lease, a_request, slots

from gpuspawner.backends.kubernetes import watches
from gpuspawner.backends.kubernetes.api import ApiRefused
from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog import PodQueues
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.snapshot import Snapshot, claim_of
from gpuspawner.schedulers.base import UnusableScheduler
from gpuspawner.schedulers.kubernetes import KubernetesScheduler
from gpuspawner.schedulers.pod_queues import (
    NO_QUEUE,
    NO_ROOM,
    NOT_TAKEN,
    SYSTEMS,
    PodGroups,
    PodQueueScheduler,
    explain_wait,
)

HUB = "h" * 32
KINDS = {
    kind.name: kind
    for kind in (
        GpuKind("a100", "A100", 80 * GIB, match="NVIDIA-A100-*"),
        GpuKind("t4", "T4", 16 * GIB, match="Tesla-T4"),
    )
}
QUEUES = {"queue": "all", "teams": {"ml": "ml-gpus"}, "users": {"ada": "of-ada"}}
PRIORITIES = {"priority_class": "usual", "priority_classes": {"ml": "high"}}
WHERE = "/apis/scheduling.volcano.sh/v1beta1/namespaces/jhub/podgroups"
SAID = {
    "volcano, no room": ("volcano", statuses.VOLCANO_NO_ROOM, NO_ROOM),
    "volcano, its queue or the cluster is full": ("volcano", statuses.VOLCANO_NOT_TAKEN, NOT_TAKEN),
    "volcano, not looked at": ("volcano", {"phase": "Pending"}, ""),
    "kai, no room": ("kai", statuses.KAI_NO_ROOM, NO_ROOM),
    "kai, over the queue's limit": ("kai", statuses.KAI_OVER_LIMIT, "It would exceed the limit of its queue."),
    "kai, over the queue's quota": (
        "kai",
        statuses.KAI_OVER_QUOTA,
        "It would exceed the quota of its queue, and it may not be preempted.",
    ),
    "kai, no such queue": ("kai", statuses.KAI_NO_QUEUE, NO_QUEUE),
    "kai, an unknown message": ("kai", statuses.kai("New", "Some  new\nreason"), "Some new reason."),
}


class World:
    """A simulated API server with four A100 on a node, and the adapter of Volcano or KAI."""

    def __init__(self, api, folder, system):
        self.api, self.system = api, system
        settings = ClusterSettings("jhub", api.kubeconfig(folder), stale_seconds=2.0)
        self.backend = KubernetesBackend(KINDS.values(), HUB, settings)
        self.groups = PodGroups(self.backend.api, settings, SYSTEMS[system])
        mine = KubernetesScheduler(self.backend, KINDS)
        self.scheduler = PodQueueScheduler(self.backend, self.groups, mine, PodQueues(system, **QUEUES, **PRIORITIES))

    def seen(self, *line, **conditions):
        return Snapshot(NOW, KINDS, line, self.scheduler.fleet, room=self.scheduler.room, **conditions)

    async def grants(self, *line, **conditions):
        answer = await self.scheduler.sync(self.seen(*line, **conditions))
        return {grant.claim.id: grant for grant in answer.grants()}

    async def close(self):
        await self.scheduler.close()
        await self.backend.close()


@pytest.fixture
async def api():
    api = KubeApi()
    await api.start()
    api.put(a_node("whole", gpus={"nvidia.com/gpu": 4}))
    yield api
    await api.stop()


@pytest.fixture(params=SYSTEMS)
async def world(api, request, tmp_path):
    world = World(api, tmp_path, request.param)
    await world.scheduler.observe(NOW)
    yield world
    await world.close()


def asks(name, at=0, count=1, gpu="a100", **changes):
    return a_lease(name, asked_at=NOW + at, request=a_request(gpu=gpu, count=count, **changes))


@pytest.mark.parametrize("name", SAID)
def test_a_podgroup_status_is_a_plain_sentence(name):
    system, status, sentence = SAID[name]
    assert explain_wait(SYSTEMS[system], status, "") == sentence


@pytest.mark.parametrize("system", SYSTEMS)
def test_where_a_podgroup_says_nothing_its_pod_does(system):
    assert explain_wait(SYSTEMS[system], {}, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.") == NO_ROOM


async def test_without_a_free_gpu_future_gpus_are_granted_so_that_the_pod_waits(world):
    first, second, third = asks("first", count=3), asks("second", 1, count=2), asks("third", 2, count=2)
    grants = await world.grants(first, second, third)
    assert [slot.gpu for slot in grants["first"].slots] == [f"whole/nvidia.com/gpu/{n}" for n in range(3)]
    waiting = [grants[name].slots for name in ("second", "third")]
    assert [len(slots) for slots in waiting] == [2, 2]
    assert all(slot.is_coming for slots in waiting for slot in slots)
    assert len({slot.gpu for slots in waiting for slot in slots}) == 4, "no two hold the same"
    place = (await world.scheduler.sync(world.seen(second))).places()["second"]
    assert (place.number, place.unchanged_seconds) == (None, None), "unknown"
    title = world.scheduler.capabilities.title
    assert place.says == f"{title} decides when it starts, in {title}'s queue all."


async def test_a_pod_that_waits_is_of_its_kind_and_says_queue_and_priority_of_its_team(world):
    lease = asks("a", count=5, team="ml")
    (grant,) = (await world.grants(lease)).values()
    patch = world.scheduler.patch(transitions.grant(lease, grant.slots, NOW))
    title = world.scheduler.capabilities.title
    assert patch["waits_in"] == f"in {title}'s queue ml-gpus"
    beside = patch["pod"]["beside"]
    name, kind, scheduler = {
        "volcano": ("scheduling.volcano.sh/queue-name", "annotations", "volcano"),
        "kai": ("kai.scheduler/queue", "labels", "kai-scheduler"),
    }[world.system]
    assert beside == {"schedulerName": scheduler, kind: {name: "ml-gpus"}, "priorityClassName": "high"}
    (term,) = patch["pod"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-A100-SXM4-80GB"]} in term[
        "matchExpressions"
    ]
    assert patch["pod"]["container"]["resources"]["limits"] == {"nvidia.com/gpu": "5"}


async def test_the_queue_is_the_teams_then_the_users_then_that_of_all(world):
    found = []
    for changes in ({"user": "ada", "team": "ml"}, {"user": "ada"}, {"user": "bob"}):
        lease = asks("a", **changes)
        (grant,) = (await world.grants(lease)).values()
        patch = world.scheduler.patch(transitions.grant(lease, grant.slots, NOW))
        beside = patch["pod"]["beside"]
        (queue,) = (beside.get("annotations") or beside.get("labels")).values()
        found.append((queue, beside["priorityClassName"]))
    assert found == [("ml-gpus", "high"), ("of-ada", "usual"), ("all", "usual")]


async def test_a_request_without_a_gpu_waits_in_no_queue_and_an_absent_kind_waits_with_us(world):
    without = a_lease("n", request=a_request(gpu=None))
    grants = await world.grants(without, asks("t", gpu="t4"))
    assert set(grants) == {"n"}
    patch = world.scheduler.patch(transitions.grant(without, (), NOW))
    assert "waits_in" not in patch
    assert not patch["pod"]


async def test_nothing_is_granted_to_who_backs_off_is_away_or_asks_for_what_is_paused(world):
    lease = asks("a")
    assert not await world.grants(replace(lease, not_before=NOW + 1))
    assert not await world.grants(replace(lease, phase=Phase.PARKED), hub_answers=False)
    assert not await world.grants(lease, paused={"a100": "They are serviced."})


async def test_pods_that_wait_hold_no_start_of_others_back(world):
    (grant,) = (await world.grants(asks("a", count=5))).values()
    waits = replace(transitions.grant(asks("a", count=5), grant.slots, NOW), phase=Phase.STARTING)
    without = a_lease("n", request=a_request(gpu=None))
    assert set(await world.grants(waits, without, most_starts=1)) == {"n"}


async def test_before_start_it_is_said_who_decides_and_for_how_long_a_pod_waits(world):
    preview = await world.scheduler.offers(world.seen(), claim_of(asks("a", count=2)))
    assert (preview.place.number, preview.place.unchanged_seconds) == (None, None)
    assert preview.says == ("Its pod waits there for at most 30 min. Then a new pod is made, at the end of the queue.")


def group(world, pod, status):
    uid = pod["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": uid, "controller": True}
    metadata = {"name": f"podgroup-{uid}", "namespace": "jhub", "uid": f"pg-{uid}", "ownerReferences": [owner]}
    version = SYSTEMS[world.system].group_version
    return {"apiVersion": version, "kind": "PodGroup", "metadata": metadata, "status": status}


async def test_why_a_start_waits_is_told_until_its_pod_has_a_node(world):
    lease = replace(asks("a", count=5), phase=Phase.STARTING, attempt=1, slots=slots("~a100-0/nvidia.com/gpu/0"))
    pod = a_workspace(lease="a", node="", hub=HUB)
    world.api.put(pod)
    status = {"volcano": statuses.VOLCANO_NO_ROOM, "kai": statuses.KAI_NO_ROOM}[world.system]
    world.api.put(group(world, pod, status))
    told = f"it waits in {world.scheduler.capabilities.title}'s queue all. {NO_ROOM}"
    await until(lambda: world.scheduler.start_words(lease) == told)
    world.api.put({**pod, "spec": {**pod["spec"], "nodeName": "whole"}})
    await until(lambda: world.scheduler.start_words(lease) == "")


async def test_without_the_right_to_see_podgroups_the_pod_tells_and_the_administrator_reads_it(
    api, tmp_path, monkeypatch
):
    monkeypatch.setattr(watches, "REFUSED_SECONDS", 0.1)
    api.refused.add(("get", WHERE))
    world = World(api, tmp_path, "volcano")
    await world.scheduler.observe(NOW)
    await until(lambda: any("hub_config/kubernetes-podgroups-rbac.yaml" in words for words in world.scheduler.unseen))
    await world.close()


async def test_a_cluster_without_it_is_refused_with_the_remedy(world, monkeypatch):
    async def get(_path, _query=None):
        raise ApiRefused(404, "the server could not find the requested resource")

    await world.scheduler.connect()
    monkeypatch.setattr(world.backend.api, "get", get)
    with pytest.raises(
        UnusableScheduler, match=r"does not serve .* Install .*, or remove it from the catalog's scheduler\."
    ):
        await world.scheduler.connect()
