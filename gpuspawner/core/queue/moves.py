"""Changes of the order of waiting requests by an administrator.

Each waiting lease has ``queue_move``, 0 by default. The higher goes first, before every other rule of the order. A move
changes as few values as possible: of the moved request, and of the requests that stay before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import Kinds
from gpuspawner.core.gpus.placement import pools_of
from gpuspawner.core.queue.fair_share import FairShareUsage
from gpuspawner.core.queue.order import QueueOrder
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.usage import QuotaTally, QuotaUsage


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
