"""``gpuspawner server doctor`` on GPUs that pods claim."""

from dataclasses import replace

from cluster_objects import A100 as LABELS
from cluster_objects import a_node
from device_objects import A100, a_class, a_gpu, a_slice

from gpuspawner.adoption.doctor.cluster_checks import devices, kinds_met, nodes_of
from gpuspawner.adoption.doctor.findings import Answer, State
from gpuspawner.core.gpus.fleet import DeviceClaim, GpuKind

GIB = 2**30
SLICES, CLASSES = Answer(200, [a_slice([a_gpu(0)])]), Answer(200, [a_class()])


def kinds(product=A100, device_class="gpu.nvidia.com"):
    claim = DeviceClaim(device_class, (f"device.attributes['gpu.nvidia.com'].productName == '{product}'",))
    return {"one": GpuKind("one", "One", 80 * GIB, resource=claim.counted_as("one"), claim=claim)}


def found(*arguments):
    return [(one.state, one.words, one.remedy) for one in kinds_met(*arguments)]


def test_a_kind_whose_devices_are_there_is_good():
    ((state, words, _),) = found(kinds(), SLICES, CLASSES)
    assert (state, words) == (State.GOOD, "The kind with claims has devices.")


def test_a_kind_that_no_device_is_of_is_told_with_what_shows_them():
    ((state, words, remedy),) = found(kinds("Tesla T4"), SLICES, CLASSES)
    assert (state, words) == (State.BAD, "No device of a ResourceSlice is of the kind one.")
    assert remedy.startswith("Correct the kind's selectors or capacity: kubectl get resourceslices --output=yaml")
    ((_, _, remedy),) = found(kinds(device_class="amd.example.org"), SLICES, CLASSES)
    assert remedy.startswith("There is no DeviceClass amd.example.org: install the DRA driver")


def test_a_kind_that_says_more_compute_capability_than_its_devices_have_is_told():
    written = {"one": replace(kinds()["one"], compute="9.0")}
    ((state, words, remedy),) = found(written, SLICES, CLASSES)
    assert (state, words) == (State.BAD, "The kind one says compute: 9.0, and its GPUs have 8.0.")
    assert remedy == "Write compute: 8.0. needs: of a template compares with it."
    assert found({"one": replace(kinds()["one"], compute="8.0")}, SLICES, CLASSES)[0][0] is State.GOOD


def test_an_unreadable_part_is_reported_with_the_required_rights():
    ((state, words, remedy),) = found(kinds(), Answer(403), CLASSES)
    assert (state, words) == (
        State.BAD,
        "The API server did not list ResourceSlices (403), so the service sees no GPU with claims.",
    )
    assert "hub_config/kubernetes-claims-rbac.yaml" in remedy


def test_a_device_without_a_slice_is_skipped():
    odd = Answer(200, [{"metadata": {"name": "odd"}, "spec": {}, "status": {}}, *SLICES.body])
    assert found(kinds(), odd, CLASSES)[0][0] is State.GOOD
    assert nodes_of(odd) == {"gpu-1"}


def test_a_node_whose_devices_are_claimed_needs_no_device_plugin():
    bare = [a_node("gpu-1", LABELS, {})]
    assert [one.state for one in devices(bare)] == [State.BAD]
    assert [one.state for one in devices(bare, nodes_of(SLICES))] == [State.GOOD]
    assert nodes_of(None) == nodes_of(Answer(403)) == frozenset()
