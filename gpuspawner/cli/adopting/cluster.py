"""How commands reach a cluster: as ``kubectl`` does, by kubeconfig or from within a pod."""

from __future__ import annotations

import os
from pathlib import Path

from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.cli.errors import InvalidError


def settings_of(kubeconfig: str | None, context: str | None, namespace: str = "") -> ClusterSettings:
    """Return the way to the cluster: the file that is named, $KUBECONFIG, ~/.kube/config; else a pod's own account."""
    if kubeconfig and not Path(kubeconfig).exists():
        raise InvalidError(f"--kubeconfig: {kubeconfig} is not there. Name the one that kubectl goes by.")
    usual = Path("~/.kube/config").expanduser()
    found = kubeconfig or os.environ.get("KUBECONFIG", "") or (str(usual) if usual.exists() else "")
    return ClusterSettings(namespace, kubeconfig=found, context=context or "")
