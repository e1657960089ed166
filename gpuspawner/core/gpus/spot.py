"""Spot nodes: the cloud lends them for less, and may take them back at any time. The one table of their labels."""

from __future__ import annotations

from collections.abc import Mapping

KARPENTER = "karpenter.sh/capacity-type"
SPOT = {
    KARPENTER: "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""By label, the value that says spot: those of Karpenter, EKS, GKE and AKS. GKE's and AKS's may be taints too."""
NOTICE_SECONDS = {KARPENTER: 120.0, "eks.amazonaws.com/capacityType": 120.0}
LEAST_NOTICE_SECONDS = 30.0
"""How long before the end the cloud tells, by label, and of all others. Karpenter's is AWS's.

Sources: docs.aws.amazon.com, Spot Instance interruption notices; docs.cloud.google.com, Spot VMs in GKE;
learn.microsoft.com, Azure Spot Virtual Machines.
"""


def spot_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that say that a node is spot; none where it is not."""
    return {key: value for key, value in SPOT.items() if labels.get(key) == value}


def notice_seconds(labels: Mapping[str, str]) -> float | None:
    """Return how long before its end the cloud tells of a spot node; None of another."""
    return min((NOTICE_SECONDS.get(key, LEAST_NOTICE_SECONDS) for key in spot_labels(labels)), default=None)
