"""``configure()`` where workspaces are pods: what the service is told of the cluster, and where it listens."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from gpuspawner.backends.kubernetes.connection import cluster_settings
from gpuspawner.spawner.kubernetes.settings import all_namespaces, written

IN_CLUSTER = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
PROXIES = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
"""By which KubeSpawner reaches the API server."""
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def service_environment(c: Any, spawner: type) -> dict[str, str]:
    """Return the variables by which the service finds the cluster: a managed service inherits none of the hub's."""
    namespace = NAMESPACE_FILE.read_text(encoding="ascii").strip() if NAMESPACE_FILE.exists() else "default"
    cluster: dict[str, Any] = {
        "namespace": written(c, spawner, "namespace", namespace)[1],
        "all_namespaces": all_namespaces(c, spawner),
        "placement": written(c, spawner, "gpu_placement", "preferred")[1],
    }
    tolerations = written(c, spawner, "tolerations", [])[1]
    if tolerations:
        listed = tolerations.values() if isinstance(tolerations, Mapping) else tolerations
        cluster["tolerations"] = list(listed)
    selector = written(c, spawner, "node_selector", {})[1]
    if selector:
        cluster["node_selector"] = dict(selector)
    terms = written(c, spawner, "node_affinity_required", [])[1]
    if labels := _label_selector([*(terms.values() if isinstance(terms, Mapping) else terms)]):
        cluster["node_labels"] = labels
    environment = {name: os.environ[name] for name in (*IN_CLUSTER, *PROXIES) if name in os.environ}
    if not environment.keys() & set(IN_CLUSTER):
        cluster["kubeconfig"] = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    where, more = written(c, spawner, "gpu_cluster", {})
    cluster |= more
    try:
        cluster_settings(cluster)
    except ValueError as error:
        raise SystemExit(f"gpuspawner: what the service is told of the cluster ({where}): {error}") from None
    return {**environment, "GPUSPAWNER_BACKEND": "kubernetes", "GPUSPAWNER_KUBERNETES": json.dumps(cluster)}


def _label_selector(terms: Sequence[Any]) -> str:
    """Return the required node affinity of every workspace as a label selector, "" where there is none.

    Nor is there for what no label selector says: several terms of which one is enough, numbers, names of nodes.
    """
    term = terms[0] if len(terms) == 1 and isinstance(terms[0], Mapping) else {}
    asked = [_FORMS.get(one.get("operator"), "") if "key" in one else "" for one in term.get("matchExpressions") or ()]
    if not all(asked) or term.get("matchFields"):
        return ""
    return ",".join(
        form.format(one["key"], ",".join(sorted(map(str, one.get("values") or ()))))
        for form, one in zip(asked, term.get("matchExpressions") or (), strict=True)
    )


_FORMS = {"In": "{0} in ({1})", "NotIn": "{0} notin ({1})", "Exists": "{0}", "DoesNotExist": "!{0}"}
"""How a label selector says the operators of a node affinity."""


def service_address(c: Any) -> str:
    """Return where pods and proxy reach this machine: as they reach the hub, where the configuration says it."""
    connect = c.JupyterHub.get("hub_connect_ip") or urlparse(c.JupyterHub.get("hub_connect_url") or "").hostname
    address = connect or c.JupyterHub.get("hub_ip") or urlparse(c.JupyterHub.get("hub_bind_url") or "").hostname
    return str(address) if address and address not in {"0.0.0.0", "::"} else "127.0.0.1"  # noqa: S104 - asked, not bound
