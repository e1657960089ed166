"""Reservations and maintenance with dates: their conflicts in words, and the members of their classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from zoneinfo import ZoneInfo

from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.core.administration import Restriction, reservation_hold
from gpuspawner.core.calendar import Opening
from gpuspawner.core.gpus.placement import count_all
from gpuspawner.core.queue.class_holds import (
    FreePart,
    fitting_reservations,
    free_parts,
    hold_candidates,
    leases_reaching_into_holds,
    openings_between,
)
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.core.rules import Account, ClassHold
from gpuspawner.core.units import show_time
from gpuspawner.service.administration import models
from gpuspawner.service.parts import Parts

AHEAD_SECONDS = 28 * 86400.0
"""How far after its first opening a rule is compared with other reservations. Arbitrary: four weeks."""
MOST_CONFLICTS = 20


def planning_snapshot(state: Parts, replaced: Restriction | None = None) -> Snapshot:
    """Return the present state without a reservation or maintenance that another one replaces."""
    seen = state.allocator.observed.snapshot()
    if replaced is None:
        return seen
    old = reservation_hold(replaced)
    return replace(seen, rules=replace(seen.rules, holds=tuple(one for one in seen.rules.holds if one != old)))


def running_into(seen: Snapshot, one: Restriction) -> frozenset[str]:
    """Return the ids of the workspaces that still run when a planned reservation begins."""
    hold = reservation_hold(one)
    found = leases_reaching_into_holds(replace(seen, rules=replace(seen.rules, holds=(*seen.rules.holds, hold))))
    return frozenset(name for name, held in found.items() if held.hold == hold)


def find_conflicts(
    state: Parts, seen: Snapshot, one: Restriction
) -> tuple[list[models.ReservationConflict], list[models.ReservationChoice]]:
    """Return the conflicts of a planned reservation or maintenance, and what fits instead."""
    hold = reservation_hold(one)
    if hold.is_maintenance:
        return list(_conflicts_of_maintenance(state, hold, seen))[:MOST_CONFLICTS], []
    found: list[models.ReservationConflict] = []
    choices: list[models.ReservationChoice] = []
    for opening in _openings(hold, seen):
        parts = free_parts(hold, opening, seen)
        short = [part for part in parts if part.left < hold.count]
        found += [_conflict(state, hold, part, seen) for part in short]
        if short and hold.window is None:
            choices = [
                models.ReservationChoice(
                    count=fit.gpus,
                    begins_at=fit.begins_at,
                    until=fit.ends_at,
                    words=f"{fit.gpus} {gpu_title(hold.kind, state.catalog)} "
                    f"from {show_time(fit.begins_at, seen.now)} to {show_time(fit.ends_at, seen.now)}",
                )
                for fit in fitting_reservations(hold.count, parts)
            ]
    return found[:MOST_CONFLICTS], choices


def _openings(hold: ClassHold, seen: Snapshot) -> Iterator[Opening]:
    start = max(seen.now, hold.since)
    return openings_between(hold, start, start + AHEAD_SECONDS, ZoneInfo(seen.rules.timezone))


def _conflicts_of_maintenance(state: Parts, hold: ClassHold, seen: Snapshot) -> Iterator[models.ReservationConflict]:
    """Yield the times of other reservations that lack GPUs because of a maintenance."""
    for other in (one for one in seen.rules.holds if not one.is_maintenance and one.kind in seen.kinds):
        rivals = tuple(one for one in seen.rules.holds if one is not other)
        with_it = replace(seen, rules=replace(seen.rules, holds=(*rivals, hold)))
        for opening in _openings(hold, seen):
            for theirs in openings_between(other, *opening, ZoneInfo(seen.rules.timezone)):
                for part in free_parts(other, theirs, with_it):
                    if part.left < other.count and hold in part.others:
                        yield _conflict(state, other, part, with_it)


def _conflict(state: Parts, hold: ClassHold, part: FreePart, seen: Snapshot) -> models.ReservationConflict:
    title, kind = gpu_title(hold.kind, state.catalog), seen.kinds[hold.kind]
    on = f" on {hold.node}" if hold.node else ""
    there = replace(seen.fleet, gpus=tuple(x for x in seen.fleet.gpus if hold.node in {"", x.node}))
    total = count_all(kind, there)
    why = "".join(f" {rival_words(state, one)}." for one in part.others)
    missing = total - len(list(hold_candidates(hold, seen))) * kind.shares
    away = f" {missing} {'is' if missing == 1 else 'are'} out of service now." if missing else ""
    time = f"{show_time(part.begins_at, seen.now)} to {show_time(part.ends_at, seen.now)}"
    return models.ReservationConflict(
        begins_at=part.begins_at,
        until=part.ends_at,
        left=part.left,
        words=f"{time}: {part.left} of {total} {title}{on} {'is' if part.left == 1 else 'are'} left "
        f"for the {hold.count} of {(hold.account or Account()).called(hold.group)}.{why}{away}",
    )


def rival_words(state: Parts, hold: ClassHold) -> str:
    """Return a reservation or a maintenance, without its time and without a full stop."""
    if hold.is_maintenance:
        return f"{hold.node} has maintenance"
    are, on = "is" if hold.count == 1 else "are", f" on {hold.node}" if hold.node else ""
    whom = (hold.account or Account()).called(hold.group)
    return f"{hold.count} {gpu_title(hold.kind, state.catalog)}{on} {are} reserved for {whom}"


async def refresh_class_members(state: Parts) -> None:
    """Read from the hub who is in the classes that have reservations."""
    classes = {one.whom for one in state.restrictions.live() if one.members is not None}
    if classes:
        users = await state.hub.all_users()
        found = {name: frozenset(user.created for user in users if name in user.groups) for name in classes}
        await state.restrictions.set_members(found)
