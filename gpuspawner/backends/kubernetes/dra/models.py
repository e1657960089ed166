"""ResourceSlices, DeviceClasses and ResourceClaims of ``resource.k8s.io/v1``, reduced to the needed fields. Pure.

The API server has validated each object, so a malformed field counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuspawner.backends.kubernetes.nodes import amount_of
from gpuspawner.core.gpus.fleet import DeviceClaim, GpuKind

VERSIONS = frozenset({"version", "versions"})
DOMAIN_ATTRIBUTES = {"resource.kubernetes.io/numaNode": "NUMA", "resource.kubernetes.io/pcieRoot": "PCIe root"}
"""Attributes that GPUs of one domain share, the first known one counts, and what their values are called."""
KEEPS_OFF = frozenset({"NoSchedule", "NoExecute"})


class DeviceName(NamedTuple):
    """A device of the cluster, as claims name it."""

    driver: str
    pool: str
    device: str


class Counters(NamedTuple):
    """Amounts of a counter set: the total, or what one device uses."""

    name: str
    amounts: tuple[tuple[str, int], ...]


class SharedCapacity(NamedTuple):
    """The capacity of a shared device, and the default, minimum and step of a request."""

    amount: int
    default: int | None
    least: int | None
    step: int | None


Attribute = str | bool | int | tuple[str | bool | int, ...]
"""A version is its text. Newer Kubernetes also has lists."""


@dataclass(frozen=True)
class Device:
    """One device of a ResourceSlice.

    Args:
        name: driver, pool and device.
        attributes: by (domain, name).
        versions: the attributes that are versions.
        capacity: by (domain, name).
        takes: what it uses of counters shared within its pool, as partitions of one GPU do.
        tainted: why no new claim gets it, "" if untainted.
        is_shared: several claims may share it.
    """

    name: DeviceName
    attributes: tuple[tuple[tuple[str, str], Attribute], ...] = ()
    versions: frozenset[tuple[str, str]] = frozenset()
    capacity: tuple[tuple[tuple[str, str], SharedCapacity], ...] = ()
    takes: tuple[Counters, ...] = ()
    tainted: str = ""
    is_shared: bool = False

    def attribute(self, name: str) -> Attribute | None:
        """Return an attribute of the driver's own domain."""
        return dict(self.attributes).get((self.name.driver, name))

    @property
    def uuid(self) -> str:
        """Its UUID, or that of its GPU for a partition that does not exist yet. "" if the driver reports neither.

        The attributes are those of NVIDIA's driver (kubernetes-sigs/dra-driver-nvidia-gpu, ``deviceinfo.go``,
        ``mig.go``).
        """
        return str(self.attribute("uuid") or self.attribute("parentUUID") or "")

    def amount(self, name: str) -> int:
        """Return a capacity of the driver's own domain, 0 if unknown."""
        found = dict(self.capacity).get((self.name.driver, name))
        return found.amount if found else 0


@dataclass(frozen=True)
class Slice:
    """A ResourceSlice of one node. Slices of several nodes are ignored."""

    name: str
    node: str
    driver: str
    pool: str
    generation: int
    of: int
    """Number of slices of that generation in the pool."""
    devices: tuple[Device, ...] = ()
    counters: tuple[Counters, ...] = ()


@dataclass(frozen=True)
class DeviceClass:
    """A DeviceClass: CEL expressions that must all hold, and the extended resource that also requests it."""

    name: str
    selectors: tuple[str, ...] = ()
    resource: str = ""


class AllocatedDevice(NamedTuple):
    """A device of a claim, with its request and, for a shared device, the used capacity."""

    request: str
    device: DeviceName
    consumed: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Claim:
    """A ResourceClaim with devices. ``pods`` are the (uid, name) of the pods it is reserved for."""

    uid: str
    namespace: str
    name: str
    devices: tuple[AllocatedDevice, ...]
    pods: tuple[tuple[str, str], ...] = ()


def domain_attribute(devices: Iterable[Device]) -> str:
    """Return the attribute that tells the domains of these devices, "" if no driver reports one."""
    known = {f"{domain}/{name}" for device in devices for (domain, name), _ in device.attributes}
    return next((attribute for attribute in DOMAIN_ATTRIBUTES if attribute in known), "")


def domain_of(device: Device, attribute: str) -> str:
    """Return the domain of a device by an attribute, "" if its driver does not report it."""
    domain, _, name = attribute.rpartition("/")
    value = dict(device.attributes).get((domain, name))
    return "" if value is None else f"{DOMAIN_ATTRIBUTES[attribute]} {value}"


def to_slice(data: Mapping[str, Any]) -> Slice | None:
    """Return a ResourceSlice of the API, None if its devices belong to several nodes."""
    spec = data["spec"]
    pool, driver = spec["pool"], spec["driver"]
    if not spec.get("nodeName"):
        return None
    return Slice(
        name=data["metadata"]["name"],
        node=spec["nodeName"],
        driver=driver,
        pool=pool["name"],
        generation=pool.get("generation", 0),
        of=pool.get("resourceSliceCount", 1),
        devices=tuple(_device(driver, pool["name"], one) for one in spec.get("devices") or ()),
        counters=tuple(_counters(one["name"], one) for one in spec.get("sharedCounters") or ()),
    )


def to_class(data: Mapping[str, Any]) -> DeviceClass:
    """Return a DeviceClass of the API."""
    spec = data.get("spec") or {}
    found = (one.get("cel") or {} for one in spec.get("selectors") or ())
    selectors = tuple(str(cel.get("expression", "")) for cel in found)
    return DeviceClass(data["metadata"]["name"], selectors, spec.get("extendedResourceName") or "")


def to_claim(data: Mapping[str, Any]) -> Claim | None:
    """Return a ResourceClaim of the API, None without devices."""
    metadata, status = data["metadata"], data.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    devices = tuple(
        AllocatedDevice(
            one["request"],
            DeviceName(one["driver"], one["pool"], one["device"]),
            tuple(sorted((key, _amount(value)) for key, value in (one.get("consumedCapacity") or {}).items())),
        )
        for one in results
        if not one.get("adminAccess")  # It only observes devices of other claims.
    )
    if not devices:
        return None
    users = tuple((one["uid"], one["name"]) for one in status.get("reservedFor") or () if one.get("resource") == "pods")
    return Claim(metadata["uid"], metadata["namespace"], metadata["name"], devices, users)


def _device(driver: str, pool: str, data: Mapping[str, Any]) -> Device:
    attributes = {_qualified(driver, key): value for key, value in (data.get("attributes") or {}).items()}
    taints = [one for one in data.get("taints") or () if one.get("effect") in KEEPS_OFF]
    return Device(
        name=DeviceName(driver, pool, data["name"]),
        attributes=tuple((key, _attribute(value)) for key, value in sorted(attributes.items()) if value),
        versions=frozenset(key for key, value in attributes.items() if not value.keys().isdisjoint(VERSIONS)),
        capacity=tuple(
            sorted((_qualified(driver, key), _shared(value)) for key, value in (data.get("capacity") or {}).items())
        ),
        takes=tuple(_counters(one["counterSet"], one) for one in data.get("consumesCounters") or ()),
        tainted=", ".join(_taint(one) for one in taints),
        is_shared=bool(data.get("allowMultipleAllocations")),
    )


def _attribute(value: Mapping[str, Any]) -> Attribute:
    found: Any = next(iter(value.values()))
    return tuple(found) if isinstance(found, list) else found


def _taint(data: Mapping[str, Any]) -> str:
    return f"{data['key']}={data['value']}" if data.get("value") else str(data["key"])


def _qualified(driver: str, key: str) -> tuple[str, str]:
    domain, slash, name = key.rpartition("/")
    return (domain if slash else driver, name)


def _shared(data: Mapping[str, Any]) -> SharedCapacity:
    policy = data.get("requestPolicy") or {}
    bounds: Mapping[str, Any] = policy.get("validRange") or {}
    limits = policy.get("default"), bounds.get("min"), bounds.get("step")
    return SharedCapacity(_amount(data["value"]), *(None if value is None else _amount(value) for value in limits))


def _counters(name: str, data: Mapping[str, Any]) -> Counters:
    return Counters(name, tuple(sorted(_amounts(data.get("counters") or {}))))


def _amounts(counters: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    return ((key, _amount(one["value"])) for key, one in counters.items())


def _amount(quantity: object) -> int:
    return amount_of("", quantity) or 0


Json = dict[str, Any]

REQUEST = "gpu"
"""Name of a request whose first available kind the scheduler chooses."""


def claim_spec(kinds: Sequence[GpuKind], count: int, alike: str = "") -> Json:
    """Return the spec of a claim for ``count`` GPUs of the first kind, or of the first kind that is available.

    Each request has its kind's name, so the claim's status names the allocated kind. The devices have the same value of
    the attribute ``alike``, unless it is "".
    """
    requested = [(kind.resource.rpartition("/")[2], kind.claim) for kind in kinds if kind.claim is not None]
    if len(requested) == 1:
        name, claim = requested[0]
        requests: list[Json] = [{"name": name, "exactly": _exactly(claim, count)}]
    else:
        alternatives = [{"name": name, **_exactly(claim, count)} for name, claim in requested]
        requests = [{"name": REQUEST, "firstAvailable": alternatives}]
    prefix = "" if len(requested) == 1 else f"{REQUEST}/"
    config = [
        {"requests": [f"{prefix}{name}"], "opaque": {"driver": one.driver, "parameters": json.loads(one.parameters)}}
        for name, claim in requested
        for one in claim.config
    ]
    parts = {"requests": requests, "config": config, "constraints": [{"matchAttribute": alike}] if alike else []}
    return {"devices": {name: part for name, part in parts.items() if part}}


def _exactly(claim: DeviceClaim, count: int) -> Json:
    asked: Json = {"deviceClassName": claim.device_class, "allocationMode": "ExactCount", "count": count}
    if claim.selectors:
        asked["selectors"] = [{"cel": {"expression": expression}} for expression in claim.selectors]
    if claim.capacity:
        asked["capacity"] = {"requests": dict(claim.capacity)}
    return asked
