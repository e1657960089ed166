"""What the hub makes in another cluster so that its proxy reaches a workspace there. Pure: objects of Kubernetes.

Each is owned by the workspace's pod, and goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuspawner.backends.kubernetes.pods import ATTEMPT_LABEL, LEASE_LABEL
from gpuspawner.catalog import Route

PORT_NAME = "workspace"
GATEWAY_API = "gateway.networking.k8s.io/v1"

Json = Mapping[str, Any]


def service_of(pod: Json, port: int, *, of_nodes: bool) -> dict[str, Any]:
    """Return the Service of a pod's port; ``of_nodes``: every node has a port that leads to it."""
    labels = pod["metadata"]["labels"]
    spec = {
        "type": "NodePort" if of_nodes else "ClusterIP",
        "selector": {key: labels[key] for key in (LEASE_LABEL, ATTEMPT_LABEL)},
        "ports": [{"name": PORT_NAME, "port": port}],
    }
    return {"metadata": _metadata(pod), "spec": spec}


def ingress_of(pod: Json, path: str, route: Route) -> dict[str, Any]:
    """Return the Ingress that leads from ``path`` to a pod's Service, by whatever name the controller is asked for."""
    name = _metadata(pod)["name"]
    backend = {"service": {"name": name, "port": {"name": PORT_NAME}}}
    spec: dict[str, Any] = {"rules": [{"http": {"paths": [{"path": path, "pathType": "Prefix", "backend": backend}]}}]}
    if route.class_name:
        spec["ingressClassName"] = route.class_name
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": _metadata(pod), "spec": spec}


def http_route_of(pod: Json, path: str, port: int, route: Route) -> dict[str, Any]:
    """Return the HTTPRoute that leads from ``path`` to a pod's Service; kernels are requests that last."""
    gateway = {"name": route.gateway, **({"namespace": route.namespace} if route.namespace else {})}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": path}}],
        "timeouts": {"request": "0s"},
        "backendRefs": [{"name": _metadata(pod)["name"], "port": port}],
    }
    spec = {"parentRefs": [gateway], "rules": [rule]}
    return {"apiVersion": GATEWAY_API, "kind": "HTTPRoute", "metadata": _metadata(pod), "spec": spec}


def _metadata(pod: Json) -> dict[str, Any]:
    of_pod = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": of_pod["name"], "uid": of_pod["uid"]}
    name, labels = f"workspace-{of_pod['uid']}", {LEASE_LABEL: of_pod["labels"][LEASE_LABEL]}
    return {"name": name, "labels": labels, "ownerReferences": [owner]}
