"""Nodes that are about to be taken away: what their taints tell of it, and of the pods there."""

import pytest
from cluster_objects import A100, a_node, a_workspace
from kube_views import eventually

from gpuspawner.backends.kubernetes.nodes import interruption_of

LEAVES, TAKEN_BACK = (
    "The cluster's autoscaler is removing its node.",
    "The cloud provider is reclaiming its node.",
)
KARPENTER, GKE = {"karpenter.sh/capacity-type": "spot"}, {"cloud.google.com/gke-spot": "true"}


@pytest.mark.parametrize(
    ("taint", "labels", "told"),
    [
        pytest.param("karpenter.sh/disrupted", {}, (LEAVES, None), id="Karpenter, on demand"),
        pytest.param("karpenter.sh/disrupted", KARPENTER, (LEAVES, 120), id="Karpenter, spot"),
        pytest.param("ToBeDeletedByClusterAutoscaler", {}, (LEAVES, None), id="cluster autoscaler"),
        pytest.param(
            "aws-node-termination-handler/spot-itn", {"eks.amazonaws.com/capacityType": "SPOT"}, (TAKEN_BACK, 120),
            id="AWS",
        ),
        pytest.param("cloud.google.com/impending-node-termination", GKE, (TAKEN_BACK, 30), id="GKE"),
        pytest.param(
            "aws-node-termination-handler/rebalance-recommendation", KARPENTER,
            ("The cloud provider may soon reclaim its node.", None), id="before the notice",
        ),
    ],
)  # fmt: skip
def test_a_taint_gives_the_reason_and_the_notice_of_a_nodes_end(taint, labels, told):
    found = interruption_of([taint], labels)
    assert (found.why, found.ends_in_seconds) == told


@pytest.mark.parametrize("taint", ["nvidia.com/gpu", "DeletionCandidateOfClusterAutoscaler", "team"])
def test_other_taints_announce_no_end(taint):
    assert interruption_of([taint], KARPENTER) is None


def told(backend):
    async def look():
        return [(one.disruption, one.ends_in_seconds) for one in await backend.workspaces()]

    return look


TAINT = ("karpenter.sh/disrupted", "", "NoSchedule")


async def test_a_pod_on_a_node_that_is_taken_away_is_about_to_end(api, a_view):
    backend = a_view()
    api.put(a_workspace())
    await eventually(told(backend), [("", None)])
    api.put(a_node(labels={**A100, **KARPENTER}, taints=[TAINT]))
    await eventually(told(backend), [(LEAVES, 120)])
    api.put(a_node(labels={**A100, **KARPENTER}))  # it stays after all
    await eventually(told(backend), [("", None)])


async def test_a_nodes_announcement_stays_after_the_node_is_gone_and_while_its_pod_ends(api, a_view):
    backend = a_view()
    pod = api.put(a_workspace())
    node = a_node(labels={**A100, **GKE}, taints=[("cloud.google.com/impending-node-termination", "", "NoSchedule")])
    api.put(node)
    await eventually(told(backend), [(TAKEN_BACK, 30)])
    api.remove(node)
    await backend.fleet()
    await eventually(told(backend), [(TAKEN_BACK, 30)])
    pod["metadata"] |= {"deletionTimestamp": "2026-11-21T15:00:00Z", "deletionGracePeriodSeconds": 20}
    api.put(pod)
    await eventually(told(backend), [(TAKEN_BACK, None)])  # without our hook, it may end at any moment


async def test_a_pods_own_status_precedes_that_of_its_node(api, a_view):
    backend = a_view()
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": ""}
    pod = a_workspace(conditions=[evicted])
    pod["spec"]["terminationGracePeriodSeconds"] = 30
    api.put(pod)
    api.put(a_node(labels={**A100, **KARPENTER}, taints=[TAINT]))
    await eventually(told(backend), [("Its node is being drained, for example for maintenance.", None)])
