"""Whether a cluster's Kueue, and what it does to pods, leaves workspaces to this adapter. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuspawner.schedulers.kueue.models import VERSION, Json

GATE = "kueue.x-k8s.io/admission"
"""The scheduling gate of pods that Kueue manages itself."""
DRY_RUN = {"dryRun": "All"}


def why_unfit(group: Mapping[str, Any] | None) -> str:
    """Return why Kueue's API group can't be used, in a sentence; "" where it can. None: it is not there."""
    if group is None:
        return "The catalog names Kueue's queues, and the cluster has no Kueue: install 0.19 or newer."
    served = [one["version"] for one in group.get("versions") or ()]
    if VERSION in served:
        return ""
    return f"The cluster's Kueue speaks {', '.join(served)}, and gpuspawner needs {VERSION}: install 0.19 or newer."


def trial() -> Json:
    """Return a pod to be made in a dry run: what Kueue would do to a workspace's shows. It keeps every pod standard."""
    safe = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    takes = {"cpu": "1m", "memory": "1Mi"}
    container = {
        "name": "notebook",
        "image": "none",
        "resources": {"requests": takes, "limits": takes},
        "securityContext": safe,
    }
    labels = {"app": "jupyterhub", "component": "singleuser-server"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "gpuspawner-dry-run-", "labels": labels},
        "spec": {"containers": [container], "automountServiceAccountToken": False},
    }


def why_gated(made: Mapping[str, Any], namespace: str) -> str:
    """Return why pods of a namespace can't be workspaces, by what a dry run made of one; "" where they can."""
    if GATE not in {gate.get("name") for gate in made["spec"].get("schedulingGates") or ()}:
        return ""
    return (
        f"Kueue holds back the pods of namespace {namespace} itself, so each workspace would wait and count twice. "
        f"Leave {namespace} out of managedJobsNamespaceSelector in Kueue's configuration, or set "
        "manageJobsWithoutQueueName: false there; a LocalQueue called default in the namespace gates its pods too."
    )
