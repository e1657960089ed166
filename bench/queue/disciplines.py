"""The rules by which a queue is served, that are compared: each tells which of those who wait start now, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.gpus.placement import accepted_kinds
from gpuspawner.core.gpus.pools import Pools
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.snapshot import Snapshot

Starts = list[tuple[str, tuple[Slot, ...], float]]
"""A started session: its user, its GPUs, and its latest end."""


@dataclass(frozen=True)
class Discipline:
    """A rule with its name. ``starts`` decides which waiting sessions start."""

    name: str
    starts: Callable[[Snapshot], Starts]


def ours(seen: Snapshot) -> Starts:
    """The product's own."""
    return [
        (x.claim.id, x.slots, float("inf") if x.latest_end is None else x.latest_end.at) for x in decide(seen).grants
    ]


def first_come(seen: Snapshot) -> Starts:
    """First come, first served. A request never passes an earlier one for the same kinds."""
    return _in_turn(seen, pass_by=False, pools=Pools(seen.placement_fleet, seen.used))


def greedy(seen: Snapshot) -> Starts:
    """Plain FGD: start every request that fits, in the order of arrival."""
    return _in_turn(seen, pass_by=True, pools=Pools(seen.placement_fleet, seen.used, {}, seen.demand))


def _in_turn(seen: Snapshot, *, pass_by: bool, pools: Pools) -> Starts:
    found: Starts = []
    waited_for: set[str] = set()
    nowhere: set[tuple[tuple[str, ...], int]] = set()
    for claim in seen.claims:
        kinds = accepted_kinds(claim.request, seen.kinds)
        same = (tuple(kind.name for kind in kinds), claim.request.count)
        if same in nowhere or (not pass_by and any(kind.pool in waited_for for kind in kinds)):
            waited_for |= {kind.pool for kind in kinds}
            continue
        slots = next((x for kind in kinds if (x := pools.find(kind, claim.request.count)) is not None), None)
        if slots is None:
            waited_for |= {kind.pool for kind in kinds}
            nowhere.add(same)
            continue
        pools.take(slots)
        found.append((claim.id, slots, float("inf")))
    return found


OURS = Discipline("gpuspawner", ours)
FIRST_COME = Discipline("first come, first served", first_come)
GREEDY = Discipline("plain FGD", greedy)
DISCIPLINES = (OURS, FIRST_COME, GREEDY)
