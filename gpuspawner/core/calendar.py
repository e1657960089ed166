"""Times of the calendar: weekly windows, periods, and moments as people write them.

A window is written in local time. It opens at the first moment at which the clocks show its beginning. It closes at the
first moment after that at which they show its end. If a change of the clocks skips a time, the moment of the change
counts.

A day begins at midnight. If the clock skips midnight, the day begins at the change. Periods leave no gap and do not
overlap, so parts of an interval add up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, date, datetime, time, timedelta, timezone
from enum import Enum
from functools import lru_cache
from typing import Annotated, NamedTuple
from zoneinfo import ZoneInfo

from gpuspawner.core.errors import quoted
from gpuspawner.core.fields import Reader, choice_reader
from gpuspawner.core.number_fields import read_days
from gpuspawner.core.units import MOST_SECONDS, BadValue, OutOfRange, parse_duration

# --- windows of the week or of some dates

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_MINUTES = 24 * 60
HOUR_MINUTES = 60
LONGEST_WINDOW = 100
"""The most characters of a written window. Arbitrary: no window is longer."""
LOOKED_AHEAD_DAYS = 15
"""Each window opens within these days, even if a change of the clocks skips one opening."""
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
    """Read a part of each week, for example ``Mon-Fri 20:00-07:00``.

    Raises:
        BadValue: the value is not a part of a week.
    """
    found = _WINDOW.fullmatch(value.strip(" ")) if isinstance(value, str) and len(value) <= LONGEST_WINDOW else None
    if found is None:
        right = "write days and times, for example Mon-Fri 20:00-07:00 or Sat,Sun 00:00-24:00"
        raise BadValue(f"{quoted(value)} is not a part of a week", right)
    start, end = (_read_minute(found[hour], found[hour + 1], value) for hour in (2, 4))
    if start == DAY_MINUTES:
        raise BadValue(f"{quoted(value)} begins at 24:00", "let it begin at 00:00 of the next day")
    return Window(_read_weekdays(found[1], value), start, end % DAY_MINUTES)


def write_weekly_window(window: Window) -> str:
    """Return a part of each week as :func:`read_weekly_window` reads it."""
    start, end = (f"{x // HOUR_MINUTES:02}:{x % HOUR_MINUTES:02}" for x in (window.start_minute, window.end_minute))
    return f"{','.join(DAYS[day] for day in sorted(window.days))} {start}-{end}"


def read_window(value: object) -> Window:
    """Read a part of each week, or whole days, for example ``2026-12-24, 2026-12-25``.

    Raises:
        BadValue: the value is neither.
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
    """One opening of a window, in seconds since the epoch. ``ends_at`` is infinite if it never closes."""

    opens_at: float
    ends_at: float

    def covers(self, at: float) -> bool:
        """Return whether the window is open at a time. It is open at ``opens_at`` and closed at ``ends_at``."""
        return self.opens_at <= at < self.ends_at


def find_opening(window: Window, now: float, zone: ZoneInfo) -> Opening | None:
    """Return the opening at ``now``, or else the next one. None: there are no more openings.

    Openings of two days that touch are one opening.
    """
    found: Opening | None = None
    for one in _openings(window, now, zone):
        if found is not None and one.opens_at > found.ends_at:
            return found
        if one.ends_at > now:
            found = one if found is None else Opening(found.opens_at, one.ends_at)
    return found if found is None or window.dates else Opening(found.opens_at, math.inf)


def opening_within(
    window: Window | None, since: float, until: float | None, now: float, zone: ZoneInfo
) -> Opening | None:
    """Return the present or else the next opening of a window between two moments, or None.

    Without a window, the whole time between them is one opening. Without ``until`` it never ends.
    """
    last = math.inf if until is None else until
    found = Opening(since, last) if window is None else find_opening(window, max(now, since), zone)
    if found is None or found.opens_at >= last or now >= last:
        return None
    return Opening(max(found.opens_at, since), min(found.ends_at, last))


def is_open(window: Window, now: float, zone: ZoneInfo) -> bool:
    """Return whether a window is open."""
    found = find_opening(window, now, zone)
    return found is not None and found.covers(now)


def _openings(window: Window, now: float, zone: ZoneInfo) -> Iterator[Opening]:
    first = datetime.fromtimestamp(now, zone).date() - timedelta(days=2)
    each = (first + timedelta(days) for days in range(LOOKED_AHEAD_DAYS + 2))
    weekly = (day for day in each if day.weekday() in window.days)
    for day in sorted(day for day in window.dates if day >= first) or weekly:
        ends_on = day + timedelta(days=window.end_minute <= window.start_minute)
        found = Opening(_moment(day, window.start_minute, zone), _moment(ends_on, window.end_minute, zone))
        if found.opens_at < found.ends_at:
            yield found


def _moment(day: date, minute: int, zone: ZoneInfo) -> float:
    midnight = datetime.combine(day + timedelta(days=minute // DAY_MINUTES), time(), zone)
    shown = midnight + timedelta(minutes=minute % DAY_MINUTES)  # local arithmetic: it knows no change of the clocks
    at = shown.timestamp()
    if datetime.fromtimestamp(at, zone).replace(tzinfo=None) == shown.replace(tzinfo=None):
        return at
    return _skip(shown.replace(fold=1).timestamp(), at, zone)


def _skip(before: float, after: float, zone: ZoneInfo) -> float:
    """Return the moment of a change of the clocks between two moments."""
    old = _offset(before, zone)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (middle, after) if _offset(middle, zone) == old else (before, middle)
    return after


def _offset(at: float, zone: ZoneInfo) -> timedelta | None:
    return datetime.fromtimestamp(at, timezone.utc).astimezone(zone).utcoffset()


# --- days, weeks and months


class Per(Enum):
    """The period of a budget, in the catalog's time zone. A week begins on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


PERIOD = choice_reader("not a period", "write day, week or month", {per.value: per for per in Per})
HOUR_MS = 3_600_000
ONE_DAY = timedelta(days=1)


def milliseconds(at: float) -> int:
    """Return seconds as whole milliseconds."""
    return round(at * 1000)


@dataclass(frozen=True)
class TimeSpan:
    """The time from ``start_ms`` to before ``end_ms``, in milliseconds since the epoch."""

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


def period_of(at_ms: int, per: Per, zone: ZoneInfo) -> TimeSpan:
    """Return the day, week or month of a moment."""
    day = datetime.fromtimestamp(at_ms // 1000, zone).date()
    # Where the clock goes back over midnight, the date of a moment may be that of the day before or after.
    for first in (_first_day(day - ONE_DAY, per), _first_day(day, per), _first_day(day + ONE_DAY, per)):
        span = TimeSpan(day_start_ms(first, zone), day_start_ms(_next_first_day(first, per), zone))
        if span.start_ms <= at_ms < span.end_ms:
            return span
    raise AssertionError(f"no {per.value} of {zone.key} holds {at_ms}")


def date_of(at_ms: int, zone: ZoneInfo) -> str:
    """Return the date of a moment in ISO 8601."""
    begins = period_of(at_ms, Per.DAY, zone)
    middle = (begins.start_ms + begins.end_ms) // 2000  # the first moments may show the date before
    return datetime.fromtimestamp(middle, zone).date().isoformat()


def show_moment(at: float, now: float, zone: ZoneInfo) -> str:
    """Return the beginning of a period for display: ``Mon 30 Nov 00:00``, without the day if it is today."""
    there, here = (datetime.fromtimestamp(moment, zone) for moment in (at, now))
    return there.strftime("%H:%M" if there.date() == here.date() else "%a %d %b %H:%M")


def split_by_period(start_ms: int, end_ms: int, per: Per, zone: ZoneInfo) -> Iterator[tuple[TimeSpan, TimeSpan]]:
    """Yield the parts of an interval in order, each with the period that contains it."""
    while start_ms < end_ms:
        period = period_of(start_ms, per, zone)
        part = TimeSpan(start_ms, min(end_ms, period.end_ms))
        yield part, period
        start_ms = part.end_ms


def _first_day(day: date, per: Per) -> date:
    if per is Per.DAY:
        return day
    return day - timedelta(days=day.weekday()) if per is Per.WEEK else day.replace(day=1)


def _next_first_day(first: date, per: Per) -> date:
    if per is Per.MONTH:
        return (first + timedelta(days=31)).replace(day=1)
    return first + timedelta(days=7 if per is Per.WEEK else 1)


@lru_cache(maxsize=4096)
def day_start_ms(day: date, zone: ZoneInfo) -> int:
    """Return the first moment of a day, in milliseconds since the epoch."""
    midnight = datetime.combine(day, time(), zone)
    late, early = (int(midnight.replace(fold=fold).timestamp()) for fold in (0, 1))
    if early >= late:  # the clock shows it, once or twice: fold 0 is the first time
        return late * 1000
    # The clock goes forward over it: the day begins then, between what midnight is by the time before and after.
    return int(_skip(early, late, zone)) * 1000


# --- moments as people write them


WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
UNTIL_HELP = "write a day (Friday, tomorrow, 2026-12-24), a time (2026-12-24 18:00), this week, this month, or 3d"
FROM_HELP = "write now, a day (Friday, tomorrow, 2026-12-24), a time (2026-12-24 18:00), or 3d"


def parse_until(value: object, now: float, zone: ZoneInfo) -> float:
    """Read an end. A day means its end. A weekday means the next one, or today.

    Raises:
        BadValue: the value is not an end, has passed, or is more than a year away.
    """
    if not isinstance(value, str):
        raise BadValue(f"{quoted(value)} is not a time", UNTIL_HELP)
    text = " ".join(value.lower().split())
    until = _end(text, now, zone)
    if until is None:
        try:
            until = now + parse_duration(text)
        except BadValue as error:
            raise BadValue(f"{quoted(value)} is not a time", UNTIL_HELP) from error
    if not now < until <= now + MOST_SECONDS:
        raise OutOfRange(
            f"{quoted(value)} has passed" if until <= now else f"{quoted(value)} is over a year away", UNTIL_HELP
        )
    return until


def parse_from(value: object, now: float, zone: ZoneInfo) -> float:
    """Read a beginning. A day means its beginning. A weekday means the next one, or today.

    Raises:
        BadValue: the value is not a beginning, has passed, or is more than a year away.
    """
    text = " ".join(value.lower().split()) if isinstance(value, str) else ""
    if text == "now":
        return now
    day = _day(text, now, zone)
    if day is None:
        if text in {f"this {per.value}" for per in Per}:
            raise BadValue(f"{quoted(value)} cannot be a beginning", FROM_HELP)
        return parse_until(value, now, zone)
    parse_until(value, now, zone)  # one that is over, or too far ahead, is refused
    return max(now, datetime.combine(day, time(), zone).timestamp())


def _end(text: str, now: float, zone: ZoneInfo) -> float | None:
    if text in {f"this {per.value}" for per in Per}:
        return period_of(milliseconds(now), next(per for per in Per if text.endswith(per.value)), zone).end
    day = _day(text, now, zone)
    if day is not None:
        return _end_of(day, zone)
    try:
        moment = datetime.fromisoformat(text.upper())
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):
        return None


def _day(text: str, now: float, zone: ZoneInfo) -> date | None:
    today = datetime.fromtimestamp(now, zone).date()
    weekday = next((number for number, day in enumerate(WEEKDAYS) if text in {day, day[:3]}), None)
    if weekday is not None:
        return today + timedelta(days=(weekday - today.weekday()) % 7)
    if text in {"today", "tomorrow"}:
        return today + timedelta(days=text == "tomorrow")
    try:
        day = date.fromisoformat(text) if len(text) == len("2026-12-24") else None
    except ValueError:
        return None
    return day if day is None or MINYEAR < day.year < MAXYEAR else None


def _end_of(day: date, zone: ZoneInfo) -> float:
    return day_start_ms(day + ONE_DAY, zone) / 1000


def parse_day(value: object, now: float, zone: ZoneInfo) -> str:
    """Read a day, ``2026-12-24`` or ``today``, and return it in ISO 8601.

    Raises:
        BadValue: the value is not a day, or is in the first or last year of the calendar.
    """
    if value == "today":
        return datetime.fromtimestamp(now, zone).date().isoformat()
    right = "write one like 2026-12-24, or today"
    try:
        day = date.fromisoformat(str(value))
    except ValueError as error:
        raise BadValue(f"{quoted(value)} is not a day", right) from error
    if day.year in {MINYEAR, MAXYEAR}:  # a day has one before and one after it
        raise OutOfRange(f"{quoted(value)} is too far away", right)
    return day.isoformat()


def shift_day(day: str, days: int) -> str:
    """Return the day some days later, or earlier, in ISO 8601."""
    return (date.fromisoformat(day) + timedelta(days=days)).isoformat()


def day_start(day: str, zone: ZoneInfo) -> float:
    """Return when a day in ISO 8601 begins."""
    return datetime.combine(date.fromisoformat(day), time(), zone).timestamp()


def day_end(day: str, zone: ZoneInfo) -> float:
    """Return when a day in ISO 8601 ends."""
    return _end_of(date.fromisoformat(day), zone)
