"""Days, weeks and months in a time zone, and intervals split at their ends, to the millisecond.

A day begins at its first moment: at midnight or, where the clock goes forward over midnight, when it has. Periods leave
no gap and do not overlap, so that what is split adds up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from functools import lru_cache
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import Per

HOUR_MS = 3_600_000
ONE_DAY = timedelta(days=1)


def milliseconds(at: float) -> int:
    """Return seconds as whole milliseconds, in which use is counted."""
    return round(at * 1000)


@dataclass(frozen=True)
class Span:
    """From one moment up to, and without, another: both in milliseconds since the epoch."""

    start_ms: int
    end_ms: int

    @property
    def start(self) -> float:
        """The first moment, in seconds since the epoch."""
        return self.start_ms / 1000

    @property
    def end(self) -> float:
        """The first moment after it, in seconds since the epoch."""
        return self.end_ms / 1000

    def overlap(self, start_ms: int, end_ms: int) -> int:
        """Return how many milliseconds of it lie between two moments."""
        return max(0, min(self.end_ms, end_ms) - max(self.start_ms, start_ms))


def period_of(at_ms: int, per: Per, zone: ZoneInfo) -> Span:
    """Return the day, week or month that a moment lies in."""
    day = datetime.fromtimestamp(at_ms // 1000, zone).date()
    # Where the clock goes back over midnight, the date of a moment may be that of the day before or after.
    for first in (_first(day - ONE_DAY, per), _first(day, per), _first(day + ONE_DAY, per)):
        span = Span(_begin_ms(first, zone), _begin_ms(_following(first, per), zone))
        if span.start_ms <= at_ms < span.end_ms:
            return span
    raise AssertionError(f"no {per.value} of {zone.key} holds {at_ms}")


def day_of(at_ms: int, zone: ZoneInfo) -> str:
    """Return the date of the day that a moment lies in, as ISO 8601 has it."""
    begins = period_of(at_ms, Per.DAY, zone)
    middle = (begins.start_ms + begins.end_ms) // 2000  # the first moments may show the date before
    return datetime.fromtimestamp(middle, zone).date().isoformat()


def show_moment(at: float, now: float, zone: ZoneInfo) -> str:
    """Write when a period ends, by its zone's clock: ``Mon 30 Nov 00:00``, without the day where it is today."""
    there, here = (datetime.fromtimestamp(moment, zone) for moment in (at, now))
    return there.strftime("%H:%M" if there.date() == here.date() else "%a %d %b %H:%M")


def split(start_ms: int, end_ms: int, per: Per, zone: ZoneInfo) -> Iterator[tuple[Span, Span]]:
    """Yield the parts of an interval that lie in one period each, in order, each with its period."""
    while start_ms < end_ms:
        period = period_of(start_ms, per, zone)
        part = Span(start_ms, min(end_ms, period.end_ms))
        yield part, period
        start_ms = part.end_ms


def _first(day: date, per: Per) -> date:
    if per is Per.DAY:
        return day
    return day - timedelta(days=day.weekday()) if per is Per.WEEK else day.replace(day=1)


def _following(first: date, per: Per) -> date:
    if per is Per.MONTH:
        return (first + timedelta(days=31)).replace(day=1)
    return first + timedelta(days=7 if per is Per.WEEK else 1)


@lru_cache(maxsize=4096)
def _begin_ms(day: date, zone: ZoneInfo) -> int:
    """Return when a day begins: the first time that the clock shows its midnight, or what comes in its place."""
    midnight = datetime.combine(day, time(), zone)
    late, early = (int(midnight.replace(fold=fold).timestamp()) for fold in (0, 1))
    if early >= late:  # the clock shows it, once or twice: fold 0 is the first time
        return late * 1000
    # The clock goes forward over it: the day begins then, between what midnight is by the time before and after.
    before = _offset(early, zone)
    while late - early > 1:
        middle = (early + late) // 2
        early, late = (middle, late) if _offset(middle, zone) == before else (early, middle)
    return late * 1000


def _offset(at: int, zone: ZoneInfo) -> timedelta | None:
    return datetime.fromtimestamp(at, timezone.utc).astimezone(zone).utcoffset()
