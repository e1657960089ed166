"""The reason why a queue position changed, in a sentence without names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import Kinds
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.units import show_time


@dataclass(frozen=True)
class Line:
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
    before: Line
    after: Line
    started: frozenset[str]
    """The requests that left because they were granted. The others were withdrawn."""


class PlaceChanges:
    """The last change of each position since this service started."""

    def __init__(self) -> None:
        """Begin without positions."""
        self._line = Line()
        self._changes: dict[str, _Change] = {}

    def see(self, numbers: Mapping[str, int], leases: Iterable[Lease], kinds: Kinds, now: float) -> None:
        """Compare with new positions. ``numbers`` are in the order of service."""
        known = {lease.id: lease for lease in leases}
        there = {name: number for name, number in numbers.items() if name in known}
        pools = {name: _pools(known[name], kinds) for name in there}
        asked_at, moves = ({name: getattr(known[name], one) for name in there} for one in ("asked_at", "queue_move"))
        before, after = self._line, Line(there, pools, asked_at, moves)
        gone = before.numbers.keys() - there.keys()
        started = frozenset(name for name in gone if name in known and known[name].phase not in WAITING)
        change = _Change(now, before, after, started)
        moved = {name: change for name, number in there.items() if before.numbers.get(name, number) != number}
        self._line = after
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
