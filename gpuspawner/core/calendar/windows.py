"""Windows of the week or of some dates: how they are written, and when they are open in a time zone.

A window is written in local time. It opens at the first moment at which the clocks show its beginning. It closes at the
first moment after that at which they show its end. If a change of the clocks skips such a time, the moment of the
change counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from typing import Annotated, NamedTuple
from zoneinfo import ZoneInfo

from gpuspawner.core.errors import quoted
from gpuspawner.core.fields import Reader
from gpuspawner.core.number_fields import read_days
from gpuspawner.core.units import BadValue

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_MINUTES = 24 * 60
HOUR_MINUTES = 60
LONGEST_WINDOW = 100
"""Characters of a written window. Arbitrary: no window is longer."""
LOOKED_AHEAD_DAYS = 15
"""Within these every window opens that ever does, also where a change of the clocks skips one of its openings."""


_WINDOW = re.compile(r"([A-Za-z, -]+?) +([0-9]{1,2}):([0-9]{2}) ?- ?([0-9]{1,2}):([0-9]{2})")
_DATES = re.compile(r" *[0-9]{4}-")


@dataclass(frozen=True)
class Window:
    """A part of each week, or of some dates.

    It opens on ``days`` (0 is Monday) at ``start_minute`` and closes at ``end_minute``, on the next day if that is not
    later. If there are ``dates``, it opens on those dates only.
    """

    days: frozenset[int]
    start_minute: int
    end_minute: int
    dates: frozenset[date] = frozenset()


def read_weekly_window(value: object) -> Window:
    """Read a part of each week, such as ``Mon-Fri 20:00-07:00``.

    Raises:
        BadValue: anything else.
    """
    found = _WINDOW.fullmatch(value.strip(" ")) if isinstance(value, str) and len(value) <= LONGEST_WINDOW else None
    if found is None:
        right = "write days and times, for example Mon-Fri 20:00-07:00 or Sat,Sun 00:00-24:00"
        raise BadValue(f"{quoted(value)} is not a part of a week", right)
    start, end = (_read_minute(found[hour], found[hour + 1], value) for hour in (2, 4))
    if start == DAY_MINUTES:
        raise BadValue(f"{quoted(value)} begins at 24:00", "let it begin at 00:00 of the next day")
    return Window(_read_weekdays(found[1], value), start, end % DAY_MINUTES)


def read_window(value: object) -> Window:
    """Read a part of each week, or whole days such as ``2026-12-24, 2026-12-25``.

    Raises:
        BadValue: anything else.
    """
    if isinstance(value, date):  # from a dict that YAML made
        value = value.isoformat()
    if not isinstance(value, str) or not _DATES.match(value):
        return read_weekly_window(value)
    return Window(frozenset(), 0, 0, read_days([day.strip(" ") for day in value.split(",")]))


def _read_minute(hour: str, minute: str, value: object) -> int:
    found = HOUR_MINUTES * int(hour) + int(minute)
    if int(minute) >= HOUR_MINUTES or found > DAY_MINUTES:
        raise BadValue(f"{hour}:{minute} in {quoted(value)} is not a time of day", "write it from 00:00 to 24:00")
    return found


def _read_weekdays(text: str, value: object) -> frozenset[int]:
    days: set[int] = set()
    for part in text.split(","):
        first, dash, last = (name.strip(" ").capitalize() for name in part.partition("-"))
        ends = [first, last] if dash else [first]
        if wrong := [name for name in ends if name not in DAYS]:
            raise BadValue(f"{quoted(wrong[0])} in {quoted(value)} is not a day", f"write days as {', '.join(DAYS)}")
        begin, end = DAYS.index(ends[0]), DAYS.index(ends[-1])
        days |= {(begin + i) % 7 for i in range((end - begin) % 7 + 1)}
    return frozenset(days)


WeeklyWindow = Annotated[Window, Reader(read_weekly_window, "a part of each week like Mon-Fri 20:00-07:00")]
AnyWindow = Annotated[Window, Reader(read_window, "a part of each week, or days like 2026-12-24, 2026-12-25")]


class Opening(NamedTuple):
    """One opening of a window, in seconds since the epoch. ``ends_at`` is infinite where it never closes."""

    opens_at: float
    ends_at: float

    def covers(self, at: float) -> bool:
        """Whether it is open at a time: at its beginning, and not at its end any more."""
        return self.opens_at <= at < self.ends_at


def opening(window: Window, now: float, zone: ZoneInfo) -> Opening | None:
    """Return the opening that goes on at ``now``, else the next one; None where there is none any more.

    Openings of two days that touch are one.
    """
    found: Opening | None = None
    for one in _openings(window, now, zone):
        if found is not None and one.opens_at > found.ends_at:
            return found
        if one.ends_at > now:
            found = one if found is None else Opening(found.opens_at, one.ends_at)
    return found if found is None or window.dates else Opening(found.opens_at, math.inf)


def is_open(window: Window, now: float, zone: ZoneInfo) -> bool:
    """Whether a window is open."""
    found = opening(window, now, zone)
    return found is not None and found.covers(now)


def _openings(window: Window, now: float, zone: ZoneInfo) -> Iterator[Opening]:
    """Yield the openings of each day around a time, the earliest first, without those that the clocks skip whole."""
    first = datetime.fromtimestamp(now, zone).date() - timedelta(days=2)
    each = (first + timedelta(days) for days in range(LOOKED_AHEAD_DAYS + 2))
    weekly = (day for day in each if day.weekday() in window.days)
    for day in sorted(day for day in window.dates if day >= first) or weekly:
        ends_on = day + timedelta(days=window.end_minute <= window.start_minute)
        found = Opening(_moment(day, window.start_minute, zone), _moment(ends_on, window.end_minute, zone))
        if found.opens_at < found.ends_at:
            yield found


def _moment(day: date, minute: int, zone: ZoneInfo) -> float:
    """Return the first moment at which the clocks show a minute of a day, or skip it."""
    midnight = datetime.combine(day + timedelta(days=minute // DAY_MINUTES), time(), zone)
    shown = midnight + timedelta(minutes=minute % DAY_MINUTES)  # local arithmetic: it knows no change of the clocks
    at = shown.timestamp()
    if datetime.fromtimestamp(at, zone).replace(tzinfo=None) == shown.replace(tzinfo=None):
        return at
    return _skip(shown.replace(fold=1).timestamp(), at, zone)


def _skip(before: float, after: float, zone: ZoneInfo) -> float:
    """Return the moment between two at which the clocks go forward, to the second."""
    old = _offset(before, zone)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (middle, after) if _offset(middle, zone) == old else (before, middle)
    return after


def _offset(at: float, zone: ZoneInfo) -> timedelta | None:
    return datetime.fromtimestamp(at, timezone.utc).astimezone(zone).utcoffset()
