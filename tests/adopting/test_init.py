"""``gpuspawner server init``: the catalog of a machine or a cluster is valid without edits."""

import asyncio

import pytest
from cluster_objects import A100, MIG_MIXED, MIG_SINGLE, SHARED, T4, a_node
from kube_api import KubeApi

from gpuspawner.adoption.discovered_gpus import short_name, title_of, to_draft, written_memory
from gpuspawner.adoption.draft import render
from gpuspawner.adoption.found_gpus import of_nodes
from gpuspawner.backends.kubernetes.fleet import cluster_kinds, gpus_of_node
from gpuspawner.backends.kubernetes.nodes import to_node
from gpuspawner.backends.local import nvidia
from gpuspawner.catalog import load_catalog, load_text
from gpuspawner.cli import main

U0, U1 = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000001"
H100 = "NVIDIA H100 80GB HBM3"
RENAMED = {**A100, "nvidia.com/gpu.replicas": "4"}
DONE, REFUSED, AWAY = 0, 2, 3


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make a machine whose nvidia-smi prints these rows and this list."""

    def make(rows, listed=""):
        (tmp_path / "bin").mkdir()
        (tmp_path / "rows").write_text(rows)
        (tmp_path / "list").write_text(listed)
        tool = tmp_path / "bin" / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n[ $1 = -L ] && exec cat {tmp_path}/list\ncat {tmp_path}/rows\n")
        tool.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setattr(nvidia, "has_devices", lambda: False)
    monkeypatch.chdir(tmp_path)
    return make


def pools(nodes):
    """Return the kind of each GPU of these nodes in the catalog that init writes, as the service sees it."""
    catalog = load_text(render(to_draft(of_nodes(nodes))))
    kinds = list(cluster_kinds(catalog.gpus).values())
    named = frozenset(kind.resource for kind in kinds if kind.resource)
    found = {}
    for node in nodes:
        found[node["metadata"]["name"]] = {
            gpu.group.resource: gpu.pool for gpu in gpus_of_node(to_node(node, named), (), kinds, "hub", ())
        }
    return found, catalog


def test_a_catalog_that_is_there_is_replaced_by_force_alone(machine, tmp_path, capsys):
    machine(f"0, {U0}, Tesla T4, [N/A], 15360, 0, [N/A]\n")
    (tmp_path / "catalog.yaml").write_text("mine\n")
    assert main(["server", "init"]) == REFUSED
    assert "catalog.yaml exists and was not changed." in capsys.readouterr().err
    assert (tmp_path / "catalog.yaml").read_text() == "mine\n"
    assert main(["server", "init", "--force"]) == DONE
    assert list(load_catalog(tmp_path / "catalog.yaml").gpus) == ["t4"]
    assert "KubeSpawner" not in "".join(capsys.readouterr()), "it has no say on one machine"


def test_printed_it_is_a_catalog_alone(machine, capsys, tmp_path):
    machine(f"0, {U0}, Tesla T4, [N/A], 15360, 0, [N/A]\n")
    assert main(["server", "init", "-"]) == DONE
    out, err = capsys.readouterr()
    assert list(load_text(out).gpus) == ["t4"]
    assert err == "Found on this machine: 1 x T4.\n"
    assert not (tmp_path / "catalog.yaml").exists()


def test_mig_devices_are_kinds_of_their_own(machine, capsys):
    listed = (
        f"GPU 0: {H100} (UUID: {U0})\n"
        "  MIG 3g.40gb     Device  0: (UUID: MIG-cccccccc-0000-0000-0000-000000000002)\n"
        "  MIG 1g.10gb     Device  1: (UUID: MIG-dddddddd-0000-0000-0000-000000000003)\n"
        f"GPU 1: {H100} (UUID: {U1})\n"
    )
    machine(f"0, {U0}, {H100}, Enabled, 81559, 1, 0\n1, {U1}, {H100}, Enabled, 81559, 1, 0\n", listed)
    assert main(["server", "init"]) == DONE
    out = capsys.readouterr().out
    assert "GPU 1 (NVIDIA H100 80GB HBM3): MIG mode is on without a MIG device. It is not in the catalog." in out
    catalog = load_catalog("catalog.yaml")
    assert nvidia.matching_kind(f"{H100} MIG 3g.40gb", catalog.gpus.values()) == "h100-80gb-3g-40gb"
    assert nvidia.matching_kind(H100, catalog.gpus.values()) == ""
    assert str(catalog.gpus["h100-80gb-3g-40gb"].counts) == "3/7"
    assert set(catalog.templates["gpu"].gpus.values()) == {(1, 1)}, "CUDA uses no second"


def test_a_machine_whose_driver_lists_no_gpu_says_so(machine, capsys):
    machine("")
    assert main(["server", "init"]) == DONE
    assert "nvidia-smi lists no GPU." in capsys.readouterr().out


def test_a_machine_without_a_gpu_gets_a_catalog_without_one_and_is_told_how_to_try(machine, capsys):
    assert main(["server", "init"]) == DONE
    assert "No nvidia-smi is on this machine's PATH." in capsys.readouterr().out
    assert main(["server", "check", "catalog.yaml"]) == DONE
    assert not load_catalog("catalog.yaml").gpus


@pytest.mark.parametrize(
    ("nodes", "kinds"),
    [
        pytest.param([a_node("a")], {"a": {"nvidia.com/gpu": "a100-80gb"}}, id="whole"),
        pytest.param([a_node("a", MIG_SINGLE)], {"a": {"nvidia.com/gpu": "a100-80gb-1g-10gb"}}, id="MIG, one profile"),
        pytest.param(
            [a_node("a", MIG_MIXED, {"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": 14})],
            {"a": {"nvidia.com/gpu": "a100-80gb", "nvidia.com/mig-1g.10gb": "a100-80gb-1g-10gb"}},
            id="MIG, mixed: two resources",
        ),
        pytest.param([a_node("a", SHARED)], {"a": {"nvidia.com/gpu": "a100-80gb-shared-2"}}, id="time-slicing"),
        pytest.param(
            [a_node("a", RENAMED, {"nvidia.com/gpu.shared": 8}), a_node("b")],
            {"a": {"nvidia.com/gpu.shared": "a100-80gb-shared-4"}, "b": {"nvidia.com/gpu": "a100-80gb"}},
            id="time-slicing, renamed, beside whole ones",
        ),
        pytest.param(
            [a_node("a", {}, {"nvidia.com/gpu": 2}), a_node("b", T4), a_node("c", MIG_SINGLE)],
            {
                "a": {"nvidia.com/gpu": "gpu"},
                "b": {"nvidia.com/gpu": "t4"},
                "c": {"nvidia.com/gpu": "a100-80gb-1g-10gb"},
            },
            id="without a label, beside labelled ones",
        ),
        pytest.param(
            [
                a_node("a", T4),
                a_node("b", {**T4, "karpenter.sh/capacity-type": "spot"}),
                a_node("c", {**SHARED, "cloud.google.com/gke-spot": "true"}),
            ],
            {
                "a": {"nvidia.com/gpu": "t4"},
                "b": {"nvidia.com/gpu": "t4-spot"},
                "c": {"nvidia.com/gpu": "a100-80gb-spot-shared-2"},
            },
            id="spot nodes",
        ),
        pytest.param(
            [a_node("a", {"amd.com/gpu.product-name": "AMD_Instinct_MI300X"}, {"amd.com/gpu": 8})],
            {"a": {"amd.com/gpu": "mi300x"}},
            id="AMD",
        ),
        pytest.param(
            [a_node("a", {"cloud.google.com/gke-accelerator": "nvidia-l4"}, {"nvidia.com/gpu": 1})],
            {"a": {"nvidia.com/gpu": "l4"}},
            id="GKE",
        ),
    ],
)
def test_each_gpu_of_a_cluster_is_of_the_kind_that_was_written_for_it(nodes, kinds):
    assert pools(nodes)[0] == kinds


def test_shared_gpus_are_counted_as_gpus_not_as_shares():
    discovery = of_nodes(
        [a_node("a", SHARED, {"nvidia.com/gpu": 16}), a_node("b", RENAMED, {"nvidia.com/gpu.shared": 6})]
    )
    assert [one.words for one in discovery.gpus] == [
        "8 x A100 SXM4 80GB, each shared by 2",
        "2 x A100 SXM4 80GB, each shared by 4",
    ]


def test_a_resource_without_anything_allocatable_is_not_offered():
    both = {"nvidia.com/gpu": 4, "nvidia.com/gpu.shared": 16}
    nodes = [a_node("a", RENAMED, both, healthy={"nvidia.com/gpu": 0, "nvidia.com/gpu.shared": 15})]
    discovery = of_nodes(nodes)
    assert [one.words for one in discovery.gpus] == ["4 x A100 SXM4 80GB, each shared by 4"]
    assert pools(nodes)[1].templates["gpu"].gpus == {"a100-80gb-shared-4": (1, 1)}
    assert [line.partition(". ")[0] for line in discovery.notes] == [
        "a: its 4 x nvidia.com/gpu cannot be allocated",
        "a: 1 x nvidia.com/gpu.shared are reported unhealthy.",
    ]
    none_left = of_nodes([a_node("a", healthy={"nvidia.com/gpu": 0})])
    assert (none_left.gpus, len(none_left.notes)) == ((), 1), "it does not say that no node advertises GPUs"


def test_decisions_for_a_person_are_next_to_the_setting():
    nodes = [
        a_node("a", {}, {"nvidia.com/gpu": 2}),
        a_node("b", {}, {"nvidia.com/gpu.shared": 4}),
        a_node("c", ready=False),
    ]
    discovery = of_nodes(nodes)
    assert [line.partition(",")[0] for line in discovery.notes] == [
        "c is not ready: its GPUs are in the catalog",
        "a: 2 x nvidia.com/gpu",
        "b: 4 x nvidia.com/gpu.shared are shared",
    ]
    text = render(to_draft(discovery))
    lines = text.splitlines()
    here = next(number for number, line in enumerate(lines) if line.startswith("  gpu: {title: GPU, resource"))
    assert lines[here - 1].lstrip(" #").startswith("Decide: memory. The memory of one GPU is unknown")


async def test_a_cluster_is_read_by_its_kubeconfig(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    api = KubeApi()
    await api.start()
    try:
        arguments = ["server", "init", "--kubernetes", "--kubeconfig", api.kubeconfig(tmp_path)]
        assert await asyncio.to_thread(main, arguments) == DONE
        assert "No node advertises GPUs." in capsys.readouterr().out
        for number in range(300):  # more than a page
            api.put(a_node(f"gpu-{number}"))
        assert await asyncio.to_thread(main, [*arguments, "--force"]) == DONE
        told = capsys.readouterr().out
        assert "Found on this cluster: 2400 x A100 SXM4 80GB." in told
        assert "install the chart with --set-file catalog=catalog.yaml" in told
        assert "gpuspawner kube values" in told
        assert "configure(" not in told, "the chart's hub has no configuration to write it into"
        api.refused.add(("get", "/api/v1/nodes"))
        assert await asyncio.to_thread(main, [*arguments, "--force"]) == REFUSED
        assert "nodes is forbidden" in capsys.readouterr().err
    finally:
        await api.stop()
    assert await asyncio.to_thread(main, [*arguments, "--force"]) == AWAY
    assert "The Kubernetes API server does not answer" in capsys.readouterr().err
    assert list(load_catalog("catalog.yaml").gpus) == ["a100-80gb"]


@pytest.mark.parametrize(
    ("product", "name", "title"),
    [
        ("NVIDIA-A100-SXM4-80GB", "a100-80gb", "A100 SXM4 80GB"),
        ("Tesla-V100-SXM2-16GB", "v100-16gb", "V100 SXM2 16GB"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090", "RTX 4090"),
        ("nvidia-tesla-t4", "t4", "T4"),
        ("AMD_Instinct_MI300X_OAM", "mi300x", "MI300X OAM"),
        ("NVIDIA", "", "NVIDIA"),
    ],
)
def test_a_product_is_called_as_people_call_it(product, name, title):
    assert (short_name(product), title_of(product)) == (name, title)


@pytest.mark.parametrize(
    ("mib", "written"), [(81559, "80GiB"), (15360, "15GiB"), (9728, "9.5GiB"), (143771, "140GiB"), (512, "512MiB")]
)
def test_memory_is_written_in_whole_gib_where_it_is_close_to_them(mib, written):
    assert written_memory(mib * 2**20) == written
