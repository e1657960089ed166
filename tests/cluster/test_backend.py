"""The Kubernetes backend against a real API server, scheduler, kubelet and containers."""

import asyncio
import contextlib
import os
import signal
import time

import pytest
import yaml
from gpus import HOLD, simulated, uuids_in
from nodes import wait_for
from workspaces import HUB, IDLE, NODE, eventually, one_of, start

from gpuspawner.backends.kubernetes.api import Api
from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.fleet import cluster_kinds
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import GpuKind, Slot
from gpuspawner.core.outages import API_SERVER, ETCD

GIB = 2**30
KINDS = cluster_kinds(
    {
        kind.name: kind
        for kind in (
            GpuKind("a100", "A100", 40 * GIB, match="NVIDIA-A100-SXM4-40GB"),
            GpuKind("third", "Third of an A100", 13 * GIB, of="a100", shares=3),
            GpuKind("slice", "Slice", 10 * GIB, match="*A100*-MIG-1g.10gb"),
        )
    }
)
HOLDS_ONE = ["sh", "-c", f"{HOLD}; exec sleep 600"]
A, B, C = ("0" * 31 + digit for digit in "abc")


@pytest.fixture(scope="module")
def gpus(one_machine):
    """Four whole GPUs."""
    with simulated(one_machine, count=4) as found:
        yield found


@pytest.fixture
async def a_backend(one_machine, namespace):
    made = []

    def make(**changes):
        changes = {"kubeconfig": str(one_machine.kubeconfig), **changes}
        backend = KubernetesBackend(KINDS.values(), HUB, ClusterSettings(namespace, **changes))
        made.append(backend)
        return backend

    yield make
    for backend in made:
        await backend.close()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "right"), [("localhost", True), ("other.example.org", False)])
async def test_the_api_server_is_known_by_the_name_that_the_kubeconfig_gives_it(one_machine, tmp_path, name, right):
    said = yaml.safe_load(one_machine.kubeconfig.read_text())
    said["clusters"][0]["cluster"]["tls-server-name"] = name
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(said))
    api = Api(ClusterSettings("default", str(tmp_path / "kubeconfig")))
    try:
        with contextlib.nullcontext() if right else pytest.raises(Unavailable, match="certificate is not valid for"):
            assert (await api.get("/version"))["major"] == "1"
    finally:
        await api.close()


def with_tool(script):
    """A command whose nvidia-smi is this script instead."""
    tool = "/tmp/bin/nvidia-smi"
    return ["sh", "-c", f"mkdir /tmp/bin; printf '#!/bin/sh\\n{script}\\n' >{tool}; chmod +x {tool}; sleep 600"]


def free(backend):
    async def count():
        return sum(gpu.healthy and not gpu.foreign for gpu in (await backend.fleet()).gpus)

    return count


def is_free(backend, number):
    async def look():
        return await free(backend)() == number

    return eventually(look, f"{number} free")


@pytest.mark.slow
async def test_the_fleet_is_what_the_device_plugin_offers_and_what_pods_take_of_it(
    one_machine, namespace, gpus, a_backend
):
    backend = a_backend()
    await is_free(backend, 4)
    seen = [gpu for gpu in (await backend.fleet()).gpus if gpu.healthy]
    assert [(gpu.id, gpu.pool, gpu.memory_bytes) for gpu in seen] == [
        (f"{NODE}/nvidia.com/gpu/{number}", "a100", 40 * GIB) for number in range(4)
    ]
    one_machine.start_pod(namespace, "train", IDLE, {"nvidia.com/gpu": "2"})
    start(one_machine, namespace, "jupyter-alice", A)
    await is_free(backend, 2)
    one = await one_of(backend, A)
    assert one.given == (((NODE, "nvidia.com/gpu", ""), 1),)
    one_machine.core.delete_namespaced_pod("train", namespace)
    await is_free(backend, 4)


@pytest.mark.slow
async def test_the_workspace_on_a_device_that_fails_is_known(one_machine, namespace, gpus, a_backend):
    backend = a_backend()
    start(one_machine, namespace, "one", A)
    start(one_machine, namespace, "other", B)
    (device,) = uuids_in(one_machine, namespace, "one")
    gpus.set_health(device, healthy=False)
    try:

        async def unhealthy():
            return [one.unhealthy for one in await backend.workspaces()] == [(device,), ()]

        await eventually(unhealthy, "the kubelet tells")
    finally:
        gpus.set_health(device, healthy=True)


@pytest.mark.slow
async def test_an_unhealthy_device_and_a_cordoned_node_are_not_granted(one_machine, gpus, a_backend):
    backend = a_backend()
    await is_free(backend, 4)
    gpus.set_health(gpus.uuids[0], healthy=False)
    await is_free(backend, 3)
    gpus.set_health(gpus.uuids[0], healthy=True)
    await is_free(backend, 4)
    one_machine.core.patch_node(NODE, {"spec": {"unschedulable": True}})
    try:
        await is_free(backend, 0)
        assert (await backend.fleet()).gpus[0].note == f"{NODE} is cordoned"
    finally:
        one_machine.core.patch_node(NODE, {"spec": {"unschedulable": None}})
    await is_free(backend, 4)


async def sample_of(backend, lease, leased, previous=None):
    result = await backend.probe(lease, 1, leased, 20.0)
    sample, table = parse_probe(result, leased, previous, interval_seconds=5, age_seconds=600)
    assert (result.problem, sample.problem) == ("", "")
    return sample, table


@pytest.mark.slow
async def test_a_probe_tells_the_busy_from_the_idle_and_each_of_two(one_machine, namespace, gpus, a_backend):
    backend = a_backend()
    start(one_machine, namespace, "busy", A, HOLDS_ONE, 2)
    start(one_machine, namespace, "idle", B)
    await one_of(backend, A)
    await one_of(backend, B)
    gpus.set_utilization(uuids_in(one_machine, namespace, "busy")[0], 10)
    both, one = tuple(f"{NODE}/nvidia.com/gpu/{n}" for n in (0, 1)), (f"{NODE}/nvidia.com/gpu/2",)

    async def is_busy():
        sample, _ = await sample_of(backend, A, both)
        return sorted(gpu.utilization_percent for gpu in sample.gpus) == [0.0, 10.0] and sample

    sample = await eventually(is_busy, "work is seen")
    assert tuple(gpu.gpu for gpu in sample.gpus) == both
    assert sorted(gpu.holders for gpu in sample.gpus) == [0, 1]
    sample, table = await sample_of(backend, B, one)
    assert [(gpu.utilization_percent, gpu.holders, gpu.problem) for gpu in sample.gpus] == [(0.0, 0, "")]
    sample, _ = await sample_of(backend, B, one, table)
    assert sample.cpu_cores < 0.1, "the probe itself is no work"


@pytest.mark.slow
async def test_a_probe_that_cannot_tell_says_why_and_its_workspace_lives(one_machine, namespace, gpus, a_backend):
    backend = a_backend()
    path = [{"name": "PATH", "value": "/tmp/bin:/usr/local/bin:/usr/bin:/bin"}]
    start(one_machine, namespace, "broken", A, with_tool("echo no driver >&2; exit 9"), env=path)
    start(one_machine, namespace, "hanging", B, with_tool("exec sleep 300"), env=path)
    leased = (f"{NODE}/nvidia.com/gpu/0",)
    await one_of(backend, B)
    wait_for(lambda: one_machine.run_in(namespace, "broken", "test", "-x", "/tmp/bin/nvidia-smi")[0] == 0, "its tool")
    wait_for(lambda: one_machine.run_in(namespace, "hanging", "test", "-x", "/tmp/bin/nvidia-smi")[0] == 0, "its tool")
    sample, _ = await sample_of(backend, A, leased)
    assert [(gpu.utilization_percent, gpu.problem) for gpu in sample.gpus] == [
        (None, "nvidia-smi failed with exit code 9: 'no driver'")
    ]
    began = time.monotonic()
    assert (await backend.probe(B, 1, leased, 2.0)).problem == "the probe did not end within 2 s"
    assert time.monotonic() - began < 4
    assert [one.lease_id for one in await backend.workspaces()] == [A, B]


@pytest.mark.slow
async def test_only_the_workspaces_own_container_is_asked(one_machine, namespace, gpus, a_backend):
    sidecar = {"name": "a-sidecar", "image": "localhost/pause:1", "imagePullPolicy": "Never"}
    start(one_machine, namespace, "two", A, sidecars=[sidecar])
    backend = a_backend()
    await one_of(backend, A)
    await sample_of(backend, A, (f"{NODE}/nvidia.com/gpu/0",))
    other = a_backend(container="a-sidecar")  # it has no shell
    await one_of(other, A)
    assert "/bin/sh" in (await other.probe(A, 1, (), 10.0)).problem
    other = a_backend(container="none")
    await one_of(other, A)
    assert "HTTP 400" in (await other.probe(A, 1, (), 10.0)).problem


@pytest.mark.slow
async def test_a_pod_without_room_says_why_and_end_leaves_nothing(one_machine, namespace, gpus, a_backend):
    backend = a_backend()
    one_machine.start_pod(namespace, "train", IDLE, {"nvidia.com/gpu": "4"})
    start(one_machine, namespace, "waits", A, wait=False)
    start(one_machine, namespace, "earlier", B, gpus=0)
    start(one_machine, namespace, "later", B, gpus=0, attempt=2)

    async def waits():
        one = await one_of(backend, A)
        return one.waiting and one

    one = await eventually(waits, "it says why it waits")
    assert "Insufficient nvidia.com/gpu" in one.waiting
    assert one.given is None
    assert await backend.end(A)
    assert await backend.end(B, frozenset({1}))
    left = [pod.metadata.name for pod in one_machine.core.list_namespaced_pod(namespace).items]
    assert sorted(left) == ["later", "train"]
    await eventually(lambda: _only(backend, [(B, 2)]), "the view follows")


async def _only(backend, wanted):
    return [(one.lease_id, one.attempt) for one in await backend.workspaces()] == wanted


@pytest.mark.slow
async def test_shares_and_slices_are_kinds_of_their_own(one_machine, namespace, gpus, a_backend):
    backend = a_backend()
    await is_free(backend, 4)
    gpus.stop()
    try:
        with simulated(one_machine, count=1, replicas=3):
            await eventually(lambda: _pools(backend, {"third": 3}), "thirds")
            patch = backend.patch((Slot(f"{NODE}/nvidia.com/gpu/0"),))
            start(one_machine, namespace, "third", A, HOLDS_ONE, affinity=patch["pod"]["spec"]["affinity"])
            await one_of(backend, A)
            result = await backend.probe(A, 1, (f"{NODE}/nvidia.com/gpu/0",), 20.0)
            assert (result.problem, result.shared) == ("", True)
            assert await backend.end(A)
        with simulated(one_machine, count=1, mig="1g.10gb", mig_devices=2):
            await eventually(lambda: _pools(backend, {"slice": 2}), "slices")
            patch = backend.patch((Slot(f"{NODE}/nvidia.com/mig-1g.10gb/1"),))
            assert patch["pod"]["container"]["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}
            start(
                one_machine,
                namespace,
                "slice",
                B,
                resource="nvidia.com/mig-1g.10gb",
                affinity=patch["pod"]["spec"]["affinity"],
            )
            assert (await one_of(backend, B)).given in {None, (((NODE, "nvidia.com/mig-1g.10gb", ""), 1),)}
            assert await backend.end(B)
    finally:
        gpus.start()


async def _pools(backend, wanted):
    found = {}
    for gpu in (await backend.fleet()).gpus:
        if not gpu.healthy:
            continue  # a plugin that has gone leaves its resource behind, none of it allocatable
        found[gpu.pool] = found.get(gpu.pool, 0) + 1
    return found == wanted


# A connection that is given up in its TLS handshake is left by Python's asyncio for the garbage collector to close.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("process", "part"), [("kube-apiserver", API_SERVER), ("etcd", ETCD)])
async def test_a_restart_of_the_api_server_or_its_database_is_seen_through(
    one_machine, namespace, gpus, a_backend, process, part
):
    backend = a_backend(stale_seconds=2.0)
    await is_free(backend, 4)
    one_machine.own.stop_process(process)
    try:
        with pytest.raises(Unavailable) as away:
            await _until_it_raises(backend.fleet)
        assert away.value.part == part
        with pytest.raises(Unavailable):
            await backend.end(A)
    finally:
        one_machine.own.start_process(process)
    await is_free(backend, 4)
    wait_for(lambda: _answers(one_machine), "the API server answers")
    one_machine.start_pod(namespace, "train", IDLE, {"nvidia.com/gpu": "1"})
    await is_free(backend, 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("process", "part"), [("kube-apiserver", API_SERVER), ("etcd", ETCD)])
async def test_a_frozen_api_server_is_told_from_its_frozen_database(
    one_machine, namespace, gpus, a_backend, process, part
):
    backend = a_backend(stale_seconds=2.0)
    await is_free(backend, 4)
    pid = one_machine.own.processes[process]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable) as away:
            await _until_it_raises(backend.fleet)
        assert away.value.part == part
    finally:
        os.kill(pid, signal.SIGCONT)
    await is_free(backend, 4)


async def _until_it_raises(ask, seconds=60.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await ask()
        await asyncio.sleep(0.2)


def _answers(cluster):
    try:
        return bool(cluster.core.list_node().items)
    except Exception:  # noqa: BLE001 - whatever the client makes of a server that is coming up
        return False
