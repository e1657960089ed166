"""Sentences about the queue: why free GPUs are reserved, which requests may go first, why a position changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import floor, inf
from typing import NamedTuple

from gpuspawner.catalog import Catalog
from gpuspawner.core.gpus.fleet import Kinds
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.decisions import ReservedForOthers
from gpuspawner.core.queue.estimates import Precedence, QueuePosition
from gpuspawner.core.queue.fair_share import SHARED_RESOURCES
from gpuspawner.core.units import show_duration, show_time

SLACK_SECONDS = 120.0
"""The time between this sentence and the press of Start. Arbitrary: time to change a field."""


def kept_free_words(kept: ReservedForOthers | None, request: Request, catalog: Catalog, now: float) -> str:
    """Return for which requests free GPUs are reserved, and how to start earlier.

    The words follow the number of free GPUs, as in ``but reserved for 4 GPUs ahead of you. A workspace that ends before
    16:40 can start now. Shorten yours to 1 h``. Return "" if no GPU is reserved.
    """
    if kept is None:
        return ""
    words = f"but reserved for {kept.first} GPU{'' if kept.first == 1 else 's'} ahead of you"
    if kept.until is None:
        return f"{words}. We do not know when these start"
    words += f". A workspace that ends before {show_time(kept.until, now)} can start now"
    shorter = _shorter_seconds(kept.until - now - SLACK_SECONDS)
    template = catalog.templates.get(request.template)
    least = 0.0 if template is None else template.bounds.lifetime_seconds[0]
    if shorter >= max(least, 1.0):
        return f"{words}. Shorten yours to {show_duration(shorter)}"
    return f"{words}, but your template does not allow such a short run time" if least else words


def _shorter_seconds(seconds: float) -> float:
    """Return a lifetime that fits, rounded as people say it: to half hours, five minutes, or seconds."""
    step = 1800 if seconds >= 3600 else 300 if seconds >= 600 else 1  # noqa: PLR2004 - an hour; ten minutes
    return float(max(0, step * floor(seconds / step)))


def precedence_words(place: QueuePosition, request: Request, catalog: Catalog, now: float) -> str:
    """Return which later requests may start first, in sentences; "" if another program owns the queue."""
    stands = place.precedence
    if stands is None or request.gpu is None:
        return ""
    if stands.is_moved:
        return "An administrator moved it up. No later request starts first."
    higher = _highest_priority(catalog) > stands.priority
    if stands.is_overdue:
        if higher:
            return "It has waited so long that only requests of a higher priority can start first."
        return "It has waited so long that no later request starts first."
    sentences = list(_passing(stands, catalog))
    if stands.overdue_at != inf:
        sentences.append(f"From {show_time(stands.overdue_at, now)} on, no later request starts first.")
    if higher:
        sentences.append("A request of a higher priority can start first at any time.")
    return " ".join(sentences)


def _passing(stands: Precedence, catalog: Catalog) -> Iterator[str]:
    """Yield a sentence for each kind of later request of the same priority that can start first."""
    if not stands.is_guaranteed:
        limits = (limit for quota in catalog.rules.quotas for limit in quota.limits)
        if any(limit.soft is not None and limit.what in SHARED_RESOURCES for limit in limits):
            yield "A later request within its share can start first."
        yield "A later request of a team or user who used less lately can start first."
    yield "A workspace that made room for others can return first."


def _highest_priority(catalog: Catalog) -> int:
    """Return the highest priority that a request may have, from its template and its team together."""
    templates = (template.priority for template in catalog.templates.values())
    return max(templates, default=0) + max((team.priority for team in catalog.rules.teams.values()), default=0)


@dataclass(frozen=True)
class QueueOrder:
    """The waiting requests at one time, in the order of service, with their positions.

    ``pools`` are the pools of each request, ``asked_at`` is its time, ``moves`` its move by an administrator.
    """

    numbers: Mapping[str, int] = field(default_factory=dict)
    pools: Mapping[str, frozenset[str | None]] = field(default_factory=dict)
    asked_at: Mapping[str, float] = field(default_factory=dict)
    moves: Mapping[str, int] = field(default_factory=dict)

    def ahead(self, name: str) -> list[str]:
        """Return the requests for the same GPUs that were ahead of one."""
        found = []
        for other in self.numbers:
            if other == name:
                break
            if self.pools[other] & self.pools[name]:
                found.append(other)
        return found


class _Change(NamedTuple):
    at: float
    before: QueueOrder
    after: QueueOrder
    started: frozenset[str]
    """The requests that left because they were granted. The others were withdrawn."""


class PositionChanges:
    """The last change of each position since this service started."""

    def __init__(self) -> None:
        """Begin without positions."""
        self._order = QueueOrder()
        self._changes: dict[str, _Change] = {}

    def see(self, numbers: Mapping[str, int], leases: Iterable[Lease], kinds: Kinds, now: float) -> None:
        """Compare with new positions. ``numbers`` are in the order of service."""
        known = {lease.id: lease for lease in leases}
        there = {name: number for name, number in numbers.items() if name in known}
        pools = {name: _pools(known[name], kinds) for name in there}
        asked_at, moves = ({name: getattr(known[name], one) for name in there} for one in ("asked_at", "queue_move"))
        before, after = self._order, QueueOrder(there, pools, asked_at, moves)
        gone = before.numbers.keys() - there.keys()
        started = frozenset(name for name in gone if name in known and known[name].phase not in WAITING)
        change = _Change(now, before, after, started)
        moved = {name: change for name, number in there.items() if before.numbers.get(name, number) != number}
        self._order = after
        self._changes = {name: one for name, one in {**self._changes, **moved}.items() if name in there}

    def words(self, name: str, now: float) -> str:
        """Return how a position changed last, and why, "" without a change."""
        change = self._changes.get(name)
        if change is None:
            return ""
        before, after = change.before, change.after
        reasons = "; ".join(_reasons(name, change))
        moved = f"Place {before.numbers[name]} became {after.numbers[name]} at {show_time(change.at, now)}"
        return f"{moved}: {reasons}." if reasons else f"{moved}."


def _pools(lease: Lease, kinds: Kinds) -> frozenset[str | None]:
    names = filter(None, (lease.request.gpu, *lease.request.substitutes))
    return frozenset(kinds[name].pool if name in kinds else name for name in names) or frozenset({None})


def _reasons(name: str, change: _Change) -> Iterable[str]:
    before, after = change.before, change.after
    were, are = before.ahead(name), after.ahead(name)
    gone = [one for one in were if one not in after.numbers]
    started = sum(one in change.started for one in gone)
    new = [one for one in are if one not in before.numbers]
    back = sum(after.asked_at[one] <= after.asked_at[name] for one in new)
    passing = set(are) & (before.numbers.keys() - set(were))
    by_move = sum(after.moves[one] > before.moves[one] for one in passing)
    passed = len(passing) - by_move
    fallen = len(set(were) & (after.numbers.keys() - set(are)))
    if started:
        yield f"{started} before you had {'its' if started == 1 else 'their'} turn"
    if left := len(gone) - started:
        yield f"{left} before you {'waits' if left == 1 else 'wait'} no more"
    if back:
        yield f"{back} came back to {'an old place' if back == 1 else 'old places'}"
    if by_move:
        yield f"an administrator moved {by_move} before yours"
    if first := len(new) - back + passed:
        yield f"{first} {'goes' if first == 1 else 'go'} first by priority, share or use"
    if fallen:
        yield f"you go before {fallen} by priority, share or use"
