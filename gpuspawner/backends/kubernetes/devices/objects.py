"""ResourceSlices, DeviceClasses and ResourceClaims of ``resource.k8s.io/v1``, trimmed to what is needed of them.

Pure: JSON in, small frozen values out. What is malformed is taken as absent: the API server has validated it already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuspawner.backends.kubernetes.nodes import amount_of

VERSIONS = frozenset({"version", "versions"})
KEEPS_OFF = frozenset({"NoSchedule", "NoExecute"})


class DeviceName(NamedTuple):
    """A device of the cluster, as claims name it."""

    driver: str
    pool: str
    device: str


class Counters(NamedTuple):
    """How much of each counter of a set: what there is, or what one device takes of it."""

    name: str
    amounts: tuple[tuple[str, int], ...]


class Shared(NamedTuple):
    """What a device that several claims share has, and what one takes that does not say how much."""

    amount: int
    default: int | None
    least: int | None
    step: int | None


Attribute = str | bool | int | tuple[str | bool | int, ...]
"""A version is its text; a newer Kubernetes has lists of each, too."""


@dataclass(frozen=True)
class Device:
    """One device of a ResourceSlice.

    ``attributes`` and ``capacity`` are by (domain, name). ``takes`` is what it consumes of counters that devices of its
    pool share, as partitions of one GPU do. ``tainted`` says why nobody new may have it, "" where nothing does.
    """

    name: DeviceName
    attributes: tuple[tuple[tuple[str, str], Attribute], ...] = ()
    versions: frozenset[tuple[str, str]] = frozenset()
    capacity: tuple[tuple[tuple[str, str], Shared], ...] = ()
    takes: tuple[Counters, ...] = ()
    tainted: str = ""
    is_shared: bool = False

    def attribute(self, name: str) -> Attribute | None:
        """Return an attribute of the driver's own domain."""
        return dict(self.attributes).get((self.name.driver, name))

    @property
    def uuid(self) -> str:
        """Its UUID or, of a part that has none before it is made, that of its GPU; "" where its driver tells neither.

        As NVIDIA's driver publishes them (kubernetes-sigs/dra-driver-nvidia-gpu, ``deviceinfo.go`` and ``mig.go``).
        """
        return str(self.attribute("uuid") or self.attribute("parentUUID") or "")

    def amount(self, name: str) -> int:
        """Return how much it has of something of the driver's own domain; 0 where it does not tell."""
        found = dict(self.capacity).get((self.name.driver, name))
        return found.amount if found else 0


@dataclass(frozen=True)
class Slice:
    """One ResourceSlice of one node. Those of other devices than a node's own are not read."""

    name: str
    node: str
    driver: str
    pool: str
    generation: int
    of: int
    """How many slices of that generation the pool has."""
    devices: tuple[Device, ...] = ()
    counters: tuple[Counters, ...] = ()


@dataclass(frozen=True)
class DeviceClass:
    """A DeviceClass: CEL expressions that must all hold, and the resource by which pods may ask for it as well."""

    name: str
    selectors: tuple[str, ...] = ()
    resource: str = ""


class Allocated(NamedTuple):
    """One device that a claim has: by which request, and how much of it where it is shared."""

    request: str
    device: DeviceName
    consumed: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Claim:
    """A ResourceClaim that has devices. ``pods`` are those it is reserved for: (uid, name)."""

    uid: str
    namespace: str
    name: str
    devices: tuple[Allocated, ...]
    pods: tuple[tuple[str, str], ...] = ()


def to_slice(data: Mapping[str, Any]) -> Slice | None:
    """Return a ResourceSlice of the API, None of one whose devices are not one node's."""
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
    """Return a ResourceClaim of the API, None of one that has no devices."""
    metadata, status = data["metadata"], data.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    devices = tuple(
        Allocated(
            one["request"],
            DeviceName(one["driver"], one["pool"], one["device"]),
            tuple(sorted((key, _amount(value)) for key, value in (one.get("consumedCapacity") or {}).items())),
        )
        for one in results
        if not one.get("adminAccess")  # it watches devices that others have
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


def _shared(data: Mapping[str, Any]) -> Shared:
    policy = data.get("requestPolicy") or {}
    bounds: Mapping[str, Any] = policy.get("validRange") or {}
    told = policy.get("default"), bounds.get("min"), bounds.get("step")
    return Shared(_amount(data["value"]), *(None if value is None else _amount(value) for value in told))


def _counters(name: str, data: Mapping[str, Any]) -> Counters:
    return Counters(name, tuple(sorted(_amounts(data.get("counters") or {}))))


def _amounts(counters: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    return ((key, _amount(one["value"])) for key, one in counters.items())


def _amount(quantity: object) -> int:
    return amount_of("", quantity) or 0
