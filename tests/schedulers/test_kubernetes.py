"""The adapter of plain kube-scheduler: quotas and limits of the namespace."""

from dataclasses import replace

import pytest
from cluster_objects import A100, MIG_MIXED, a_node, a_pod, a_workspace
from kube_api import KubeApi
from lease_builders import GIB, NOW, a_lease, a_request, slots

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.patches import pod_patch
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.fleet import Autoscale, GpuKind
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.snapshot import Snapshot, claim_of
from gpuspawner.schedulers.kubernetes import KubernetesScheduler

HUB = "h" * 32
KINDS = {
    kind.name: kind
    for kind in (
        GpuKind("a100", "A100", 80 * GIB, match="NVIDIA-A100-*"),
        GpuKind("t4", "T4", 16 * GIB, match="Tesla-T4"),
        GpuKind("slice", "Slice", 10 * GIB, resource="nvidia.com/mig-1g.10gb"),
    )
}


def a_quota(hard, used=0, name="gpus", resource="nvidia.com/gpu", **spec):
    key = f"requests.{resource}"
    status = {"hard": {"pods": "50", key: str(hard)}, "used": {"pods": "3", key: str(used)}}
    return {"metadata": {"name": name, "namespace": "jhub", "uid": f"uid-{name}"},
            "spec": {"hard": {key: str(hard)}, **spec}, "status": status}  # fmt: skip


def a_limit(most, kind="Container", least=None):
    spec = {"limits": [{"type": kind, "max": most, "min": least or {}}]}
    return {"metadata": {"name": "each", "namespace": "jhub", "uid": "uid-each"}, "spec": spec}


def a_quota_of(**hard):
    """Return a quota of CPU, memory or pods that is not in use."""
    status = {"hard": hard, "used": dict.fromkeys(hard, "0")}
    return {
        "metadata": {"name": "team", "namespace": "jhub", "uid": "uid-team"},
        "spec": {"hard": hard},
        "status": status,
    }


@pytest.fixture
async def a_scheduler(tmp_path):
    api = KubeApi()
    await api.start()
    api.put(a_node("big", gpus={"nvidia.com/gpu": 4}))
    api.put(a_node("small", gpus={"nvidia.com/gpu": 2}))
    api.put(a_node("old", {"nvidia.com/gpu.product": "Tesla-T4"}, gpus={"nvidia.com/gpu": 2}))
    api.put(a_node("cut", MIG_MIXED, gpus={"nvidia.com/mig-1g.10gb": 7}))
    backend = KubernetesBackend(KINDS.values(), HUB, ClusterSettings("jhub", api.kubeconfig(tmp_path)))

    async def make(*items):
        for item in items:
            api.put(item)
        scheduler = KubernetesScheduler(backend, KINDS)
        await scheduler.observe(NOW)
        await backend._view._quotas.answered.wait()
        await backend._view._limits.answered.wait()
        return scheduler

    yield make
    await backend.close()
    await api.stop()


def seen_by(scheduler, leases=(), others=()):
    return Snapshot(NOW, scheduler.kinds, tuple(leases), scheduler.fleet, tuple(others), scheduler.room)


def offers(scheduler, leases=(), others=()):
    return {o.kind: (o.free, o.total, o.largest) for o in scheduler.stock(seen_by(scheduler, leases, others))}


async def place(scheduler, lease, leases):
    return (await scheduler.offers(seen_by(scheduler, leases), claim_of(lease))).place


async def shortage(scheduler, lease, leases):
    held = (await scheduler.sync(seen_by(scheduler, leases))).wait_reasons().get(lease.id)
    return held.words if held else ""


def waits(name, gpu="a100", count=1):
    return a_lease(name, asked_at=NOW + len(name), request=a_request(gpu=gpu, count=count))


async def grants(scheduler, *line):
    answer = await scheduler.sync(seen_by(scheduler, line))
    return {grant.claim.id: [slot.gpu for slot in grant.slots] for grant in answer.grants()}


@pytest.mark.parametrize(
    ("quotas", "a100", "t4"),
    [
        pytest.param([], (6, 6, 4), (2, 2, 2), id="none"),
        pytest.param([a_quota(3)], (3, 6, 3), (2, 2, 2), id="one that leaves three"),
        pytest.param([a_quota(3, used=2)], (1, 6, 3), (1, 2, 2), id="others in the namespace use it, and may end"),
        pytest.param([a_quota(3), a_quota(1, name="less")], (1, 6, 1), (1, 2, 1), id="the tightest"),
        pytest.param([a_quota(1, used=2)], (0, 6, 1), (0, 2, 1), id="over it already"),
        pytest.param([a_quota(3, scopes=["NotTerminating"])], (3, 6, 3), (2, 2, 2), id="of pods like ours"),
        pytest.param([a_limit({"nvidia.com/gpu": "2"})], (6, 6, 2), (2, 2, 2), id="a limit of each workspace"),
        pytest.param([a_quota(1, scopes=["BestEffort"])], (6, 6, 4), (2, 2, 2), id="of some pods only"),
        pytest.param([a_quota(1, resource="nvidia.com/mig-1g.10gb")], (6, 6, 4), (2, 2, 2), id="of another resource"),
    ],
)  # fmt: skip
async def test_offers_are_limited_by_the_rest_of_the_namespace(a_scheduler, quotas, a100, t4):
    now = offers(await a_scheduler(*quotas))
    assert (now["a100"], now["t4"]) == (a100, t4)


async def test_resources_that_the_service_may_not_see_are_reported(a_scheduler):
    scheduler = await a_scheduler()
    assert scheduler.unseen == ()
    view = scheduler._cluster._view
    view._all_pods.limit = "Pods outside namespace jhub are not seen."
    assert scheduler.unseen == ("Pods outside namespace jhub are not seen.",)


async def test_a_quota_of_slices_bounds_slices(a_scheduler):
    now = offers(await a_scheduler(a_quota(2, resource="nvidia.com/mig-1g.10gb")))
    assert (now["slice"], now["a100"]) == ((2, 7, 2), (6, 6, 4))


async def test_our_own_pods_count_as_their_leases_do_and_not_twice(a_scheduler):
    pods = [
        a_workspace("one", gpus={"nvidia.com/gpu": 2}, node="big"),
        a_pod(gpus={"nvidia.com/gpu": 1}, namespace="jhub", node="small"),
    ]
    scheduler = await a_scheduler(a_quota(4, used=3), *pods)
    held = a_lease("a" * 32, Phase.RUNNING, held=slots("big/nvidia.com/gpu/0", "big/nvidia.com/gpu/1"))
    assert offers(scheduler, [held])["a100"] == (1, 6, 4), "3 for us, 2 of them held"
    reserved = a_lease("b" * 32, Phase.RESERVED, held=slots("big/nvidia.com/gpu/2"))
    assert offers(scheduler, [held, reserved])["a100"][0] == 0, "a lease without its pod yet has its place in the quota"


async def test_a_grant_uses_the_node_with_the_most_free_gpus(a_scheduler):
    scheduler = await a_scheduler(a_quota(4))
    assert await grants(scheduler, waits("a", count=4)) == {
        "a": [f"big/nvidia.com/gpu/{number}" for number in range(4)]
    }


async def test_kinds_that_share_a_resource_share_its_quota(a_scheduler):
    scheduler = await a_scheduler(a_quota(3))
    line = [waits("a", count=2), waits("bb", "t4", 2), waits("ccc"), waits("dddd", "t4", 1), waits("eeeee", "slice")]
    granted = await grants(scheduler, *line)
    assert set(granted) == {"a", "ccc", "eeeee"}, "no claim of a pool overtakes one that waits for its quota"


async def test_a_place_is_now_exactly_when_the_quota_leaves_room(a_scheduler):
    scheduler = await a_scheduler(a_quota(1))
    first, second = waits("a"), waits("bb")
    assert (await place(scheduler, first, [first, second])).unchanged_seconds == 0
    assert (await place(scheduler, second, [first, second])).unchanged_seconds == first.request.lifetime_seconds


@pytest.mark.parametrize(
    "change", [pytest.param({"cordoned": True}, id="cordoned"), pytest.param({"ready": False}, id="not ready")]
)
async def test_nodes_that_come_back_are_waited_for(a_scheduler, change):
    nodes = [a_node("big", gpus={"nvidia.com/gpu": 4}, **change), a_node("small", gpus={"nvidia.com/gpu": 2}, **change)]
    scheduler = await a_scheduler(*nodes)
    assert offers(scheduler)["a100"] == (0, 6, 4), "no GPU is free, but a request for four is not refused"
    assert next(offer.away for offer in scheduler.stock(seen_by(scheduler, [])) if offer.kind == "a100") == 6
    lease = waits("a", count=4)
    assert await grants(scheduler, lease) == {}
    assert (await place(scheduler, lease, [lease])).unchanged_seconds is None


FULL = [
    pytest.param({"pods": "1"}, "0 workspaces of 1 workspace, and this needs 1 workspace", id="pods"),
    pytest.param({"limits.memory": "1536Mi"}, "512 MiB memory of 1.5 GiB memory, and", id="memory"),
    pytest.param({"requests.cpu": "3500m"}, "1.5 CPU of 3.5 CPU, and this needs 2 CPU", id="cpu"),
    pytest.param({"requests.nvidia.com/gpu": "1"}, "0 nvidia.com/gpu of 1 nvidia.com/gpu, and this needs 1", id="GPUs"),
]  # fmt: skip


@pytest.mark.parametrize(("hard", "words"), FULL)
async def test_promise_6_a_quota_that_is_full_now_is_a_wait_that_names_it(a_scheduler, hard, words):
    scheduler = await a_scheduler(a_quota_of(**hard))
    first, second, third = waits("a"), waits("bb"), waits("ccc")
    assert set(await grants(scheduler, first, second, third)) == {"a"}
    held = a_lease("a", Phase.RESERVED, held=slots("big/nvidia.com/gpu/0"), request=first.request)
    assert f"quota team leaves {words}" in await shortage(scheduler, second, [held, second])
    assert (await place(scheduler, second, [held, second])).likely_seconds != 0, "and it is not said to start now"
    assert await shortage(scheduler, first, [first]) == ""


async def test_gpus_that_are_short_are_not_blamed_on_a_quota(a_scheduler):
    scheduler = await a_scheduler(a_quota_of(**{"requests.nvidia.com/gpu": "6"}))
    held = [a_lease("a", Phase.RUNNING, held=slots(*(f"big/nvidia.com/gpu/{n}" for n in range(4))))]
    held += [a_lease("b", Phase.RUNNING, held=slots(*(f"small/nvidia.com/gpu/{n}" for n in range(2))))]
    lease = waits("ccc")
    assert await shortage(scheduler, lease, [*held, lease]) == ""


async def test_a_full_quota_is_told_with_what_is_free(a_scheduler):
    scheduler = await a_scheduler(a_quota_of(pods="1"))
    held = a_lease("a", Phase.RESERVED, request=a_request(gpu=None))
    offer = scheduler.stock(seen_by(scheduler, [held]))[0]
    assert (offer.free, offer.total, offer.note) == (0, 6, "the cluster's quota team is full: 1 workspace")


@pytest.mark.parametrize(
    ("rules", "refused"),
    [
        pytest.param([a_limit({"memory": "1Gi"})], ("memory", "2 GiB memory", "at most 1 GiB memory"), id="limit"),
        pytest.param([a_limit({"cpu": "500m"}, "Pod")], ("cpu", "2 CPU", "at most 0.5 CPU in one"), id="of the pod"),
        pytest.param([a_limit({}, least={"cpu": 4})], ("cpu", "2 CPU", "at least 4 CPU in one"), id="too little"),
        pytest.param([a_limit({"nvidia.com/gpu": "1"})], ("count", "2 nvidia.com/gpu", "at most 1 nv"), id="GPUs"),
        pytest.param([a_quota_of(memory="1Gi")], ("memory", "2 GiB memory", "1 GiB memory for all"), id="quota"),
        pytest.param([a_quota_of(pods="0")], ("pods", "1 workspace", "0 workspaces for all"), id="no pods at all"),
    ],
)  # fmt: skip
async def test_promise_8_an_impossible_request_is_refused_with_both_quantities_and_blocks_no_other(
    a_scheduler, rules, refused
):
    scheduler = await a_scheduler(*rules)
    large = a_request(count=2, memory_bytes=2 * GIB)
    with pytest.raises(RequestRefused) as found:
        scheduler.check(large)
    error, (field, asked, limit) = found.value, refused
    assert (error.field, error.asked, error.status) == (field, asked, 403)
    assert error.limit.startswith(limit)
    assert "sk " in error.remedy
    small = a_request(cpu_cores=4.0 if "least" in limit else 0.5, gpu="slice")
    line = [a_lease("a", asked_at=NOW, request=large), a_lease("b", asked_at=NOW + 1, request=small)]
    if field != "pods":
        scheduler.check(small)
        assert set(await grants(scheduler, *line)) == {"b"}


TOO_LARGE = [
    ({"cpu_cores": 200.0}, ("cpu", "200 CPU", "at most 128 CPU on any node with such GPUs")),
    (
        {"memory_bytes": 2048 * GIB},
        ("memory", "2 TiB memory", "at most 1 TiB memory on any node with such GPUs"),
    ),
]


@pytest.mark.parametrize(("size", "refused"), TOO_LARGE)
async def test_promise_8_what_no_node_with_such_gpus_can_hold_is_refused(a_scheduler, size, refused):
    scheduler = await a_scheduler(a_node("tells-nothing", cordoned=True))
    with pytest.raises(RequestRefused) as found:
        scheduler.check(a_request(**size))
    assert (found.value.field, found.value.asked, found.value.limit) == refused
    scheduler.check(a_request(gpu=None, **size))  # its node may be any, and one to come
    started = {"a100": replace(KINDS["a100"], autoscale=Autoscale(4, 2, 240.0, ()))}
    KubernetesScheduler(scheduler._cluster, {**KINDS, **started}).check(a_request(**size))


POOL = {
    **KINDS,
    "t4": replace(KINDS["t4"], autoscale=Autoscale(4, 2, 240.0, (("nvidia.com/gpu.product", "Tesla-T4"),))),
}
OLD = ("old/nvidia.com/gpu/0", "old/nvidia.com/gpu/1")


@pytest.fixture
async def a_pool(a_scheduler):
    """Return a pool with two T4 on a running node, and two on a node that may be started."""
    scheduler = await a_scheduler()
    return KubernetesScheduler(scheduler._cluster, POOL)


async def test_a_pool_with_nothing_free_offers_a_node_that_starts(a_pool):
    await a_pool.observe(NOW)
    assert a_pool.stock(seen_by(a_pool, []))[1].note == "", "two are free"
    held = a_lease("a", Phase.RUNNING, held=slots(*OLD))
    offer = a_pool.stock(seen_by(a_pool, [held]))[1]
    assert (offer.free, offer.total, offer.largest, offer.note) == (0, 2, 2, "a node starts in about 4 min")
    lease = waits("bb", "t4", 2)
    assert (await a_pool.offers(seen_by(a_pool, [held, lease]), claim_of(lease))).node_seconds == 240.0
    (grant,) = (await a_pool.sync(seen_by(a_pool, [held, lease]))).grants()
    assert [slot.gpu for slot in grant.slots] == ["~t4-0/nvidia.com/gpu/0", "~t4-0/nvidia.com/gpu/1"]
    coming = a_lease("bb", Phase.STARTING, held=grant.slots, request=lease.request)
    assert a_pool.patch(coming)["node_seconds"] == 240.0
    more = waits("ccc", "t4")
    assert await grants(a_pool, held, coming, more) == {}
    assert a_pool.stock(seen_by(a_pool, [held, coming]))[1].note == ""


async def test_the_first_free_gpu_goes_to_the_pod_that_waits_for_a_node(a_pool):
    await a_pool.observe(NOW)
    pending = slots("~t4-0/nvidia.com/gpu/0", "~t4-0/nvidia.com/gpu/1")
    coming = a_lease("bb", Phase.STARTING, held=pending, request=a_request(gpu="t4", count=2))
    more = waits("ccc", "t4")
    assert await grants(a_pool, coming, more) == {}, "the two that are there are its pod's by now"
    running = a_lease("bb", Phase.RUNNING, held=slots(*OLD), request=coming.request)
    (grant,) = (await a_pool.sync(seen_by(a_pool, [running, more]))).grants()
    assert grant.slots[0].gpu.startswith("~t4-"), "and the node may still be started for the next"


async def test_a_pod_that_waits_for_a_node_asks_for_its_labels(a_pool):
    await a_pool.observe(NOW)
    off_spot = {"key": "karpenter.sh/capacity-type", "operator": "NotIn", "values": ["spot"]}
    for kinds, terms in (
        (POOL, [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["Tesla-T4"]}, off_spot]),
        ({**POOL, "t4": replace(POOL["t4"], autoscale=Autoscale(4, 2, 1.0))}, [off_spot]),
    ):
        pod = pod_patch(slots("~t4-0/nvidia.com/gpu/0"), {}, (), kinds, (), must_be_there=True)
        assert pod["container"]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        node = pod["spec"]["affinity"]["nodeAffinity"]
        required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
        assert (required and required["nodeSelectorTerms"][0]["matchExpressions"]) == terms
        assert "preferredDuringSchedulingIgnoredDuringExecution" not in node, "there is no such node to prefer"


async def test_a_pod_that_requires_one_domain_stays_on_the_node_that_has_it(a_scheduler):
    scheduler = await a_scheduler(a_node("linked", {**A100, "nvidia.com/gpu.clique": "b7a5.0"}, {"nvidia.com/gpu": 2}))
    request = a_request(count=2, topology="require")
    (grant,) = (await scheduler.sync(seen_by(scheduler, [a_lease("a", request=request)]))).grants()
    held = slots("linked/nvidia.com/gpu/0", "linked/nvidia.com/gpu/1")
    assert grant.slots == held
    ways = []
    for topology in ("require", "prefer"):
        lease = a_lease("a", Phase.STARTING, held=held, request=replace(request, topology=topology))
        ways.append(list(scheduler.patch(lease)["pod"]["spec"]["affinity"]["nodeAffinity"]))
    required, preferred = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))
    assert ways == [[required], [preferred, required]], "a preferred topology leaves the choice to the cluster"
