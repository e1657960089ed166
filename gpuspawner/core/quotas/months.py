"""Months of the ledger: how they are written, and when they close.

A month closes at the beginning of the third day of the next month. Until then, corrections may still count in it.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import TimeSpan, day_start_ms
from gpuspawner.core.errors import quoted
from gpuspawner.core.units import BadValue

CLOSING_DAY = 3
"""The day of the next month on which a month closes. Arbitrary: leads have two days to read and to object."""
_MONTH = re.compile(r"(20[0-9]{2})-(0[1-9]|1[0-2])")


def is_month(value: object) -> bool:
    """Return whether a value is a month as it is written."""
    return isinstance(value, str) and _MONTH.fullmatch(value) is not None


def read_month(value: object) -> str:
    """Read a month. Raises BadValue if it is not one."""
    if isinstance(value, str) and is_month(value):
        return value
    raise BadValue(f"{quoted(value)} is not a month", "write it like 2026-10")


def month_of(day: str) -> str:
    """Return the month of a day in ISO 8601."""
    return day[:7]


def first_day(month: str) -> date:
    """Return the first day of a month."""
    return date.fromisoformat(f"{month}-01")


def last_day(month: str) -> date:
    """Return the last day of a month."""
    return first_day(next_month(month)) - timedelta(days=1)


def next_month(month: str) -> str:
    """Return the month after another."""
    return (first_day(month) + timedelta(days=31)).isoformat()[:7]


def previous_month(month: str) -> str:
    """Return the month before another."""
    return (first_day(month) - timedelta(days=1)).isoformat()[:7]


def month_span(month: str, zone: ZoneInfo) -> TimeSpan:
    """Return the time from the beginning of a month to that of the next one."""
    return TimeSpan(day_start_ms(first_day(month), zone), day_start_ms(first_day(next_month(month)), zone))


def closes_at(month: str, zone: ZoneInfo) -> float:
    """Return when a month closes, in seconds since the epoch."""
    return day_start_ms(first_day(next_month(month)).replace(day=CLOSING_DAY), zone) / 1000


def month_words(month: str) -> str:
    """Return a month for display: ``October 2026``."""
    return f"{first_day(month):%B %Y}"


def round_to_sum(numbers: list[float], digits: int) -> list[float]:
    """Return rounded numbers that add up to the rounded sum, each by less than one last digit off."""
    unit = 10.0**-digits
    whole = [number // unit for number in numbers]
    missing = round(round(sum(numbers), digits) / unit - sum(whole))
    by_rest = sorted(range(len(numbers)), key=lambda one: whole[one] - numbers[one] / unit)
    raised = {*by_rest[:missing]}
    return [round((part + (number in raised)) * unit, digits) for number, part in enumerate(whole)]
