"""Nodes and pods, trimmed to what is needed of them: a cluster's own objects are a hundred times as large.

Pure: JSON in, small frozen values out. What is malformed is taken as absent: the API server has validated it already.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Any

from gpuspawner.backends.base import ATTEMPT, LEASE_ID
from gpuspawner.backends.kubernetes.names import HUB_LABEL, PRE_STOP, SERVER_SECONDS, variables_of
from gpuspawner.backends.kubernetes.reading.holders import holder_of
from gpuspawner.backends.kubernetes.reading.interruptions import Interruption, interruption_of
from gpuspawner.backends.kubernetes.reading.models import Model, is_kept_label, model_of
from gpuspawner.backends.kubernetes.reading.quantities import amount_of
from gpuspawner.core.gpus.fleet import NO_HOST_RESOURCES, HostResources
from gpuspawner.core.gpus.vendors import is_gpu_resource, spot_labels
from gpuspawner.core.quotas.namespaces import CPU, MEMORY
from gpuspawner.core.units import MOST_GPUS

_ENDED = frozenset({"Succeeded", "Failed"})
_UNREACHABLE = "node.kubernetes.io/unreachable"
_PREEMPTION = re.compile(r"\.?( no new claims to deallocate,)? preemption: .*", re.DOTALL)
_NO_VOLUME = re.compile(r'unbound immediate PersistentVolumeClaims|persistentvolumeclaim "')


@dataclass(frozen=True)
class Taint:
    """What keeps pods off a node: ``effect`` is NoSchedule or NoExecute; others keep nobody off."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True)
class Node:
    """One node: ``capacity`` counts the devices of each GPU resource, ``allocatable`` the healthy ones of them.

    ``cpu`` (in thousandths of a core) and ``memory_bytes`` are what it has for pods, 0 where it does not tell.
    Of devices that pods claim ``models`` say what they are, by resource, and ``taints_of`` what keeps pods off some.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    ready: bool = True
    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    cpu: int = 0
    memory_bytes: int = 0
    models: Mapping[str, Model] = field(default_factory=dict)
    taints_of: Mapping[str, str] = field(default_factory=dict)

    def model(self, resource: str) -> Model:
        """Return what stands behind one of its resources: as its devices say, else its labels."""
        return self.models.get(resource) or model_of(self.labels, resource)

    @property
    def spot(self) -> bool:
        """Whether the cloud may take it back at any time."""
        return bool(spot_labels(self.labels))

    @property
    def interruption(self) -> Interruption | None:
        """What its taints tell of its end; None where they tell none."""
        return interruption_of((taint.key for taint in self.taints), self.labels)


@dataclass(frozen=True)
class Pod:
    """One pod that counts: it requests GPUs, claims devices, or carries a hub's label.

    ``node`` is "" before it is bound; ``refusal`` is what the scheduler says that finds no place for it, else "": a
    volume that it waits for is no want of place.
    ``ended`` pods hold nothing; ``deleting`` ones hold all until they are gone. ``disruption`` says why the cluster
    ends it, or is about to. ``server_ends_at``, in seconds since the epoch, is until when its server then runs, where
    our preStop hook keeps it; None where that is not known. ``lost_seconds`` is how long its node may be
    away before it does, None where for ever. ``unhealthy`` are the ids of its devices that the kubelet calls so.
    ``variables`` rebuild its lease. ``created_at`` is in seconds since the epoch.
    ``beside`` is the CPU and memory that the node keeps for it; ``holder`` is whose it is, in words.
    ``extended_claim`` is the claim that the scheduler made for what it requests of ``extended_resources``.
    """

    uid: str
    namespace: str
    name: str
    node: str = ""
    requests: Mapping[str, int] = field(default_factory=dict)
    hub: str = ""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    created_at: float = 0.0
    ended: bool = False
    deleting: bool = False
    refusal: str = ""
    disruption: str = ""
    server_ends_at: float | None = None
    lost_seconds: float | None = None
    unhealthy: tuple[str, ...] = ()
    host_resources: HostResources = NO_HOST_RESOURCES
    holder: str = ""
    claims: bool = False
    extended_claim: str = ""
    extended_resources: tuple[str, ...] = ()

    @property
    def lease(self) -> str:
        """The id of the lease that it says it is of, "" where it says none."""
        return self.variables.get(LEASE_ID, "")

    @property
    def attempt(self) -> int:
        """Which attempt of it, 0 where that is not said well."""
        attempt = self.variables.get(ATTEMPT, "")
        return int(attempt) if attempt.isascii() and attempt.isdigit() else 0


def to_node(data: Mapping[str, Any], named: frozenset[str] = frozenset()) -> Node:
    """Return a node of the API. Labels that say nothing of GPUs are dropped."""
    spec, status = data.get("spec") or {}, data.get("status") or {}
    labels, allocatable = data["metadata"].get("labels") or {}, status.get("allocatable") or {}
    return Node(
        name=data["metadata"]["name"],
        labels={key: value for key, value in labels.items() if is_kept_label(key)},
        taints=tuple(
            Taint(taint["key"], taint.get("value") or "", taint["effect"])
            for taint in spec.get("taints") or ()
            if taint["effect"] in {"NoSchedule", "NoExecute"}
        ),
        cordoned=bool(spec.get("unschedulable")),
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ()),
        capacity=_gpus(status.get("capacity"), named),
        allocatable=_gpus(allocatable, named),
        cpu=amount_of(CPU, allocatable.get(CPU, "0")) or 0,
        memory_bytes=amount_of(MEMORY, allocatable.get(MEMORY, "0")) or 0,
    )


def to_pod(data: Mapping[str, Any], named: frozenset[str] = frozenset()) -> Pod | None:
    """Return a pod of the API, or None for one that neither has GPUs or claims nor carries a hub's label."""
    metadata, spec, status = data["metadata"], data.get("spec") or {}, data.get("status") or {}
    labels = metadata.get("labels") or {}
    hub = labels.get(HUB_LABEL, "")
    requests = requested(spec, named)
    claims = bool(spec.get("resourceClaims"))
    if not hub and not requests and not claims:
        return None
    extended = status.get("extendedResourceClaimStatus") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    message = str(scheduled.get("message") or "no place was found for it")
    refused = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    disruption = conditions.get("DisruptionTarget", {})
    return Pod(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        node=spec.get("nodeName") or "",
        requests=requests,
        hub=hub,
        variables=variables_of(labels, metadata.get("annotations") or {}) if hub else {},
        created_at=seconds_of(metadata.get("creationTimestamp")),
        ended=status.get("phase") in _ENDED,
        deleting=metadata.get("deletionTimestamp") is not None,
        refusal=without_preemption(message) if refused and not waits_for_volume(message) else "",
        disruption=_disruption(disruption),
        unhealthy=_unhealthy(status, named),
        server_ends_at=_server_ends_at(metadata, spec),
        lost_seconds=_lost_seconds(spec),
        host_resources=beside_gpus(spec),
        holder=holder_of(metadata),
        claims=claims,
        extended_claim=extended.get("resourceClaimName") or "",
        extended_resources=tuple(sorted({one["resourceName"] for one in extended.get("requestMappings") or ()})),
    )


def _server_ends_at(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> float | None:
    """Return until when our preStop hook keeps the server of a pod that is being deleted.

    The API server's ``deletionTimestamp`` is when the grace is over.
    """
    deleted_at, grace = metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds") or 0
    hooks = (((one.get("lifecycle") or {}).get("preStop") or {}).get("exec") for one in spec.get("containers") or ())
    if deleted_at is None or not any(PRE_STOP in (hook or {}).get("command", ()) for hook in hooks):
        return None
    return seconds_of(deleted_at) - min(SERVER_SECONDS, grace)


def without_preemption(message: str) -> str:
    """Return why the scheduler finds no node, without its own view of whom else it might end."""
    return _PREEMPTION.sub("", message)


def _lost_seconds(spec: Mapping[str, Any]) -> float | None:
    """Return the shortest time that a pod tolerates its node's silence; a cluster's default is 300 s."""
    tolerated = (
        toleration.get("tolerationSeconds")
        for toleration in spec.get("tolerations") or ()
        if toleration.get("key") in {"", None, _UNREACHABLE} and toleration.get("effect") in {"", None, "NoExecute"}
    )
    return min((float(seconds) for seconds in tolerated if seconds is not None), default=None)


def waits_for_volume(message: str) -> bool:
    """Whether the scheduler finds no place for a pod for want of its volume: one not made, or not bound, as yet."""
    return _NO_VOLUME.search(message) is not None


def _unhealthy(status: Mapping[str, Any], named: frozenset[str]) -> tuple[str, ...]:
    """Return the ids of a pod's GPUs that are unhealthy. Before Kubernetes 1.36 the kubelet does not tell."""
    return tuple(
        sorted(
            device["resourceID"]
            for container in status.get("containerStatuses") or ()
            for resource in container.get("allocatedResourcesStatus") or ()
            if is_gpu_resource(resource["name"], named)
            for device in resource.get("resources") or ()
            if device.get("health") == "Unhealthy"
        )
    )


DISRUPTIONS = {
    "PreemptionByScheduler": "The cluster needs its GPU for more important work.",
    "TerminationTarget": "The cluster's queue needs its place for more important work.",
    "EvictionByEvictionAPI": "Its node is being emptied, for example for maintenance.",
    "DeletionByTaintManager": "Its node was lost or taken out of service.",
    "DeletionByPodGC": "Its node is gone.",
    "TerminationByKubelet": "Its node is being shut down.",
}


def is_eviction(condition: Mapping[str, Any]) -> bool:
    """Whether a condition DisruptionTarget tells of a node that ran short: by its pod's own excess, as a rule.

    Of its shutdown the kubelet gives the same reason, in other words, and of a pod that the cluster itself needs there:
    those come for whoever is there.
    """
    message = condition.get("message") or ""
    return condition.get("reason") == "TerminationByKubelet" and not re.search("shutdown|critical pod", message)


def disruption_words(condition: Mapping[str, Any]) -> str:
    """Return in a sentence what a condition DisruptionTarget tells that is no eviction, "" where it is not known."""
    if "critical pod" in (condition.get("message") or ""):
        return "Its node needs its place for a part of the cluster itself."
    return DISRUPTIONS.get(condition.get("reason") or "", "")


def _disruption(condition: Mapping[str, Any]) -> str:
    """Return in a sentence why the cluster ends a pod for something else, by its condition DisruptionTarget, or ""."""
    if condition.get("status") != "True" or is_eviction(condition):
        return ""
    return disruption_words(condition) or "The cluster ends it."


def requested(spec: Mapping[str, Any], named: frozenset[str] = frozenset()) -> dict[str, int]:
    """Return the GPUs that kube-scheduler reserves for a pod, by resource: MOST_GPUS at most, as no node has more.

    A pod that names its node itself is not looked at by the scheduler, and may ask for any number.
    """
    found = _reserved(spec, partial(_of_container, named=named))
    return {resource: min(count, MOST_GPUS) for resource, count in found.items()}


def beside_gpus(spec: Mapping[str, Any]) -> HostResources:
    """Return the CPU and memory that kube-scheduler reserves for a pod."""
    found = _reserved(spec, _beside_of_container)
    return HostResources(found.get(CPU, 0), found.get(MEMORY, 0))


def _reserved(spec: Mapping[str, Any], read: Callable[[Mapping[str, Any]], dict[str, int]]) -> dict[str, int]:
    """Return what kube-scheduler reserves for a pod, of that which ``read`` finds in a container.

    1. The containers and the sidecars (init containers that restart always) run together: their sum.
    2. An init container runs beside the sidecars that stand before it: more of them at once count instead.
    """
    together = _sum([read(c) for c in spec.get("containers") or ()])
    sidecars: dict[str, int] = {}
    most: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        own = read(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum([sidecars, own])
            own = {}
        most = _most(most, _sum([sidecars, own]))
    return {name: count for name, count in _most(_sum([together, sidecars]), most).items() if count}


def seconds_of(timestamp: str | None) -> float:
    """Return a time of the API as seconds since the epoch, 0.0 where there is none."""
    if not timestamp:
        return 0.0
    try:
        read = datetime.strptime(timestamp, "%Y-%m-%dT%H:%M:%SZ")  # noqa: DTZ007 - the Z is in the format
    except ValueError:
        return 0.0
    return read.replace(tzinfo=timezone.utc).timestamp()


def count_of(quantity: object) -> int:
    """Return a whole number of devices, 0 for what is no quantity: nearly all come as ``"8"``, some as ``"1e1"``."""
    text = str(quantity)
    return int(text) if text.isdecimal() else amount_of("", text) or 0


def _gpus(quantities: Mapping[str, Any] | None, named: frozenset[str]) -> dict[str, int]:
    return {name: count_of(value) for name, value in (quantities or {}).items() if is_gpu_resource(name, named)}


def _of_container(container: Mapping[str, Any], named: frozenset[str]) -> dict[str, int]:
    resources = container.get("resources") or {}
    return _gpus({**(resources.get("limits") or {}), **(resources.get("requests") or {})}, named)


def _beside_of_container(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: amount_of(name, asked[name]) or 0 for name in (CPU, MEMORY) if name in asked}


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0) + count
    return total


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {*one, *other}}
