"""When a window of the week, or of some dates, is open in a time zone, right across the changes of its clocks.

A window is written in local time: it opens at the first moment at which the clocks there show its beginning, and ends
at the first after that at which they show its end. A time that they skip is the moment at which they skip it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, timezone
from typing import NamedTuple
from zoneinfo import ZoneInfo

from gpuspawner.core.rules import Window

DAY_MINUTES = 24 * 60
LOOKED_AHEAD_DAYS = 15
"""Within these every window opens that ever does, also where a change of the clocks skips one of its openings."""


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
