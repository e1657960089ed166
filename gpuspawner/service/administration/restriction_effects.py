"""The effects of restrictions: their sentences, the workspaces that they concern, and conflicts of reservations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from zoneinfo import ZoneInfo

from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.core import events
from gpuspawner.core.administration import Restriction, RestrictionKind, reservation_hold
from gpuspawner.core.calendar import Opening
from gpuspawner.core.gpus.placement import count_all
from gpuspawner.core.idle.verdicts import reset_idle_time as without_idle_time
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.lease import HOLDING, UP, WAITING, Lease, Phase
from gpuspawner.core.queue.class_holds import (
    FreePart,
    class_hold_gpus,
    fitting_reservations,
    free_parts,
    gpus_of_members,
    hold_candidates,
    leases_reaching_into_holds,
    openings_between,
)
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.core.rules import Account, ClassHold
from gpuspawner.core.units import show_end, show_time
from gpuspawner.service.administration import models
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.rules_page import window_words
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.rows import RowWrite

LISTED = 200
EVENTS: Mapping[RestrictionKind, type[events.RestrictionEvent]] = {
    RestrictionKind.DRAIN: events.Drained,
    RestrictionKind.QUARANTINE: events.Quarantined,
    RestrictionKind.PAUSE: events.GrantsPaused,
    RestrictionKind.RESERVE: events.GpusReserved,
    RestrictionKind.EXEMPT: events.Exempted,
}
CLOSES = frozenset({RestrictionKind.DRAIN, RestrictionKind.QUARANTINE})
AHEAD_SECONDS = 28 * 86400.0
"""How far after its first opening a rule is compared with other reservations. Arbitrary: four weeks."""
MOST_CONFLICTS = 20


# Presenter


def title_of(state: Parts, one: Restriction) -> str:
    """Return the effect and the time of a restriction, without the full stop."""
    return event_of_restriction(state, one, EVENTS[one.measure]).effect(state.clock.now())


def event_of_restriction(
    state: Parts, one: Restriction, kind: type[events.RestrictionEvent], reason: str = ""
) -> events.RestrictionEvent:
    """Return an event about a restriction."""
    target = one.target
    if one.measure in {RestrictionKind.PAUSE, RestrictionKind.RESERVE}:
        target = target and gpu_title(target, state.catalog)
    elif one.measure in {RestrictionKind.QUARANTINE, RestrictionKind.EXEMPT}:
        target = target and (one.whom or target)
    reserves = one.measure is RestrictionKind.RESERVE
    if reserves and one.node:
        target = f"{target} on {one.node}"
    whom = one.for_words if reserves else one.whom
    begins = one.begins_at if one.begins_at > state.clock.now() else None
    return kind(one.measure.value, target, one.count, whom, begins, one.until, reason, every_words(one))


def every_words(one: Restriction) -> str:
    """Return the part of each week in which a restriction holds, or ""."""
    return "" if one.every is None else window_words(one.every)


def target_of(state: Parts, one: Restriction) -> str:
    """Return the target of a restriction, as people read it."""
    name, kind = one.whom, gpu_title(one.target, state.catalog)
    targets = {
        RestrictionKind.DRAIN: one.target,
        RestrictionKind.QUARANTINE: name or one.target,
        RestrictionKind.PAUSE: kind if one.target else "All GPUs",
        RestrictionKind.RESERVE: f"{one.count} {kind}{f' on {one.node}' if one.node else ''} for {one.for_words}",
        RestrictionKind.EXEMPT: name if one.target else f"all workspaces of {name}",
    }
    return targets[one.measure]


def present_restriction(state: Parts, one: Restriction) -> models.Restriction:
    """Return a restriction."""
    lifted = None
    if one.lifted_at is not None:
        lifted = models.Lifted(by=one.lifted_by, at=one.lifted_at, reason=one.lifted_why)
    opening = one.opening(state.clock.now(), zone_of(state))
    return models.Restriction(
        id=one.id,
        what=one.measure.value,
        target=one.target,
        count=one.count,
        for_=one.whom,  # type: ignore[call-arg]  # mypy knows the alias alone
        title=title_of(state, one),
        reason=one.reason,
        by=one.by,
        since=one.since,
        begins_at=max(one.since, one.begins_at),
        until=one.until,
        lifted=lifted,
        state=_state(state, one),
        on=target_of(state, one),
        every=every_words(one),
        next_from=None if opening is None else opening.opens_at,
        next_until=None if opening is None or opening.ends_at == inf else opening.ends_at,
    )


def zone_of(state: Parts) -> ZoneInfo:
    """Return the time zone of the catalog."""
    return ZoneInfo(state.catalog.rules.timezone)


def _state(state: Parts, one: Restriction) -> models.RestrictionState:
    now = state.clock.now()
    if one.is_over(now):
        return "over" if one.lifted_at is None else "lifted"
    return "in force" if one.is_in_force(now, zone_of(state)) else "to come"


def lease_title(lease: Lease) -> str:
    """Return the name of a workspace for administrators."""
    return f"{lease.user} / {lease.name}"


def present_affected(state: Parts, lease: Lease, words: str, ends_at: float | None) -> models.Affected:
    """Return a workspace of an act, with the effect on it."""
    page = f"{state.prefix}workspaces/{lease.id}"
    return models.Affected(
        id=lease.id, user=lease.user, server=lease.key.server, page=page, words=words, ends_at=ends_at
    )


# The effect on workspaces


def present_all_affected(state: Parts, seen: Snapshot, one: Restriction) -> list[models.Affected]:
    """Return the workspaces that it concerns now, with the effect on each."""
    late = running_into(seen, one) if one.measure is RestrictionKind.RESERVE else frozenset()
    into = "It still runs when the reservation begins. Nothing ends it. Its user is told before."
    found = ((lease, into if lease.id in late else _effect_words(state, one, lease)) for lease in state.registry)
    named = sorted(((x, words) for x, words in found if words), key=lambda pair: (pair[0].user, pair[0].id))
    return [present_affected(state, x, words, x.deadline_at) for x, words in named]


def _effect_words(state: Parts, one: Restriction, lease: Lease) -> str:
    """Return the effect on a workspace in a sentence, "" for none."""
    if one.measure in CLOSES and _is_on(state, one, lease):
        if lease.phase in UP:
            return "The workspace goes on. Its user is told, and can move."
        waits = lease.phase is Phase.RESERVED and one.is_in_force(state.clock.now(), zone_of(state))
        return "Its request waits again, at its old place." if waits else "The workspace goes on."
    if one.measure is RestrictionKind.PAUSE and lease.phase in WAITING:
        return "The request waits until the pause ends." if one.target in {"", lease.request.gpu} else ""
    return "The workspace is not stopped as idle meanwhile." if one.spares(lease) and lease.phase in UP else ""


def _is_on(state: Parts, one: Restriction, lease: Lease) -> bool:
    """Return whether the workspace has a GPU that the restriction closes while it runs."""
    if lease.deadline_at is not None and lease.deadline_at <= one.begins_at:
        return False
    known = state.scheduler.fleet.by_id
    gpus = (known.get(slot.gpu) for slot in (lease.slots if lease.phase in HOLDING else ()))
    return any(gpu is not None and one.closes(gpu) for gpu in gpus)


EntryOf = Callable[[events.Event, str, str], AuditLine]
"""Makes the audit entry of an event about a user and a target."""
LineOf = Callable[[Lease, events.Event], AuditLine]
"""Makes the audit entry of an event about a workspace."""


async def carry_out(
    state: Parts, made: Sequence[Restriction], entry_of: EntryOf, line_of: LineOf, replaced: Restriction | None = None
) -> None:
    """Put restrictions in force, and tell the users of the workspaces that they concern.

    ``replaced`` is the one that they replace, which is lifted.
    """
    told = [event_of_restriction(state, one, EVENTS[one.measure], one.reason) for one in made]
    entries = [entry_of(event, user_of(one), one.target) for one, event in zip(made, told, strict=True)]
    if replaced is not None:
        ended = event_of_restriction(state, replaced, events.Lifted, replaced.lifted_why)
        entries.append(entry_of(ended, user_of(replaced), replaced.target))

    def save(write: RowWrite) -> Awaitable[None]:
        found = [
            step
            for one, event in zip(made, told, strict=True)
            for lease in state.registry
            if (step := _step_of(state, one, lease, event)) is not None
        ]
        lines = [line_of(lease, event) for lease, event in found]
        return state.registry.save(*(lease for lease, _ in found), audit=[*entries, *lines], others=[write])

    await state.restrictions.add(made, save, replaced)
    await state.allocator.grant_waiting()


def _step_of(
    state: Parts, one: Restriction, lease: Lease, event: events.RestrictionEvent
) -> tuple[Lease, events.Event] | None:
    """Return the next state of a workspace and its event: a message, a requeued grant or the end of its grace."""
    now = state.clock.now()
    begun = one.is_in_force(now, zone_of(state))
    if one.measure in CLOSES and _is_on(state, one, lease):
        if lease.phase in UP:
            return lease, events.GpuClosed(**vars(event))
        if lease.phase is Phase.RESERVED and begun:  # nothing of it was created yet
            return transitions.lapse(lease, now), events.Requeued("closed", reported=one.reason)
    elif one.spares(lease) and begun and lease.phase is Phase.RECLAIMING:
        ended = events.GraceEnded(f"an administrator exempts it: {one.reason}")
        kept = transitions.end_grace(replace(lease, streak=without_idle_time(lease.streak)), now)
        return kept, ended
    return None


def user_of(one: Restriction) -> str:
    """Return the name of the user that a restriction is about, or ""."""
    return one.whom if one.account.user_created else ""


# Reservations


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
                    f"from {show_time(fit.begins_at, seen.now)} to {show_end(fit.ends_at, seen.now)}",
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
    time = f"{show_time(part.begins_at, seen.now)} to {show_end(part.ends_at, seen.now)}"
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


def reserved_words(state: Parts, seen: Snapshot, one: Restriction) -> str:
    """Return in sentences which GPUs a reservation would reserve, "" for another restriction.

    For a later reservation, only workspaces count whose run time reaches into it.
    """
    if one.measure is not RestrictionKind.RESERVE or one.every is not None:
        return ""
    later_on = one.begins_at > seen.now
    if later_on:
        reaching = [lease for lease in seen.leases if lease.deadline_at is None or lease.deadline_at > one.begins_at]
        seen = replace(seen, leases=reaching)
    hold = reservation_hold(one)
    with_it = replace(seen, rules=replace(seen.rules, holds=(*seen.rules.holds, hold)))
    slots = [slot for held in class_hold_gpus(with_it) if held.hold == hold for slot in held.slots]
    theirs, used = gpus_of_members(hold, seen), {*seen.used, *(slot.gpu for slot in seen.others)}
    counted = sum(slot.gpu in theirs for slot in slots)
    free = sum(slot.gpu not in used for slot in slots)
    name, kind = one.for_words, gpu_title(one.target, state.catalog)
    words = ""
    if counted:
        then = " until then or longer" if later_on else ""
        counts = "It counts" if counted == 1 else "They count"
        words = f" {name[0].upper()}{name[1:]} has {counted} {kind} in use{then}. {counts}."
    if counted and counted == len(slots):
        more = len(theirs) + one.count
        return f"{words} So no other GPU is reserved. To reserve {one.count} more, enter {more}."
    later = len(slots) - counted - free
    words += f" {free} {'is' if free == 1 else 'are'} free and reserved from then on." if free else ""
    return words + (
        f" {later} {'is' if later == 1 else 'are'} in use by others, and reserved once free." if later else ""
    )


async def read_class_members(state: Parts, classes: Collection[str]) -> dict[str, frozenset[str]]:
    """Return the members of groups of the hub, by the time at which the hub created them."""
    users = await state.hub.all_users()
    return {name: frozenset(user.created for user in users if name in user.groups) for name in classes}


async def refresh_class_members(state: Parts) -> None:
    """Read from the hub who is in the classes that have reservations."""
    if classes := {one.whom for one in state.restrictions.live() if one.members is not None}:
        await state.restrictions.set_members(await read_class_members(state, classes))
