"""Spot nodes: kinds of their own, and no pod on one whose user did not ask for it."""

import pytest
from cluster_objects import A100, T4, a_node, fleet_of
from kube_backends import GIB
from test_kubernetes_patches import fits, required, slots

from gpuspawner.backends.kubernetes.nodes import to_node
from gpuspawner.backends.kubernetes.patches import pod_patch
from gpuspawner.core.gpus.fleet import Autoscale, GpuKind
from gpuspawner.core.gpus.vendors import KARPENTER, SPOT, notice_seconds, spot_labels

GPU, ONE = "nvidia.com/gpu", {"nvidia.com/gpu": 1}
ON_DEMAND = {KARPENTER: "on-demand", "eks.amazonaws.com/capacityType": "ON_DEMAND"}
KINDS = {
    "t4": GpuKind("t4", "T4", 16 * GIB, match="Tesla-T4"),
    "t4-spot": GpuKind("t4-spot", "T4 (spot)", 16 * GIB, match="Tesla-T4", spot=True),
}


def seen(labelled, kinds=KINDS):
    nodes = {name: to_node(a_node(name, labels, ONE)) for name, labels in labelled.items()}
    return nodes, fleet_of(nodes.values(), (), list(kinds.values()), "h", ()).gpus


@pytest.mark.parametrize(("label", "value"), SPOT.items())
def test_a_node_that_a_label_calls_spot_has_the_spot_kind_and_others_the_other(label, value):
    _, gpus = seen({"there": {**T4, **ON_DEMAND}, "lent": {**T4, label: value}})
    assert {gpu.node: (gpu.pool, gpu.spot) for gpu in gpus} == {"there": ("t4", False), "lent": ("t4-spot", True)}
    assert notice_seconds(ON_DEMAND) is None
    assert notice_seconds({label: value}) == (120 if label in ON_DEMAND else 30)


def test_unrequested_spot_gpus_are_granted_to_no_workspace_and_the_page_says_how():
    _, (gpu,) = seen({"lent": {**T4, KARPENTER: "spot"}}, {"t4": KINDS["t4"]})
    assert gpu.pool == ""
    assert gpu.note == "add a kind with match: Tesla-T4 and spot: true to the catalog: its node is spot"


@pytest.mark.parametrize(("label", "value"), SPOT.items())
def test_promise_7_no_pod_gets_a_spot_node_unless_it_was_asked_for(label, value):
    there, lent = {**T4, **ON_DEMAND}, {**T4, label: value}
    nodes, gpus = seen({"there": there, "plain": T4, "lent": lent})
    on_demand, spot = (
        required(pod_patch(slots(node, GPU, 0), nodes, gpus, KINDS, (), must_be_there=False))
        for node in ("there", "lent")
    )
    ways = [there, T4, lent, {**lent, "kubernetes.io/hostname": "new"}]
    assert [fits(on_demand, labels) for labels in ways] == [True, True, False, False]
    assert [fits(spot, labels) for labels in ways] == [False, False, True, True]


def test_a_kind_that_is_its_resource_keeps_off_spot_nodes_too():
    kinds = {"any": GpuKind("any", "Any", 16 * GIB, resource=GPU)}
    nodes, gpus = seen({"there": {}, "lent": {KARPENTER: "spot"}}, kinds)
    assert [gpu.pool for gpu in gpus] == ["any", ""]
    terms = required(pod_patch(slots("there", GPU, 0), nodes, gpus, kinds, (), must_be_there=False))
    assert [fits(terms, node.labels) for node in nodes.values()] == [True, False]


def test_without_visible_spot_labels_no_label_is_named():
    nodes, gpus = seen({"there": A100})
    patch = pod_patch(slots("there", GPU, 0), nodes, gpus, KINDS, (), must_be_there=False)
    assert "NotIn" not in str(patch)


def test_karpenter_starts_a_spot_node_only_for_a_spot_kind():
    labels = {"nvidia.com/gpu.product": "Tesla-T4"}
    kinds = {
        "t4": GpuKind("t4", "T4", GIB, autoscale=Autoscale(4, 1, 60.0, tuple(labels.items()))),
        "t4-spot": GpuKind(
            "t4-spot", "T4 (spot)", GIB, spot=True, autoscale=Autoscale(4, 1, 60.0, ((KARPENTER, "spot"),))
        ),
    }
    terms = {
        name: required(pod_patch(slots(f"~{name}-0", GPU, 0), {}, (), kinds, (), must_be_there=False)) for name in kinds
    }
    assert [fits(terms["t4"], {**labels, KARPENTER: value}) for value in ("on-demand", "spot")] == [True, False]
    assert [fits(terms["t4-spot"], {KARPENTER: value}) for value in ("on-demand", "spot")] == [False, True]


def test_a_spot_node_that_its_label_taints_is_offered_and_its_pods_tolerate_it():
    taint = ("kubernetes.azure.com/scalesetpriority", "spot", "NoSchedule")
    node = to_node(a_node("lent", {**T4, taint[0]: taint[1]}, ONE, taints=[taint]))
    (gpu,) = fleet_of([node], (), list(KINDS.values()), "h", ()).gpus
    assert (gpu.pool, gpu.healthy) == ("t4-spot", True)
    patch = pod_patch(slots("lent", GPU, 0), {"lent": node}, [gpu], KINDS, (), must_be_there=False)
    toleration = {"key": taint[0], "operator": "Equal", "value": "spot", "effect": "NoSchedule"}
    assert toleration in patch["spec"]["tolerations"]


def test_labels_with_other_values_are_ignored():
    assert spot_labels({**ON_DEMAND, "cloud.google.com/gke-spot": "false"}) == {}
