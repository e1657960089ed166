"""A node's devices and who has them, counted as nodes and pods tell of resources. Pure.

A device is counted as one resource: that of the first kind that claims it or, of devices that no kind claims, the one
by which pods may ask for its class (an extended resource that DRA serves). What several claims share, and partitions of
one GPU, take from the same counters: of those, as many are counted as could be had at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuspawner.backends.kubernetes.dra.counting import Left, at_most, counters_of, shares_of
from gpuspawner.backends.kubernetes.dra.models import Allocated, Claim, Device, DeviceClass, DeviceName, Slice
from gpuspawner.backends.kubernetes.nodes import Model, Node, amount_of
from gpuspawner.backends.kubernetes.pods import Pod
from gpuspawner.core.gpus.fleet import GpuKind


@dataclass(frozen=True)
class Counted:
    """What one node has of claimed devices.

    ``total`` and ``sick`` are by resource; ``taints`` say of what, ``models`` what stands behind each. ``blocked`` are
    units that nobody has and nobody can get, as those of ``blockers`` have the same GPUs in other parts.
    """

    total: Mapping[str, int] = field(default_factory=dict)
    sick: Mapping[str, int] = field(default_factory=dict)
    taints: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, Model] = field(default_factory=dict)
    blocked: Mapping[str, int] = field(default_factory=dict)
    blockers: Mapping[str, Sequence[Claim]] = field(default_factory=dict)


def devices_of(slices: Iterable[Slice]) -> tuple[Sequence[Device], Left]:
    """Return the devices of a node and what their counters have: of each pool the newest generation, once whole."""
    pools: dict[tuple[str, str], list[Slice]] = {}
    for one in slices:
        pools.setdefault((one.driver, one.pool), []).append(one)
    devices: list[Device] = []
    left = Left()
    for (driver, pool), found in sorted(pools.items()):
        newest = max(one.generation for one in found)
        current = [one for one in found if one.generation == newest]
        if len(current) < current[0].of:
            continue  # the scheduler gives none of it either
        devices += sorted((d for one in current for d in one.devices), key=lambda device: device.name)
        left = left.with_sets(driver, pool, (counters for one in current for counters in one.counters))
    return devices, left.with_devices(devices)


def resources_of(
    device: Device, kinds: Sequence[GpuKind], classes: Mapping[str, DeviceClass], advertised: Iterable[str]
) -> tuple[str, ...]:
    """Return as what a device is counted: one resource, or none; of one that claims share, that of each kind.

    Resources that a device plugin ``advertised`` as allocatable are counted from the node, as the scheduler does. A
    device plugin that ended leaves a capacity for five minutes, and nothing allocatable. Claims then serve it.
    """
    fitting = [kind.resource for kind in kinds if serves(device, kind, classes)]
    if fitting:
        return tuple(fitting) if device.is_shared else (fitting[0],)
    asked = (one.resource for _, one in sorted(classes.items()) if one.resource and _meets(device, one.selectors))
    return tuple(resource for resource in asked if resource not in advertised)[:1]


def counted(
    devices: Sequence[Device],
    left: Left,
    claims: Iterable[Claim],
    resources: Mapping[DeviceName, Sequence[str]],
    needs: Mapping[str, Mapping[str, int]],
) -> Counted:
    """Return what a node has of each resource. ``needs`` is what one of a resource takes of a shared device."""
    known, claims = {device.name: device for device in devices}, tuple(claims)
    now, has, held = left, Counter[str](), set[DeviceName]()
    for one in (one for claim in claims for one in claim.devices if one.device in known):
        device = known[one.device]
        now = now if one.device in held else now.less(counters_of(device))
        now = now.less(shares_of(device, one.consumed)) if device.is_shared else now
        held.add(one.device)
        has.update(filter(None, [resource_of(one, resources, needs)]))
    total, sick, blocked = dict[str, int](), dict[str, int](), dict[str, int]()
    taints, models, blockers = dict[str, str](), dict[str, Model](), dict[str, Sequence[Claim]]()
    for resource in dict.fromkeys(name for names in resources.values() for name in names):
        own = [device for device in devices if resource in resources.get(device.name, ())]
        need = needs.get(resource, {})
        free = at_most([d for d in own if not d.tainted and (d.is_shared or d.name not in held)], now, need, held)
        ill = [device for device in own if device.tainted and device.name not in held]
        possible = at_most([d for d in own if not d.tainted or d.name in held], left, need)
        sick[resource], blocked[resource] = at_most(ill, left, need), max(0, possible - has[resource] - free)
        total[resource] = has[resource] + free + blocked[resource] + sick[resource]
        taints[resource] = ", ".join(sorted({device.tainted for device in ill}))
        models[resource] = _model(own[0], need)
        blockers[resource] = [claim for claim in claims if _shares(claim, own, known)] if blocked[resource] else ()
    return Counted(total, sick, taints, models, blocked, blockers)


def _shares(claim: Claim, devices: Iterable[Device], known: Mapping[DeviceName, Device]) -> bool:
    """Whether a claim has one of these devices, or takes from the same counters."""
    own = {(*device.name[:2], one.name) for device in devices for one in device.takes}
    names = {device.name for device in devices}
    have = [known[one.device] for one in claim.devices if one.device in known]
    return any(device.name in names or any((*device.name[:2], x.name) in own for x in device.takes) for device in have)


def resource_of(
    one: Allocated, resources: Mapping[DeviceName, Sequence[str]], needs: Mapping[str, Mapping[str, int]]
) -> str:
    """Return as what an allocated device is counted, "" as nothing.

    Of a device that claims share, that kind whose request has its name, or that takes as much; others take no whole
    number of any.
    """
    fitting = resources.get(one.device, ())
    if len(fitting) < 2 and not one.consumed:  # noqa: PLR2004 - it is the one
        return next(iter(fitting), "")
    request = one.request.rpartition("/")[2]
    named = (resource for resource in fitting if resource.rpartition("/")[2] == request)
    consumed = dict(one.consumed)
    alike = (
        name for name in fitting if all(consumed.get(key) == amount for key, amount in needs.get(name, {}).items())
    )
    return next(named, "") or next(alike, "")


def needs_of(kinds: Iterable[GpuKind]) -> dict[str, dict[str, int]]:
    """Return what one GPU of each kind takes of a shared device, by the resource it is counted as."""
    return {
        kind.resource: {name: amount_of("", quantity) or 0 for name, quantity in kind.claim.capacity}
        for kind in kinds
        if kind.claim is not None
    }


def with_devices(node: Node, has: Counted) -> Node:
    """Return a node that advertises its claimed devices as well."""
    capacity = {resource: count for resource, count in has.total.items() if count}
    well = {resource: count - has.sick.get(resource, 0) for resource, count in capacity.items()}
    return replace(
        node,
        capacity={**node.capacity, **capacity},
        allocatable={**node.allocatable, **well},
        models={**node.models, **has.models},
        taints_of={resource: taints for resource, taints in has.taints.items() if taints},
    )


def with_claims(pod: Pod, given: Iterable[tuple[Claim, Mapping[str, int]]]) -> Pod:
    """Return a pod that asks for what its claims were given: what a claim was made for is asked for already."""
    requests = Counter(pod.requests)
    for claim, counts in given:
        if claim.name == pod.extended_claim:
            for resource in pod.extended_resources:
                del requests[resource]
        requests.update(counts)
    return replace(pod, requests=dict(requests))


def serves(device: Device, kind: GpuKind, classes: Mapping[str, DeviceClass]) -> bool:
    """Whether a device is of a kind that is claimed: as its class, selectors and capacity say."""
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
    """Return what is behind a resource, by the attributes that NVIDIA's driver publishes."""
    return Model(
        name=str(device.attribute("productName") or device.name.driver),
        profile=str(device.attribute("profile") or ""),
        replicas=0 if device.is_shared else 1,
        memory_bytes=(need.get("memory") if device.is_shared else None) or device.amount("memory"),
    )


def _meets(device: Device, selectors: Sequence[str]) -> bool:
    if not selectors:
        return True
    from gpuspawner.backends.kubernetes.dra.selectors import fits  # noqa: PLC0415 - a second to import

    return fits(device, selectors)
