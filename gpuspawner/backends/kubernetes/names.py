"""What a pod carries of its lease: labels to find it by, annotations that rebuild it."""

from __future__ import annotations

from collections.abc import Mapping

from gpuspawner.backends.base import ATTEMPT, LEASE_ID

HUB_LABEL = "gpuspawner.io/hub"
LEASE_LABEL = "gpuspawner.io/lease"
ATTEMPT_LABEL = "gpuspawner.io/attempt"

PRE_STOP = "gpuspawner-pre-stop"
"""What a workspace's preStop hook is called, where it is ours."""
SERVER_SECONDS = 5
"""Of the grace, what our preStop hook leaves to the server itself once programs have saved. Arbitrary."""

LABELS = {"GPUSPAWNER_HUB_ID": HUB_LABEL, LEASE_ID: LEASE_LABEL, ATTEMPT: ATTEMPT_LABEL}
ANNOTATIONS = {
    "GPUSPAWNER_LEASE": "gpuspawner.io/lease-document",
    "GPUSPAWNER_LEASE_SIGNATURE": "gpuspawner.io/lease-signature",
}


def carried(variables: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and annotations of the pod that gets these variables. A token never becomes one."""
    labels = {key: variables[name] for name, key in LABELS.items() if name in variables}
    annotations = {key: variables[name] for name, key in ANNOTATIONS.items() if name in variables}
    return labels, annotations


def variables_of(labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a pod carries as labels and annotations."""
    return {name: labels[key] for name, key in LABELS.items() if key in labels} | {
        name: annotations[key] for name, key in ANNOTATIONS.items() if key in annotations
    }
