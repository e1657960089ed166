"""To whom a pod belongs that is no workspace of ours: the training system, job or application, by the name people know.

Pure. The labels are those that KubeRay, Kubeflow's Training Operator, JobSet, LeaderWorkerSet, Volcano, Kubeflow
Notebooks and JupyterHub put on their pods; ReplicaSets carry the hash of their Deployment in the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BY_LABEL = (
    ("ray.io/cluster", "RayCluster"),
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
    ("volcano.sh/job-name", "Volcano job"),
    ("notebook-name", "Kubeflow notebook"),
    ("hub.jupyter.org/username", "Jupyter server of"),
)
LONGEST = 300
"""Of what is told: whoever makes a pod may call its owner as they like."""
_TRAINING_JOB = "training.kubeflow.org/job-name"
_HASH = "pod-template-hash"


def holder_of(metadata: Mapping[str, Any]) -> str:
    """Return whose a pod is, as ``RayCluster team-a/nightly``: kind, namespace and name; the pod itself where alone."""
    labels, namespace = metadata.get("labels") or {}, metadata["namespace"]
    kind, name = next(
        ((kind, labels[label]) for label, kind in _BY_LABEL if labels.get(label)),
        _controller(metadata, labels),
    )
    return f"{kind} {namespace}/{name}"[:LONGEST]


def _controller(metadata: Mapping[str, Any], labels: Mapping[str, str]) -> tuple[str, str]:
    """Return kind and name of what made a pod."""
    owner = next((one for one in metadata.get("ownerReferences") or () if one.get("controller")), None)
    if labels.get(_TRAINING_JOB):
        return owner["kind"] if owner else "Training job", labels[_TRAINING_JOB]
    if owner is None:
        return "Pod", metadata["name"]
    kind, name, made_by = owner["kind"], owner["name"], f"-{labels.get(_HASH)}"
    if kind == "ReplicaSet" and name.endswith(made_by):
        return "Deployment", name.removesuffix(made_by)
    return kind, name
