"""What is to be done about each request, level-triggered: by resources and leases as they are, whatever was before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.core.resources.resource import ENDED, LIFETIME, REFUSED, Resource
from gpuspawner.core.schedules import lease_id_of_schedule
from gpuspawner.core.units import BadValue, parse_form_duration


class Do(Enum):
    """One step."""

    HOLD = "keep it until its workspace has ended"
    START = "ask for its workspace"
    WAIT = "tell why nothing is asked for yet"
    WISH = "have it asked for in time, and tell when it is ready next"
    FORGET = "have it asked for no more, and let it go"
    REFUSE = "tell that it is refused"
    EXTEND = "extend its workspace"
    TELL = "tell how its workspace is"
    TELL_END = "tell how its workspace ended"
    STOP = "stop its workspace"
    RELEASE = "let it go"
    DELETE = "delete it: its workspace has ended"


@dataclass(frozen=True)
class Step:
    """What to do about one resource, with the lease of its workspace where it has one; ``why`` is told."""

    resource: Resource
    do: Do
    lease: Lease | None = None
    why: str = ""


@dataclass(frozen=True)
class Decided:
    """The next step of each resource, and the leases that have none yet."""

    steps: tuple[Step, ...]
    without: tuple[Lease, ...]


def decide(resources: Collection[Resource], leases: Iterable[Lease], *, accepts: str, going: bool) -> Decided:
    """Return what is to be done.

    Args:
        resources: all that the cluster has.
        leases: those that live.
        accepts: why no new request is accepted now; "" where they are.
        going: whether all of them are being deleted together, for which nothing stops.
    """
    live = {lease.id: lease for lease in leases}
    places = {(lease.user, lease.key.server): lease for lease in live.values()}
    bound = _bound(resources, live)
    steps = [
        Step(resource, do, bound.get(resource.uid), why)
        for resource in resources
        for do, why in [_next(resource, bound.get(resource.uid), places, accepts, going=going)]
    ]
    taken = {lease.id for lease in bound.values()}
    return Decided(tuple(steps), tuple(lease for lease in live.values() if lease.id not in taken))


def _bound(resources: Collection[Resource], live: Mapping[str, Lease]) -> dict[str, Lease]:
    """Return the live lease of each resource, by uid: each lease is of one, the oldest that has it.

    A label or a status that names another's workspace is not believed. What came back to the queue, or goes on with or
    without a GPU, has a new lease: it stays its resource's.
    """
    bound: dict[str, Lease] = {}
    after, taken = {lease.follows: lease for lease in live.values() if lease.follows}, set()
    for resource in sorted(resources, key=lambda one: (one.created, one.uid)):
        for name in (resource.told_lease, resource.of_lease, resource.own_lease, *_wished(resource, live)):
            lease = live.get(name) or after.get(name)
            if lease is not None and lease.id not in taken and (lease.user, lease.key.server) == resource.place:
                bound[resource.uid] = lease
                taken.add(lease.id)
                break
    return bound


def _wished(resource: Resource, live: Mapping[str, Lease]) -> tuple[str, ...]:
    """Return by which leases it may be ready now."""
    times = {lease.ready_at for lease in live.values() if lease.ready_at is not None} if resource.ready_at else ()
    return tuple(lease_id_of_schedule(resource.own_lease, at) for at in times)


def _next(
    resource: Resource, lease: Lease | None, places: Mapping[tuple[str, str], Lease], accepts: str, *, going: bool
) -> tuple[Do, str]:
    if resource.deleting and (lease is None or going):
        return (Do.FORGET if resource.ready_at and not going else Do.RELEASE), ""
    if lease is None:
        return _without(resource, places, accepts)
    if resource.deleting:
        return (Do.TELL if lease.phase is Phase.STOPPING else Do.STOP), ""
    if not resource.held:
        return Do.HOLD, ""
    return (Do.EXTEND if _is_to_extend(resource, lease) else Do.TELL), ""


def _without(resource: Resource, places: Mapping[tuple[str, str], Lease], accepts: str) -> tuple[Do, str]:
    """Return what to do about a resource that has no live workspace."""
    if resource.of_lease:
        return Do.DELETE, ""
    if _is_over(resource):
        return Do.TELL_END, ""
    other = None if resource.ready_at else places.get(resource.place)
    if other is not None:
        user, server = resource.place
        called = f"called {server}" if server else "without a name"
        has = f"{user} has a workspace {called} already ({other.id[:8]})"
        return Do.REFUSE, f"{has}: stop it, or name another server, and apply a new request."
    if accepts and (not resource.ready_at or resource.is_new):
        return Do.WAIT, accepts
    if not resource.held:
        return Do.HOLD, ""
    return (Do.WISH if resource.ready_at else Do.START), ""


def _is_over(resource: Resource) -> bool:
    """Whether nothing is asked for by it any more."""
    if resource.phase == REFUSED and resource.is_judged:
        return True
    return resource.phase == ENDED if resource.ready_at else bool(resource.told_lease)


def _is_to_extend(resource: Resource, lease: Lease) -> bool:
    """Whether its lifetime was edited to more than its workspace has, and that was not tried yet."""
    if lease.phase not in UP or resource.condition(LIFETIME).get("observedGeneration") == resource.generation:
        return False
    if (written := resource.spec.get("lifetime")) is None:
        return False
    return wanted_seconds(written) not in {float(lease.request.lifetime_seconds), has_seconds(lease)}


def has_seconds(lease: Lease) -> float:
    """Return the lifetime that a workspace has by now."""
    return lease.request.lifetime_seconds + lease.extended_seconds


def wanted_seconds(written: object) -> float | None:
    """Return the lifetime that is written; None where it is none."""
    try:
        return parse_form_duration(written)
    except BadValue:
        return None
