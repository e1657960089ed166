"""What a lease asks of the pod: GPUs of its kind, on the granted node by preference or by requirement."""

import json
from dataclasses import replace

from cluster_objects import A100, SHARED, a_node
from kube_backends import KINDS

from gpuspawner.backends.kubernetes.fleet import Toleration
from gpuspawner.core.gpus import Slot


def slots(node, resource, *numbers):
    return tuple(Slot(f"{node}/{resource}/{number}") for number in numbers)


def expressions(term):
    return {e["key"]: e["values"] for e in term["matchExpressions"]}


async def test_a_patch_asks_for_the_number_of_gpus_of_the_kind_by_preference_on_the_granted_node(api, a_backend):
    api.put(a_node("gpu-2", {**A100, "nvidia.com/gpu.product": "NVIDIA-A100-PCIe-80GB"}))
    api.put(a_node("gpu-3", SHARED))
    backend = await a_backend()
    patch = backend.patch(slots("gpu-1", "nvidia.com/gpu", 0, 3))
    assert json.loads(json.dumps(patch)) == patch
    assert patch["environment"] == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert patch["pod"]["container"]["resources"] == {
        "requests": {"nvidia.com/gpu": "2"},
        "limits": {"nvidia.com/gpu": "2"},
    }
    affinity = patch["pod"]["spec"]["affinity"]["nodeAffinity"]
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [expressions(term) for term in required] == [
        {"nvidia.com/gpu.product": ["NVIDIA-A100-PCIe-80GB"]},
        {"nvidia.com/gpu.product": ["NVIDIA-A100-SXM4-80GB"]},
    ], "any node with GPUs of the kind, and none that divides them"
    (preferred,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert (preferred["weight"], expressions(preferred["preference"])) == (100, {"kubernetes.io/hostname": ["gpu-1"]})
    assert patch["pod"]["spec"]["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "hub.jupyter.org/dedicated", "operator": "Equal", "value": "user", "effect": "NoSchedule"},
        {"key": "hub.jupyter.org_dedicated", "operator": "Equal", "value": "user", "effect": "NoSchedule"},
    ]


async def test_where_the_placement_is_a_requirement_no_other_node_will_do(a_backend):
    backend = await a_backend(placement="required", tolerations=(Toleration("team", "Exists"),))
    spec = backend.patch(slots("gpu-1", "nvidia.com/gpu", 0))["pod"]["spec"]
    affinity = spec["affinity"]["nodeAffinity"]
    assert list(affinity) == ["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert expressions(term) == {"kubernetes.io/hostname": ["gpu-1"]}
    assert spec["tolerations"][-1] == {"key": "team", "operator": "Exists"}


async def test_replicas_are_asked_for_where_devices_are_divided_alike(api, a_backend):
    api.put(a_node("gpu-3", SHARED))
    patch = (await a_backend()).patch(slots("gpu-3", "nvidia.com/gpu", 0))
    (term,) = patch["pod"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert expressions(term) == {
        "nvidia.com/gpu.product": ["NVIDIA-A100-SXM4-80GB-SHARED"],
        "nvidia.com/gpu.replicas": ["2"],
    }


async def test_a_kind_that_is_its_resource_is_found_by_it_alone(api, a_backend):
    api.put(a_node("gpu-4", {}, {"nvidia.com/mig-1g.10gb": 7}))
    patch = (await a_backend()).patch(slots("gpu-4", "nvidia.com/mig-1g.10gb", 0, 1))
    assert patch["pod"]["container"]["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "2"}
    assert list(patch["pod"]["spec"]["affinity"]["nodeAffinity"]) == ["preferredDuringSchedulingIgnoredDuringExecution"]


async def test_a_patch_without_gpus_hides_those_of_the_node(a_backend):
    patch = (await a_backend()).patch(())
    assert patch["environment"] == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    assert patch["pod"] == {}


async def test_a_patch_for_a_node_that_has_gone_still_asks_for_what_was_granted(a_backend):
    patch = (await a_backend()).patch(slots("gone", "nvidia.com/gpu", 0))
    assert patch["pod"]["container"]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_a_share_divides_what_the_cluster_divides():
    half = KINDS["half"]
    assert (half.pool, half.share, half.replicas, half.match) == ("half", 1, 2, "*A100*80GB")
    assert replace(KINDS["a100"]) == KINDS["a100"]
