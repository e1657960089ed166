"""GPU vendors, names of GPUs, spot nodes and the health of GPUs."""

import pytest

from gpuspawner.core.gpus.fleet import (
    Group,
    Slot,
    catalog_kind_name,
    coming_node_group,
    group_of_gpu,
    kind_in_cluster,
    nodes_of_cluster,
    qualified_node_name,
)
from gpuspawner.core.gpus.vendors import (
    TAINTS,
    VENDORS,
    exposes_gpus,
    is_gpu_resource,
    measurement_note,
    notice_seconds,
    spot_labels,
    vendor_of,
)
from gpuspawner.core.outages import FATAL_XIDS, GpuHealth, find_fault

COUNTED = [
    *sorted(name for vendor in VENDORS for name in vendor.gpus),
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-2g.20gb.shared",
]


@pytest.mark.parametrize("resource", COUNTED)
def test_the_hub_refuses_all_that_the_service_counts(resource):
    assert is_gpu_resource(resource)
    assert exposes_gpus(resource)
    assert vendor_of(resource) in VENDORS


@pytest.mark.parametrize(
    "resource",
    ["nvidia.com/gpumem", "gpu.intel.com/i915_monitoring", "gpu.intel.com/millicores", "volcano.sh/vgpu-number"],
)
def test_uncounted_gpu_access_is_refused_and_not_counted(resource):
    assert exposes_gpus(resource)
    assert not is_gpu_resource(resource)


@pytest.mark.parametrize("resource", ["cpu", "memory", "nvidia.com/nic", "amd.com/cpu", "example.com/fpga"])
def test_others_are_neither_unless_the_catalog_names_them(resource):
    assert not is_gpu_resource(resource)
    assert not exposes_gpus(resource)
    named = frozenset({resource})
    assert is_gpu_resource(resource, named)
    assert exposes_gpus(resource, named)


def test_taints_are_resources_and_labels_are_of_one_vendor():
    assert {vendor_of(key) for key in TAINTS} == set(VENDORS)
    labels = [label for vendor in VENDORS for label in (*vendor.products, *vendor.memories_mib, *vendor.memories_gib)]
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize(
    ("resource", "words"),
    [("", ""), ("nvidia.com/gpu", ""), ("amd.com/gpu", "Measured by amd-smi or"), ("fpga.example/x", "is not known")],
)
def test_a_readable_resource_names_its_measurement(resource, words):
    assert words in measurement_note(resource)
    assert bool(measurement_note(resource)) == bool(words)


# --- spot nodes


@pytest.mark.parametrize(
    ("labels", "seconds"),
    [
        ({"karpenter.sh/capacity-type": "spot"}, 120.0),
        ({"cloud.google.com/gke-spot": "true", "zone": "a"}, 30.0),
        ({"karpenter.sh/capacity-type": "spot", "kubernetes.azure.com/scalesetpriority": "spot"}, 30.0),
        ({"karpenter.sh/capacity-type": "on-demand"}, None),
        ({}, None),
    ],
)
def test_the_shortest_notice_of_a_spot_node_counts_and_other_nodes_have_no_notice(labels, seconds):
    assert notice_seconds(labels) == seconds
    assert bool(spot_labels(labels)) is (seconds is not None)


# --- names of GPUs


@pytest.mark.parametrize("group", [Group("node-1", "nvidia.com/gpu"), Group("a.b-c", "amd.com/gpu"), Group("n", "gpu")])
def test_a_name_gives_back_the_fields_that_it_was_made_of(group):
    slot = Slot(group.gpu(12))
    assert (slot.gpu, slot.group, slot.is_coming) == (f"{group.node}/{group.resource}/12", group, False)
    assert group.coming_kind == ""


@pytest.mark.parametrize("name", ["GPU-8d0c4c52-6c4b-4a43-9d36-0c8f6f6f0001", "sim-0", "half/way", ""])
def test_a_gpu_with_a_name_of_its_own_has_no_group(name):
    assert (group_of_gpu(name), Slot(name).is_coming) == (None, False)


def test_a_node_that_is_coming_is_known_by_its_name_and_names_its_kind():
    group = coming_node_group("a100-half", 3, "nvidia.com/gpu")
    assert (Slot(group.gpu(0)).is_coming, group_of_gpu(group.gpu(0)).coming_kind) == (True, "a100-half")


def test_nodes_and_kinds_of_several_clusters_are_told_apart_by_their_names():
    assert (qualified_node_name("", "one"), qualified_node_name("east", "one")) == ("one", "east:one")
    assert nodes_of_cluster("east", ["one", "east:one", "west:two"]) == {"one"}
    assert nodes_of_cluster("", ["one", "east:one"]) == {"one"}
    assert (kind_in_cluster("east", "a100"), catalog_kind_name("a100@east"), catalog_kind_name("a100")) == (
        "a100@east",
        "a100",
        "a100",
    )


# --- health of GPUs


@pytest.mark.parametrize("xid", [48, 63, 64, 74, 79, 94, 95])
def test_a_fatal_xid_is_a_fault(xid):
    assert find_fault(GpuHealth(xid=xid), []) == f"Xid {xid}: {FATAL_XIDS[xid]}"


@pytest.mark.parametrize("xid", [None, 0, 13, 31, 43, 45])
def test_an_error_of_a_program_is_none(xid):
    assert find_fault(GpuHealth(xid=xid, uncorrected_errors=0), [GpuHealth()]) == ""


@pytest.mark.parametrize(
    ("before", "now", "fault"),
    [
        pytest.param([], 5, "", id="errors of earlier days are not new"),
        pytest.param([5, 5], 5, "", id="the same number"),
        pytest.param([None], 5, "", id="not known before"),
        pytest.param([2, 4], 5, "3 new uncorrected memory errors, 5 in all", id="more than in the last hour"),
        pytest.param([2], None, "", id="not known now"),
        pytest.param([7], 1, "", id="the driver was loaded again"),
    ],
)
def test_growing_uncorrected_errors_are_a_fault(before, now, fault):
    earlier = [GpuHealth(uncorrected_errors=one) for one in before]
    assert find_fault(GpuHealth(uncorrected_errors=now), earlier) == fault
