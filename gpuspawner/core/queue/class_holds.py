"""Class holds: GPUs that are reserved for a class at given times of the week.

A hold takes the GPUs that its members use, then the GPUs that come free first by the known ends. Members may use its
GPUs at any time. Others may use them if they end before the hold begins. A workspace that would run longer is told, and
cannot be extended into the hold. Nothing is ended for a hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import nsmallest
from itertools import pairwise
from math import ceil, inf
from typing import NamedTuple
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import Opening, opening_within
from gpuspawner.core.events import MaintenanceNear, ReachesInto
from gpuspawner.core.gpus.fleet import Gpu, GpuKind, Slot
from gpuspawner.core.gpus.placement import count_free, is_grantable
from gpuspawner.core.leases.lease import HOLDING, UP, Lease
from gpuspawner.core.queue.backfill import HOLD, Reservation
from gpuspawner.core.queue.snapshot import Claim, Snapshot, end_at
from gpuspawner.core.rules import Account, ClassHold, LatestEnd
from gpuspawner.core.units import show_end, show_time


class HoldUser(NamedTuple):
    """A user (``user_created`` as in ``lease.Owner``) with their classes and teams."""

    user_created: str
    classes: Collection[str] = ()
    teams: Collection[str] = ()


class HeldGpus(NamedTuple):
    """The whole GPUs of a hold, and the opening that they are reserved for."""

    hold: ClassHold
    opening: Opening
    slots: tuple[Slot, ...]
    title: str

    @property
    def are_held(self) -> str:
        """The number of GPUs and the class that they are reserved for, or the node that has maintenance."""
        if self.hold.is_maintenance:
            return f"{self.hold.node} has maintenance"
        one = self.hold.count == 1
        return f"{self.hold.count} {self.title} {'is' if one else 'are'} {self._for}"

    @property
    def _for(self) -> str:
        account = self.hold.account or Account()
        return f"reserved for {account.called(self.hold.group)}"

    def _until(self, now: float) -> str:
        return "" if self.opening.ends_at == inf else f" until {show_end(self.opening.ends_at, now)}"

    def note(self, count: int, now: float) -> str:
        """Return a short text why this many free GPUs are not granted to others."""
        return f"{count} {self._for}{self._until(now)}"

    def bound(self, now: float) -> LatestEnd:
        """Return the latest end of a workspace of others on these GPUs. Its text is shown before Start."""
        at = self.opening.opens_at
        words = f"ends at {show_time(at, now)}, when {self.are_held}"
        return LatestEnd(at, HOLD, words, self.hold.group or self.hold.node)

    def event(self, now: float) -> ReachesInto | MaintenanceNear:
        """Return the event of a workspace that runs into the hold."""
        begins_at, ends_at = self.opening
        whom = (self.hold.account or Account()).called(self.hold.group)
        begins, until = begins_at if begins_at > now else None, None if ends_at == inf else ends_at
        if self.hold.is_maintenance:
            return MaintenanceNear(self.hold.node, begins, until)
        return ReachesInto(self.hold.count, self.title, whom, begins, until)


def classes_of(holds: Iterable[ClassHold], groups: Collection[str]) -> tuple[str, ...]:
    """Return the classes with a hold that a member of these hub groups is in."""
    return tuple(sorted({hold.group for hold in holds} & set(groups)))


def may_use(asker: HoldUser, hold: ClassHold) -> bool:
    """Return whether a user may use the GPUs of a hold: as member of the class, or named by an administrator."""
    if hold.members is not None:
        return asker.user_created in hold.members
    if hold.account is None:
        return hold.group in asker.classes
    team = hold.account.team
    return hold.account.user_created in {"", asker.user_created} and (not team or team in asker.teams)


def hold_user_of(one: Claim | Lease) -> HoldUser:
    """Return the user of a request, with the classes of when it was made."""
    created = one.user_created if isinstance(one, Claim) else one.key.user_created
    return HoldUser(created, one.request.classes, (one.request.team,))


def is_member(one: Claim | Lease, hold: ClassHold) -> bool:
    """Return whether a request may use the GPUs of a hold."""
    return may_use(hold_user_of(one), hold)


def class_hold_gpus(seen: Snapshot) -> tuple[HeldGpus, ...]:
    """Return the GPUs of every hold for its present or else its next opening, in the order of the rules.

    A GPU belongs to one hold at a time.
    """
    found: list[HeldGpus] = []
    for hold in seen.rules.holds:
        when, kind = hold_opening(hold, seen), seen.kinds.get(hold.kind)
        if when is None or (kind is None and not hold.is_maintenance):
            continue
        others = {slot.gpu for x in found if _overlap(x.opening, when) for slot in x.slots}
        gpus = [x for x in hold_candidates(hold, seen) if x.id not in others]
        if kind is None:
            found.append(HeldGpus(hold, when, tuple(Slot(gpu.id) for gpu in gpus), ""))
            continue
        free_at = _free_at(hold, seen)
        order = ((free_at.get(gpu.id, 0.0), gpu.node, gpu.index, gpu.id) for gpu in gpus)
        slots = tuple(Slot(name) for *_, name in nsmallest(ceil(hold.count / kind.shares), order))
        found.append(HeldGpus(hold, when, slots, kind.title))
    return tuple(found)


def hold_candidates(hold: ClassHold, seen: Snapshot) -> Iterable[Gpu]:
    """Return the GPUs in service that a hold may take."""
    pool = None if hold.is_maintenance else seen.kinds[hold.kind].pool
    return (
        gpu
        for gpu in seen.fleet.gpus
        if pool in {None, gpu.pool} and hold.node in {"", gpu.node} and is_grantable(gpu) and not gpu.is_coming
    )


def current_hold_gpus(seen: Snapshot) -> tuple[HeldGpus, ...]:
    """Return the GPUs of every hold for people that has begun. GPUs of a node in maintenance are closed already."""
    found = class_hold_gpus(seen)
    return tuple(one for one in found if one.opening.opens_at <= seen.now and not one.hold.is_maintenance)


def active_holds(seen: Snapshot) -> tuple[ClassHold, ...]:
    """Return the holds that have begun, without a look at the GPUs."""
    openings = ((hold, hold_opening(hold, seen)) for hold in seen.rules.holds)
    return tuple(hold for hold, when in openings if when is not None and when.opens_at <= seen.now)


def count_free_in_hold(held: HeldGpus, kind: GpuKind, seen: Snapshot) -> int:
    """Return the number of free GPUs of a kind in a hold."""
    gpus = tuple(seen.fleet.by_id[slot.gpu] for slot in held.slots)
    return count_free(kind, replace(seen.fleet, gpus=gpus), seen.used)


def class_hold_reservations(
    seen: Snapshot, claims: Iterable[Claim], held: Iterable[HeldGpus] | None = None
) -> tuple[Reservation, ...]:
    """Return the GPUs of class holds as reservations. Others may use them until a hold begins.

    ``held`` are the GPUs of the holds, if they are known. Otherwise they are chosen.
    """
    waiting, now = tuple(claims), seen.now
    return tuple(
        Reservation(
            one.slots,
            one.opening.opens_at,
            frozenset(x.id for x in waiting if is_member(x, one.hold)),
            HOLD,
            one.event(now).describe(now),
            one.bound(now),
        )
        for one in (class_hold_gpus(seen) if held is None else held)
        if one.slots
    )


def hold_opening(hold: ClassHold, seen: Snapshot) -> Opening | None:
    """Return the present or else the next opening of a hold, or None if it has ended."""
    return opening_within(hold.window, hold.since, hold.until, seen.now, ZoneInfo(seen.rules.timezone))


def leases_reaching_into_holds(seen: Snapshot) -> Mapping[str, HeldGpus]:
    """Return the running workspaces that would still use a hold's GPUs when it begins, by lease id."""
    found: dict[str, HeldGpus] = {}
    for held in class_hold_gpus(seen):
        gpus = {slot.gpu for slot in held.slots}
        for lease in seen.leases:
            if lease.phase not in UP or is_member(lease, held.hold) or not any(x.gpu in gpus for x in lease.slots):
                continue
            if end_at(lease, seen.now) > held.opening.opens_at:
                found.setdefault(lease.id, held)
    return found


def extension_bound(lease: Lease, until: float, seen: Snapshot) -> HeldGpus | None:
    """Return the hold that would lack GPUs if a lease were extended until then, or None."""
    later = tuple(replace(x, deadline_at=until) if x.id == lease.id else x for x in seen.leases)
    return leases_reaching_into_holds(replace(seen, leases=later)).get(lease.id)


def _free_at(hold: ClassHold, seen: Snapshot) -> dict[str, float]:
    free_at: dict[str, float] = {}
    for lease in seen.leases:
        if lease.phase in HOLDING:
            at = -inf if is_member(lease, hold) else end_at(lease, seen.now)
            for slot in lease.slots:
                other = free_at.get(slot.gpu, at)
                free_at[slot.gpu] = -inf if -inf in (at, other) else max(at, other)
    return {**free_at, **{slot.gpu: inf for slot in seen.others if free_at.get(slot.gpu) != -inf}}


def gpus_of_members(hold: ClassHold, seen: Snapshot) -> frozenset[str]:
    """Return the ids of the GPUs that members use."""
    theirs = (x for x in seen.leases if x.phase in HOLDING and is_member(x, hold))
    return frozenset(slot.gpu for lease in theirs for slot in lease.slots)


def _overlap(one: Opening, other: Opening) -> bool:
    return one.opens_at < other.ends_at and other.opens_at < one.ends_at


# --- conflicts of a planned reservation with others, and the reservations that fit instead


MOST_OPENINGS = 60
"""The most openings of one rule that are looked at. Arbitrary: four weeks of two openings each day."""


class FreePart(NamedTuple):
    """A part of an opening. ``left`` is the number of GPUs that ``others``, which overlap it, leave."""

    begins_at: float
    ends_at: float
    left: int
    others: tuple[ClassHold, ...] = ()


class FittingReservation(NamedTuple):
    """A number of GPUs and a time that fit."""

    gpus: int
    begins_at: float
    ends_at: float


def openings_between(hold: ClassHold, start: float, end: float, zone: ZoneInfo) -> Iterator[Opening]:
    """Yield the openings of a hold that overlap a time, in order."""
    at = start
    for _ in range(MOST_OPENINGS):
        found = opening_within(hold.window, hold.since, hold.until, at, zone)
        if found is None or found.opens_at >= end:
            return
        yield found
        at = found.ends_at


def free_parts(hold: ClassHold, opening: Opening, seen: Snapshot) -> list[FreePart]:
    """Return the parts of an opening of a planned hold, with the GPUs of its kind that the others leave in each.

    The holds of ``seen`` are the others. GPUs that are out of service now count as missing.
    """
    zone, others = ZoneInfo(seen.rules.timezone), [one for one in seen.rules.holds if _is_rival(one, hold, seen)]
    times = [(one, found) for one in others for found in openings_between(one, *opening, zone)]
    edges = {opening.opens_at, opening.ends_at, *(at for _, found in times for at in found)}
    inner = sorted(at for at in edges if opening.opens_at <= at <= opening.ends_at)
    parts: list[FreePart] = []
    for begins_at, ends_at in pairwise(inner):
        there = tuple(one for one, found in times if found.covers(begins_at))
        left = _count_left(hold, there, seen)
        if parts and (parts[-1].left, parts[-1].others) == (left, there):
            parts[-1] = parts[-1]._replace(ends_at=ends_at)
        else:
            parts.append(FreePart(begins_at, ends_at, left, there))
    return parts


def fitting_reservations(count: int, parts: Iterable[FreePart]) -> list[FittingReservation]:
    """Return the reservations that fit: all GPUs for the longest time, and the most GPUs for the whole time."""
    known = list(parts)
    runs: list[FittingReservation] = []
    for part in known:
        if part.left < count:
            continue
        if runs and runs[-1].ends_at == part.begins_at:
            runs[-1] = runs[-1]._replace(ends_at=part.ends_at)
        else:
            runs.append(FittingReservation(count, part.begins_at, part.ends_at))
    longest = max(runs, key=lambda one: one.ends_at - one.begins_at, default=None)
    least = min((part.left for part in known), default=0)
    whole = FittingReservation(least, known[0].begins_at, known[-1].ends_at) if 0 < least < count else None
    return [one for one in (longest, whole) if one is not None]


def _is_rival(one: ClassHold, hold: ClassHold, seen: Snapshot) -> bool:
    if one.is_maintenance:
        return hold.node in {"", one.node}
    return one.kind in seen.kinds and seen.kinds[one.kind].pool == seen.kinds[hold.kind].pool


def _count_left(hold: ClassHold, others: Iterable[ClassHold], seen: Snapshot) -> int:
    """Return the GPUs that are left for a hold. Holds for any node take GPUs of other nodes first."""
    away = {one.node for one in others if one.is_maintenance}
    rivals = [one for one in others if not one.is_maintenance]
    pool = [gpu for gpu in hold_candidates(replace(hold, node=""), seen) if gpu.node not in away]
    mine = [gpu for gpu in pool if hold.node in {"", gpu.node}]
    taken_here = sum(_gpus_of(one, seen) for one in rivals if one.node and hold.node in {"", one.node})
    taken_away = sum(_gpus_of(one, seen) for one in rivals if one.node and hold.node not in {"", one.node})
    anywhere = sum(_gpus_of(one, seen) for one in rivals if not one.node)
    outside = max(0, len(pool) - len(mine) - taken_away)
    return max(0, len(mine) - taken_here - max(0, anywhere - outside)) * seen.kinds[hold.kind].shares


def _gpus_of(one: ClassHold, seen: Snapshot) -> int:
    return ceil(one.count / seen.kinds[one.kind].shares)
