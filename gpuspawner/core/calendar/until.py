"""Until when: moments as people write them, read in a time zone."""

from __future__ import annotations

from datetime import MAXYEAR, MINYEAR, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import Per, milliseconds, period_of
from gpuspawner.core.errors import quoted
from gpuspawner.core.units import MOST_SECONDS, BadValue, OutOfRange, parse_duration

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
RIGHT = "write a day (Friday, tomorrow, 2026-12-24), a time (2026-12-24 18:00), this week, this month, or 3d"

RIGHT_FROM = "write now, a day (Friday, tomorrow, 2026-12-24), a time (2026-12-24 18:00), or 3d"


def parse_until(value: object, now: float, zone: ZoneInfo) -> float:
    """Read until when something lasts; a day means its end, a weekday the next one, today included.

    Raises:
        BadValue: anything else, a moment that has passed, or one that is more than a year ahead.
    """
    if not isinstance(value, str):
        raise BadValue(f"{quoted(value)} is no time", RIGHT)
    text = " ".join(value.lower().split())
    until = _end(text, now, zone)
    if until is None:
        try:
            until = now + parse_duration(text)
        except BadValue as error:
            raise BadValue(f"{quoted(value)} is no time", RIGHT) from error
    if not now < until <= now + MOST_SECONDS:
        raise OutOfRange(
            f"{quoted(value)} has passed" if until <= now else f"{quoted(value)} is over a year away", RIGHT
        )
    return until


def parse_from(value: object, now: float, zone: ZoneInfo) -> float:
    """Read from when on something holds; a day means its beginning, a weekday the next one, today included.

    Raises:
        BadValue: anything else, a moment that has passed, or one that is more than a year ahead.
    """
    text = " ".join(value.lower().split()) if isinstance(value, str) else ""
    if text == "now":
        return now
    day = _day(text, now, zone)
    if day is None:
        if text in {f"this {per.value}" for per in Per}:
            raise BadValue(f"{quoted(value)} is no time to begin", RIGHT_FROM)
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
    """Return the day that a text names; None where it names none."""
    today = datetime.fromtimestamp(now, zone).date()
    weekday = next((number for number, day in enumerate(DAYS) if text in {day, day[:3]}), None)
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
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=zone).timestamp()
    return period_of(milliseconds(noon), Per.DAY, zone).end


def parse_day(value: object, now: float, zone: ZoneInfo) -> str:
    """Read a day: ``2026-12-24``, ``today``; returned as ISO 8601 has it.

    Raises:
        BadValue: anything else, or the first or last year that there is.
    """
    if value == "today":
        return datetime.fromtimestamp(now, zone).date().isoformat()
    right = "write one like 2026-12-24, or today"
    try:
        day = date.fromisoformat(str(value))
    except ValueError as error:
        raise BadValue(f"{quoted(value)} is no day", right) from error
    if day.year in {MINYEAR, MAXYEAR}:  # a day has one before and one after it
        raise OutOfRange(f"{quoted(value)} is too far away", right)
    return day.isoformat()


def day_begins(day: str, zone: ZoneInfo) -> float:
    """Return when a day as :func:`parse_day` returns it begins."""
    return datetime.combine(date.fromisoformat(day), time(), zone).timestamp()


def day_ends(day: str, zone: ZoneInfo) -> float:
    """Return when it ends."""
    return _end_of(date.fromisoformat(day), zone)
