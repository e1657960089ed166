"""What a pod's server wrote last, and what of it may tell who: pure, from plain JSON of the Kubernetes API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuspawner.spawner.kubernetes.pod_states import NOTEBOOK

Json = Mapping[str, Any]

NO_RIGHT = (
    "[Not its whole output: this hub has no right to read it. Its administrator can give it `get` on `pods/log` in "
    "this namespace.]"
)
"""Told in the place of lines."""


def server_of(pod: Json) -> Json:
    """Return the state of a pod's server; empty where it has none yet."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return next((one for one in statuses if one.get("name") == NOTEBOOK), {})


def has_run(pod: Json) -> bool:
    """Whether the server ever ran, so that there may be output."""
    server = server_of(pod)
    return bool(server.get("restartCount") or {"running", "terminated"} & server.get("state", {}).keys())


def is_of_run_before(pod: Json) -> bool:
    """Whether the server that failed is not the one that runs now."""
    server = server_of(pod)
    return "running" in server.get("state", {}) and server.get("restartCount", 0) > 0


def said(pod: Json) -> str:
    """Return what the kubelet kept of the output of the run that ended last; "" where that is nothing."""
    server = server_of(pod)
    ended: Json = server.get("state", {}).get("terminated") or server.get("lastState", {}).get("terminated") or {}
    return str(ended.get("message") or "")


def environment_of(pod: Json) -> dict[str, str]:
    """Return the variables of the server that stand in the pod, not those that the cluster takes from elsewhere."""
    containers = pod.get("spec", {}).get("containers", [])
    server: Json = next((one for one in containers if one.get("name") == NOTEBOOK), {})
    return {one["name"]: str(one.get("value") or "") for one in server.get("env", [])}
