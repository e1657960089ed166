"""The tools that keep objects of a cluster as another place has them. They would undo a change by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARKS = {
    "argocd.argoproj.io/instance": "Argo CD",
    "argocd.argoproj.io/tracking-id": "Argo CD",
    "kustomize.toolkit.fluxcd.io/name": "Flux",
    "helm.toolkit.fluxcd.io/name": "Flux",
    "meta.helm.sh/release-name": "Helm",
}
"""Labels and annotations that a tool sets on the objects that it writes."""
FIELD_MANAGERS = {
    "argocd-controller": "Argo CD",
    "argocd-application-controller": "Argo CD",
    "kustomize-controller": "Flux",
    "helm-controller": "Flux",
    "helm": "Helm",
}
"""Names of the tools as field managers."""


def tool_of(metadata: Mapping[str, Any]) -> str:
    """Return the tool that manages an object, by its labels, annotations and the managers of its spec, or ""."""
    marked = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    if marked.get("app.kubernetes.io/managed-by") == "Helm":
        return "Helm"
    managers = [
        one.get("manager", "") for one in metadata.get("managedFields") or () if "f:spec" in (one.get("fieldsV1") or {})
    ]
    named = [MARKS[key] for key in marked if key in MARKS] + [FIELD_MANAGERS.get(one, "") for one in managers]
    return next(filter(None, named), "")
