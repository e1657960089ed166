"""The next action for each custom resource, from all resources and leases as they are now.

A separate process sends the service only the parts of the resources that the decisions use.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from gpuspawner.backends.custom_resources.base import ENDED, LIFETIME, READY_AT, REFUSED, Resource
from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.core.schedules import lease_id_of_schedule
from gpuspawner.core.units import BadValue, parse_form_duration


class Action(Enum):
    """The next action for a resource."""

    HOLD = "keep it until its workspace has ended"
    START = "request its workspace"
    WAIT = "write why nothing is requested yet"
    SCHEDULE = "store its schedule, and write when it is ready next"
    FORGET = "delete its schedule, and remove the finalizer"
    REFUSE = "write that it is refused"
    EXTEND = "extend its workspace"
    TELL = "write the state of its workspace"
    TELL_END = "write how its workspace ended"
    STOP = "stop its workspace"
    RELEASE = "remove the finalizer"
    DELETE = "delete it, because its workspace has ended"


@dataclass(frozen=True)
class ResourceStep:
    """The next action for one resource, with the lease of its workspace. ``why`` is the reason for its status."""

    resource: Resource
    do: Action
    lease: Lease | None = None
    why: str = ""


@dataclass(frozen=True)
class ResourceDecision:
    """The next action for each resource, and the leases without a resource."""

    steps: tuple[ResourceStep, ...]
    without: tuple[Lease, ...]


def decide(resources: Collection[Resource], leases: Iterable[Lease], *, accepts: str, going: bool) -> ResourceDecision:
    """Return the next actions.

    Args:
        resources: all resources of the cluster.
        leases: the live leases.
        accepts: why no new request is accepted now, or "".
        going: whether all resources are being deleted together. Then no workspace stops.
    """
    live = {lease.id: lease for lease in leases}
    places = {(lease.user, lease.key.server): lease for lease in live.values()}
    bound = _bound(resources, live)
    steps = [
        ResourceStep(resource, do, bound.get(resource.uid), why)
        for resource in resources
        for do, why in [_next(resource, bound.get(resource.uid), places, accepts, going=going)]
    ]
    taken = {lease.id for lease in bound.values()}
    return ResourceDecision(tuple(steps), tuple(lease for lease in live.values() if lease.id not in taken))


def _bound(resources: Collection[Resource], live: Mapping[str, Lease]) -> dict[str, Lease]:
    """Return the live lease of each resource by uid. If several resources have the same lease, the oldest gets it.

    A label or status that names the workspace of another user is ignored. A workspace that came back to the queue, or
    restarted with or without a GPU, has a new lease and keeps its resource.
    """
    bound: dict[str, Lease] = {}
    after, taken = {lease.follows: lease for lease in live.values() if lease.follows}, set()
    for resource in sorted(resources, key=lambda one: (one.created, one.uid)):
        for name in (resource.told_lease, resource.of_lease, resource.own_lease, *_scheduled_leases(resource, live)):
            lease = live.get(name) or after.get(name)
            if lease is not None and lease.id not in taken and (lease.user, lease.key.server) == resource.place:
                bound[resource.uid] = lease
                taken.add(lease.id)
                break
    return bound


def _scheduled_leases(resource: Resource, live: Mapping[str, Lease]) -> tuple[str, ...]:
    """Return the ids of the leases that a schedule may have now."""
    times = {lease.ready_at for lease in live.values() if lease.ready_at is not None} if resource.ready_at else ()
    return tuple(lease_id_of_schedule(resource.own_lease, at) for at in times)


def _next(
    resource: Resource, lease: Lease | None, places: Mapping[tuple[str, str], Lease], accepts: str, *, going: bool
) -> tuple[Action, str]:
    if resource.deleting and (lease is None or going):
        return (Action.FORGET if resource.ready_at and not going else Action.RELEASE), ""
    if lease is None:
        return _without(resource, places, accepts)
    if resource.deleting:
        return (Action.TELL if lease.phase is Phase.STOPPING else Action.STOP), ""
    if not resource.held:
        return Action.HOLD, ""
    return (Action.EXTEND if _is_to_extend(resource, lease) else Action.TELL), ""


def _without(resource: Resource, places: Mapping[tuple[str, str], Lease], accepts: str) -> tuple[Action, str]:
    if resource.of_lease:
        return Action.DELETE, ""
    if _is_over(resource):
        return Action.TELL_END, ""
    other = None if resource.ready_at else places.get(resource.place)
    if other is not None:
        user, server = resource.place
        called = f"called {server}" if server else "without a name"
        has = f"{user} has a workspace {called} already ({other.id[:8]})"
        return Action.REFUSE, f"{has}: stop it, or name another server, and apply a new request."
    if accepts and (not resource.ready_at or resource.is_new):
        return Action.WAIT, accepts
    if not resource.held:
        return Action.HOLD, ""
    return (Action.SCHEDULE if resource.ready_at else Action.START), ""


def _is_over(resource: Resource) -> bool:
    """Return whether a resource requests nothing any more."""
    if resource.phase == REFUSED and resource.is_judged:
        return True
    return resource.phase == ENDED if resource.ready_at else bool(resource.told_lease)


def _is_to_extend(resource: Resource, lease: Lease) -> bool:
    """Return whether its lifetime was edited to more than its workspace has, and was not tried yet."""
    if lease.phase not in UP or resource.condition(LIFETIME).get("observedGeneration") == resource.generation:
        return False
    if (written := resource.spec.get("lifetime")) is None:
        return False
    return wanted_seconds(written) not in {float(lease.request.lifetime_seconds), has_seconds(lease)}


def has_seconds(lease: Lease) -> float:
    """Return the present lifetime of a workspace."""
    return lease.request.lifetime_seconds + lease.extended_seconds


def wanted_seconds(written: object) -> float | None:
    """Return the lifetime that a resource asks for, or None if it cannot be read."""
    try:
        return parse_form_duration(written)
    except BadValue:
        return None


NEW_BYTES = 2**20
"""The most bytes of new requests, the oldest first. The others wait. So a flood of requests hides no other request."""
DECIDES = frozenset({"user", "server", "lifetime", READY_AT})
"""The keys of a spec that matter after its workspace was requested or refused."""
LONGEST = 300
LONGEST_OPTION = 1000
"""The most characters of an option. Longer options are refused anyway. Arbitrary."""
TELLS = frozenset({"phase", "lease", "observedGeneration"})
"""The keys of the status of a request that is over."""


def visible_requests(requests: Collection[Resource]) -> list[Resource]:
    """Return the requests with the parts that decisions use, the oldest first."""
    in_order = sorted(requests, key=lambda one: (one.created, one.uid))
    waiting = [one for one in in_order if _is_waiting(one)]
    left = NEW_BYTES - sum(_bytes_of(one) for one in waiting if one.held)  # they may have their workspaces already
    left_out = set[str]()
    for one in sorted((one for one in waiting if not one.held), key=_is_edited):
        if left <= 0:
            left_out.add(one.uid)
        else:
            left -= _bytes_of(one)
    return [_trimmed(one) for one in in_order if one.uid not in left_out]


def _has_final_status(one: Resource) -> bool:
    return one.phase in {ENDED, REFUSED} and one.is_judged


def _is_waiting(one: Resource) -> bool:
    return one.is_new and not (one.deleting or _has_final_status(one))


def _is_edited(one: Resource) -> bool:
    """Return whether it was refused before. Edited requests come after new ones."""
    return one.phase == REFUSED


def _bytes_of(one: Resource) -> int:
    return len(json.dumps(dict(one.spec)))


def _trimmed(one: Resource) -> Resource:
    one, is_over = replace(one, finalizers=()), _has_final_status(one)
    if not is_over and (one.ready_at or not one.told_lease):
        return replace(one, spec={key: _short(value, LONGEST_OPTION) for key, value in one.spec.items()})
    status = {key: value for key, value in one.status.items() if key in TELLS} if is_over else one.status
    return replace(one, spec={key: _short(one.spec[key], LONGEST) for key in DECIDES & one.spec.keys()}, status=status)


def _short(value: object, longest: int) -> object:
    return value[:longest] if isinstance(value, str) else value
