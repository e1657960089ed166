"""GPUs that are kept free for a class at given times of the week.

For each hold those are chosen that its members use, then those that come free first, by the ends that are known.
Who is no member may use them until the hold begins, if they end by then; members may use them at any time. What runs
on them beyond that is told, and cannot be extended into it; nothing is ended for a hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from heapq import nsmallest
from math import ceil, inf
from typing import NamedTuple
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar.windows import Opening, opening
from gpuspawner.core.gpus.fleet import Gpu, GpuKind, Slot
from gpuspawner.core.leases.lease import HOLDING, UP, Lease
from gpuspawner.core.placement.placement import count_free, grantable
from gpuspawner.core.queue.backfill import HOLD, Reservation
from gpuspawner.core.queue.ends import end_at
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.rules import Account, ClassHold, LatestEnd
from gpuspawner.core.units import show_time


class Asker(NamedTuple):
    """Somebody who may ask: ``user_created`` as in ``lease.Owner``, and the classes and teams that they are in."""

    user_created: str
    classes: Collection[str] = ()
    teams: Collection[str] = ()


class HeldGpus(NamedTuple):
    """The GPUs of one hold, whole, and the opening that they are held for."""

    hold: ClassHold
    opening: Opening
    slots: tuple[Slot, ...]
    title: str

    @property
    def are_held(self) -> str:
        """How many of which GPUs are reserved for whom, as people read it."""
        one = self.hold.count == 1
        return f"{self.hold.count} {self.title} {'is' if one else 'are'} {self._for}"

    @property
    def _for(self) -> str:
        account = self.hold.account or Account()
        return f"reserved for {account.called(self.hold.group)}"

    def _until(self, now: float) -> str:
        return "" if self.opening.ends_at == inf else f" until {show_time(self.opening.ends_at, now)}"

    def note(self, count: int, now: float) -> str:
        """Return why so many that are free are not given to others, in a few words."""
        return f"{count} {self._for}{self._until(now)}"

    def bound(self, now: float) -> LatestEnd:
        """Return the latest end of what uses them and is of no member; its words are told before Start."""
        at = self.opening.opens_at
        words = f"ends at {show_time(at, now)}, when {self.are_held}"
        return LatestEnd(at, HOLD, words, self.hold.group)

    def words(self, now: float) -> str:
        """Return in a sentence when they are held, and for whom."""
        begins = f" from {show_time(self.opening.opens_at, now)}" if self.opening.opens_at > now else ""
        return f"{self.are_held}{begins}{self._until(now)}."


def classes_of(holds: Iterable[ClassHold], groups: Collection[str]) -> tuple[str, ...]:
    """Return the classes, of those that GPUs are held for, that somebody in these groups of the hub is in."""
    return tuple(sorted({hold.group for hold in holds} & set(groups)))


def may_use(asker: Asker, hold: ClassHold) -> bool:
    """Whether GPUs are held for somebody: who is in the class, or whom an administrator named."""
    if hold.account is None:
        return hold.group in asker.classes
    team = hold.account.team
    return hold.account.user_created in {"", asker.user_created} and (not team or team in asker.teams)


def asker_of(one: Claim | Lease) -> Asker:
    """Return who a request is of, as it was when it was asked."""
    created = one.user_created if isinstance(one, Claim) else one.key.user_created
    return Asker(created, one.request.classes, (one.request.team,))


def is_member(one: Claim | Lease, hold: ClassHold) -> bool:
    """Return whether GPUs are held for a request."""
    return hold.group in one.request.classes if hold.account is None else may_use(asker_of(one), hold)


def held_gpus(seen: Snapshot) -> tuple[HeldGpus, ...]:
    """Return the GPUs of every hold, for the opening that goes on or else comes next, in the order of the rules.

    GPUs of one hold serve no other at the same time.
    """
    found: list[HeldGpus] = []
    for hold in seen.rules.holds:
        when, kind = next_opening(hold, seen), seen.kinds.get(hold.kind)
        if when is None or kind is None:
            continue
        others = {slot.gpu for x in found if _overlap(x.opening, when) for slot in x.slots}
        free_at = _free_at(hold, seen)
        gpus = (x for x in seen.fleet.gpus if x.pool == kind.pool and _may_be_held(x) and x.id not in others)
        order = ((free_at.get(gpu.id, 0.0), gpu.node, gpu.index, gpu.id) for gpu in gpus)
        slots = tuple(Slot(name) for *_, name in nsmallest(ceil(hold.count / kind.shares), order))
        found.append(HeldGpus(hold, when, slots, kind.title))
    return tuple(found)


def held_now(seen: Snapshot) -> tuple[HeldGpus, ...]:
    """Return the GPUs of every hold that has begun."""
    return tuple(one for one in held_gpus(seen) if one.opening.opens_at <= seen.now)


def begun(seen: Snapshot) -> tuple[ClassHold, ...]:
    """Return the holds that have begun, without a look at the GPUs."""
    openings = ((hold, next_opening(hold, seen)) for hold in seen.rules.holds)
    return tuple(hold for hold, when in openings if when is not None and when.opens_at <= seen.now)


def free_of(held: HeldGpus, kind: GpuKind, seen: Snapshot) -> int:
    """Return how many of a kind are free of what a hold has."""
    gpus = tuple(seen.fleet.by_id[slot.gpu] for slot in held.slots)
    return count_free(kind, replace(seen.fleet, gpus=gpus), seen.used)


def kept_for_classes(
    seen: Snapshot, claims: Iterable[Claim], held: Iterable[HeldGpus] | None = None
) -> tuple[Reservation, ...]:
    """Return the GPUs that are kept for classes. Others may use them until a hold begins.

    ``held`` are the GPUs of the holds, if they are known. Otherwise they are chosen anew.
    """
    waiting, now = tuple(claims), seen.now
    return tuple(
        Reservation(
            one.slots,
            one.opening.opens_at,
            frozenset(x.id for x in waiting if is_member(x, one.hold)),
            HOLD,
            one.words(now),
            one.bound(now),
        )
        for one in (held_gpus(seen) if held is None else held)
    )


def next_opening(hold: ClassHold, seen: Snapshot) -> Opening | None:
    """Return when GPUs are held now or next; None where they are held no more."""
    if hold.window is None:
        always = Opening(hold.since, inf if hold.until is None else hold.until)
        return always if seen.now < always.ends_at else None
    found = opening(hold.window, seen.now, ZoneInfo(seen.rules.timezone))
    if found is None or hold.until is None:
        return found
    return Opening(found.opens_at, min(found.ends_at, hold.until)) if found.opens_at < hold.until else None


def reaching_into(seen: Snapshot) -> Mapping[str, HeldGpus]:
    """Return which workspaces that run would still use held GPUs at the beginning of a hold, by lease id."""
    found: dict[str, HeldGpus] = {}
    for held in held_gpus(seen):
        gpus = {slot.gpu for slot in held.slots}
        for lease in seen.leases:
            if lease.phase not in UP or is_member(lease, held.hold) or not any(x.gpu in gpus for x in lease.slots):
                continue
            if end_at(lease, seen.now) > held.opening.opens_at:
                found.setdefault(lease.id, held)
    return found


def extension_bound(lease: Lease, until: float, seen: Snapshot) -> HeldGpus | None:
    """Return the hold that would lack GPUs if a lease were extended until then; None where none would."""
    later = tuple(replace(x, deadline_at=until) if x.id == lease.id else x for x in seen.leases)
    return reaching_into(replace(seen, leases=later)).get(lease.id)


def _free_at(hold: ClassHold, seen: Snapshot) -> dict[str, float]:
    """Return when each GPU in use is free for a hold, as far as it is known. The GPUs that members use come first."""
    free_at: dict[str, float] = {}
    for lease in seen.leases:
        if lease.phase in HOLDING:
            at = -inf if is_member(lease, hold) else end_at(lease, seen.now)
            for slot in lease.slots:
                other = free_at.get(slot.gpu, at)
                free_at[slot.gpu] = -inf if -inf in (at, other) else max(at, other)
    return {**free_at, **{slot.gpu: inf for slot in seen.others if free_at.get(slot.gpu) != -inf}}


def members_gpus(hold: ClassHold, seen: Snapshot) -> frozenset[str]:
    """Return the GPUs, by id, that members use: they are held for them already."""
    theirs = (x for x in seen.leases if x.phase in HOLDING and is_member(x, hold))
    return frozenset(slot.gpu for lease in theirs for slot in lease.slots)


def _may_be_held(gpu: Gpu) -> bool:
    return grantable(gpu) and not gpu.is_coming


def _overlap(one: Opening, other: Opening) -> bool:
    return one.opens_at < other.ends_at and other.opens_at < one.ends_at
