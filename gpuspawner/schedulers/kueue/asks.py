"""What Kueue is asked for of a lease: one Workload for each place in the queue. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuspawner.backends.kubernetes.names import HUB_LABEL, LEASE_LABEL
from gpuspawner.catalog import KueueQueues
from gpuspawner.core.gpus import pools
from gpuspawner.core.gpus.fleet import Fleet, GpuKind, written_name
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.schedulers.kueue.models import GROUP, POD_SET, VERSION, Flavor, Json, Queue

WHOLE_GPU = "nvidia.com/gpu"
ASKS = "gpuspawner.io/asks"
"""A digest of the pod set, of which the API server may fill in more."""
REVISION = "gpuspawner.io/revision"
HELD = "gpuspawner.io/held"
"""The attempt that took what it was admitted with: what it was given is void once that attempt waits again."""
FAILED = "gpuspawner.io/failed-flavors"
"""How many times a pod found no place with a flavor, as JSON by its name."""
MOST_FAILURES = 2
"""So many times, and the flavor is left out. Arbitrary: one may be bad luck."""
NO_VALUE = "gpuspawner-none"
"""A label's value that no node has."""


@dataclass(frozen=True)
class Wanted:
    """What a lease wants of Kueue.

    ``pods`` is its one pod set, which takes GPUs as ``resource``; ``revision`` its claim's.
    """

    name: str
    queue: str
    resource: str
    pods: Json
    priority: int
    priority_class: str
    labels: Mapping[str, str]
    revision: str

    @property
    def digest(self) -> str:
        """Changes with what would be admitted."""
        return hashlib.sha256(json.dumps([self.queue, self.pods], sort_keys=True).encode()).hexdigest()[:16]

    def spec(self, *, active: bool) -> Json:
        """Return the Workload's spec. It has no longest execution time, whose end would free quota under a pod."""
        spec = {"queueName": self.queue, "priority": self.priority, "active": active, "podSets": [self.pods]}
        if self.priority_class:
            reference = {"group": GROUP, "kind": "WorkloadPriorityClass", "name": self.priority_class}
            return {**spec, "priorityClassRef": reference}
        return spec

    def annotations(self, before: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return its annotations, those that others gave it among them."""
        return {**(before or {}), ASKS: self.digest, REVISION: self.revision}

    def body(self, *, active: bool) -> Json:
        """Return the Workload as it is made."""
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "Workload",
            "metadata": {"name": self.name, "labels": dict(self.labels), "annotations": self.annotations()},
            "spec": self.spec(active=active),
        }


def name_of(lease: Lease) -> str:
    """Return the name of the Workload of a lease's place in the queue: its next lease at that place has the same."""
    key = lease.key
    place = json.dumps([key.hub, key.user_created, key.server, f"{lease.asked_at:.3f}"])
    return f"workspace-{hashlib.sha256(place.encode()).hexdigest()[:24]}"


def labels_of(lease: Lease, hub: str) -> dict[str, str]:
    """Return the labels of a lease's Workload."""
    return {HUB_LABEL: hub, LEASE_LABEL: lease.id}


def queue_of(request: Request, queues: KueueQueues) -> str:
    """Return the LocalQueue of a request: its team's, else its user's, else the one of all."""
    return queues.teams.get(request.team) or queues.users.get(request.user) or queues.queue


def resource_of(kind: GpuKind, fleet: Fleet) -> str:
    """Return by which resource the cluster counts a kind: the catalog's, else that of the GPUs that are seen."""
    return pools.resource_of(kind, fleet) or WHOLE_GPU


def pools_on(fleet: Fleet) -> dict[str, dict[str, set[str]]]:
    """Return the pools of the GPUs of each node, by resource and then by node, as the cluster itself calls that."""
    found: dict[str, dict[str, set[str]]] = {}
    for gpu in fleet.gpus:
        if gpu.group:
            found.setdefault(gpu.group.resource, {}).setdefault(gpu.node_there, set()).add(gpu.pool)
    return found


def consented(flavors: Sequence[Flavor], kinds: Sequence[GpuKind], on: Mapping[str, Collection[str]]) -> list[Flavor]:
    """Return the flavors whose nodes have a kind that its user takes; of one without nodes, its name or labels tell.

    ``on`` are the pools of each node's GPUs.
    """
    pools = {kind.pool for kind in kinds}
    return [one for one in flavors if _is_consented(one, kinds, pools, on)]


def _is_consented(
    one: Flavor, kinds: Sequence[GpuKind], pools: Collection[str], on: Mapping[str, Collection[str]]
) -> bool:
    if found := {pool for node, has in on.items() if one.nodes is None or node in one.nodes for pool in has}:
        return not found.isdisjoint(pools)
    names = {written_name(kind.name) for kind in kinds}
    coming = (dict(kind.autoscale.labels).items() for kind in kinds if kind.autoscale)
    return one.name in names or any(bool(one.labels) and one.labels.items() <= labels for labels in coming)


def left_out(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the flavors with which a pod found no place too often."""
    return frozenset(name for name, times in failures(annotations).items() if times >= MOST_FAILURES)


def failures(annotations: Mapping[str, str]) -> dict[str, int]:
    """Return how many times a pod found no place with each flavor; what is no such number counts as none."""
    try:
        told = json.loads(annotations.get(FAILED, "{}"))
        return {str(name): int(times) for name, times in told.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def pod_set(
    request: Request, resource: str, queue: Queue, allowed: Sequence[Flavor], tolerations: Iterable[Mapping[str, Any]]
) -> Json:
    """Return the one pod set: what the pod takes of what its queue has quota of, and which flavors it may have."""
    takes = {resource: str(request.count)}
    amounts = {
        "cpu": f"{math.ceil(round(1000 * request.guaranteed_cpu_cores, 3))}m",
        "memory": str(request.guaranteed_memory_bytes),
    }
    takes |= {name: amount for name, amount in amounts.items() if name in queue.flavors}
    container = {"name": "workspace", "image": "workspace", "resources": {"requests": takes, "limits": dict(takes)}}
    spec: Json = {"restartPolicy": "Never", "containers": [container], "tolerations": [dict(x) for x in tolerations]}
    if terms := _terms(queue.flavors.get(resource, ()), allowed):
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        spec["affinity"] = {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}
    return {"name": POD_SET, "count": 1, "template": {"spec": spec}}


def _terms(flavors: Sequence[Flavor], allowed: Sequence[Flavor]) -> list[Json]:
    """Return the terms of an affinity to the nodes of some flavors; none where all may be had, or labels can't tell."""
    if len(allowed) == len(flavors) or not all(one.labels for one in allowed):
        return []
    if not allowed:
        keys = sorted({key for one in flavors for key in one.labels})
        return [{"matchExpressions": [{"key": keys[0], "operator": "In", "values": [NO_VALUE]}]}] if keys else []
    return [
        {"matchExpressions": [{"key": k, "operator": "In", "values": [v]} for k, v in sorted(one.labels.items())]}
        for one in allowed
    ]
