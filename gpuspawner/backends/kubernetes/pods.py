"""Pods reduced to the few fields that service and spawner need. Pure: JSON of the API in, small frozen values out.

The API server has validated each object, so a malformed field counts as absent. ``holder_of`` reads the labels of
KubeRay, Kubeflow's Training Operator, JobSet, LeaderWorkerSet, Volcano, Kubeflow Notebooks and JupyterHub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuspawner.backends.base import ATTEMPT, LEASE_ID
from gpuspawner.backends.kubernetes.nodes import (
    amount_of,
    gpu_counts,
    seconds_of,
)
from gpuspawner.core.gpus.fleet import NO_HOST_RESOURCES, HostResources, group_of_gpu
from gpuspawner.core.gpus.vendors import is_gpu_resource
from gpuspawner.core.quotas.namespaces import CPU, MEMORY
from gpuspawner.core.units import MOST_GPUS

HUB_LABEL = "gpuspawner.io/hub"
LEASE_LABEL = "gpuspawner.io/lease"
ATTEMPT_LABEL = "gpuspawner.io/attempt"

PRE_STOP = "gpuspawner-pre-stop"
"""Name of our preStop hook in a workspace."""
SERVER_SECONDS = 5
"""Seconds of the grace period that our preStop hook leaves to the server itself. Arbitrary."""

LABELS = {"GPUSPAWNER_HUB_ID": HUB_LABEL, LEASE_ID: LEASE_LABEL, ATTEMPT: ATTEMPT_LABEL}
LEASE_DOCUMENT = "GPUSPAWNER_LEASE"
ANNOTATIONS = {
    LEASE_DOCUMENT: "gpuspawner.io/lease-document",
    "GPUSPAWNER_LEASE_SIGNATURE": "gpuspawner.io/lease-signature",
}


def to_metadata(variables: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and annotations of a pod with these variables. A token never becomes one."""
    labels = {key: variables[name] for name, key in LABELS.items() if name in variables}
    annotations = {key: variables[name] for name, key in ANNOTATIONS.items() if name in variables}
    return labels, annotations


def variables_of(labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a pod has as labels and annotations."""
    return {name: labels[key] for name, key in LABELS.items() if key in labels} | {
        name: annotations[key] for name, key in ANNOTATIONS.items() if key in annotations
    }


_KIND_BY_LABEL = (
    ("ray.io/cluster", "RayCluster"),
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
    ("volcano.sh/job-name", "Volcano job"),
    ("notebook-name", "Kubeflow notebook"),
    ("hub.jupyter.org/username", "Jupyter server of"),
)
MAX_HOLDER_LENGTH = 300
"""A pod's creator chooses the name of its owner."""
_TRAINING_JOB = "training.kubeflow.org/job-name"
_HASH = "pod-template-hash"


def holder_of(metadata: Mapping[str, Any]) -> str:
    """Return the owner of a pod as ``RayCluster team-a/nightly``: kind, namespace and name.

    Without an owner, the pod.
    """
    labels, namespace = metadata.get("labels") or {}, metadata["namespace"]
    kind, name = next(
        ((kind, labels[label]) for label, kind in _KIND_BY_LABEL if labels.get(label)),
        _controller(metadata, labels),
    )
    return f"{kind} {namespace}/{name}"[:MAX_HOLDER_LENGTH]


def _controller(metadata: Mapping[str, Any], labels: Mapping[str, str]) -> tuple[str, str]:
    owner = next((one for one in metadata.get("ownerReferences") or () if one.get("controller")), None)
    if labels.get(_TRAINING_JOB):
        return owner["kind"] if owner else "Training job", labels[_TRAINING_JOB]
    if owner is None:
        return "Pod", metadata["name"]
    kind, name, suffix = owner["kind"], owner["name"], f"-{labels.get(_HASH)}"
    if kind == "ReplicaSet" and name.endswith(suffix):
        return "Deployment", name.removesuffix(suffix)
    return kind, name


_ENDED = frozenset({"Succeeded", "Failed"})
_UNREACHABLE = "node.kubernetes.io/unreachable"
_PREEMPTION = re.compile(r"\.?( no new claims to deallocate,)? preemption: .*", re.DOTALL)
_NO_VOLUME = re.compile(r'unbound immediate PersistentVolumeClaims|persistentvolumeclaim "')


@dataclass(frozen=True)
class Pod:
    """A pod that requests GPUs, claims devices, or has a hub's label.

    Args:
        node: name of its node, "" before it is bound.
        requests: GPUs by resource.
        hub: the hub's id, "" for other pods.
        variables: the variables that rebuild its lease.
        created_at: in seconds since the epoch.
        ended: it has ended and holds nothing. A ``deleting`` pod holds its GPUs until it is gone.
        refusal: why the scheduler finds no node, else "". Waiting for a volume is no refusal.
        disruption: why the cluster ends it or is about to.
        server_ends_at: time, in seconds since the epoch, until which our preStop hook keeps its server. None if
        unknown.
        lost_seconds: how long its node may be unreachable before the cluster ends it. None if it never does.
        unhealthy: ids of its devices that the kubelet reports as unhealthy.
        host_resources: CPU and memory that the node reserves for it.
        holder: its owner in words.
        claims: it has resource claims.
        extended_claim: the claim that the scheduler made for its request of ``extended_resources``.
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
        """Id of its lease, "" if unknown."""
        return self.variables.get(LEASE_ID, "")

    @property
    def attempt(self) -> int:
        """Start attempt of its lease, 0 if unknown."""
        attempt = self.variables.get(ATTEMPT, "")
        return int(attempt) if attempt.isascii() and attempt.isdigit() else 0

    def gpu_indexes(self, node: str, resource: str) -> tuple[int, ...]:
        """Return the indexes of a resource's GPUs on a node that its lease was granted, () if it carries no such."""
        try:
            names = [str(gpu) for gpu, _ in json.loads(self.variables.get(LEASE_DOCUMENT, "{}"))["slots"]]
            groups = [(group_of_gpu(name), int(name.rpartition("/")[2])) for name in names]
        except (ValueError, KeyError, TypeError, RecursionError):
            return ()
        return tuple(sorted(index for group, index in groups if group and group[:2] == (node, resource)))


def to_pod(data: Mapping[str, Any], named: frozenset[str] = frozenset()) -> Pod | None:
    """Return a pod of the API. None if it has neither GPUs nor claims nor a hub's label."""
    metadata, spec, status = data["metadata"], data.get("spec") or {}, data.get("status") or {}
    labels = metadata.get("labels") or {}
    hub = labels.get(HUB_LABEL, "")
    requests = requested_gpus(spec, named)
    claims = bool(spec.get("resourceClaims"))
    if not hub and not requests and not claims:
        return None
    extended = status.get("extendedResourceClaimStatus") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    message = str(scheduled.get("message") or "no node was found for it")
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
        disruption=_disruption_sentence(disruption),
        unhealthy=_unhealthy(status, named),
        server_ends_at=_server_ends_at(metadata, spec),
        lost_seconds=_lost_seconds(spec),
        host_resources=requested_host_resources(spec),
        holder=holder_of(metadata),
        claims=claims,
        extended_claim=extended.get("resourceClaimName") or "",
        extended_resources=tuple(sorted({one["resourceName"] for one in extended.get("requestMappings") or ()})),
    )


def _server_ends_at(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> float | None:
    """Return the time until which our preStop hook keeps the server of a deleted pod.

    ``deletionTimestamp`` is the end of the grace period.
    """
    deleted_at, grace = metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds") or 0
    hooks = (((one.get("lifecycle") or {}).get("preStop") or {}).get("exec") for one in spec.get("containers") or ())
    if deleted_at is None or not any(PRE_STOP in (hook or {}).get("command", ()) for hook in hooks):
        return None
    return seconds_of(deleted_at) - min(SERVER_SECONDS, grace)


def without_preemption(message: str) -> str:
    """Return why the scheduler finds no node, without its remarks on preemption."""
    return _PREEMPTION.sub("", message)


def waits_for_volume(message: str) -> bool:
    """Return whether a pod has no node because its volume does not exist or is not bound yet."""
    return _NO_VOLUME.search(message) is not None


DISRUPTION_SENTENCES = {
    "PreemptionByScheduler": "The cluster needed its GPU for work with a higher priority.",
    "TerminationTarget": "The cluster's queue needed its place for work with a higher priority.",
    "EvictionByEvictionAPI": "Its node is being drained, for example for maintenance.",
    "DeletionByTaintManager": "Its node was lost or taken out of service.",
    "DeletionByPodGC": "Its node is gone.",
    "TerminationByKubelet": "Its node is being shut down.",
}


def is_eviction(condition: Mapping[str, Any]) -> bool:
    """Return whether a DisruptionTarget condition reports that the node ran short of a resource.

    The kubelet gives the same reason for a shutdown and for a critical pod of the cluster, with other messages.
    """
    message = condition.get("message") or ""
    return condition.get("reason") == "TerminationByKubelet" and not re.search("shutdown|critical pod", message)


def disruption_words(condition: Mapping[str, Any]) -> str:
    """Return the sentence for a DisruptionTarget condition that is no eviction, "" if unknown."""
    if "critical pod" in (condition.get("message") or ""):
        return "Its node needed its place for a part of the cluster itself."
    return DISRUPTION_SENTENCES.get(condition.get("reason") or "", "")


def _disruption_sentence(condition: Mapping[str, Any]) -> str:
    if condition.get("status") != "True" or is_eviction(condition):
        return ""
    return disruption_words(condition) or "The cluster ends it."


def requested_gpus(spec: Mapping[str, Any], named: frozenset[str] = frozenset()) -> dict[str, int]:
    """Return the GPUs that kube-scheduler reserves for a pod, by resource, and at most MOST_GPUS of each.

    The scheduler ignores a pod that names its node, which may request any number.
    """
    found = _reserved(spec, lambda container: gpu_counts(_quantities(container), named))
    return {resource: min(count, MOST_GPUS) for resource, count in found.items()}


def requested_host_resources(spec: Mapping[str, Any]) -> HostResources:
    """Return the CPU and memory that kube-scheduler reserves for a pod."""
    found = _reserved(spec, _host_resources_of_container)
    return HostResources(found.get(CPU, 0), found.get(MEMORY, 0))


def _reserved(spec: Mapping[str, Any], read: Callable[[Mapping[str, Any]], dict[str, int]]) -> dict[str, int]:
    """Return the resources that kube-scheduler reserves for a pod, of those that ``read`` returns for a container.

    1. Containers and sidecars (init containers that restart always) run together and are added.
    2. An init container runs with the sidecars before it. The largest such sum counts if it is more.
    """
    together = _sum(map(read, spec.get("containers") or ()))
    sidecars: dict[str, int] = {}
    most: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        own = read(container)
        if container.get("restartPolicy") == "Always":
            sidecars, own = _sum([sidecars, own]), {}
        most = _most(most, _sum([sidecars, own]))
    return {name: count for name, count in _most(_sum([together, sidecars]), most).items() if count}


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0) + count
    return total


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {*one, *other}}


def _quantities(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the requests of a container. A limit is also a request."""
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def _host_resources_of_container(container: Mapping[str, Any]) -> dict[str, int]:
    quantities = _quantities(container)
    return {name: amount_of(name, quantities[name]) or 0 for name in (CPU, MEMORY) if name in quantities}


def _lost_seconds(spec: Mapping[str, Any]) -> float | None:
    """Return the shortest time that a pod tolerates an unreachable node. A cluster's default is 300 s."""
    tolerated = (
        toleration.get("tolerationSeconds")
        for toleration in spec.get("tolerations") or ()
        if toleration.get("key") in {"", None, _UNREACHABLE} and toleration.get("effect") in {"", None, "NoExecute"}
    )
    return min((float(seconds) for seconds in tolerated if seconds is not None), default=None)


def _unhealthy(status: Mapping[str, Any], named: frozenset[str]) -> tuple[str, ...]:
    """Return the ids of a pod's unhealthy GPUs. The kubelet reports them from Kubernetes 1.36 on."""
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
