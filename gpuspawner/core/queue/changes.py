"""Changes of requests: another size of a running workspace, and another place of a waiting request.

A change of size keeps the GPUs that the workspace has, and waits in the queue only for those that it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import Kinds, Slot
from gpuspawner.core.gpus.placement import host_resources_of, place, pools_of, used_shares
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.queue.decisions import ClusterLimits, Decision, decide
from gpuspawner.core.queue.fair_share import FairShareUsage
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.order import QueueOrder
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.usage import QuotaTally, QuotaUsage
from gpuspawner.core.rules import LatestEnd


@dataclass(frozen=True)
class SizeDecision:
    """The answer to a change of size.

    Attributes:
        slots: the GPUs with which it could start now, None if it waits.
        latest_end: the bound of its end if it started now.
        seen: the snapshot without the workspace.
        index: the index of ``seen``.
        decision: the decision about all requests in ``seen``, with the change among them.
    """

    slots: tuple[Slot, ...] | None
    latest_end: LatestEnd | None
    seen: Snapshot
    index: Index
    decision: Decision


def decide_size(seen: Snapshot, claim: Claim, limits: ClusterLimits | None = None) -> SizeDecision:
    """Decide whether the lease ``claim.replaces`` could change to the size of ``claim`` now.

    Args:
        seen: the queue and the cluster now, with that lease.
        claim: the new size, with the time at which its user asked for it.
        limits: the cluster's limits on other resources.
    """
    lease = next((one for one in seen.leases if one.id == claim.replaces), None)
    rest = replace(seen, leases=tuple(one for one in seen.leases if one is not lease))
    index = Index(rest)
    decision = decide(rest, limits, claim, index)
    kept = _keep_own(seen, rest, index, lease, claim, limits) if lease is not None and seen.processes_known else None
    if kept is not None:
        return SizeDecision(kept, None, rest, index, decision)
    given = next((one for one in decision.grants if one.claim.id == claim.id), None)
    if given is None or not _has_host_resources(given.slots, rest, claim):
        return SizeDecision(None, None, rest, index, decision)
    return SizeDecision(given.slots, given.latest_end, rest, index, decision)


def _keep_own(
    seen: Snapshot, rest: Snapshot, index: Index, lease: Lease, claim: Claim, limits: ClusterLimits | None
) -> tuple[Slot, ...] | None:
    """Return the workspace's own GPUs with those that it lacks on its node, None if they are not to be had now."""
    kind, count = seen.kinds.get(claim.request.gpu or ""), claim.request.count
    if kind is None or kind.name != lease.kind or QuotaTally(rest, index.holdings).find_block(claim, kind) is not None:
        return None
    if limits is not None and _grows(claim, lease) and limits.wait_reason(claim, lease.slots) is not None:
        return None
    own, fleet = lease.slots[:count], rest.placement_fleet
    names = {slot.gpu for slot in own}
    mine = tuple(gpu for gpu in fleet.gpus if gpu.id in names)
    kept = (slot for one in seen.kept for slot in one.slots)
    used = used_shares((), [*(Slot(gpu, share) for gpu, share in rest.used.items()), *kept])
    if place(kind, len(own), replace(fleet, gpus=mine), used) is None or not _has_host_resources(own, rest, claim):
        return None  # a GPU of its own failed, or its node has too little CPU or memory
    lacking = count - len(own)
    if lacking <= 0:
        return own
    more = claim._replace(request=replace(claim.request, count=lacking))
    if all(one.claim.id != claim.id for one in decide(seen, limits, more).grants):
        return None
    nodes = {gpu.on for gpu in mine}
    others = tuple(gpu for gpu in fleet.gpus if gpu.on in nodes and gpu.id not in names)
    found = place(kind, lacking, replace(fleet, gpus=others), used)
    return None if found is None else (*own, *found)


def _grows(claim: Claim, lease: Lease) -> bool:
    """Return whether a new size needs more of anything than the workspace has."""
    new, old = claim.request, lease.request
    return new.count > old.count or new.cpu_cores > old.cpu_cores or new.memory_bytes > old.memory_bytes


def _has_host_resources(slots: tuple[Slot, ...], rest: Snapshot, claim: Claim) -> bool:
    """Return whether the node of these GPUs has the CPU and memory of the new size, or is not known to lack them."""
    node = next((gpu.on for gpu in rest.placement_fleet.gpus if slots and gpu.id == slots[0].gpu), None)
    left = rest.host_resources_left.get(node) if node is not None else None
    needs = host_resources_of(claim.request)
    return left is None or (needs.cpu <= left.cpu and needs.memory <= left.memory)


# --- moves in the order of waiting requests


class QueueMove(NamedTuple):
    """A move of a waiting request in the order.

    Args:
        place: its place before the move, from 1.
        to: its place after the move.
        of: the number of requests that compete with it, itself included.
        values: the new ``queue_move`` of each request whose value changes.
        passed: the ids of the requests that another one goes before now, in the new order.
    """

    place: int
    to: int
    of: int
    values: Mapping[str, int]
    passed: tuple[str, ...]


def plan_move(seen: Snapshot, name: str, to: int, holdings: QuotaUsage | None = None) -> QueueMove:
    """Return the move of a waiting request to a place among the requests that compete with it for a kind of GPU.

    ``to`` counts from 1. A place behind the last is the last. ``holdings`` are those of ``seen``, if they are known.
    """
    order = in_order(seen.claims, seen, holdings)
    competing = competing_requests(order, name, seen.kinds)
    names = [claim.id for claim in competing]
    place, to = names.index(name) + 1, min(to, len(names))
    values = _values({claim.id: claim.queue_move for claim in competing}, names, name, to)
    moved = [claim._replace(queue_move=values.get(claim.id, claim.queue_move)) for claim in order]
    passed = _passed(order, in_order(moved, seen, holdings), values, seen.kinds)
    return QueueMove(place, to, len(names), values, tuple(passed))


def in_order(claims: Iterable[Claim], seen: Snapshot, holdings: QuotaUsage | None = None) -> list[Claim]:
    """Return waiting requests in the order of the queue."""
    order = QueueOrder(seen, QuotaTally(seen, holdings), FairShareUsage(seen))
    return sorted(claims, key=order.rank)


def competing_requests(claims: Sequence[Claim], name: str, kinds: Kinds) -> list[Claim]:
    """Return the requests that a request competes with for GPUs, itself included, in the given order."""
    pools = next(set(pools_of(claim, kinds)) for claim in claims if claim.id == name)
    return [claim for claim in claims if not pools.isdisjoint(pools_of(claim, kinds))]


def _values(before: Mapping[str, int], names: Sequence[str], name: str, to: int) -> dict[str, int]:
    """Return the new values of the requests that change: of the moved one, and of those that go before it."""
    others = [one for one in names if one != name]
    ahead, behind = others[: to - 1], others[to - 1 :]
    goes_up, above = to <= names.index(name), max((before[one] for one in behind), default=0) + 1
    values = {name: above if goes_up or before[name] > 0 else before[name]}
    least = values[name] + 1
    for number in range(len(ahead) - 1, -1, -1):
        one = ahead[number]
        values[one] = max(before[one], least)
        # Requests with the same value are in their order by the other rules.
        least = values[one] + (number > 0 and before[ahead[number - 1]] > before[one])
    return {one: value for one, value in values.items() if value != before[one]}


def _passed(before: Sequence[Claim], after: Sequence[Claim], changed: Mapping[str, int], kinds: Kinds) -> list[str]:
    """Return the requests that another one newly goes before, for GPUs that both want. One of the two has changed."""
    places = {claim.id: number for number, claim in enumerate(before)}
    found, ahead = list[str](), list[tuple[Claim, frozenset[str | None]]]()
    changed_ahead = list[tuple[Claim, frozenset[str | None]]]()
    for claim in after:
        pools, is_changed = frozenset(pools_of(claim, kinds)), claim.id in changed
        others = ahead if is_changed else changed_ahead
        if any(places[one.id] > places[claim.id] and not pools.isdisjoint(theirs) for one, theirs in others):
            found.append(claim.id)
        ahead.append((claim, pools))
        changed_ahead += [(claim, pools)] if is_changed else []
    return found
