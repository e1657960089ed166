"""The adapter of plain kube-scheduler with several clusters: each namespace's quotas bind its own workspaces."""

from dataclasses import replace

import pytest
from lease_builders import GIB, NOW, a_lease, a_request, slots

from gpuspawner.backends.clusters import ClustersBackend
from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.fleet import GpuKind, Group
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.snapshot import Snapshot, claim_of
from gpuspawner.core.quotas.namespaces import NamespaceBounds, NamespaceLimit, NamespaceQuota
from gpuspawner.schedulers.kubernetes import KubernetesScheduler

GPU = "nvidia.com/gpu"
HERE, THERE = "a100", "a100@east"
KINDS = {HERE: GpuKind(HERE, "A100 in west", 80 * GIB), THERE: GpuKind(THERE, "A100 in east", 80 * GIB, cluster="east")}


class FakeCluster(FakeBackend):
    """One node in memory, whose GPUs are only counted."""

    limits = ()

    def __init__(self, pool, room):
        group = Group("node", GPU)
        gpus = (replace(gpu, id=group.gpu(gpu.index), group=group, node="node") for gpu in fake_gpus(pool, 4))
        super().__init__(tuple(gpus))
        self._room = room

    def room(self):
        return self._room


@pytest.fixture
def a_scheduler():
    async def make(*quotas, limits=(), there=None):
        clusters = {
            "west": FakeCluster(HERE, NamespaceBounds(limits, quotas)),
            "east": FakeCluster(THERE, there or NamespaceBounds()),
        }
        backend = ClustersBackend(clusters, "west", KINDS.values())
        for _ in range(2):
            await backend.workspaces()  # nothing is given before what runs was seen
        scheduler = KubernetesScheduler(backend, KINDS)
        await scheduler.observe(NOW)
        return scheduler

    return make


def seen_by(scheduler, *leases):
    return Snapshot(NOW, scheduler.kinds, leases, scheduler.fleet, room=scheduler.room)


def waits(name, gpu, count=1):
    return a_lease(name, asked_at=NOW + len(name), request=a_request(gpu=gpu, count=count))


def runs(name, gpu, *held):
    return a_lease(name, Phase.RUNNING, request=a_request(gpu=gpu, count=len(held)), held=slots(*held))


FULL = NamespaceQuota("gpus", GPU, 1, 1)
PODS = NamespaceQuota("team", "pods", 1, 1)


@pytest.mark.parametrize("full", [FULL, PODS])
async def test_a_quota_of_the_hubs_namespace_blocks_no_workspace_in_another_cluster(a_scheduler, full):
    scheduler = await a_scheduler(full)
    here, there = waits("here", HERE), waits("there", THERE, 4)
    seen = seen_by(scheduler, here, there)
    answer = await scheduler.sync(seen)
    assert [(one.claim.id, len(one.slots)) for one in answer.grants()] == [("there", 4)]
    assert list(answer.wait_reasons()) == ["here"]
    assert {one.kind: (one.free, one.largest) for one in scheduler.stock(seen)}[THERE] == (4, 4)
    preview = await scheduler.offers(seen_by(scheduler, here), claim_of(there))
    assert (preview.place.likely_seconds, preview.wait_reason) == (0.0, None)
    assert answer.places()["there"].likely_seconds == 0


async def test_workspaces_in_another_cluster_use_no_quota_of_the_hubs_own_namespace(a_scheduler):
    scheduler = await a_scheduler(NamespaceQuota("gpus", GPU, 2), NamespaceQuota("team", "pods", 2))
    there = runs("there", THERE, *(f"east:node/{GPU}/{n}" for n in range(4)))
    here = waits("here", HERE, 2)
    answer = await scheduler.sync(seen_by(scheduler, there, here))
    assert [one.claim.id for one in answer.grants()] == ["here"]


async def test_limits_of_the_hubs_own_namespace_refuse_nothing_in_another_cluster(a_scheduler):
    scheduler = await a_scheduler(NamespaceQuota("gpus", GPU, 2), limits=(NamespaceLimit("each", GPU, most=1),))
    with pytest.raises(RequestRefused):
        scheduler.check(a_request(gpu=HERE, count=2))
    scheduler.check(a_request(gpu=THERE, count=4))


async def test_a_least_number_of_gpus_refuses_workspaces_without_one_and_no_others(a_scheduler):
    scheduler = await a_scheduler(limits=(NamespaceLimit("each", GPU, least=1),))
    with pytest.raises(RequestRefused, match=f"at least 1 {GPU} in one workspace, by the cluster's limit each"):
        scheduler.check(a_request(gpu=None, count=0))
    scheduler.check(a_request(gpu=HERE, count=1))
    scheduler.check(a_request(gpu=THERE, count=1))


@pytest.mark.parametrize("full", [FULL, PODS])
async def test_a_quota_of_another_cluster_s_namespace_holds_back_who_would_be_there_alone(a_scheduler, full):
    scheduler = await a_scheduler(there=NamespaceBounds(quotas=(full,)))
    here, there = waits("here", HERE, 4), waits("there", THERE)
    seen = seen_by(scheduler, here, there)
    answer = await scheduler.sync(seen)
    assert [(one.claim.id, len(one.slots)) for one in answer.grants()] == [("here", 4)]
    assert answer.wait_reasons()["there"].words == (
        f"The cluster's quota {full.name} leaves {'0 workspaces' if full is PODS else f'0 {GPU}'} of "
        f"{'1 workspace' if full is PODS else f'1 {GPU}'}, and this needs "
        f"{'1 workspace' if full is PODS else f'1 {GPU}'}."
    )
    offers = {one.kind: (one.free, bool(one.note)) for one in scheduler.stock(seen)}
    assert offers == {HERE: (4, False), THERE: (0, True)}
    preview = await scheduler.offers(seen_by(scheduler, here), claim_of(there))
    assert preview.wait_reason.rule == f"namespace quota {full.name}"


async def test_workspaces_count_in_the_namespace_of_their_own_cluster(a_scheduler):
    quota = NamespaceQuota("gpus", GPU, 3)
    scheduler = await a_scheduler(quota, there=NamespaceBounds(quotas=(quota,)))
    leases = [runs("runs", THERE, f"east:node/{GPU}/0", f"east:node/{GPU}/1")]
    leases += [waits("a", THERE), waits("ab", THERE), waits("abc", HERE, 3)]
    answer = await scheduler.sync(seen_by(scheduler, *leases))
    assert sorted(one.claim.id for one in answer.grants()) == ["a", "abc"]


async def test_limits_of_another_cluster_s_namespace_refuse_what_is_never_had_there(a_scheduler):
    limits = (NamespaceLimit("each", GPU, most=1),)
    scheduler = await a_scheduler(there=NamespaceBounds(limits))
    scheduler.check(a_request(gpu=HERE, count=2))
    with pytest.raises(RequestRefused):
        scheduler.check(a_request(gpu=THERE, count=2))
    assert {one.kind: one.largest for one in scheduler.stock(seen_by(scheduler))} == {HERE: 4, THERE: 1}
