"""Conflicts of a planned reservation with other reservations, and the reservations that fit instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import NamedTuple
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import Opening, opening_within
from gpuspawner.core.queue.class_holds import hold_candidates
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.core.rules import ClassHold

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
