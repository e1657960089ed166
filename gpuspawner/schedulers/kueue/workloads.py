"""From leases to Workloads, and from Kueue's answers to places, grants and pod fields. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from gpuspawner.backends.kubernetes.nodes import HOSTNAME
from gpuspawner.backends.kubernetes.pods import HUB_LABEL, LEASE_LABEL
from gpuspawner.catalog import KueueQueues
from gpuspawner.core.gpus import pools
from gpuspawner.core.gpus.fleet import Fleet, GpuKind, Slot, catalog_kind_name
from gpuspawner.core.gpus.placement import place
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.reports import sanitize_text
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.decisions import BlockingRule
from gpuspawner.core.queue.estimates import QueuePosition
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.schedulers.base import unknown_position
from gpuspawner.schedulers.kueue.models import GROUP, POD_SET, VERSION, Flavor, Json, Pending, Queue, Workload

WHOLE_GPU = "nvidia.com/gpu"
POD_SET_DIGEST = "gpuspawner.io/asks"
"""A digest of the pod set. The API server may add defaults to the pod set itself."""
REVISION = "gpuspawner.io/revision"
HELD = "gpuspawner.io/held"
"""The attempt that took the admission. The admission is void once that attempt waits again."""
FAILURES = "gpuspawner.io/failed-flavors"
"""How many times a pod found no node with a flavor, as JSON by flavor."""
MAX_FAILURES = 2
"""After this many failures the flavor is excluded. Arbitrary: one may be bad luck."""
NO_VALUE = "gpuspawner-none"
"""A label value that no node has."""


@dataclass(frozen=True)
class WorkloadRequest:
    """The Workload of a lease. Its one pod set ``pods`` takes GPUs as ``resource``, at the claim's ``revision``."""

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
        """A digest of everything that Kueue would admit."""
        return hashlib.sha256(json.dumps([self.queue, self.pods], sort_keys=True).encode()).hexdigest()[:16]

    def spec(self, *, active: bool) -> Json:
        """Return the Workload's spec. It has no maximum execution time, which would free the quota of a running pod."""
        spec = {"queueName": self.queue, "priority": self.priority, "active": active, "podSets": [self.pods]}
        if self.priority_class:
            reference = {"group": GROUP, "kind": "WorkloadPriorityClass", "name": self.priority_class}
            return {**spec, "priorityClassRef": reference}
        return spec

    def annotations(self, before: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return our annotations, added to those of others."""
        return {**(before or {}), POD_SET_DIGEST: self.digest, REVISION: self.revision}

    def body(self, *, active: bool) -> Json:
        """Return the Workload to create."""
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "Workload",
            "metadata": {"name": self.name, "labels": dict(self.labels), "annotations": self.annotations()},
            "spec": self.spec(active=active),
        }


def name_of(lease: Lease) -> str:
    """Return the name of the Workload of a place in the queue. The next lease at that place has the same name."""
    key = lease.key
    place = json.dumps([key.hub, key.user_created, key.server, f"{lease.asked_at:.3f}"])
    return f"workspace-{hashlib.sha256(place.encode()).hexdigest()[:24]}"


def labels_of(lease: Lease, hub: str) -> dict[str, str]:
    """Return the labels of a lease's Workload."""
    return {HUB_LABEL: hub, LEASE_LABEL: lease.id}


def queue_of(request: Request, queues: KueueQueues) -> str:
    """Return the LocalQueue of a request's team or user, else the common queue."""
    return queues.teams.get(request.team) or queues.users.get(request.user) or queues.queue


def resource_of(kind: GpuKind, fleet: Fleet) -> str:
    """Return the resource name of a kind, by the catalog or by the observed GPUs."""
    return pools.counting_resource(kind, fleet) or WHOLE_GPU


def pools_by_node(fleet: Fleet) -> dict[str, dict[str, set[str]]]:
    """Return the GPU pools by resource and by the node's name in its cluster."""
    found: dict[str, dict[str, set[str]]] = {}
    for gpu in fleet.gpus:
        if gpu.group:
            found.setdefault(gpu.group.resource, {}).setdefault(gpu.node_in_cluster, set()).add(gpu.pool)
    return found


def allowed_flavors(
    flavors: Sequence[Flavor], kinds: Sequence[GpuKind], pools_by_node: Mapping[str, Collection[str]]
) -> list[Flavor]:
    """Return the flavors whose nodes have an accepted kind. For a flavor without nodes, name or labels decide."""
    pools = {kind.pool for kind in kinds}
    return [one for one in flavors if _is_allowed(one, kinds, pools, pools_by_node)]


def _is_allowed(
    one: Flavor, kinds: Sequence[GpuKind], pools: Collection[str], pools_by_node: Mapping[str, Collection[str]]
) -> bool:
    on_nodes = (has for node, has in pools_by_node.items() if one.nodes is None or node in one.nodes)
    if found := {pool for has in on_nodes for pool in has}:
        return not found.isdisjoint(pools)
    names = {catalog_kind_name(kind.name) for kind in kinds}
    coming = (dict(kind.autoscale.labels).items() for kind in kinds if kind.autoscale)
    return one.name in names or any(bool(one.labels) and one.labels.items() <= labels for labels in coming)


def excluded_flavors(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the flavors with which a pod found no node too often."""
    return frozenset(name for name, times in failures(annotations).items() if times >= MAX_FAILURES)


def failures(annotations: Mapping[str, str]) -> dict[str, int]:
    """Return how many times a pod found no node with each flavor. Invalid values count as none."""
    try:
        counts = json.loads(annotations.get(FAILURES, "{}"))
        return {str(name): int(times) for name, times in counts.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def pod_set(
    request: Request, resource: str, queue: Queue, allowed: Sequence[Flavor], tolerations: Iterable[Mapping[str, Any]]
) -> Json:
    """Return the one pod set: what the pod takes of the queue's quotas, and which flavors it may use."""
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
    """Return node affinity terms for the allowed flavors, [] if all are allowed or labels do not distinguish them."""
    if len(allowed) == len(flavors) or not all(one.labels for one in allowed):
        return []
    if not allowed:
        keys = sorted({key for one in flavors for key in one.labels})
        return [{"matchExpressions": [{"key": keys[0], "operator": "In", "values": [NO_VALUE]}]}] if keys else []
    return [
        {"matchExpressions": [{"key": k, "operator": "In", "values": [v]} for k, v in sorted(one.labels.items())]}
        for one in allowed
    ]


TITLE = "Kueue"
WAITS_FOR_QUOTA = "WaitingForQuota"
SENTENCES: Mapping[str, str] = {
    "NoMatchingFlavor": "No kind of node in this queue fits the request.",
    "ExceedsMaxQuota": "It requests more than the queue's quota.",
    WAITS_FOR_QUOTA: "It waits for quota in use by others.",
    "WaitingForPreemptedWorkloads": "Other workloads are stopping to free resources for it.",
    "TopologyPlacementFailed": "No single place has enough free nodes now.",
    "Misconfigured": "The queue is misconfigured. Tell your administrator.",
    "Suspended": "The queue is on hold. Nothing new starts until an administrator resumes it.",
    "PendingEvaluation": "Kueue has not evaluated it yet.",
    "WaitingForPodsReady": "Kueue waits until the workloads admitted before are ready.",
    "OnHold": "It is on hold.",
    "Deactivated": "It is suspended until its back-off ends or its hub answers.",
    "AdmissionGated": "An annotation holds it back.",
}
"""Sentences by the reason of `QuotaReserved=False`.

Without the feature gate UnadmittedWorkloadsObservability, Kueue reports only Pending and Inadmissible. The message then
says more."""
REASONS_BY_MESSAGE: Sequence[tuple[str, str]] = (
    ("is stopped", "Suspended"),
    ("pending the preemption", "WaitingForPreemptedWorkloads"),
    ("maximum capacity", "ExceedsMaxQuota"),
    ("insufficient unused quota", WAITS_FOR_QUOTA),
    ("topology", "TopologyPlacementFailed"),
    ("didn't match", "NoMatchingFlavor"),
    ("untolerated taint", "NoMatchingFlavor"),
    ("inactive", "Misconfigured"),
    ("doesn't exist", "Misconfigured"),
)
"""Parts of messages, in lower case, with their reason. The first match counts."""
RULES = frozenset({"NoMatchingFlavor", "ExceedsMaxQuota", "Misconfigured", "Suspended", "OnHold", "AdmissionGated"})
"""Reasons that do not change when other workloads end."""
EVICTED: Mapping[str, str] = {
    "Preempted": "Kueue gives its GPUs to workloads that are entitled to them.",
    "ClusterQueueStopped": "An administrator is emptying its queue.",
    "LocalQueueStopped": "An administrator is emptying its queue.",
    "AdmissionCheck": "A check of its queue failed.",
    "PodsReadyTimeout": "It was not ready within Kueue's time limit.",
    "NodeFailures": "Its node failed.",
    "Deactivated": "It was removed from the queue.",
}
RECLAIMED = "InCohortReclamation"
PLACED = "kueue.x-k8s.io/podset-unconstrained-topology"
"""An annotation of pods whose Workload has a place in the topology. Without it, Kueue counts them twice."""


def reason_of(workload: Workload, queue: Queue) -> str:
    """Return why it is not admitted: a key of SENTENCES."""
    if not workload.active:
        return "Deactivated"
    if queue.stopped:
        return "Suspended"
    if not queue.cluster_queue:
        return "Misconfigured"
    condition = workload.conditions.get("QuotaReserved", {})
    if condition.get("reason") in SENTENCES:
        return str(condition["reason"])
    message = str(condition.get("message") or "").lower()
    return next((reason for part, reason in REASONS_BY_MESSAGE if part in message), "PendingEvaluation")


def held_by(workload: Workload, queue: Queue) -> BlockingRule | None:
    """Return the rule that holds a request back, None if it only waits for quota."""
    reason = reason_of(workload, queue)
    return BlockingRule(f"queue {queue.name}", SENTENCES[reason]) if reason in RULES else None


def to_place(workload: Workload | None, queue: Queue, pending: Pending | None, unknown: str) -> QueuePosition:
    """Return the queue position of a claim. ``unknown`` says why no position is known."""
    where = f"in the cluster's queue {queue.cluster_queue or queue.name}"
    if workload is None:
        return unknown_position(f"{TITLE} has not accepted it yet. {unknown}".rstrip())
    if workload.evicted:
        return unknown_position(f"{TITLE} returns its quota first. Then it waits {where}.")
    if workload.admitted:
        says = f"{TITLE} admitted it {where}. It waits for free GPUs on the nodes of its flavor."
        return QueuePosition(1, None, None, None, says=says)
    if workload.reserved:
        return QueuePosition(
            1, None, None, None, says=f"{TITLE} reserved quota for it {where}. {_describe_checks(workload)}"
        )
    position = None if pending is None else pending.position
    at = f"it waits {where}" if position is None else f"position {position} {where}"
    message = sanitize_text(str(workload.conditions.get("QuotaReserved", {}).get("message") or "")).rstrip(". ")
    reason = reason_of(workload, queue)
    more = f" ({message}.)" if message and reason not in {"Deactivated", "Suspended"} else ""
    note = f" {unknown}" if unknown and position is None else ""
    return QueuePosition(position, None, None, None, says=f"{TITLE} says: {at}. {SENTENCES[reason]}{more}{note}")


def _describe_checks(workload: Workload) -> str:
    """Return the admission checks that it waits for, in a sentence."""
    waits = [one["name"] for one in workload.status.get("admissionChecks") or () if one.get("state") != "Ready"]
    return f"It waits for {', '.join(waits)}." if waits else "It waits for its place in the topology."


def why_evicted(workload: Workload) -> str:
    """Return why Kueue reclaims its quota, in sentences for its user."""
    evicted, preempted = workload.conditions["Evicted"], workload.conditions.get("Preempted", {})
    if evicted.get("reason") == "Preempted" and preempted.get("reason") == RECLAIMED:
        return f"{TITLE}: its GPUs were borrowed, and their owners need them back."
    message = sanitize_text(str(evicted.get("message") or "it was evicted."))
    return f"{TITLE}: {EVICTED.get(str(evicted.get('reason')), message)}"


def place_on_flavor(
    workload: Workload | None,
    claim: Claim,
    kinds: Sequence[GpuKind],
    flavor: Flavor | None,
    seen: Snapshot,
    used: Mapping[str, Fraction],
) -> tuple[GpuKind, tuple[Slot, ...]] | None:
    """Return kind and GPUs of an admission, None while no GPU is free on its flavor's nodes."""
    fleet, nodes = seen.placement_fleet, None if flavor is None else flavor.nodes
    host = None if workload is None else workload.domain().get(HOSTNAME)
    within = replace(
        fleet,
        gpus=tuple(
            gpu
            for gpu in fleet.gpus
            if (nodes is None or gpu.node_in_cluster in nodes or gpu.is_coming) and host in {None, gpu.node_in_cluster}
        ),
    )
    for kind in kinds:
        slots = place(kind, claim.request.count, within, used, claim.tried_nodes, topology=claim.request.topology)
        if slots is not None:
            return kind, slots
    return None


def pod_fields(workload: Workload, flavors: Iterable[Flavor]) -> Json:
    """Return the pod fields required by its flavors, its checks and its place in the topology."""
    selector: dict[str, str] = {}
    tolerations: list[Mapping[str, Any]] = []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for flavor in flavors:
        selector |= flavor.labels
        tolerations += flavor.tolerations
    for update in workload.updates():
        selector |= update.get("nodeSelector") or {}
        tolerations += update.get("tolerations") or ()
        labels |= update.get("labels") or {}
        annotations |= update.get("annotations") or {}
    if domain := workload.domain():
        selector |= domain
        annotations[PLACED] = "true"
    found = {"nodeSelector": selector, "tolerations": tolerations, "labels": labels, "annotations": annotations}
    return {name: value for name, value in found.items() if value}
