"""The fleet as ResourceSlices and ResourceClaims tell it (dynamic resource allocation)."""

import subprocess
import sys

import pytest
from cluster_objects import a_node, a_pod, a_workspace
from device_objects import A100, H100, a_claim, a_class, a_gpu, a_partitioned_gpu, a_shared_gpu, a_slice, claiming
from kube_views import HUB, eventually, limits, running

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.dra.models import to_slice
from gpuspawner.backends.kubernetes.dra.selectors import fits
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import DeviceClaim, GpuKind, Group

GIB = 2**30


def product(name):
    return f"device.attributes['gpu.nvidia.com'].productName == '{name}'"


def kind(name, claim, memory=80 * GIB, **more):
    return GpuKind(name, name, memory, resource=claim.counted_as(name), claim=claim, **more)


KINDS = [
    kind("a100", DeviceClaim("gpu.nvidia.com", (product(A100),))),
    kind("h100", DeviceClaim("gpu.nvidia.com", (product(H100),))),
    kind("small", DeviceClaim("mig.nvidia.com", ("device.attributes['gpu.nvidia.com'].profile == '1g.10gb'",))),
    kind("large", DeviceClaim("mig.nvidia.com", ("device.attributes['gpu.nvidia.com'].profile == '3g.40gb'",))),
]
PARTS = [
    kind("ten", DeviceClaim("gpu.nvidia.com", capacity=(("memory", "10Gi"),))),
    kind("forty", DeviceClaim("gpu.nvidia.com", capacity=(("memory", "40Gi"),))),
]


@pytest.fixture
async def watch(api, tmp_path):
    """Return a function that makes a backend of these kinds, and ends it after the test."""
    api.objects.clear()
    made = []

    def make(kinds=KINDS, **settings):
        told = ClusterSettings("jhub", api.kubeconfig(tmp_path), **{"stale_seconds": 2.0, **settings})
        made.append(KubernetesBackend(kinds, HUB, told))
        return made[-1]

    yield make
    for one in made:
        await one.close()


def put(api, *items):
    for item in items:
        api.put(item)


def counts(backend):
    """Look at (free, all, foreign) of each kind."""

    async def look():
        found = {}
        for gpu in (await backend.fleet()).gpus:
            free, all_, foreign = found.get(gpu.pool, (0, 0, 0))
            found[gpu.pool] = free + (gpu.healthy and not gpu.foreign), all_ + 1, foreign + gpu.foreign
        return found

    return look


def held(backend):
    async def look():
        return sorted((gpu.pool, gpu.holder, gpu.note) for gpu in (await backend.fleet()).gpus if gpu.foreign)

    return look


async def test_devices_are_counted_by_the_kind_whose_selectors_they_meet(api, watch):
    devices = [a_gpu(0), a_gpu(1), a_gpu(2, H100)]
    put(api, a_node(gpus={}), a_class(), a_class("mig.nvidia.com"), a_slice(devices))
    backend = watch()
    await eventually(counts(backend), {"a100": (2, 2, 0), "h100": (1, 1, 0)})
    gpus = (await backend.fleet()).gpus
    assert [(gpu.id, gpu.model, gpu.memory_bytes) for gpu in gpus] == [
        ("gpu-1/gpu.nvidia.com/a100/0", A100, 80 * GIB),
        ("gpu-1/gpu.nvidia.com/a100/1", A100, 80 * GIB),
        ("gpu-1/gpu.nvidia.com/h100/0", H100, 80 * GIB),
    ]
    assert gpus[2].group == Group("gpu-1", "gpu.nvidia.com/h100")


@pytest.mark.parametrize("first", ["match", "claim"])
async def test_the_order_of_the_catalog_does_not_decide_whose_claimed_devices_are(api, watch, first):
    by_match = GpuKind("board", "board", 80 * GIB, match="NVIDIA A100*")
    kinds = [by_match, *KINDS] if first == "match" else [*KINDS, by_match]
    put(api, a_node(gpus={}), a_node("gpu-2"), a_class(), a_slice([a_gpu(0), a_gpu(1)]))
    await eventually(counts(watch(kinds)), {"a100": (2, 2, 0), "board": (8, 8, 0)})


async def test_claims_of_others_are_foreign_use_with_the_holders_name(api, watch):
    mine = claiming(a_workspace(hub=HUB), "mine")
    job = claiming(a_pod("nightly-0", namespace="team-a", labels={"ray.io/cluster": "nightly"}), "theirs")
    put(api, a_node(gpus={}), a_class(), a_slice([a_gpu(number) for number in range(4)]), mine, job)
    put(api, a_claim(["gpu-3"], mine, "mine"), a_claim(["gpu-0"], job, "theirs"))
    put(api, a_claim(["gpu-1"], name="kept", namespace="team-b"))
    backend = watch()
    await eventually(counts(backend), {"a100": (2, 4, 2)})
    note = "used by namespace team-a, team-b"
    await eventually(
        held(backend), [("a100", "RayCluster team-a/nightly", note), ("a100", "ResourceClaim team-b/kept", note)]
    )
    given = ((Group("gpu-1", "gpu.nvidia.com/a100"), 1),)
    await eventually(running(backend), [("a", 1, given)])


async def test_a_claim_that_several_pods_share_is_counted_once(api, watch):
    first, second = (claiming(a_pod(name, namespace="team-a"), "theirs") for name in ("first", "second"))
    claim = a_claim(["gpu-0"], first, "theirs")
    claim["status"]["reservedFor"] += a_claim(["gpu-0"], second, "theirs")["status"]["reservedFor"]
    put(api, a_node(gpus={}), a_class(), a_slice([a_gpu(0), a_gpu(1), a_gpu(2)]), first, second, claim)
    backend = watch()
    await eventually(counts(backend), {"a100": (2, 3, 1)})
    await eventually(held(backend), [("a100", "Pod team-a/first", "used by namespace team-a")])
    api.remove(first)
    await eventually(held(backend), [("a100", "Pod team-a/second", "used by namespace team-a")])
    mine = claiming(a_workspace(hub=HUB), "mine")
    shared = a_claim(["gpu-1"], second, "mine")
    shared["status"]["reservedFor"] += a_claim(["gpu-1"], mine, "mine")["status"]["reservedFor"]
    put(api, mine, shared)
    await eventually(running(backend), [("a", 1, ((Group("gpu-1", "gpu.nvidia.com/a100"), 1),))])
    await eventually(counts(backend), {"a100": (2, 3, 1)})  # the workspace's own is its lease's to count


async def test_a_workspace_with_an_unobserved_claim_has_unknown_gpus(api, watch):
    mine = claiming(a_workspace(hub=HUB), "mine")
    put(api, a_node(gpus={}), a_class(), a_slice([a_gpu(0)]), mine)
    backend = watch()
    await eventually(running(backend), [("a", 1, None)])
    put(api, a_claim(["gpu-0"], mine, "mine"))
    await eventually(running(backend), [("a", 1, ((Group("gpu-1", "gpu.nvidia.com/a100"), 1),))])


async def test_the_gpus_of_a_workspace_are_reported_by_uuid(api, watch):
    devices, counters = a_partitioned_gpu(2)
    whole, part = (claiming(a_workspace(name=name, lease=name[0], hub=HUB), name) for name in ("whole", "part"))
    nameless = a_gpu(3)
    del nameless["attributes"]["uuid"]
    put(api, a_node(gpus={}), a_class(), a_class("mig.nvidia.com"), whole, part)
    put(api, a_slice([a_gpu(0), a_gpu(1), nameless, *devices], of=2), a_slice((), counters=counters, of=2, name="c"))
    put(api, a_claim(["gpu-1", "gpu-0"], whole, "whole"), a_claim(["gpu-2-mig-3g40gb-0-4"], part, "part"))
    backend = watch()

    async def uuids():
        await backend.fleet()
        return {one.lease_id: one.uuids for one in await backend.workspaces()}

    await eventually(uuids, {"w": ("GPU-1", "GPU-0"), "p": ("GPU-2",)})
    put(api, a_claim(["gpu-3"], whole, "more"))
    await eventually(uuids, {"w": (), "p": ("GPU-2",)})


async def test_a_claim_that_ends_gives_its_devices_back(api, watch):
    job = claiming(a_pod("job", namespace="team-a"), "theirs")
    claim = a_claim(["gpu-0"], job, "theirs")
    put(api, a_node(gpus={}), a_class(), a_slice([a_gpu(0)]), job, claim)
    backend = watch()
    await eventually(counts(backend), {"a100": (0, 1, 1)})
    api.put({**claim, "status": {}})
    await eventually(counts(backend), {"a100": (1, 1, 0)})


async def test_a_tainted_device_is_unhealthy_until_it_is_not(api, watch):
    taints = [("gpu.nvidia.com/xid", "NoSchedule"), ("gpu.nvidia.com/unmonitored", "None")]
    mine = claiming(a_workspace(hub=HUB), "mine")
    watched = a_gpu(2, taints=taints[1:])
    put(api, a_node(gpus={}), a_class(), a_slice([a_gpu(0), a_gpu(1, taints=taints), watched]), mine)
    put(api, a_claim(["gpu-0"], mine, "mine"))
    backend = watch()
    await eventually(counts(backend), {"a100": (2, 3, 0)})  # the workspace's own is one of these two
    note = "1 of 3 on gpu-1 are tainted gpu.nvidia.com/xid"
    assert [gpu.note for gpu in (await backend.fleet()).gpus if not gpu.healthy] == [note]
    api.put(a_slice([a_gpu(0, taints=[("x", "NoExecute")]), a_gpu(1), watched]))
    await eventually(counts(backend), {"a100": (3, 3, 0)})  # who has one that fails now holds it still
    assert [one.unhealthy for one in await backend.workspaces()] == [("GPU-0",)]


async def test_partitions_are_free_as_far_as_their_board_is(api, watch):
    devices, counters = a_partitioned_gpu()
    job = claiming(a_pod("job", namespace="team-a"), "theirs")
    put(api, a_node(gpus={}), a_class(), a_class("mig.nvidia.com"), job)
    put(api, a_slice(devices, of=2), a_slice((), counters=counters, of=2, name="counters"))
    backend = watch()
    await eventually(counts(backend), {"a100": (1, 1, 0), "small": (7, 7, 0), "large": (2, 2, 0)})
    claim = a_claim(["gpu-0-mig-3g40gb-0-4"], job, "theirs")
    api.put(claim)
    await eventually(counts(backend), {"a100": (0, 1, 1), "small": (3, 7, 4), "large": (1, 2, 1)})
    assert {gpu.holder for gpu in (await backend.fleet()).gpus if gpu.foreign} == {"Pod team-a/job"}
    api.remove(claim)
    await eventually(counts(backend), {"a100": (1, 1, 0), "small": (7, 7, 0), "large": (2, 2, 0)})


async def test_a_pool_is_counted_once_it_is_whole(api, watch):
    put(api, a_node(gpus={}), a_class(), a_slice([a_gpu(0)]))
    backend = watch()
    await eventually(counts(backend), {"a100": (1, 1, 0)})
    put(api, a_slice([a_gpu(0), a_gpu(1)], generation=2, of=2, name="first"))
    await eventually(counts(backend), {})
    put(api, a_slice([a_gpu(2)], generation=2, of=2, name="second"))
    await eventually(counts(backend), {"a100": (3, 3, 0)})


async def test_shares_of_a_device_are_counted_by_their_capacity(api, watch):
    mine = claiming(a_workspace(hub=HUB), "mine")
    put(api, a_node(gpus={}), a_class(), a_slice([a_shared_gpu(0)]), mine)
    backend = watch(PARTS)
    await eventually(counts(backend), {"ten": (8, 8, 0), "forty": (2, 2, 0)})
    put(api, a_claim(["gpu-0"], mine, "mine", request="gpu/ten", consumed={"memory": "10Gi"}))
    await eventually(counts(backend), {"ten": (8, 8, 0), "forty": (1, 2, 1)})
    await eventually(running(backend), [("a", 1, ((Group("gpu-1", "gpu.nvidia.com/ten"), 1),))])
    put(api, a_claim(["gpu-0"], name="odd", consumed={"memory": "25Gi"}))
    await eventually(counts(backend), {"ten": (5, 8, 3), "forty": (1, 2, 1)})


async def test_shares_by_number_are_counted_by_number(api, watch):
    put(api, a_node(gpus={}), a_class(), a_slice([a_shared_gpu(0, shares=4), a_shared_gpu(1, shares=4)]))
    quarter = [kind("quarter", DeviceClaim("gpu.nvidia.com"), 20 * GIB)]
    backend = watch(quarter)
    await eventually(counts(backend), {"quarter": (8, 8, 0)})
    put(api, a_claim(["gpu-0"], name="one", consumed={"memory": "0", "shares": "1"}))
    await eventually(counts(backend), {"quarter": (7, 8, 1)})


async def test_extended_resources_that_claims_serve_are_counted_once(api, watch):
    whole = GpuKind("a100", "A100", 80 * GIB, match="NVIDIA A100*")
    pod = a_pod("train", {"nvidia.com/gpu": 1}, namespace="team-a")
    pod["status"]["extendedResourceClaimStatus"] = {
        "resourceClaimName": "train-x",
        "requestMappings": [
            {"containerName": "notebook", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}
        ],
    }
    put(api, a_node(gpus={}), a_class(resource="nvidia.com/gpu"), pod)
    put(api, a_slice([a_gpu(0), a_gpu(1), a_gpu(2, H100)]), a_claim(["gpu-0"], pod, "train-x"))
    backend = watch([whole, KINDS[1]])
    await eventually(counts(backend), {"a100": (1, 2, 1), "h100": (1, 1, 0)})
    alone = watch([whole], claims=True)
    await eventually(counts(alone), {"a100": (2, 3, 1)})  # one resource of a node has one model


async def test_gpus_of_a_device_plugin_are_not_counted_again(api, watch):
    whole = GpuKind("a100", "A100", 80 * GIB, match="NVIDIA-A100*")
    put(
        api,
        a_node(gpus={"nvidia.com/gpu": 2}),
        a_class(resource="nvidia.com/gpu"),
        a_slice([a_gpu(at) for at in range(3)]),
    )
    backend = watch([whole, KINDS[1]])
    await eventually(counts(backend), {"a100": (2, 2, 0)})


async def test_claims_serve_what_a_device_plugin_left_without_anything_allocatable(api, watch):
    """As kube-scheduler does in the five minutes after a device plugin ended, and while all its GPUs are unhealthy."""
    whole = GpuKind("a100", "A100", 80 * GIB, match="NVIDIA A100*")
    put(api, a_node(gpus={"nvidia.com/gpu": 16}, healthy={"nvidia.com/gpu": 0}), a_class(resource="nvidia.com/gpu"))
    put(api, a_slice([a_gpu(at) for at in range(4)]), a_pod("before", {"nvidia.com/gpu": 1}, namespace="team-a"))
    backend = watch([whole], claims=True)
    await eventually(counts(backend), {"a100": (3, 4, 1)})  # the pod that the device plugin served still has one
    put(api, a_node(gpus={"nvidia.com/gpu": 16}, healthy={"nvidia.com/gpu": 2}))
    await eventually(counts(backend), {"a100": (1, 16, 1)})


async def test_an_unreadable_claim_is_reported_and_not_granted(api, watch, monkeypatch):
    monkeypatch.setattr("gpuspawner.backends.kubernetes.watches.REFUSED_SECONDS", 0.2)
    api.refused.add(("get", "/apis/resource.k8s.io/v1/resourceclaims"))
    put(api, a_node(gpus={}), a_class(), a_slice([a_gpu(0)]))
    backend = watch()

    async def told():
        await backend.fleet()
        return [sentence.partition(" (")[0] for sentence in backend.limits]

    await eventually(told, ["Claimed devices cannot be observed"])
    await eventually(counts(backend), {})
    api.refused.clear()
    await eventually(counts(backend), {"a100": (1, 1, 0)})
    await eventually(limits(backend), ())


async def test_without_a_claimed_kind_no_devices_are_requested(api, watch):
    put(api, a_node())
    backend = watch([GpuKind("a100", "A100", 80 * GIB, match="*A100*80GB")])
    await eventually(counts(backend), {"a100": (8, 8, 0)})
    assert not any("resource.k8s.io" in path for _, path, _ in api.asked)


HOLD = {
    "device.driver == 'gpu.nvidia.com'": True,
    "device.attributes['gpu.nvidia.com'].cudaComputeCapability.isGreaterThan(semver('7.5.0'))": True,
    "device.attributes['gpu.nvidia.com'].cudaComputeCapability.compareTo(semver('8.0.0')) == 0": True,
    "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('81Gi')) >= 0": False,
    "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('40Gi'))": True,
    "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$')": True,
    "device.attributes['gpu.nvidia.com'].productName in ['x', 'NVIDIA A100-SXM4-80GB']": True,
    "has(device.attributes['gpu.nvidia.com'].profile)": False,
    "device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:00'": True,
    "device.attributes['other.example.org'].model == 'x'": False,
    "'model' in device.attributes['other.example.org']": False,
    "device.attributes['gpu.nvidia.com'].exists(name, name == 'uuid')": True,
    "device.allowMultipleAllocations": False,
    "device.attributes['resource.kubernetes.io'].numaNodes.includes(1)": True,
    "device.attributes['resource.kubernetes.io'].numaNodes.includes(2)": False,
    "device.attributes['resource.kubernetes.io'].pcieRoot.includes('pci0000:00')": True,
    "device.attributes['gpu.nvidia.com'].runs.exists(x, x.isLessThan(semver('13.1.0')))": True,
    "device.nothing()": False,
    "semver('x').patch() == 0": False,
    "(" * 500 + "true" + ")" * 500: False,
    "not CEL": False,
}


@pytest.mark.parametrize(("expression", "holds"), HOLD.items())
def test_selectors_hold_as_for_the_scheduler(expression, holds):
    lists = {"resource.kubernetes.io/numaNodes": {"ints": [0, 1]}, "runs": {"versions": ["13.0.0", "14.0.0"]}}
    device = a_gpu(0)
    seen = to_slice(a_slice([{**device, "attributes": {**device["attributes"], **lists}}]))
    assert seen is not None
    assert fits(seen.devices[0], [expression]) is holds


async def test_nothing_is_granted_before_devices_were_observed(api, watch, monkeypatch):
    monkeypatch.setattr("gpuspawner.backends.kubernetes.view.FIRST_LIST_SECONDS", 0.3)
    api.refused.add(("get", "/apis/resource.k8s.io/v1/deviceclasses"))
    put(api, a_node())
    backend = watch()

    async def why():
        with pytest.raises(Unavailable) as error:
            await backend.fleet()
        return str(error.value)

    await eventually(why, "The cluster's devices have not been observed yet.")


def test_the_cel_reader_is_not_imported_without_selectors():
    told = "import sys, gpuspawner.backends.kubernetes.backend; print('celpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n", "it takes a second"
