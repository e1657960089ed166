"""The NVLink and NUMA domains of GPUs: by nvidia-smi on one machine, by labels and devices on Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_objects import A100 as LABELS
from cluster_objects import MIG_MIXED, a_node, a_pod, a_workspace
from device_objects import a_claim, a_class, a_gpu, a_slice, claiming
from harness.nvidia import simulated_driver
from kube_views import HUB

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.local import nvidia
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.core.gpus.fleet import DeviceClaim, GpuKind, Slot
from gpuspawner.core.gpus.placement import place
from gpuspawner.core.gpus.topology import REQUIRE

GIB = 2**30
WHOLE = GpuKind("a100", "A100", 80 * GIB, match="NVIDIA-A100-*")
CLAIM = DeviceClaim("gpu.nvidia.com")
CLAIMED = GpuKind("a100", "A100", 80 * GIB, resource=CLAIM.counted_as("a100"), claim=CLAIM)
AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"

# What `nvidia-smi topo -m` printed on real machines, without legend.
V100_MESH = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV2\tNV2\tSYS\t0-19,40-59\t0
GPU1\tNV2\t X \tSYS\tNV1\t0-19,40-59\t0
GPU2\tNV2\tSYS\t X \tNV2\t20-39,60-79\t1
GPU3\tSYS\tNV1\tNV2\t X \t20-39,60-79\t1
"""
DGX_1 = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_2\tmlx5_1\tmlx5_3\tCPU Affinity
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\tSYS\tPHB\tSYS\t0-19,40-59
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\tSYS\tPHB\tSYS\t0-19,40-59
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\tSYS\tPIX\tSYS\t0-19,40-59
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\tSYS\tPIX\tSYS\t0-19,40-59
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\tPIX\tSYS\tPHB\t20-39,60-79
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\tPIX\tSYS\tPHB\t20-39,60-79
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\tPHB\tSYS\tPIX\t20-39,60-79
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\tPHB\tSYS\tPIX\t20-39,60-79
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \tSYS\tPHB\tSYS\t
"""
FOUR_V100 = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV1\tNV1\tNV2\t0-31\t\tN/A
GPU1\tNV1\t X \tNV2\tNV1\t0-31\t\tN/A
GPU2\tNV1\tNV2\t X \tNV2\t0-31\t\tN/A
GPU3\tNV2\tNV1\tNV2\t X \t0-31\t\tN/A
"""
FOUR_H200 = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tNV18\t44-51,148-155\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\t\t1\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\t\t1\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \t\t1\t\tN/A
"""
FOUR_A4000 = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNODE\tNODE\tNODE\t0-31\t0\t\tN/A
GPU1\tNODE\t X \tNODE\tNODE\t0-31\t0\t\tN/A
GPU2\tNODE\tNODE\t X \tNODE\t0-31\t0\t\tN/A
GPU3\tNODE\tNODE\tNODE\t X \t0-31\t0\t\tN/A
"""


@pytest.mark.parametrize(
    ("printed", "domains"),
    [
        pytest.param(V100_MESH, ["NVLink 0,NUMA 0"] * 2 + ["NVLink 1,NUMA 1"] * 2, id="a ring of four"),
        pytest.param(DGX_1, ["NVLink 0"] * 4 + ["NVLink 1"] * 4, id="a mesh of eight, no NUMA column"),
        pytest.param(FOUR_V100, ["NVLink 0"] * 4, id="no NUMA node known"),
        pytest.param(FOUR_H200, ["NVLink 0,NUMA 0"] + ["NVLink 0,NUMA 1"] * 3, id="all linked, two NUMA nodes"),
        pytest.param(FOUR_A4000, ["NUMA 0"] * 4, id="no NVLink"),
        pytest.param("", [], id="nothing"),
        pytest.param("NVML: Driver/library version mismatch\n", [], id="an error"),
    ],
)
def test_what_real_machines_print(printed: str, domains: list[str]) -> None:
    found = nvidia.domains_of(printed)
    assert [",".join(found[index]) for index in sorted(found)] == domains


async def test_gpus_of_this_machine_share_a_numa_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's own nvidia-smi on the simulated driver: eight GPUs, all linked, four on each NUMA node."""
    driver = simulated_driver(tmp_path / "driver", gpus=8)
    monkeypatch.setenv("PATH", f"{driver.programs}:/bin:/usr/bin")
    monkeypatch.setattr(nvidia, "has_devices", lambda: True)
    fleet = await LocalBackend([WHOLE], {}, tmp_path).fleet()
    assert [gpu.domains for gpu in fleet.gpus] == [("NVLink 0", f"NUMA {index // 4}") for index in range(8)]
    used = {fleet.gpus[index].id: 1 for index in (0, 1, 2)}
    slots = place(WHOLE, 2, fleet, used, topology=REQUIRE)
    assert slots is not None
    assert [fleet.by_id[slot.gpu].index for slot in slots] == [4, 5]
    assert len(place(WHOLE, 5, fleet, used, topology=REQUIRE) or ()) == 5, "NVLink connects all eight"


async def test_a_machine_whose_topology_can_not_be_read_still_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = simulated_driver(tmp_path / "driver", gpus=2)
    (tmp_path / "bin").mkdir()
    script = f'#!/bin/sh\n[ "$1" = topo ] && exit 9\nexec {driver.programs}/nvidia-smi "$@"\n'
    (tmp_path / "bin" / "nvidia-smi").write_text(script, encoding="utf-8")
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setattr(nvidia, "has_devices", lambda: True)
    fleet = await LocalBackend([WHOLE], {}, tmp_path).fleet()
    assert [gpu.domains for gpu in fleet.gpus] == [(), ()]


async def seen_by(api: Any, tmp_path: Path, kind: GpuKind, *objects: dict[str, Any]) -> KubernetesBackend:
    """Return a backend that has observed these objects."""
    api.objects.clear()
    for item in objects:
        api.put(item)
    backend = KubernetesBackend([kind], HUB, ClusterSettings("jhub", api.kubeconfig(tmp_path)))
    await backend.fleet()
    return backend


@pytest.mark.parametrize("label", ["nvidia.com/gpu.clique", "gpuspawner.io/gpu-domain"])
async def test_a_label_says_that_all_gpus_of_a_node_are_linked(api: Any, tmp_path: Path, label: str) -> None:
    nodes = a_node("gpu-1"), a_node("gpu-2", {**LABELS, label: "b7a5.0"})
    backend = await seen_by(api, tmp_path, WHOLE, *nodes)
    fleet = await backend.fleet()
    slots = place(WHOLE, 4, fleet, {}, topology=REQUIRE)
    assert slots is not None
    assert {fleet.by_id[slot.gpu].node for slot in slots} == {"gpu-2"}
    free, bound = (backend.patch(slots, one_domain=one)["pod"]["spec"]["affinity"] for one in (False, True))
    await backend.close()
    assert list(free["nodeAffinity"]) != list(bound["nodeAffinity"]) == [AFFINITY], "on this node alone"


async def test_slices_of_a_gpu_share_no_domain(api: Any, tmp_path: Path) -> None:
    node = a_node("gpu-1", {**MIG_MIXED, "nvidia.com/gpu.clique": "b7a5.0"}, {"nvidia.com/mig-1g.10gb": 7})
    backend = await seen_by(api, tmp_path, WHOLE, node)
    domains = {gpu.domains for gpu in (await backend.fleet()).gpus}
    await backend.close()
    assert domains == {()}


def with_numa(number: int, numa: int | None, root: str = "pci0000:00") -> dict[str, Any]:
    device = a_gpu(number)
    device["attributes"]["resource.kubernetes.io/pcieRoot"] = {"string": root}
    if numa is not None:
        device["attributes"]["resource.kubernetes.io/numaNode"] = {"int": numa}
    return device


@pytest.mark.parametrize(
    ("devices", "labels", "domains", "constraint"),
    [
        pytest.param(
            [with_numa(0, 0), with_numa(1, 0), with_numa(2, 1)],
            {},
            [("NUMA 0",), ("NUMA 0",), ("NUMA 1",)],
            "resource.kubernetes.io/numaNode",
            id="NUMA nodes",
        ),
        pytest.param(
            [with_numa(0, None, "pci0000:00"), with_numa(1, None, "pci0000:00"), with_numa(2, None, "pci0000:80")],
            {},
            [("PCIe root pci0000:00",), ("PCIe root pci0000:00",), ("PCIe root pci0000:80",)],
            "resource.kubernetes.io/pcieRoot",
            id="PCIe roots, of a driver without NUMA nodes",
        ),
        pytest.param(
            [with_numa(0, 0), with_numa(1, 1), with_numa(2, 1)],
            {"nvidia.com/gpu.clique": "b7a5.0"},
            [("NVLink",)] * 3,
            None,
            id="an NVLink fabric",
        ),
    ],
)
async def test_a_claim_takes_devices_of_one_domain(
    api: Any,
    tmp_path: Path,
    devices: list[dict[str, Any]],
    labels: dict[str, str],
    domains: list[tuple[str, ...]],
    constraint: str | None,
) -> None:
    backend = await seen_by(api, tmp_path, CLAIMED, a_node("gpu-1", labels, {}), a_class(), a_slice(devices))
    fleet = await backend.fleet()
    assert [gpu.domains for gpu in fleet.gpus] == domains
    slots = place(CLAIMED, 2, fleet, {}, topology=REQUIRE)
    assert slots == (Slot(fleet.gpus[0].id), Slot(fleet.gpus[1].id))
    free, bound = (backend.patch(slots, one_domain=one)["pod"]["claim"]["devices"] for one in (False, True))
    await backend.close()
    assert "constraints" not in free
    assert bound.get("constraints") == (None if constraint is None else [{"matchAttribute": constraint}])


def two_domains() -> list[dict[str, Any]]:
    """Return a node with four claimed GPUs on two NUMA nodes."""
    devices = [with_numa(number, number // 2) for number in range(4)]
    return [a_node("gpu-1", {}, {}), a_class(), a_slice(devices)]


def user_of(devices: list[str], name: str, granted: list[int] | None = None) -> list[dict[str, Any]]:
    """Return a pod with these devices, and its claim. With the indexes of granted GPUs it is a workspace."""
    if granted is None:
        pod = a_pod(name, {})
    else:
        slots = [[f"gpu-1/{CLAIMED.resource}/{index}", "1"] for index in granted]
        pod = a_workspace(name, gpus={}, document={"slots": slots})
    return [claiming(pod, name), a_claim(devices, pod, name)]


async def test_a_domain_of_which_another_pod_has_a_device_is_not_whole(api: Any, tmp_path: Path) -> None:
    """Of the four GPUs, others have one in each domain. Which ones, only their claims tell."""
    others = [*user_of(["gpu-0"], "train-0"), *user_of(["gpu-2"], "train-1")]
    backend = await seen_by(api, tmp_path, CLAIMED, *two_domains(), *others)
    fleet = await backend.fleet()
    await backend.close()
    assert [gpu.foreign for gpu in fleet.gpus] == [False, False, True, True]
    assert [gpu.domains for gpu in fleet.gpus] == [("NUMA 0",), ("NUMA 1",)] * 2
    assert place(CLAIMED, 2, fleet, {}, topology=REQUIRE) is None


async def test_a_domain_that_others_fill_leaves_the_other_one(api: Any, tmp_path: Path) -> None:
    others = user_of(["gpu-0", "gpu-1"], "train-0")
    backend = await seen_by(api, tmp_path, CLAIMED, *two_domains(), *others)
    fleet = await backend.fleet()
    await backend.close()
    assert [(gpu.domains, gpu.foreign) for gpu in fleet.gpus] == [(("NUMA 1",), False)] * 2 + [(("NUMA 0",), True)] * 2


@pytest.mark.parametrize(
    ("granted", "devices", "domains"),
    [
        pytest.param([2, 3], ["gpu-0", "gpu-1"], [1, 1, 0, 0], id="the scheduler gave the other domain"),
        pytest.param([1], ["gpu-2"], [0, 1, 0, 1], id="one GPU"),
        pytest.param([0], ["gpu-2", "gpu-3"], [1, 1, 0, 0], id="more devices than granted"),
        pytest.param([-1, 10**30], ["gpu-2", "gpu-3"], [1, 1, 0, 0], id="no such GPUs"),
        pytest.param([1, 1], ["gpu-2", "gpu-3"], [1, 1, 0, 0], id="one GPU twice"),
    ],
)
async def test_the_gpus_of_a_workspace_have_the_domain_of_its_devices(
    api: Any, tmp_path: Path, granted: list[int], devices: list[str], domains: list[int]
) -> None:
    mine = user_of(devices, "jupyter-alice", granted)
    backend = await seen_by(api, tmp_path, CLAIMED, *two_domains(), *mine)
    fleet = await backend.fleet()
    await backend.close()
    assert [gpu.domains for gpu in fleet.gpus] == [(f"NUMA {number}",) for number in domains]
