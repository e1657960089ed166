"""How the adopting commands reach a cluster: as ``kubectl`` does, by kubeconfig or from within a pod."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpuspawner.backends.kubernetes.api import Api
from gpuspawner.backends.kubernetes.settings import ClusterSettings

PAGE = 250


def settings_of(kubeconfig: str | None, context: str | None, namespace: str = "") -> ClusterSettings:
    """Return the way to the cluster: the file that is named, $KUBECONFIG, ~/.kube/config; else a pod's own account."""
    usual = Path("~/.kube/config").expanduser()
    found = kubeconfig or os.environ.get("KUBECONFIG", "") or (str(usual) if usual.exists() else "")
    return ClusterSettings(namespace, kubeconfig=found, context=context or "")


async def listed(api: Api, path: str) -> list[dict[str, Any]]:
    """Return all objects at a path. Raises what ``Api.get`` raises."""
    items: list[dict[str, Any]] = []
    more: str | None = ""
    while more is not None:
        page = await api.get(path, {"limit": str(PAGE), **({"continue": more} if more else {})})
        items += page.get("items") or []
        more = page.get("metadata", {}).get("continue") or None
    return items
