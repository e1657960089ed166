"""Nodes, namespace quotas and limits, reduced to the needed fields. Pure: JSON of the API in, frozen values out.

Labels are those of GPU Feature Discovery, AMD's and Intel's labellers, GKE, EKS and Karpenter. Taints are those of
Karpenter 1, the cluster autoscaler, AWS's node termination handler and GKE. A quota of "memory" bounds the guaranteed
memory of pods, and "limits.memory" their limit. A LimitRange bounds the minimum of the first and the maximum of the
second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from fractions import Fraction
from typing import Any

from gpuspawner.core.gpus.vendors import (
    CUDA_VERSION,
    DRIVER_VERSION,
    GKE_SLICE,
    SPOT,
    VENDORS,
    is_gpu_resource,
    notice_seconds,
    spot_labels,
    vendor_of,
)
from gpuspawner.core.quotas.namespaces import (
    CPU,
    LIMIT_OF_REQUEST,
    LIMITS_CPU,
    LIMITS_MEMORY,
    MEMORY,
    PODS,
    VOLUMES,
    NamespaceLimit,
    NamespaceQuota,
)
from gpuspawner.core.units import GIBIBYTE, MEBIBYTE

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,2})|(m|[kMGTPE]|[KMGTPE]i)?)")
_UNITS = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}


def amount_of(resource: str, quantity: object) -> int | None:
    """Return a quantity like ``1500m`` or ``64Gi`` as a whole number, rounded up. None if it is invalid."""
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        return None
    number = Fraction(match[1] if match[1][0] != "." else f"0{match[1]}")
    scale = Fraction(10) ** int(match[2]) if match[2] else _UNITS[match[3] or ""]
    return math.ceil(number * scale * (1000 if resource in {CPU, LIMITS_CPU} else 1))


HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
DOMAIN_LABELS = ("nvidia.com/gpu.clique", "gpuspawner.io/gpu-domain")
"""Labels of nodes whose GPUs are all in one domain: of GPU Feature Discovery for an NVLink fabric, and administrators'
own."""
Selector = tuple[tuple[str, tuple[str, ...]], ...]
"""Labels that nodes have, each with its value, and labels that they lack, each with ()."""

_MIG_RESOURCE = re.compile(r"nvidia\.com/mig-([0-9a-z.+]+)")
_SHARED_RESOURCE = ".shared"
_MIG_LABEL = re.compile(r"nvidia\.com/mig-[0-9a-z.+]+\.(?:memory|replicas|product)")
_SHARED_SUFFIX = "-SHARED"
_MIG_INFIX = "-MIG-"
_WHOLE = re.compile(r"([0-9]{1,9})G?i?")

_KEPT = frozenset(
    key
    for vendor in VENDORS
    for keys in (vendor.products, vendor.memories_mib, vendor.memories_gib, vendor.replicas)
    for key in keys
) | {GKE_SLICE, HOSTNAME, ZONE, DRIVER_VERSION, CUDA_VERSION, *SPOT, *DOMAIN_LABELS}


@dataclass(frozen=True)
class Model:
    """The product behind one resource of a node.

    Args:
        name: the vendor's product, "" without a label.
        profile: the profile of a slice (MIG).
        replicas: number of pods that share a device, 0 if it is shared and no label has the number.
        memory_bytes: memory of one unit, 0 without a label.
        selector: the labels that were read and those that are missing, which distinguish such GPUs from others.
    """

    name: str = ""
    profile: str = ""
    replicas: int = 1
    memory_bytes: int = 0
    selector: Selector = ()

    @property
    def title(self) -> str:
        """The product's name with slice and sharing, as GPU Feature Discovery writes it. "" without a name."""
        if not self.name:
            return ""
        sliced = f"{self.name}{_MIG_INFIX}{self.profile}" if self.profile else self.name
        return f"{sliced}{_SHARED_SUFFIX}" if self.is_divided else sliced

    @property
    def is_divided(self) -> bool:
        """Whether several pods share a device."""
        return self.replicas != 1


def is_kept_label(key: str) -> bool:
    """Return whether a node's label is used here."""
    return key in _KEPT or _MIG_LABEL.fullmatch(key) is not None


def says_slice(resource: str) -> bool:
    """Return whether a resource counts slices (MIG), by its name."""
    return _MIG_RESOURCE.fullmatch(resource) is not None


def says_shared(resource: str) -> bool:
    """Return whether pods share a resource's devices, by its name."""
    return resource.endswith(_SHARED_RESOURCE)


def model_of(labels: Mapping[str, str], resource: str) -> Model:
    """Return the product behind a GPU resource, by the node's labels."""
    vendor, base = vendor_of(resource), resource.removesuffix(_SHARED_RESOURCE)
    mixed = _MIG_RESOURCE.fullmatch(base)
    products = vendor.products if vendor else ()
    product = next((key for key in products if labels.get(key)), None)
    if vendor is None or product is None:
        return Model(profile=mixed[1] if mixed else "", replicas=0 if says_shared(resource) else 1)
    name, _, profile = labels[product].removesuffix(_SHARED_SUFFIX).partition(_MIG_INFIX)
    memory = _first_number(labels, vendor.memories_mib) * MEBIBYTE
    memory = memory or _first_number(labels, vendor.memories_gib) * GIBIBYTE
    own_product = product
    read = [*products[: products.index(product) + 1]]  # a node with a more specific label may have another model
    replicas_of = vendor.replicas
    if mixed:
        # The product label is that of the whole device, however it is shared.
        profile = mixed[1]
        memory = _first_number(labels, (f"{base}.memory",)) * MEBIBYTE
        own_product, replicas_of = f"{base}.product", (f"{base}.replicas",)
        read.append(own_product)
    elif vendor.slices:
        profile = labels.get(GKE_SLICE, profile)
        read.append(GKE_SLICE)
    label_replicas = _first_number(labels, replicas_of)
    is_shared = says_shared(resource) or labels.get(own_product, "").endswith(_SHARED_SUFFIX)
    replicas = label_replicas if label_replicas > 1 else 0 if is_shared else 1
    memory = memory // replicas if replicas else 0
    return Model(name, profile, replicas, memory, _to_selector(labels, [*read, *replicas_of]))


def _to_selector(labels: Mapping[str, str], keys: Iterable[str]) -> Selector:
    return tuple((key, (labels[key],) if key in labels else ()) for key in sorted(keys))


def _first_number(labels: Mapping[str, str], keys: tuple[str, ...]) -> int:
    """Return the first of these labels that is a whole number, else 0."""
    for key in keys:
        if match := _WHOLE.fullmatch(labels.get(key, "")):
            return int(match[1])
    return 0


_SCALED_DOWN = "The cluster's autoscaler is removing its node."
_RECLAIMED = "The cloud provider is reclaiming its node."
_INTERRUPTIONS = {
    "karpenter.sh/disrupted": _SCALED_DOWN,
    "ToBeDeletedByClusterAutoscaler": _SCALED_DOWN,
    "aws-node-termination-handler/spot-itn": _RECLAIMED,
    "aws-node-termination-handler/rebalance-recommendation": "The cloud provider may soon reclaim its node.",
    "aws-node-termination-handler/asg-lifecycle-termination": _SCALED_DOWN,
    "aws-node-termination-handler/scheduled-maintenance": "Its node goes into maintenance.",
    "cloud.google.com/impending-node-termination": _RECLAIMED,
}
"""Sentences for a workspace's user, by taint."""
_WITHOUT_TIME = frozenset({"aws-node-termination-handler/rebalance-recommendation"})
"""Taints that come before the cloud's notice, so the time of the end is unknown."""


@dataclass(frozen=True)
class Interruption:
    """A node is about to be removed: the reason in a sentence, and the seconds until then. None if unknown."""

    why: str
    ends_in_seconds: float | None = None


def interruption_of(taints: Iterable[str], labels: Mapping[str, str]) -> Interruption | None:
    """Return the coming end of a node by its taints, None without one.

    A spot node ends after the cloud's notice, counted from the taint.
    """
    taint = next((key for key in taints if key in _INTERRUPTIONS), None)
    if taint is None:
        return None
    return Interruption(_INTERRUPTIONS[taint], None if taint in _WITHOUT_TIME else notice_seconds(labels))


_KEYS = {
    **dict.fromkeys(("cpu", "requests.cpu"), CPU),
    **dict.fromkeys(("memory", "requests.memory"), MEMORY),
    LIMITS_CPU: LIMITS_CPU,
    LIMITS_MEMORY: LIMITS_MEMORY,
    **dict.fromkeys(("pods", "count/pods"), PODS),
    **dict.fromkeys((VOLUMES, f"count/{VOLUMES}"), VOLUMES),
}
_OF_EVERY_WORKSPACE = frozenset({"NotTerminating", "NotBestEffort"})
"""Scopes that include each workspace: it has requests, and no end that Kubernetes knows."""


def to_quota(data: Mapping[str, Any], named: frozenset[str] = frozenset()) -> tuple[NamespaceQuota, ...] | None:
    """Return a ResourceQuota's bounds on workspaces. None if it bounds no workspace, or counts some pods only.

    Requests and limits of one resource are separate bounds. ``named`` are the catalog's GPU resources.
    """
    spec, status = data.get("spec") or {}, data.get("status") or {}
    if spec.get("scopeSelector") or not set(spec.get("scopes") or ()) <= _OF_EVERY_WORKSPACE:
        return None  # only the API server knows which pods it counts
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
    """Return a LimitRange's bounds on a workspace and the GPUs that it adds, None without any.

    The API server has completed ``default`` by ``max``, and ``defaultRequest`` by ``default`` and ``min``. Other
    containers of a pod may provide the minimum of a pod, so that is no bound.
    """
    found: list[NamespaceLimit] = []
    for entry in (data.get("spec") or {}).get("limits") or ():
        if entry.get("type") not in {"Container", "Pod"}:
            continue
        most, least = entry.get("max") or {}, entry.get("min") or {}
        adds = {**(entry.get("defaultRequest") or {}), **(entry.get("default") or {})}
        for key in dict.fromkeys([*most, *least, *adds]):
            if key not in {CPU, MEMORY} and not is_gpu_resource(key, named):
                continue
            name = data["metadata"]["name"]
            lowest = amount_of(key, least.get(key, "0")) if entry["type"] == "Container" else 0
            highest = amount_of(key, most[key]) if key in most else None
            found += [NamespaceLimit(name, key, least=lowest)] if lowest else []
            found += [NamespaceLimit(name, LIMIT_OF_REQUEST.get(key, key), most=highest)] if highest is not None else []
            if is_gpu_resource(key, named) and (added := amount_of(key, adds.get(key, "0"))):
                found.append(NamespaceLimit(name, key, added=added))
    return tuple(found) or None


def _resource(key: str, named: frozenset[str]) -> str:
    """Return the resource that a quota's key counts, "" if workspaces do not use it."""
    if key in _KEYS:
        return _KEYS[key]
    resource = key.removeprefix("requests.")
    return resource if resource != key and is_gpu_resource(resource, named) else ""


@dataclass(frozen=True)
class Taint:
    """A taint with the effect NoSchedule or NoExecute. Other effects keep no pod off."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True)
class Node:
    """One node.

    Args:
        capacity: number of devices of each GPU resource.
        allocatable: number of healthy devices.
        cpu: CPU for pods in thousandths of a core, 0 if unknown.
        memory_bytes: memory for pods, 0 if unknown.
        models: products of claimed devices by resource.
        taints_of: taints of claimed devices by resource.
        device_domains: domains of claimed devices by resource, "" for a device whose domain is unknown.
        device_attribute: the attribute with these domains, "" if unknown.
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
    device_domains: Mapping[str, Sequence[str]] = field(default_factory=dict)
    device_attribute: str = ""

    def model(self, resource: str) -> Model:
        """Return the product behind a resource, by its devices or the node's labels."""
        return self.models.get(resource) or model_of(self.labels, resource)

    @property
    def domain_attribute(self) -> str:
        """The attribute that devices of one domain share, "" if all GPUs of the node are in one domain or unknown."""
        return "" if self._is_one_domain else self.device_attribute

    @property
    def _is_one_domain(self) -> bool:
        return any(self.labels.get(key) for key in DOMAIN_LABELS)

    def domains(self, resource: str) -> Iterator[tuple[str, ...]]:
        """Yield the domains of each GPU of a resource, () if unknown. Slices and replicas of GPUs have none."""
        model, devices = self.model(resource), self.device_domains.get(resource, ())
        for index in range(self.capacity.get(resource, 0)):
            if model.profile or model.is_divided:
                yield ()
            elif self._is_one_domain:
                yield ("NVLink",)
            else:
                yield tuple(filter(None, devices[index : index + 1]))

    @property
    def driver(self) -> tuple[str, str]:
        """The versions of its driver and of CUDA that the driver supports, "" if unknown."""
        return self.labels.get(DRIVER_VERSION, ""), self.labels.get(CUDA_VERSION, "")

    @property
    def spot(self) -> bool:
        """Whether the cloud may reclaim it at any time."""
        return bool(spot_labels(self.labels))

    @property
    def interruption(self) -> Interruption | None:
        """Its coming end by its taints, None without one."""
        return interruption_of((taint.key for taint in self.taints), self.labels)


def to_node(data: Mapping[str, Any], named: frozenset[str] = frozenset()) -> Node:
    """Return a node of the API, with the labels that are used here."""
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
        capacity=gpu_counts(status.get("capacity"), named),
        allocatable=gpu_counts(allocatable, named),
        cpu=amount_of(CPU, allocatable.get(CPU, "0")) or 0,
        memory_bytes=amount_of(MEMORY, allocatable.get(MEMORY, "0")) or 0,
    )


def seconds_of(timestamp: str | None) -> float:
    """Return a time of the API in seconds since the epoch, 0.0 if missing."""
    if not timestamp:
        return 0.0
    try:
        read = datetime.strptime(timestamp, "%Y-%m-%dT%H:%M:%SZ")  # noqa: DTZ007 - the Z is in the format
    except ValueError:
        return 0.0
    return read.replace(tzinfo=timezone.utc).timestamp()


def count_of(quantity: object) -> int:
    """Return a number of devices, 0 if invalid. Nearly all are written ``"8"``, some ``"1e1"``."""
    text = str(quantity)
    return int(text) if text.isdecimal() else amount_of("", text) or 0


def gpu_counts(quantities: Mapping[str, Any] | None, named: frozenset[str]) -> dict[str, int]:
    """Return the GPU resources of these quantities with their numbers."""
    return {name: count_of(value) for name, value in (quantities or {}).items() if is_gpu_resource(name, named)}
