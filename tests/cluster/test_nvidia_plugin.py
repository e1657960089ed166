"""NVIDIA's own device plugin and GPU Feature Discovery: every machine, shared GPUs, and GPUs that fail."""

import re

import pytest
from gpus import HOLD, uuids_in
from nvidia_node import asked, control, found_by_doctor, found_by_init, nvidia_gpus
from workspaces import HUB, NODE, eventually, one_of, start

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.fleet import cluster_kinds
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.catalog import load_catalog
from gpuspawner.core.gpus.fleet import Slot

pytestmark = pytest.mark.slow

A, B = "a" * 32, "b" * 32
PROFILES = ("a100", "b200", "gb200", "gb300", "h100", "l40s", "t4")
HOLDS = ["sh", "-c", f"{HOLD}; exec sleep 600"]
CPU_BOUND = 0.1
"""In cores: a policy's default."""
WORKS = ["sh", "-c", f"{HOLD}; while :; do :; done"]


@pytest.fixture
async def a_backend(one_machine, namespace):
    """Return a function that makes a backend for the kinds of a catalog's file."""
    made = []

    def make(file):
        kinds = cluster_kinds(load_catalog(file).gpus)
        settings = ClusterSettings(namespace, str(one_machine.kubeconfig))
        made.append(KubernetesBackend(kinds.values(), HUB, settings))
        return made[-1]

    yield make
    for backend in made:
        await backend.close()


async def pools(backend):
    """Count the healthy GPUs by the catalog's kind."""
    found = {}
    for gpu in (await backend.fleet()).gpus:
        if gpu.healthy and not gpu.foreign:
            found[gpu.pool] = found.get(gpu.pool, 0) + 1
    return found


def are(backend, wanted):
    async def look():
        return await pools(backend) == wanted

    return eventually(look, str(wanted))


@pytest.mark.parametrize("profile", PROFILES)
async def test_the_catalog_of_each_machine_is_accepted_and_a_workspace_starts_with_it(
    one_machine, namespace, a_backend, tmp_path, capsys, profile
):
    file = tmp_path / "catalog.yaml"
    with nvidia_gpus(one_machine, 2, profile) as gpus:
        first, _ = await found_by_init(one_machine, file, capsys)
        assert first.startswith("Found on this cluster: 2 x ")
        (kind,) = load_catalog(file).gpus.values()
        backend = a_backend(file)
        await are(backend, {kind.name: 2})
        patch = backend.patch((Slot(f"{NODE}/nvidia.com/gpu/0"),))
        start(one_machine, namespace, "one", A, affinity=patch["pod"]["spec"]["affinity"])
        ((name, memory, compute, driver),) = asked(
            one_machine, namespace, "one", "name", "memory.total", "compute_cap", "driver_version"
        )
        assert gpus.labels["nvidia.com/gpu.product"] == name.replace(" ", "-")
        assert gpus.labels["nvidia.com/gpu.memory"] == memory
        told = [gpus.labels[f"nvidia.com/gpu.compute.{part}"] for part in ("major", "minor")]
        assert (".".join(told), kind.compute) == (compute, compute)
        assert gpus.labels["nvidia.com/cuda.driver-version.full"] == driver
        assert kind.memory_bytes == pytest.approx(int(memory) * 2**20, rel=0.02)
        assert await found_by_doctor(one_machine, namespace, file, capsys) == []

        needs = re.sub(r"(?m)^    gpus:", "    image: lab:cuda13.1\n    gpus:", file.read_text(), count=1)
        file.write_text(needs)
        cuda = gpus.labels["nvidia.com/cuda.runtime-version.full"]
        (check, words), *more = await found_by_doctor(one_machine, namespace, file, capsys)
        assert (check, more) == ("CUDA", [])
        assert f"has CUDA 13.1, and the driver {driver} on {NODE} supports CUDA up to {cuda}" in words


NEEDS_CUDA = """\
version: 1
gpus: {{a100: {{match: "*A100*", memory: 40GiB, cuda: {cuda}}}}}
templates: {{lab: {{gpus: {{a100: 1}}, needs: {{cuda: {cuda}}}}}}}
"""


async def test_a_node_with_an_older_driver_has_no_gpu_of_a_kind_that_needs_a_newer_one(
    one_machine, namespace, a_backend, tmp_path, capsys
):
    file = tmp_path / "catalog.yaml"
    with nvidia_gpus(one_machine, 2) as gpus:
        driver, cuda = (gpus.labels[f"nvidia.com/cuda.{one}-version.full"] for one in ("driver", "runtime"))
        file.write_text(NEEDS_CUDA.format(cuda=cuda))
        backend = a_backend(file)
        await are(backend, {"a100": 2})
        affinity = backend.patch((Slot(f"{NODE}/nvidia.com/gpu/0"),))["pod"]["spec"]["affinity"]
        assert f"'values': ['{cuda}']" in str(affinity)
        start(one_machine, namespace, "one", A, affinity=affinity)
        assert await found_by_doctor(one_machine, namespace, file, capsys) == []

        file.write_text(NEEDS_CUDA.format(cuda="99.0"))
        await are(a_backend(file), {"": 2})
        catalog, needs = await found_by_doctor(one_machine, namespace, file, capsys)
        old = f"the driver {driver} supports CUDA up to {cuda}, and the kind a100 needs CUDA 99.0"
        assert catalog == ("catalog", "No GPU matches the kind a100 (match: *A100*, cuda: 99.0).")
        words = f"needs CUDA 99.0 and gets no GPU of the driver {driver} on {NODE}, which supports {cuda}."
        assert needs == ("CUDA", f"The template lab {words}")
        assert {gpu.note for gpu in (await a_backend(file).fleet()).gpus} >= {old}


def test_a_pod_gets_its_device_files_tool_and_library_and_no_others(one_machine, namespace):
    with nvidia_gpus(one_machine, 3) as gpus:
        start(one_machine, namespace, "two", A, gpus=2)
        start(one_machine, namespace, "one", B)
        seen = uuids_in(one_machine, namespace, "two"), uuids_in(one_machine, namespace, "one")
        assert [len(found) for found in seen] == [2, 1]
        assert {*seen[0], *seen[1]} == {*gpus.uuids}
        minors = [str(gpus.uuids.index(uuid)) for uuid in sorted(seen[0], key=gpus.uuids.index)]
        files = one_machine.run_in(namespace, "two", "sh", "-c", "ls /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm")[
            1
        ]
        assert files.split() == ["/dev/nvidia-uvm", *(f"/dev/nvidia{minor}" for minor in minors), "/dev/nvidiactl"]
        library = "import ctypes; print(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())"
        assert one_machine.run_in(namespace, "two", "python3", "-c", library)[1] == "0\n"
        control(gpus, "util", "--gpu", str(gpus.uuids.index(seen[1][0])), "64")
        assert asked(one_machine, namespace, "one", "utilization.gpu") == [["64"]]
        assert asked(one_machine, namespace, "two", "utilization.gpu") == [["0"], ["0"]]


@pytest.mark.parametrize(("renamed", "resource"), [(False, "nvidia.com/gpu"), (True, "nvidia.com/gpu.shared")])
async def test_shares_are_counted_offered_and_told_apart(
    one_machine, namespace, a_backend, tmp_path, capsys, renamed, resource
):
    file = tmp_path / "catalog.yaml"
    with nvidia_gpus(one_machine, 2) as gpus:
        gpus.set_sharing(4, renamed=renamed)  # renamed, a capacity of whole GPUs stays, of which nothing is allocatable
        first, told = await found_by_init(one_machine, file, capsys)
        assert first == "Found on this cluster: 2 x A100 SXM4 40GB, each shared by 4."
        words = f"{NODE}: its 2 x nvidia.com/gpu cannot be allocated."
        assert any(line.startswith(words) for line in told) == renamed
        catalog = load_catalog(file)
        (share,) = catalog.templates["gpu"].gpus
        assert catalog.gpus[share].shares == 4
        backend = a_backend(file)
        await are(backend, {share: 8})
        ended = ("device plugin", f"{NODE}: all 2 nvidia.com/gpu are unhealthy, or their device plugin has ended.")
        assert await found_by_doctor(one_machine, namespace, file, capsys) == [ended] * renamed
        (slot,) = {gpu.group for gpu in (await backend.fleet()).gpus if gpu.pool == share}
        assert slot.resource == resource
        affinity = backend.patch((Slot(slot.gpu(0)),))["pod"]["spec"]["affinity"]
        start(one_machine, namespace, "works", A, WORKS, resource=resource, affinity=affinity)
        start(one_machine, namespace, "rests", B, HOLDS, resource=resource, affinity=affinity)
        await are(backend, {share: 8})  # those of leases are the leases' to count
        for uuid in gpus.uuids:
            gpus.set_utilization(uuid, 90)
        tables = {}

        async def reading(lease):
            """Return the second probe's reading of the share, with the CPU time of its processes since the first."""
            result = await backend.probe(lease, 1, (slot.gpu(0),), 20.0)
            sample, tables[lease] = parse_probe(
                result, (slot.gpu(0),), tables.get(lease), interval_seconds=5, age_seconds=600
            )
            (gpu,) = sample.gpus
            assert (gpu.shared, gpu.holders, gpu.problem, gpu.utilization_percent) == (True, 1, "", 90.0)
            return gpu.holders_cpu_cores

        async def works():
            return (await reading(A) or 0) > CPU_BOUND

        for lease in (A, B):
            await one_of(backend, lease)
            assert await reading(lease) is None
        await eventually(works, "its own process works")
        assert await reading(B) < CPU_BOUND, "what its neighbour does on the GPU is not its work"


async def test_a_gpu_that_fails_is_not_given_and_comes_back(one_machine, namespace, a_backend, tmp_path, capsys):
    file = tmp_path / "catalog.yaml"
    with nvidia_gpus(one_machine, 4) as gpus:
        await found_by_init(one_machine, file, capsys)
        (kind,) = load_catalog(file).gpus
        backend = a_backend(file)
        await are(backend, {kind: 4})
        start(one_machine, namespace, "one", A)
        (own,) = uuids_in(one_machine, namespace, "one")

        gpus.set_health(own, healthy=False)
        await are(backend, {kind: 3})

        async def unhealthy():
            return [one.unhealthy for one in await backend.workspaces()] == [(own,)]

        await eventually(unhealthy, "the kubelet tells whose GPU fails")
        found = await found_by_doctor(one_machine, namespace, file, capsys)
        assert ("device plugin", f"{NODE}: 1 of 4 nvidia.com/gpu are unhealthy.") in found
        assert ("GPU health", f"The pod one on {NODE} has unhealthy GPUs: {own}.") in found

        control(gpus, "fail", "--gpu", "0", "--mode", "lost", "--xid", "79")
        await are(backend, {})
        words = f"{NODE}: all 4 nvidia.com/gpu are unhealthy, or their device plugin has ended."
        assert ("device plugin", words) in await found_by_doctor(one_machine, namespace, file, capsys)
        await eventually(lambda: _notes(backend, f"4 of 4 on {NODE} are reported unhealthy"), "the fleet says so")

        control(gpus, "reset", "--gpu", "all")
        gpus.start_plugin()
        await are(backend, {kind: 4})
        assert await found_by_doctor(one_machine, namespace, file, capsys) == []
        gpus.remove_labels()
        ((check, words), *_) = await found_by_doctor(one_machine, namespace, file, capsys)
        assert (check, words.partition(":")[0]) == ("GPU labels", NODE)
        gpus.label()
        await are(backend, {kind: 4})


async def _notes(backend, note):
    return {gpu.note for gpu in (await backend.fleet()).gpus} == {note}
