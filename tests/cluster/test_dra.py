"""GPUs that pods claim, against a real scheduler, kubelet and containers: the fleet and the claims.

The driver is a stand-in that speaks the kubelet's real interface (tools/cluster/dra_driver.py).
"""

import contextlib
import json
import secrets

import pytest
from kubernetes import client
from nodes import wait_for
from workspaces import HUB, IDLE, NODE, eventually
from workspaces import start as workspace

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.dra.models import claim_spec
from gpuspawner.backends.kubernetes.pods import to_metadata
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.gpus.fleet import DeviceClaim, GpuKind, Group
from gpuspawner.spawner.kubernetes.manifests import claim_of, name_claim, with_owner
from tools.cluster.standin_gpus import Board, StandinClaims

pytestmark = pytest.mark.slow

GIB = 2**30
WAIT_SECONDS = 300
H100 = "NVIDIA H100 80GB HBM3"
PARTS = [*(("1g.10gb", start, 1) for start in range(7)), ("3g.40gb", 0, 4), ("3g.40gb", 4, 4)]
ATTRIBUTES = "device.attributes['gpu.nvidia.com']"


def kind(name, claim, memory=80 * GIB):
    return GpuKind(name, name, memory, resource=claim.counted_as(name), claim=claim)


def whole(name, product):
    return kind(name, DeviceClaim("gpu.nvidia.com", (f"{ATTRIBUTES}.productName == '{product}'",)))


def part(name, profile):
    return kind(name, DeviceClaim("mig.nvidia.com", (f"{ATTRIBUTES}.profile == '{profile}'",)))


A100_KIND, H100_KIND = whole("a100", "NVIDIA A100-SXM4-80GB"), whole("h100", H100)
SMALL, LARGE = part("small", "1g.10gb"), part("large", "3g.40gb")
QUARTER = kind("quarter", DeviceClaim("gpu.nvidia.com", (f"{ATTRIBUTES}.productName == 'NVIDIA L40S'",)), 12 * GIB)
KINDS = (A100_KIND, H100_KIND, SMALL, LARGE, QUARTER)


@pytest.fixture(scope="module")
def claimed(one_machine):
    """Two A100, an H100, one A100 in parts, one L40S that four share."""
    l40s = Board("NVIDIA L40S", 49_152, shares=4)
    boards = [Board(), Board(), Board(H100), Board("NVIDIA A100-SXM4-40GB", parts=PARTS), l40s]
    found = StandinClaims(one_machine.own, boards)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
async def backend(one_machine, namespace, claimed):
    settings = ClusterSettings(namespace, str(one_machine.kubeconfig))
    found = KubernetesBackend(KINDS, HUB, settings)
    yield found
    await found.close()


def claims_in(cluster, namespace):
    return client.CustomObjectsApi(cluster.api).list_namespaced_custom_object(
        "resource.k8s.io", "v1", namespace, "resourceclaims"
    )["items"]


def start(cluster, namespace, name, kinds, count=1, *, lease="", wait=True, **metadata):
    """Make a pod and what it claims, as the spawner does; with a lease it is a workspace."""
    ids = {"GPUSPAWNER_HUB_ID": HUB, "GPUSPAWNER_LEASE_ID": lease, "GPUSPAWNER_ATTEMPT": "1"} if lease else {}
    labels, annotations = to_metadata({**ids, **({"GPUSPAWNER_LEASE": json.dumps({"slots": []})} if lease else {})})
    claim = claim_of({"environment": ids, "pod": {"claim": claim_spec(kinds, count)}}, secrets.token_hex(8))
    server = {"name": "notebook", "image": cluster.image, "imagePullPolicy": "Never", "command": IDLE}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [server]}
    name_claim(spec, server, claim)
    told = {"name": name, "labels": {**labels, **metadata}, "annotations": annotations}
    made = cluster.core.create_namespaced_pod(namespace, {"metadata": told, "spec": spec})
    pod = {"metadata": {"name": name, "uid": made.metadata.uid}}
    client.CustomObjectsApi(cluster.api).create_namespaced_custom_object(
        "resource.k8s.io", "v1", namespace, "resourceclaims", with_owner(claim, pod)
    )
    if wait:
        cluster.wait_for_phase(namespace, name, "Running")


def counts(backend, *names):
    """Look at (free, all) of each of these kinds."""

    async def look():
        gpus = (await backend.fleet()).gpus
        return {
            name: (
                sum(gpu.healthy and not gpu.foreign for gpu in gpus if gpu.pool == name),
                sum(gpu.pool == name for gpu in gpus),
            )
            for name in names
        }

    return look


async def until(look, wanted):
    async def same():
        return await look() == wanted

    await eventually(same, str(wanted))


def given(backend, lease):
    async def look():
        return next((one.given for one in await backend.workspaces() if one.lease_id == lease), None)

    return look


def listed(cluster, namespace, pod):
    code, seen, error = cluster.run_in(namespace, pod, "nvidia-smi", "-L")
    assert (code, error) == (0, "")
    return seen


async def test_a_workspace_has_what_its_claim_was_given_and_leaves_nothing(one_machine, namespace, backend, claimed):
    await until(counts(backend, "a100", "h100"), {"a100": (2, 2), "h100": (1, 1)})
    lease = "a" * 32
    start(one_machine, namespace, "mine", [A100_KIND], 2, lease=lease)
    seen = listed(one_machine, namespace, "mine")
    assert all(board.gpu.uuid in seen for board in claimed.boards[:2])
    assert seen.count("UUID") == 2
    await until(given(backend, lease), ((Group(NODE, "gpu.nvidia.com/a100"), 2),))
    await until(counts(backend, "a100"), {"a100": (2, 2)})  # its own are its lease's to count
    one_machine.core.delete_namespaced_pod("mine", namespace)
    wait_for(lambda: not claims_in(one_machine, namespace), "its claim is gone")


async def test_devices_claimed_by_others_are_foreign_with_their_holder(one_machine, namespace, backend):
    start(one_machine, namespace, "nightly-0", [A100_KIND], **{"ray.io/cluster": "nightly"})
    await until(counts(backend, "a100"), {"a100": (1, 2)})
    (foreign,) = [gpu for gpu in (await backend.fleet()).gpus if gpu.foreign]
    assert foreign.holder == f"RayCluster {namespace}/nightly"
    one_machine.core.delete_namespaced_pod("nightly-0", namespace)
    await until(counts(backend, "a100"), {"a100": (2, 2)})


async def test_a_tainted_gpu_is_not_given_and_who_has_one_that_fails_is_told(one_machine, namespace, backend, claimed):
    lease = "b" * 32
    start(one_machine, namespace, "mine", [H100_KIND], lease=lease)
    await until(given(backend, lease), ((Group(NODE, "gpu.nvidia.com/h100"), 1),))
    claimed.taint(2)
    claimed.taint(0)
    try:
        await until(counts(backend, "a100", "h100"), {"a100": (1, 2), "h100": (1, 1)})

        async def unhealthy():
            return [one.unhealthy for one in await backend.workspaces()]

        await until(unhealthy, [(claimed.boards[2].gpu.uuid,)])
        start(one_machine, namespace, "first", [A100_KIND])
        assert claimed.boards[1].gpu.uuid in listed(one_machine, namespace, "first")
        start(one_machine, namespace, "second", [A100_KIND], wait=False)

        def told():
            conditions = one_machine.core.read_namespaced_pod("second", namespace).status.conditions or []
            return next((one.message for one in conditions if one.reason == "Unschedulable"), "")

        assert "cannot allocate all claims" in wait_for(lambda: "allocate" in told() and told(), "the second is told")
    finally:
        claimed.mend(2)
        claimed.mend(0)
    one_machine.wait_for_phase(namespace, "second", "Running")


async def test_a_part_that_is_taken_leaves_what_its_board_still_has(one_machine, namespace, backend):
    await until(counts(backend, "small", "large"), {"small": (7, 7), "large": (2, 2)})
    start(one_machine, namespace, "part", [LARGE], lease="c" * 32)
    seen = listed(one_machine, namespace, "part")
    assert "MIG 3g.40gb" in seen
    await until(given(backend, "c" * 32), ((Group(NODE, "mig.nvidia.com/large"), 1),))
    await until(counts(backend, "small", "large"), {"small": (3, 7), "large": (2, 2)})
    for number in range(3):
        start(one_machine, namespace, f"small-{number}", [SMALL])
    await until(counts(backend, "small", "large"), {"small": (0, 7), "large": (1, 2)})
    start(one_machine, namespace, "small-3", [SMALL], wait=False)
    with pytest.raises(AssertionError):
        wait_for(lambda: running(one_machine, namespace, "small-3"), "a fourth runs", 5)
    one_machine.core.delete_namespaced_pod("part", namespace)
    one_machine.wait_for_phase(namespace, "small-3", "Running")


def running(cluster, namespace, name):
    return cluster.core.read_namespaced_pod(name, namespace).status.phase == "Running"


async def test_a_gpu_that_several_share_is_counted_in_shares(one_machine, namespace, backend, claimed):
    await until(counts(backend, "quarter"), {"quarter": (4, 4)})
    start(one_machine, namespace, "one", [QUARTER], lease="d" * 32)
    start(one_machine, namespace, "other", [QUARTER])
    await until(counts(backend, "quarter"), {"quarter": (3, 4)})
    await until(given(backend, "d" * 32), ((Group(NODE, "gpu.nvidia.com/quarter"), 1),))
    for pod in ("one", "other"):
        assert claimed.boards[4].gpu.uuid in listed(one_machine, namespace, pod)


async def test_of_several_kinds_the_first_that_is_free_is_given(one_machine, namespace, backend):
    with contextlib.ExitStack() as after:
        for number, kind_given in enumerate(("a100", "a100", "h100")):
            lease = f"{number}" * 32
            start(one_machine, namespace, f"any-{number}", [A100_KIND, H100_KIND], lease=lease)
            after.callback(one_machine.core.delete_namespaced_pod, f"any-{number}", namespace)
            await until(given(backend, lease), ((Group(NODE, f"gpu.nvidia.com/{kind_given}"), 1),))
        requests = {
            one["request"]
            for claim in claims_in(one_machine, namespace)
            for one in claim["status"]["allocation"]["devices"]["results"]
        }
        assert requests == {"gpu/a100", "gpu/h100"}


async def test_a_request_for_a_resource_served_by_claims_is_counted_once(one_machine, namespace, claimed):
    """On Kubernetes 1.36 the pod stays as it is; the scheduler makes a claim for it."""
    resource = "nvidia.com/gpu"
    by_match = GpuKind("l40s", "L40S", 48 * GIB, match="NVIDIA L40S")
    settings = ClusterSettings(namespace, str(one_machine.kubeconfig), claims=True)
    found = KubernetesBackend([A100_KIND, by_match], HUB, settings)
    claimed.boards[4].shares = 0
    claimed.publish()
    claimed.serve(resource)
    try:
        # The other whole ones are a resource of the node too, of one model with the H100.
        await until(counts(found, "a100"), {"a100": (2, 2)})
        workspace(one_machine, namespace, "plain", "e" * 32, gpus=1, resource=resource)
        claim = one_machine.core.read_namespaced_pod("plain", namespace, _preload_content=False).json()
        name = claim["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
        (made,) = [one for one in claims_in(one_machine, namespace) if one["metadata"]["name"] == name]
        (result,) = made["status"]["allocation"]["devices"]["results"]
        group = {"gpu-0": A100_KIND.resource, "gpu-1": A100_KIND.resource}.get(result["device"], resource)
        await until(given(found, "e" * 32), ((Group(NODE, group), 1),))
        assert "UUID" in listed(one_machine, namespace, "plain")
    finally:
        claimed.serve("")
        claimed.boards[4].shares = 4
        claimed.publish()
        await found.close()
