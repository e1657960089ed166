"""What a namespace's ResourceQuotas and LimitRanges say, of what workspaces take. Pure: JSON of the API in.

A quota of "memory" bounds what pods request, which is guaranteed to them; one of "limits.memory" the most that they may
use. A LimitRange bounds the least of the one, and the most of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuspawner.backends.kubernetes.reading.quantities import amount_of
from gpuspawner.core.gpus.vendors import is_gpu_resource
from gpuspawner.core.quotas.namespaces import (
    CPU,
    LIMIT_OF_REQUEST,
    LIMITS_CPU,
    LIMITS_MEMORY,
    MEMORY,
    PODS,
    NamespaceLimit,
    NamespaceQuota,
)

_KEYS = {
    **dict.fromkeys(("cpu", "requests.cpu"), CPU),
    **dict.fromkeys(("memory", "requests.memory"), MEMORY),
    LIMITS_CPU: LIMITS_CPU,
    LIMITS_MEMORY: LIMITS_MEMORY,
    **dict.fromkeys(("pods", "count/pods"), PODS),
}
_OF_EVERY_WORKSPACE = frozenset({"NotTerminating", "NotBestEffort"})
"""Scopes of a quota that every workspace is in: it has requests, and no end that Kubernetes knows."""


def to_quota(data: Mapping[str, Any], named: frozenset[str] = frozenset()) -> tuple[NamespaceQuota, ...] | None:
    """Return a ResourceQuota's bounds on workspaces, or None for one that has none, or counts some pods only.

    Requests and limits of one resource may both be bounded: each is a bound of its own. ``named`` are the GPU resources
    that the catalog names.
    """
    spec, status = data.get("spec") or {}, data.get("status") or {}
    if spec.get("scopeSelector") or not set(spec.get("scopes") or ()) <= _OF_EVERY_WORKSPACE:
        return None  # which pods it counts, the API server alone knows
    hard, used = status.get("hard") or spec.get("hard") or {}, status.get("used") or {}
    found = []
    for key, quantity in hard.items():
        resource = _resource(key, named)
        bound = amount_of(resource, quantity) if resource else None
        if bound is not None:
            in_use = amount_of(resource, used.get(key, "0")) or 0
            found.append(NamespaceQuota(data["metadata"]["name"], resource, bound, in_use))
    return tuple(found) or None


def to_limits(data: Mapping[str, Any], named: frozenset[str] = frozenset()) -> tuple[NamespaceLimit, ...] | None:
    """Return a LimitRange's bounds on a workspace, or None for one that has none.

    A pod may have containers beside the workspace's own: they can fill what a pod must have at least.
    """
    found: list[NamespaceLimit] = []
    for entry in (data.get("spec") or {}).get("limits") or ():
        if entry.get("type") not in {"Container", "Pod"}:
            continue
        most, least = entry.get("max") or {}, entry.get("min") or {}
        for key in dict.fromkeys([*most, *least]):
            if key not in {CPU, MEMORY} and not is_gpu_resource(key, named):
                continue
            name = data["metadata"]["name"]
            lowest = amount_of(key, least.get(key, "0")) if entry["type"] == "Container" else 0
            highest = amount_of(key, most[key]) if key in most else None
            found += [NamespaceLimit(name, key, least=lowest)] if lowest else []
            found += [NamespaceLimit(name, LIMIT_OF_REQUEST.get(key, key), most=highest)] if highest is not None else []
    return tuple(found) or None


def _resource(key: str, named: frozenset[str]) -> str:
    """Return what a quota's key counts, "" where no workspace takes of it."""
    if key in _KEYS:
        return _KEYS[key]
    resource = key.removeprefix("requests.")
    return resource if resource != key and is_gpu_resource(resource, named) else ""
