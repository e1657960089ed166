"""The node part of NVIDIA's own DRA driver, on a cluster that never had a device plugin: devices, claims, taints.

Not seen here, as NVIDIA's simulated driver has neither: MIG devices and shares of a GPU. Our stand-in serves those
(test_dra).
"""

import json
import subprocess
import sys

import pytest
from gpus import uuids_in
from kubernetes import client
from nodes import ROOT, TestCluster
from nvidia_node import found_by_doctor
from test_dra import claims_in, counts, given, start, until, whole
from workspaces import HUB, IDLE, NODE, eventually
from workspaces import start as workspace

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.gpus.fleet import GpuKind, Group
from tools.cluster.cluster import Cluster
from tools.cluster.gpus import why_not_nvidia
from tools.cluster.nvidia_gpus import CLAIM_PROGRAMS, NODE_PROGRAMS, NvidiaClaims, NvidiaGpus

pytestmark = pytest.mark.slow

L40S = "NVIDIA L40S"
RESOURCE = "nvidia.com/gpu"
GPUS = 4
CLAIMED = whole("l40s", L40S)
BY_MATCH = GpuKind("board", "Board", 48 * 2**30, match="NVIDIA L40S*")


@pytest.fixture(scope="module")
def fresh(one_machine):
    """A cluster of this module's own."""
    if why := why_not_nvidia(programs=(*NODE_PROGRAMS, *CLAIM_PROGRAMS)):
        pytest.skip(why)
    folder = one_machine.own.folder.with_name(f"{one_machine.own.folder.name}-dra")
    make = [sys.executable, "-m", "tools.cluster", "--folder", folder]
    subprocess.run([*make, "stop"], cwd=ROOT, check=True)  # what a run that was killed left
    subprocess.run([*make, "start"], cwd=ROOT, check=True)
    own = Cluster.load(folder)
    cluster = TestCluster(own.kubeconfig, own)
    try:
        yield cluster
    finally:
        cluster.api.close()
        subprocess.run([*make, "stop"], cwd=ROOT, check=True)


@pytest.fixture(scope="module")
def claimed(fresh):
    found = NvidiaClaims(fresh.own, GPUS, "l40s")
    found.start()
    yield found
    found.stop()


@pytest.fixture
def namespace(fresh):
    with fresh.namespace() as name:
        yield name


@pytest.fixture
async def a_backend(fresh, namespace):
    made = []

    def make(*kinds, **settings):
        made.append(KubernetesBackend(kinds, HUB, ClusterSettings(namespace, str(fresh.kubeconfig), **settings)))
        return made[-1]

    yield make
    for backend in made:
        await backend.close()


async def test_the_devices_tell_what_they_are_and_doctor_finds_them(
    fresh, namespace, claimed, a_backend, tmp_path, capsys
):
    (found,) = json.loads(fresh.own.kubectl("get", "resourceslices", "--output=json"))["items"]
    devices = {device["attributes"]["uuid"]["string"]: device for device in found["spec"]["devices"]}
    assert set(devices) == set(claimed.uuids)
    for device in devices.values():
        told = {name: next(iter(value.values())) for name, value in device["attributes"].items()}
        assert (told["type"], told["productName"], told["architecture"]) == ("gpu", L40S, "Ada Lovelace")
        assert (told["cudaComputeCapability"], told["driverVersion"]) == ("8.9.0", "550.163.1")
        assert device["capacity"]["memory"]["value"] == "48Gi"
    backend = a_backend(CLAIMED)
    await until(counts(backend, "l40s"), {"l40s": (GPUS, GPUS)})
    assert {(gpu.model, gpu.memory_bytes) for gpu in (await backend.fleet()).gpus} == {(L40S, 48 * 2**30)}
    (tmp_path / "catalog.yaml").write_text(
        "version: 1\ngpus:\n  l40s:\n    memory: 48GiB\n    claim:\n      device_class: gpu.nvidia.com\n"
        f"      selectors: [\"device.attributes['gpu.nvidia.com'].productName == '{L40S}'\"]\n"
        "templates: {lab: {gpus: {l40s: 1}}}\n"
    )
    assert await found_by_doctor(fresh, namespace, tmp_path / "catalog.yaml", capsys) == []


@pytest.mark.parametrize("kinds", [(BY_MATCH, CLAIMED), (CLAIMED, BY_MATCH)], ids=["match first", "claim first"])
async def test_claims_of_one_and_of_two_gpus_are_counted_in_any_order_of_the_catalog(
    fresh, namespace, claimed, a_backend, kinds
):
    backend = a_backend(*kinds)
    await until(counts(backend, "l40s", "board"), {"l40s": (GPUS, GPUS), "board": (0, 0)})
    start(fresh, namespace, "two", [CLAIMED], 2, lease="a" * 32)
    start(fresh, namespace, "job", [CLAIMED])
    two, job = uuids_in(fresh, namespace, "two"), uuids_in(fresh, namespace, "job")
    assert (len(two), len(job), len({*two, *job})) == (2, 1, 3)
    await until(given(backend, "a" * 32), ((Group(NODE, "gpu.nvidia.com/l40s"), 2),))
    await until(counts(backend, "l40s"), {"l40s": (GPUS - 1, GPUS)})
    (one,) = await backend.workspaces()
    assert sorted(one.uuids) == sorted(two)
    files = fresh.run_in(namespace, "job", "sh", "-c", "ls /dev/nvidia[0-9]*")[1]
    assert files.split() == [f"/dev/nvidia{claimed.uuids.index(job[0])}"]


async def test_a_claim_that_two_pods_share_is_one_gpu(fresh, namespace, claimed, a_backend):
    backend = a_backend(CLAIMED)
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    client.CustomObjectsApi(fresh.api).create_namespaced_custom_object(
        "resource.k8s.io",
        "v1",
        namespace,
        "resourceclaims",
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "shared"},
            "spec": {"devices": {"requests": requests}},
        },
    )
    for name in ("left", "right"):
        container = {"name": "notebook", "image": fresh.image, "imagePullPolicy": "Never", "command": IDLE}
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "shared"}]
        fresh.core.create_namespaced_pod(namespace, {"metadata": {"name": name}, "spec": spec})
    for name in ("left", "right"):
        fresh.wait_for_phase(namespace, name, "Running")
    assert uuids_in(fresh, namespace, "left") == uuids_in(fresh, namespace, "right")
    await until(counts(backend, "l40s"), {"l40s": (GPUS - 1, GPUS)})


async def test_a_gpu_that_fails_is_tainted_and_comes_back(fresh, namespace, claimed, a_backend):
    backend = a_backend(CLAIMED)
    start(fresh, namespace, "mine", [CLAIMED], lease="b" * 32)
    (own,) = uuids_in(fresh, namespace, "mine")
    other = next(uuid for uuid in claimed.uuids if uuid != own)
    for uuid in (own, other):
        claimed.taint(claimed.uuids.index(uuid))
    await until(counts(backend, "l40s"), {"l40s": (GPUS - 1, GPUS)})  # its own is its lease's to count
    notes = [gpu.note for gpu in (await backend.fleet()).gpus if not gpu.healthy]
    assert notes == [f"1 of {GPUS} on {NODE} are tainted gpu.nvidia.com/xid=48"]

    async def unhealthy():
        return [one.unhealthy for one in await backend.workspaces()] == [(own,)]

    await eventually(unhealthy, "whose GPU fails is known")
    claimed.mend(claimed.uuids.index(other))
    claimed.mend(claimed.uuids.index(own))
    await until(counts(backend, "l40s"), {"l40s": (GPUS, GPUS)})
    assert uuids_in(fresh, namespace, "mine") == [own]


async def test_an_extended_resource_is_counted_from_claims_also_after_a_device_plugin_ended(
    fresh, namespace, claimed, a_backend
):
    backend = a_backend(BY_MATCH, claims=True)
    claimed.serve(RESOURCE)
    await until(counts(backend, "board"), {"board": (GPUS, GPUS)})
    workspace(fresh, namespace, "plain", "e" * 32, resource=RESOURCE)
    assert len(uuids_in(fresh, namespace, "plain")) == 1
    await until(given(backend, "e" * 32), ((Group(NODE, RESOURCE), 1),))
    (claim,) = claims_in(fresh, namespace)
    assert claim["metadata"]["name"].startswith("plain")
    fresh.core.delete_namespaced_pod("plain", namespace)
    await until(counts(backend, "board"), {"board": (GPUS, GPUS)})

    plugin = NvidiaGpus(fresh.own, GPUS, "l40s", replicas=4)
    plugin.start()
    try:
        await until(counts(backend, "board"), {"board": (0, 0)})  # a share of a board is no board
        plugin.end_plugin()
        plugin.wait_for_number(0)
        assert int(fresh.core.read_node(NODE).status.capacity[RESOURCE]) == 16
        await until(counts(backend, "board"), {"board": (GPUS, GPUS)})
        workspace(fresh, namespace, "again", "f" * 32, resource=RESOURCE)
        assert len(uuids_in(fresh, namespace, "again")) == 1
        await until(given(backend, "f" * 32), ((Group(NODE, RESOURCE), 1),))
    finally:
        fresh.core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)
        plugin.stop()
