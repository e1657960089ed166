"""Nodes that are about to be taken away, as their taints tell. Pure.

Taints are those of Karpenter 1, the cluster autoscaler, AWS's node termination handler and GKE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuspawner.core.gpus.vendors import notice_seconds

_LEAVES = "Its node is being taken out of service by the cluster's autoscaler."
_TAKEN_BACK = "The cloud takes its node back."
_INTERRUPTIONS = {
    "karpenter.sh/disrupted": _LEAVES,
    "ToBeDeletedByClusterAutoscaler": _LEAVES,
    "aws-node-termination-handler/spot-itn": _TAKEN_BACK,
    "aws-node-termination-handler/rebalance-recommendation": "The cloud may soon take its node back.",
    "aws-node-termination-handler/asg-lifecycle-termination": _LEAVES,
    "aws-node-termination-handler/scheduled-maintenance": "Its node goes into maintenance.",
    "cloud.google.com/impending-node-termination": _TAKEN_BACK,
}
"""By taint: what it says, in a sentence for a workspace's user."""
_EARLIER = frozenset({"aws-node-termination-handler/rebalance-recommendation"})
"""Taints that come before the cloud's notice: nobody says when the node ends."""


@dataclass(frozen=True)
class Interruption:
    """A node is about to be taken away: why, in a sentence, and in how many seconds; None where nobody says."""

    why: str
    ends_in_seconds: float | None = None


def interruption_of(taints: Iterable[str], labels: Mapping[str, str]) -> Interruption | None:
    """Return what a node's taints, by key, tell of its end; None where they tell none.

    A spot node ends with the cloud's notice, counted from when it is told.
    """
    told = next((key for key in taints if key in _INTERRUPTIONS), None)
    if told is None:
        return None
    return Interruption(_INTERRUPTIONS[told], None if told in _EARLIER else notice_seconds(labels))
