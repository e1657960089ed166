"""Scheduled workspaces: when the service requests them, and when it pauses a schedule.

Times are in the catalog's time zone. Changes of its clocks are taken into account.
"""

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
"""How long after its time a workspace is still requested, if the service was away. Arbitrary."""
LEAST_LEAD_SECONDS = 300.0
"""The least time before the ready time at which a workspace is requested. Arbitrary."""
FIRST_START_SECONDS = 900.0
"""The expected duration of a first start, which may have to pull the image. Arbitrary: the start timeout of
``hub_config``.
"""
QUICKER_SHARE = 0.8
"""A quicker start lowers the expected duration to this share at most. The next node may lack the image."""
MOST_LEAD_SECONDS = 4 * 3600.0
"""The most time before the ready time, so that GPUs do not stand idle. An unknown wait counts as this long. Arbitrary.
"""
MOST_MISSED = 3
"""The schedule is paused after this number of missed days in a row."""
MOST_LEFT_OUT = 100
"""The most closed times that are skipped. Arbitrary: more than a break between terms has."""
DAY_GROUPS = {"weekdays": WEEKDAYS[:5], "weekend": WEEKDAYS[5:], "daily": WEEKDAYS}
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True)
class Schedule:
    """A schedule of a user and its results so far.

    ``minute`` is of the day, ``days`` of the week: 0 is Monday. ``asked_for`` is the last ready time for which a
    workspace was requested. ``lease`` is that request, or "" once the result is known. ``missed`` counts the days in a
    row on which the user did not come. ``said`` is the sentence why no workspace was requested. ``paused`` is set by
    the user. ``start_seconds`` is the expected duration of a start after the grant, or 0 if no start was seen.
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
        """Return whether both schedules have the same workspace, options and times."""
        mine, others = ((one.server, dict(one.options), one.minute, tuple(one.days)) for one in (self, other))
        return mine == others

    @property
    def words(self) -> str:
        """The days and the time: ``weekdays 8:00``."""
        names = [WEEKDAYS[day] for day in self.days]
        group = next((name for name, days in DAY_GROUPS.items() if list(days) == names), "")
        listed = group or ", ".join(name[:3].capitalize() for name in names)
        return f"{listed} {self.minute // 60}:{self.minute % 60:02}"


IsClosed = Callable[[float], bool]
"""Returns whether no workspace is started at a time (seconds since the epoch): on a holiday, or by the policy."""


def _never(_at: float) -> bool:
    return False


class ScheduleStep(Enum):
    """The next step for a schedule."""

    ASK = "ask"
    WAIT = "wait"
    PAUSE = "pause"
    """Do nothing until the user resumes the schedule."""


@dataclass(frozen=True)
class ScheduleDecision:
    """The next step for a schedule, and the sentence for its user.

    ``at`` is the next ready time, or None. ``begins`` is the expected time of the request. It is None if the workspace
    is requested already, or is not going to be.
    """

    do: ScheduleStep
    sentence: str
    at: float | None = None
    begins: float | None = None


def decide_schedule(
    schedule: Schedule, lead_seconds: float | None, now: float, zone: ZoneInfo, is_closed: IsClosed = _never
) -> ScheduleDecision:
    """Return the next step. ``lead_seconds`` is the present wait in the queue, or None if it is not known."""
    if schedule.paused:
        return ScheduleDecision(ScheduleStep.PAUSE, "Paused. Resume it to use it again.")
    if schedule.missed >= MOST_MISSED:
        return ScheduleDecision(
            ScheduleStep.PAUSE,
            f"Paused, because you missed it on {schedule.missed} days in a row. Resume it to use it again.",
        )
    at, left_out = next_ready_time(schedule, now, zone, is_closed)
    if at is None:
        why = "its days have no such time" if left_out is None else f"its next {MOST_LEFT_OUT} times are closed"
        return ScheduleDecision(ScheduleStep.WAIT, f"It never starts, because {why}.")
    begins = at - lead_seconds_of(lead_seconds, schedule.start_seconds)
    ready = show_time(at, now, zone)
    said = f" {schedule.said}" if schedule.said else ""
    if now >= begins:
        return ScheduleDecision(ScheduleStep.ASK, f"Your request joins the queue now, to be ready {ready}.{said}", at)
    skipped = f" It skips {show_time(left_out, now, zone)}, because that day is closed." if left_out is not None else ""
    unknown = ", because the wait is not known" if lead_seconds is None else " if the queue stays as it is"
    joins = f" Your request joins the queue about {show_time(begins, now, zone)}{unknown}."
    return ScheduleDecision(ScheduleStep.WAIT, f"Next ready {ready}.{skipped}{joins}{said}", at, begins)


def lead_seconds_of(wait_seconds: float | None, start_seconds: float = 0.0) -> float:
    """Return how long before its ready time a workspace is requested. ``start_seconds`` 0 means not known."""
    if wait_seconds is None:
        return MOST_LEAD_SECONDS
    starts = start_seconds or FIRST_START_SECONDS
    return min(max(LEAST_LEAD_SECONDS, starts) + wait_seconds, MOST_LEAD_SECONDS)


def after_start(schedule: Schedule, took_seconds: float) -> Schedule:
    """Return the schedule after a start. A longer start counts at once, a quicker one step by step."""
    before = schedule.start_seconds or FIRST_START_SECONDS
    return replace(schedule, start_seconds=max(took_seconds, QUICKER_SHARE * before))


def next_ready_time(
    schedule: Schedule, now: float, zone: ZoneInfo, is_closed: IsClosed = _never
) -> tuple[float | None, float | None]:
    """Return the next ready time for which no workspace was requested, or None.

    The second result is the first closed time before that, or None.
    """
    window = Window(frozenset(schedule.days), schedule.minute, (schedule.minute + LATE_MINUTES) % DAY_MINUTES)
    # A time further ahead was stored while the clock was wrong.
    latest = now + MOST_LEAD_SECONDS + LEAST_LEAD_SECONDS
    done = max((at for at in (schedule.made_at, schedule.asked_for) if at <= latest), default=0.0)
    found = find_opening(window, now, zone)
    while found is not None and found.opens_at <= done:
        found = find_opening(window, found.ends_at, zone)
    left_out: float | None = None
    for _ in range(MOST_LEFT_OUT):
        if found is None or not is_closed(found.opens_at):
            return None if found is None else found.opens_at, left_out
        left_out = found.opens_at if left_out is None else left_out
        found = find_opening(window, found.ends_at, zone)
    return None, left_out


def lease_id_of_schedule(schedule: str, at: float) -> str:
    """Return the lease id of a scheduled workspace. A repeated request has the same id."""
    return hashlib.sha256(f"{schedule} {at:.0f}".encode()).hexdigest()[:32]


def after_outcome(schedule: Schedule, *, came: bool | None) -> Schedule:
    """Return the schedule after its workspace. ``came`` is None if it is not known whether the user came."""
    missed = schedule.missed if came is None else 0 if came else schedule.missed + 1
    return replace(schedule, lease="", missed=missed)


def parse_time_of_day(value: object) -> int:
    """Read a time of day, for example ``8:00``, and return its minute of the day. Raises BadValue."""
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise BadValue(f"{quoted(value)} is not a time of day", "write one like 8:00 or 17:30")
    return int(found[1]) * 60 + int(found[2])


def parse_weekdays(value: object) -> tuple[int, ...]:
    """Read days of the week: ``weekdays``, ``weekend``, ``daily``, or a list like ``mon, wed``. Raises BadValue."""
    days: set[str] = set()
    for word in re.split(r"[\s,]+", value.strip().lower()) if isinstance(value, str) else [""]:
        named = DAY_GROUPS.get(word) or [day for day in WEEKDAYS if word in {day, day[:3]}]
        if not named:
            raise BadValue(f"{quoted(value)} are not days", "write weekdays, weekend, daily, or days like mon, wed")
        days.update(named)
    return tuple(number for number, day in enumerate(WEEKDAYS) if day in days)
