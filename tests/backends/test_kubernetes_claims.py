"""The ResourceClaim of a lease with claimed GPUs."""

import json

from cluster_objects import a_node
from device_objects import a_class, a_gpu, a_slice
from kube_views import HUB

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.dra.models import claim_spec, to_slice
from gpuspawner.backends.kubernetes.dra.selectors import fits
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog import load_text
from gpuspawner.core.gpus.fleet import DeviceClaim, DriverConfig, GpuKind, Slot

GIB = 2**30
SELECTOR = "device.attributes['gpu.nvidia.com'].type == 'gpu'"
SHARING = '{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}'


def kind(name, claim):
    return GpuKind(name, name, 80 * GIB, resource=claim.counted_as(name), claim=claim)


A100 = kind("a100", DeviceClaim("gpu.nvidia.com", (SELECTOR,)))
PART = kind(
    "part", DeviceClaim("gpu.nvidia.com", (), (("memory", "10Gi"),), (DriverConfig("gpu.nvidia.com", SHARING),))
)


def test_a_claim_asks_for_the_number_of_its_kind():
    (request,) = claim_spec([A100], 2)["devices"]["requests"]
    assert request == {
        "name": "a100",
        "exactly": {
            "deviceClassName": "gpu.nvidia.com",
            "allocationMode": "ExactCount",
            "count": 2,
            "selectors": [{"cel": {"expression": SELECTOR}}],
        },
    }


def test_a_claim_requests_a_part_with_the_drivers_parameters():
    spec = claim_spec([PART], 1)["devices"]
    assert spec["requests"][0]["exactly"]["capacity"] == {"requests": {"memory": "10Gi"}}
    assert spec["config"] == [
        {"requests": ["part"], "opaque": {"driver": "gpu.nvidia.com", "parameters": json.loads(SHARING)}}
    ]


def test_a_claim_of_several_kinds_takes_the_first_that_is_free():
    spec = claim_spec([A100, PART], 1)["devices"]
    (request,) = spec["requests"]
    assert request["name"] == "gpu"
    assert [wish["name"] for wish in request["firstAvailable"]] == ["a100", "part"]
    assert spec["config"][0]["requests"] == ["gpu/part"]


def test_a_claim_of_a_kind_with_a_driver_takes_devices_by_the_attributes_of_nvidias_driver():
    catalog = load_text("""\
version: 1
gpus: {h100: {memory: 80GiB, driver: "570.86.05", cuda: 12.8, claim: {device_class: gpu.nvidia.com}}}
templates: {lab: {gpus: {h100: 1}, needs: {driver: 570, cuda: 12.4}}}
""")
    selectors = catalog.gpus["h100"].claim.selectors
    assert selectors == (
        "device.attributes['gpu.nvidia.com'].driverVersion.compareTo(semver('570.86.5')) >= 0",
        "device.attributes['gpu.nvidia.com'].cudaDriverVersion.compareTo(semver('12.8.0')) >= 0",
    )
    new, old, older_cuda = a_gpu(0), a_gpu(1), a_gpu(2)
    old["attributes"] = {**new["attributes"], "driverVersion": {"version": "570.86.4"}}
    older_cuda["attributes"] = {**new["attributes"], "cudaDriverVersion": {"version": "12.4.0"}}
    published = to_slice(a_slice([new, old, older_cuda]))
    assert [one.name.device for one in published.devices if fits(one, selectors)] == ["gpu-0"]


async def test_a_patch_claims_what_the_lease_holds_and_prefers_its_node(api, tmp_path):
    api.objects.clear()
    for item in (a_node(gpus={}), a_class(), a_slice([a_gpu(0), a_gpu(1)])):
        api.put(item)
    backend = KubernetesBackend([A100], HUB, ClusterSettings("jhub", api.kubeconfig(tmp_path)))
    slots = [Slot(gpu.id) for gpu in (await backend.fleet()).gpus]
    patch = backend.patch(tuple(slots))
    await backend.close()
    assert patch["environment"] == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert patch["pod"]["claim"] == claim_spec([A100], 2)
    assert "container" not in patch["pod"], "no pod asks for what its devices are counted as"
    assert list(patch["pod"]["spec"]["affinity"]["nodeAffinity"]) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in patch["pod"]["spec"]["tolerations"]
