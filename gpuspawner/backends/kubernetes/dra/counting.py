"""A node's claimed devices and their users, counted like resources of nodes and pods. Pure.

A device counts as one resource: that of the first kind that claims it, else the extended resource of its class. Shares
of a device and partitions of a GPU use the same counters, so only as many count as could be allocated together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuspawner.backends.kubernetes.dra.models import (
    AllocatedDevice,
    Claim,
    Device,
    DeviceClass,
    DeviceName,
    SharedCapacity,
    Slice,
    domain_attribute,
    domain_of,
)
from gpuspawner.backends.kubernetes.nodes import Model, Node, amount_of
from gpuspawner.backends.kubernetes.pods import Pod
from gpuspawner.core.gpus.fleet import GpuKind

Key = tuple[str, ...]
"""(driver, pool, counter set, counter), or (driver, pool, device, "", capacity)."""


Amounts = Mapping[Key, int]
"""Amounts of counters and of shared capacity."""


def subtract(left: Amounts, used: Amounts) -> Amounts:
    """Return the remaining amounts without the used ones."""
    return {**left, **{key: left.get(key, 0) - amount for key, amount in used.items()}}


def counters_of(device: Device) -> Amounts:
    """Return the amounts of its pool's counters that an allocated device uses."""
    driver, pool, _ = device.name
    return {(driver, pool, one.name, counter): amount for one in device.takes for counter, amount in one.amounts}


def shares_of(device: Device, consumed: Iterable[tuple[str, int]]) -> Amounts:
    """Return the amounts of a shared device that one claim uses."""
    return {(*device.name, "", key.rpartition("/")[2]): amount for key, amount in consumed}


def count_available(
    devices: Sequence[Device], left: Amounts, need: Mapping[str, int], held: Collection[DeviceName] = ()
) -> int:
    """Return how many units could be allocated together, in the order of the devices.

    A device that is not shared is one unit. A shared device has as many units as its capacity allows, and one if a unit
    needs no capacity. The counters of ``held`` devices are already used.
    """
    count = 0
    for device in devices:
        counters = {} if device.name in held else counters_of(device)
        if any(left.get(key, 0) < amount for key, amount in counters.items()):
            continue
        left = subtract(left, counters)
        if not device.is_shared:
            count += 1
            continue
        capacity = {name: shared for (_, name), shared in device.capacity}
        one = {name: _round_up(need.get(name), shared) for name, shared in capacity.items()}
        keys = {(*device.name, "", name): amount for name, amount in one.items() if amount}
        count += max(0, min((left.get(key, 0) // amount for key, amount in keys.items()), default=1))
    return count


def _round_up(asked: int | None, shared: SharedCapacity) -> int:
    """Return the amount that the scheduler allocates: the driver's default, or the request rounded up to a step."""
    if asked is None:
        return shared.amount if shared.default is None else shared.default
    amount = max(asked, shared.least or 0)
    if not shared.step:
        return amount
    beyond = amount - (shared.least or 0)
    return (shared.least or 0) + -(-beyond // shared.step) * shared.step


@dataclass(frozen=True)
class DeviceCounts:
    """The claimed devices of one node, by resource.

    Args:
        total: number of units.
        sick: number of tainted units.
        taints: taints of the tainted units.
        models: the product behind each resource.
        blocked: free units that cannot be allocated, because other claims use parts of the same GPUs.
        blockers: those claims.
        domains: the devices of each resource of whole devices, with their domains, as far as drivers report them.
        domain_attribute: the attribute with the domain, "" if no driver reports it.
    """

    total: Mapping[str, int] = field(default_factory=dict)
    sick: Mapping[str, int] = field(default_factory=dict)
    taints: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, Model] = field(default_factory=dict)
    blocked: Mapping[str, int] = field(default_factory=dict)
    blockers: Mapping[str, Sequence[Claim]] = field(default_factory=dict)
    domains: Mapping[str, Mapping[DeviceName, str]] = field(default_factory=dict)
    domain_attribute: str = ""


def devices_of(slices: Iterable[Slice]) -> tuple[Sequence[Device], Amounts]:
    """Return the devices of a node and their counters, from the newest complete generation of each pool."""
    pools: dict[tuple[str, str], list[Slice]] = {}
    for one in slices:
        pools.setdefault((one.driver, one.pool), []).append(one)
    devices: list[Device] = []
    left: dict[Key, int] = {}
    for (driver, pool), found in sorted(pools.items()):
        newest = max(one.generation for one in found)
        current = [one for one in found if one.generation == newest]
        if len(current) < current[0].of:
            continue  # The scheduler does not use it either.
        devices += sorted((d for one in current for d in one.devices), key=lambda device: device.name)
        sets = (counters for one in current for counters in one.counters)
        left |= {(driver, pool, one.name, name): amount for one in sets for name, amount in one.amounts}
    shared = (device for device in devices if device.is_shared)
    left |= {(*device.name, "", name): one.amount for device in shared for (_, name), one in device.capacity}
    return devices, left


def resources_of(
    device: Device, kinds: Sequence[GpuKind], classes: Mapping[str, DeviceClass], advertised: Iterable[str]
) -> tuple[str, ...]:
    """Return the resources as which a device counts: at most one, or for shared claims one for each kind.

    The scheduler counts allocatable resources of a device plugin (``advertised``) from the node. A device plugin that
    ended leaves a capacity for five minutes, but nothing allocatable. Claims then serve the resource.
    """
    fitting = [kind.resource for kind in kinds if serves(device, kind, classes)]
    if fitting:
        return tuple(fitting) if device.is_shared else (fitting[0],)
    asked = (one.resource for _, one in sorted(classes.items()) if one.resource and _meets(device, one.selectors))
    return tuple(resource for resource in asked if resource not in advertised)[:1]


def count_devices(
    devices: Sequence[Device],
    left: Amounts,
    claims: Iterable[Claim],
    resources: Mapping[DeviceName, Sequence[str]],
    needs: Mapping[str, Mapping[str, int]],
) -> DeviceCounts:
    """Return the counts of a node. ``needs`` is the capacity that a unit of each resource uses of a shared device."""
    known, claims = {device.name: device for device in devices}, tuple(claims)
    now, has, held = left, Counter[str](), set[DeviceName]()
    for one in (one for claim in claims for one in claim.devices if one.device in known):
        device = known[one.device]
        now = now if one.device in held else subtract(now, counters_of(device))
        now = subtract(now, shares_of(device, one.consumed)) if device.is_shared else now
        held.add(one.device)
        has.update(filter(None, [resource_of(one, resources, needs)]))
    total, sick, blocked = dict[str, int](), dict[str, int](), dict[str, int]()
    taints, models, blockers = dict[str, str](), dict[str, Model](), dict[str, Sequence[Claim]]()
    domains, attribute = dict[str, Mapping[DeviceName, str]](), domain_attribute(devices)
    for resource in dict.fromkeys(name for names in resources.values() for name in names):
        own = [device for device in devices if resource in resources.get(device.name, ())]
        need = needs.get(resource, {})
        free = count_available(
            [d for d in own if not d.tainted and (d.is_shared or d.name not in held)], now, need, held
        )
        ill = [device for device in own if device.tainted and device.name not in held]
        possible = count_available([d for d in own if not d.tainted or d.name in held], left, need)
        sick[resource], blocked[resource] = count_available(ill, left, need), max(0, possible - has[resource] - free)
        total[resource] = has[resource] + free + blocked[resource] + sick[resource]
        taints[resource] = ", ".join(sorted({device.tainted for device in ill}))
        models[resource] = _model(own[0], need)
        blockers[resource] = [claim for claim in claims if _uses_any(claim, own, known)] if blocked[resource] else ()
        if attribute and total[resource] == len(own):
            domains[resource] = {device.name: domain_of(device, attribute) for device in own}
    return DeviceCounts(total, sick, taints, models, blocked, blockers, domains, attribute)


def _uses_any(claim: Claim, devices: Iterable[Device], known: Mapping[DeviceName, Device]) -> bool:
    """Return whether a claim has one of these devices or uses the same counters."""
    own = {(*device.name[:2], one.name) for device in devices for one in device.takes}
    names = {device.name for device in devices}
    have = [known[one.device] for one in claim.devices if one.device in known]
    return any(device.name in names or any((*device.name[:2], x.name) in own for x in device.takes) for device in have)


def resource_of(
    one: AllocatedDevice, resources: Mapping[DeviceName, Sequence[str]], needs: Mapping[str, Mapping[str, int]]
) -> str:
    """Return the resource as which an allocated device counts, "" for none.

    A device with shared claims counts as the kind with the request's name, else as the kind that uses the same
    capacity.
    """
    fitting = resources.get(one.device, ())
    if len(fitting) < 2 and not one.consumed:  # noqa: PLR2004 - there is no choice
        return next(iter(fitting), "")
    request = one.request.rpartition("/")[2]
    named = (resource for resource in fitting if resource.rpartition("/")[2] == request)
    consumed = dict(one.consumed)
    alike = (
        name for name in fitting if all(consumed.get(key) == amount for key, amount in needs.get(name, {}).items())
    )
    return next(named, "") or next(alike, "")


def needs_of(kinds: Iterable[GpuKind]) -> dict[str, dict[str, int]]:
    """Return the capacity of a shared device that one GPU of each kind uses, by resource."""
    return {
        kind.resource: {name: amount_of("", quantity) or 0 for name, quantity in kind.claim.capacity}
        for kind in kinds
        if kind.claim is not None
    }


def with_devices(node: Node, has: DeviceCounts) -> Node:
    """Return a node that also advertises its claimed devices."""
    capacity = {resource: count for resource, count in has.total.items() if count}
    well = {resource: count - has.sick.get(resource, 0) for resource, count in capacity.items()}
    return replace(
        node,
        capacity={**node.capacity, **capacity},
        allocatable={**node.allocatable, **well},
        models={**node.models, **has.models},
        taints_of={resource: taints for resource, taints in has.taints.items() if taints},
        device_domains={resource: tuple(domains.values()) for resource, domains in has.domains.items()},
        device_attribute=has.domain_attribute,
    )


def order_domains(
    domains: Mapping[DeviceName, str], index_of: Mapping[DeviceName, int], last: Collection[DeviceName]
) -> tuple[str, ...]:
    """Return the domains of the virtual GPUs of a resource, by the device that each one stands for.

    Args:
        domains: the domain of each device.
        index_of: the GPU of its lease for each device of a workspace. -1 if unknown: then one of the first GPUs.
        last: devices that others use or that are tainted. The last GPUs stand for them.
    """
    at = {index: name for name, index in index_of.items() if 0 <= index < len(domains)}
    others = (name for name in domains if name not in at.values())
    rest = iter(sorted(others, key=lambda name: (name in last, name not in index_of)))
    return tuple(domains[at[index] if index in at else next(rest)] for index in range(len(domains)))


def with_claims(pod: Pod, allocated: Iterable[tuple[Claim, Mapping[str, int]]]) -> Pod:
    """Return a pod that also requests the devices of its claims. A claim made for a request is not counted twice."""
    requests = Counter(pod.requests)
    for claim, counts in allocated:
        if claim.name == pod.extended_claim:
            for resource in pod.extended_resources:
                del requests[resource]
        requests.update(counts)
    return replace(pod, requests=dict(requests))


def serves(device: Device, kind: GpuKind, classes: Mapping[str, DeviceClass]) -> bool:
    """Return whether a device fits a claimed kind, by class, selectors and capacity."""
    claim = kind.claim
    chosen = classes.get(claim.device_class) if claim else None
    if claim is None or chosen is None:
        return False
    has = dict(device.capacity)
    enough = all(
        (shared := has.get((device.name.driver, name))) is not None and shared.amount >= (amount_of("", quantity) or 0)
        for name, quantity in claim.capacity
    )
    return enough and _meets(device, (*chosen.selectors, *claim.selectors))


def _model(device: Device, need: Mapping[str, int]) -> Model:
    """Return the product behind a resource, by the attributes of NVIDIA's driver."""
    return Model(
        name=str(device.attribute("productName") or device.name.driver),
        profile=str(device.attribute("profile") or ""),
        replicas=0 if device.is_shared else 1,
        memory_bytes=(need.get("memory") if device.is_shared else None) or device.amount("memory"),
    )


def _meets(device: Device, selectors: Sequence[str]) -> bool:
    if not selectors:
        return True
    from gpuspawner.backends.kubernetes.dra.selectors import fits  # noqa: PLC0415 - takes a second to import

    return fits(device, selectors)
