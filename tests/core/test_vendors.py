"""Resources that the service counts as GPUs, and others that the hub refuses."""

import pytest

from gpuspawner.core.gpus.vendors import TAINTS, VENDORS, exposes_gpus, is_gpu_resource, measurement_note, vendor_of

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
