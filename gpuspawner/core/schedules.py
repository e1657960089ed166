"""Scheduled workspaces."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import DAY_MINUTES, WEEKDAYS, Window, find_opening
from gpuspawner.core.errors import quoted
from gpuspawner.core.units import BadValue, show_time

LATE_MINUTES = 60
"""So long after its time it is still asked for, where nobody could before: the service was away. Arbitrary."""
LEAST_LEAD_SECONDS = 300.0
"""It is asked for no later than so long before its time, however quick its starts were. Arbitrary."""
FIRST_START_SECONDS = 900.0
"""What a start is taken to need before any was seen: a node that never had its image pulls it first. Arbitrary: as long
as the configuration in ``hub_config`` lets a start take."""
QUICKER_SHARE = 0.8
"""A start that was quicker lowers what the next is taken to need to this: that may be on a node without the image."""
MOST_LEAD_SECONDS = 4 * 3600.0
"""It is asked for no earlier, and so early where nothing tells how long it waits: GPUs would stand idle. Arbitrary."""
MOST_MISSED = 3
"""On so many days in a row nobody came: it is asked for no more until its user says so."""
MOST_LEFT_OUT = 100
"""So many of its times are looked at for one that is not closed. Arbitrary: more than a break between terms has."""
DAY_GROUPS = {"weekdays": WEEKDAYS[:5], "weekend": WEEKDAYS[5:], "daily": WEEKDAYS}
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True)
class Schedule:
    """What a user wishes, and what came of it.

    ``minute`` is of the day, ``days`` of the week: 0 is Monday. ``asked_for`` is the time for which it was last asked
    for, ``lease`` what was asked for then: "" once it is known whether its user came. ``missed`` counts the days in a
    row on which they did not. ``said`` is why nothing was asked for, in a sentence. ``paused``: by its user.
    ``start_seconds`` is what its start is taken to need, from the grant on; 0 where none was seen yet.
    """

    id: str
    user: str
    server: str
    options: Mapping[str, Any]
    minute: int
    days: tuple[int, ...]
    made_at: float
    asked_for: float = 0.0
    lease: str = ""
    missed: int = 0
    said: str = ""
    paused: bool = False
    start_seconds: float = 0.0

    def asks_the_same(self, other: Schedule) -> bool:
        """Whether both ask for the same workspace, with the same options, at the same times."""
        mine, others = ((one.server, dict(one.options), one.minute, tuple(one.days)) for one in (self, other))
        return mine == others

    @property
    def words(self) -> str:
        """When it is to be ready: ``weekdays 8:00``."""
        names = [WEEKDAYS[day] for day in self.days]
        group = next((name for name, days in DAY_GROUPS.items() if list(days) == names), "")
        listed = group or ", ".join(name[:3].capitalize() for name in names)
        return f"{listed} {self.minute // 60}:{self.minute % 60:02}"


IsClosed = Callable[[float], bool]
"""Whether nothing is made ready at a time, in seconds since the epoch: on a holiday, or as the policy of then says."""


def _never(_at: float) -> bool:
    return False


class ScheduleStep(Enum):
    """What follows for a wish now."""

    ASK = "ask"
    WAIT = "wait"
    PAUSE = "pause"
    """Nothing, until its user resumes it."""


@dataclass(frozen=True)
class ScheduleDecision:
    """What to do about a wish, and in which words; ``at`` is when it is to be ready next, None where it is not.

    ``begins`` is when it is asked for, as far as is known now; None where it is asked for already, or is not.
    """

    do: ScheduleStep
    sentence: str
    at: float | None = None
    begins: float | None = None


def decide_schedule(
    wish: Schedule, lead_seconds: float | None, now: float, zone: ZoneInfo, is_closed: IsClosed = _never
) -> ScheduleDecision:
    """Return what follows; ``lead_seconds`` is how long it would wait in the queue now, None: nobody knows."""
    if wish.paused:
        return ScheduleDecision(ScheduleStep.PAUSE, "Paused. Resume it to have it again.")
    if wish.missed >= MOST_MISSED:
        return ScheduleDecision(
            ScheduleStep.PAUSE, f"Paused: on {wish.missed} days in a row nobody came. Resume it to have it again."
        )
    at, left_out = next_ready_time(wish, now, zone, is_closed)
    if at is None:
        why = "its days have no such time" if left_out is None else f"its next {MOST_LEFT_OUT} times are closed"
        return ScheduleDecision(ScheduleStep.WAIT, f"It is never ready: {why}.")
    begins = at - lead_seconds_of(lead_seconds, wish.start_seconds)
    ready = show_time(at, now, zone)
    said = f" {wish.said}" if wish.said else ""
    if now >= begins:
        return ScheduleDecision(ScheduleStep.ASK, f"It is asked for now, to be ready {ready}.{said}", at)
    skipped = f" Not {show_time(left_out, now, zone)}: that day is closed." if left_out is not None else ""
    unknown = ", as nobody can tell how long it will wait" if lead_seconds is None else ", as the queue is now"
    joins = f" It is asked for about {show_time(begins, now, zone)}{unknown}."
    return ScheduleDecision(ScheduleStep.WAIT, f"Next ready {ready}.{skipped}{joins}{said}", at, begins)


def lead_seconds_of(wait_seconds: float | None, start_seconds: float = 0.0) -> float:
    """Return how long before its time it is asked for: its start is taken to need ``start_seconds``, 0: unknown."""
    if wait_seconds is None:
        return MOST_LEAD_SECONDS
    starts = start_seconds or FIRST_START_SECONDS
    return min(max(LEAST_LEAD_SECONDS, starts) + wait_seconds, MOST_LEAD_SECONDS)


def after_start(wish: Schedule, took_seconds: float) -> Schedule:
    """Return a wish after a start that took so long: a longer one counts at once, a quicker one bit by bit."""
    before = wish.start_seconds or FIRST_START_SECONDS
    return replace(wish, start_seconds=max(took_seconds, QUICKER_SHARE * before))


def next_ready_time(
    wish: Schedule, now: float, zone: ZoneInfo, is_closed: IsClosed = _never
) -> tuple[float | None, float | None]:
    """Return when it is to be ready next, of the times for which it was not asked for yet; None where never.

    With it the first time before that which is closed; None where none is.
    """
    window = Window(frozenset(wish.days), wish.minute, (wish.minute + LATE_MINUTES) % DAY_MINUTES)
    done, found = max(wish.made_at, wish.asked_for), find_opening(window, now, zone)
    while found is not None and found.opens_at <= done:
        found = find_opening(window, found.ends_at, zone)
    left_out: float | None = None
    for _ in range(MOST_LEFT_OUT):
        if found is None or not is_closed(found.opens_at):
            return None if found is None else found.opens_at, left_out
        left_out = found.opens_at if left_out is None else left_out
        found = find_opening(window, found.ends_at, zone)
    return None, left_out


def lease_id_of_schedule(wish: str, at: float) -> str:
    """Return the id of the lease by which a wish is asked for at a time: asked twice, it is the same."""
    return hashlib.sha256(f"{wish} {at:.0f}".encode()).hexdigest()[:32]


def after_outcome(wish: Schedule, *, came: bool | None) -> Schedule:
    """Return a wish once it is known what came of what was asked for: whether its user came; None says neither."""
    missed = wish.missed if came is None else 0 if came else wish.missed + 1
    return replace(wish, lease="", missed=missed)


def parse_time_of_day(value: object) -> int:
    """Read a time of day, such as ``8:00``. Return its minute of the day. Raises BadValue."""
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise BadValue(f"{quoted(value)} is no time of day", "write one like 8:00 or 17:30")
    return int(found[1]) * 60 + int(found[2])


def parse_weekdays(value: object) -> tuple[int, ...]:
    """Read days of the week: ``weekdays``, ``weekend``, ``daily``, or some like ``mon, wed``. Raises BadValue."""
    days: set[str] = set()
    for word in re.split(r"[\s,]+", value.strip().lower()) if isinstance(value, str) else [""]:
        named = DAY_GROUPS.get(word) or [day for day in WEEKDAYS if word in {day, day[:3]}]
        if not named:
            raise BadValue(f"{quoted(value)} are no days", "write weekdays, weekend, daily, or days such as mon, wed")
        days.update(named)
    return tuple(number for number, day in enumerate(WEEKDAYS) if day in days)
