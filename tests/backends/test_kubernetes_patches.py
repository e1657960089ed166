"""The patch of a lease's pod: GPUs of its kind, and its node as a preference or a requirement."""

import json
from dataclasses import replace

import pytest
from cluster_objects import A100, MIG_MIXED, MIG_SINGLE, SHARED, T4, a_node
from kube_backends import GIB, KINDS

from gpuspawner.backends.kubernetes.fleet import Toleration, cluster_kinds, gpus_of_node
from gpuspawner.backends.kubernetes.nodes import to_node
from gpuspawner.backends.kubernetes.patches import keep_off, pod_patch
from gpuspawner.core.gpus.fleet import Autoscale, GpuKind, Slot


def slots(node, resource, *numbers):
    return tuple(Slot(f"{node}/{resource}/{number}") for number in numbers)


def expressions(term):
    return {e["key"]: e["values"] for e in term["matchExpressions"] if e["operator"] == "In"}


def fits(terms, labels):
    """Whether kube-scheduler lets a pod that requires one of these terms onto a node with these labels."""
    ways = {
        "In": lambda e: labels.get(e["key"]) in e["values"],
        "NotIn": lambda e: labels.get(e["key"]) not in e["values"],
        "DoesNotExist": lambda e: e["key"] not in labels and "values" not in e,
    }
    return any(all(ways[e["operator"]](e) for e in term["matchExpressions"]) for term in terms)


def required(patch):
    node = patch["spec"]["affinity"]["nodeAffinity"]
    return node.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])


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
    assert [expressions(term) for term in required(patch["pod"])] == [
        {"nvidia.com/gpu.product": ["NVIDIA-A100-PCIe-80GB"], "nvidia.com/gpu.replicas": ["1"]},
        {"nvidia.com/gpu.product": ["NVIDIA-A100-SXM4-80GB"], "nvidia.com/gpu.replicas": ["1"]},
    ], "any node with GPUs of the kind, and none that divides them"
    (preferred,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert (preferred["weight"], expressions(preferred["preference"])) == (100, {"kubernetes.io/hostname": ["gpu-1"]})
    assert patch["pod"]["spec"]["tolerations"] == [
        {"key": "amd.com/gpu", "operator": "Exists"},
        {"key": "gpu.intel.com/i915", "operator": "Exists"},
        {"key": "gpu.intel.com/xe", "operator": "Exists"},
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "hub.jupyter.org/dedicated", "operator": "Equal", "value": "user", "effect": "NoSchedule"},
        {"key": "hub.jupyter.org_dedicated", "operator": "Equal", "value": "user", "effect": "NoSchedule"},
    ]


async def test_required_placement_allows_no_other_node(a_backend):
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


@pytest.mark.parametrize("granted", ["gone", "bare"])
def test_promise_7_a_node_that_shows_no_kind_any_more_is_not_taken_for_like_others_of_no_kind(granted):
    labelled = {"a100": A100, "bare": {}, "t4": {"nvidia.com/gpu.product": "Tesla-T4"}}
    kinds = cluster_kinds({"a100": GpuKind("a100", "A100", 80 * GIB, match="NVIDIA-A100-SXM4-80GB")})
    nodes = {name: to_node(a_node(name, labels, {"nvidia.com/gpu": 1})) for name, labels in labelled.items()}
    fleet = [gpu for node in nodes.values() for gpu in gpus_of_node(node, (), tuple(kinds.values()), "h", ())]
    patch = pod_patch(slots(granted, "nvidia.com/gpu", 0), nodes, fleet, kinds, (), must_be_there=False)
    assert [expressions(term) for term in required(patch)] == [{"kubernetes.io/hostname": [granted]}]


def test_a_pod_of_a_kind_with_a_driver_is_let_onto_no_node_with_another():
    def on(node, cuda):
        versions = {"nvidia.com/cuda.driver-version.full": "570.86.15", "nvidia.com/cuda.runtime-version.full": cuda}
        return a_node(node, {**A100, **versions}, {"nvidia.com/gpu": 1})

    kinds = {"new": GpuKind("new", "New", 80 * GIB, match="*A100*", cuda="12.8"), "any": GpuKind("any", match="*A100*")}
    nodes = {
        one["metadata"]["name"]: to_node(one) for one in (on("new", "12.8"), on("newer", "13.0"), on("old", "12.4"))
    }
    fleet = [gpu for node in nodes.values() for gpu in gpus_of_node(node, (), tuple(kinds.values()), "h", ())]
    terms = required(pod_patch(slots("new", "nvidia.com/gpu", 0), nodes, fleet, kinds, (), must_be_there=False))
    assert [name for name, node in nodes.items() if fits(terms, node.labels)] == ["new", "newer"]


def test_a_share_divides_what_the_cluster_divides():
    half = KINDS["half"]
    assert (half.pool, half.share, half.replicas, half.match) == ("half", 1, 2, "*A100*80GB")
    assert replace(KINDS["a100"]) == KINDS["a100"]


GKE = {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"}
SLICED = {**GKE, "cloud.google.com/gke-gpu-partition-size": "1g.5gb"}
FOUR_CLIENTS = {
    "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
    "cloud.google.com/gke-max-shared-clients-per-gpu": "4",
}
SLICE = "nvidia.com/mig-1g.10gb"
KARPENTER = {"karpenter.k8s.aws/instance-gpu-name": "a100"}
ALIKE = cluster_kinds(
    {
        kind.name: kind
        for kind in (
            GpuKind("gke", "A100", 40 * GIB, match="nvidia-tesla-a100"),
            GpuKind("gke-4", "A quarter", 10 * GIB, of="gke", shares=4),
            GpuKind("gke-slice", "A slice", 5 * GIB, match="nvidia-tesla-a100-MIG-1g.5gb"),
            GpuKind("gke-slice-4", "A quarter of it", 2 * GIB, of="gke-slice", shares=4),
            GpuKind("a100", "A100", 80 * GIB, match="NVIDIA-A100-SXM4-80GB"),
            GpuKind("half", "Half", 40 * GIB, of="a100", shares=2),
            GpuKind("slice", "A slice", 10 * GIB, match="*A100*-MIG-1g.10gb"),
            GpuKind("half-slice", "Half of it", 5 * GIB, of="slice", shares=2),
            GpuKind("aws", "A100", 40 * GIB, match="a100"),
            GpuKind("any-half", "Half of any", 40 * GIB, resource="nvidia.com/gpu", of="any", shares=2),
            GpuKind("any", "Any", 16 * GIB, resource="nvidia.com/gpu"),
        )
    }
)


@pytest.mark.parametrize(
    ("resource", "labelled"),
    [
        pytest.param(
            "nvidia.com/gpu",
            {"gke": GKE, "gke-4": GKE | FOUR_CLIENTS, "gke-slice": SLICED, "gke-slice-4": SLICED | FOUR_CLIENTS},
            id="GKE",
        ),
        pytest.param("nvidia.com/gpu", {"a100": A100, "half": SHARED, "slice": MIG_SINGLE}, id="GFD"),
        pytest.param(
            "nvidia.com/gpu", {"a100": A100, "half": {**A100, "nvidia.com/gpu.replicas": "2"}}, id="GFD, no suffix"
        ),
        pytest.param(
            SLICE, {"slice": MIG_MIXED, "half-slice": {**MIG_MIXED, f"{SLICE}.replicas": "2"}}, id="GFD, MIG mixed"
        ),
        pytest.param(
            "nvidia.com/gpu", {"aws": KARPENTER, "slice": {**MIG_SINGLE, **KARPENTER}}, id="Karpenter, some with GFD"
        ),
        pytest.param("nvidia.com/gpu", {"a100": A100, "half": SHARED, "any": {}}, id="any, without a label"),
        pytest.param(
            "nvidia.com/gpu",
            {"a100": A100, "any": T4, "any-half": {**T4, "nvidia.com/gpu.replicas": "2"}},
            id="any, whole and by halves",
        ),
    ],
)
def test_no_pod_is_let_onto_a_node_whose_gpus_are_of_another_kind(resource, labelled):
    nodes = {pool: to_node(a_node(pool, labels, {resource: 7})) for pool, labels in labelled.items()}
    fleet = [gpu for node in nodes.values() for gpu in gpus_of_node(node, (), tuple(ALIKE.values()), "h", ())]
    assert {gpu.node: gpu.pool for gpu in fleet} == {pool: pool for pool in labelled}
    for pool in labelled:
        patch = pod_patch(slots(pool, resource, 0), nodes, fleet, ALIKE, (), must_be_there=False)
        assert [other for other in labelled if fits(required(patch), nodes[other].labels)] == [pool]


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "volcano.sh/vgpu-number", "amd.com/gpu"])
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
@pytest.mark.parametrize("taint", ["nvidia.com/gpu", "amd.com/gpu", "volcano.sh/vgpu-number", "team"])
def test_a_node_is_offered_where_its_taints_are_those_that_the_pod_tolerates(resource, effect, taint):
    kind = GpuKind("gpu", "GPU", GIB, resource=resource)
    node = to_node(a_node(labels={}, gpus={resource: 1}, taints=[(taint, "present", effect)]), frozenset({resource}))
    fleet = gpus_of_node(node, (), (kind,), "h", ())
    patch = pod_patch(slots("gpu-1", resource, 0), {"gpu-1": node}, fleet, {"gpu": kind}, (), must_be_there=False)
    tolerated = {toleration["key"] for toleration in patch["spec"]["tolerations"] if "effect" not in toleration}
    assert [(gpu.pool, gpu.healthy) for gpu in fleet] == [("gpu", taint in tolerated)]
    assert (taint in tolerated) is taint.endswith("/gpu")


@pytest.mark.parametrize(("kind", "labels"), [("gke", GKE), ("gke-slice", SLICED)])
def test_a_node_that_is_coming_does_not_divide_what_its_kind_does_not(kind, labels):
    kinds = {kind: replace(ALIKE[kind], autoscale=Autoscale(8, 1, 240.0, tuple(labels.items())))}
    patch = pod_patch(slots(f"~{kind}-0", "nvidia.com/gpu", 0), {}, (), kinds, (), must_be_there=False)
    pools = [GKE, GKE | FOUR_CLIENTS, SLICED, SLICED | FOUR_CLIENTS]
    assert [pool for pool in pools if fits(required(patch), pool)] == [labels]


@pytest.mark.parametrize("terms", [[], [{"matchExpressions": [{"key": "kind", "operator": "In", "values": ["a100"]}]}]])
def test_a_pod_keeps_off_the_nodes_that_are_drained_whatever_else_it_requires(terms):
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}} if terms else {}
    patch = {"environment": {}, "pod": {"container": {}, "spec": {"affinity": {"nodeAffinity": affinity}}}}
    off = {"key": "metadata.name", "operator": "NotIn", "values": ["gpu-1", "gpu-2"]}
    assert required(keep_off(patch, {"gpu-2", "gpu-1"})["pod"]) == [
        {**term, "matchFields": [off]} for term in terms or [{}]
    ]
    assert keep_off(patch, ()) is patch
    assert keep_off({"environment": {}, "pod": {}}, {"gpu-1"}) == {"environment": {}, "pod": {}}
