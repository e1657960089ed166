"""How single values of the rules are read: each parser raises ``BadValue`` with what would be right."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from fractions import Fraction
from zoneinfo import ZoneInfo, available_timezones

from gpuspawner.catalog.names import closest
from gpuspawner.core.errors import quoted
from gpuspawner.core.rules import Per, Window
from gpuspawner.core.units import BadValue

MOST_AMOUNT = 1_000_000
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_MINUTES = 24 * 60
YEARS = range(2000, 2200)
"""In which a date may be. Arbitrary: others are slips of the finger."""

_AMOUNT = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,3})?")
_PART = re.compile(r"([0-9]{1,4}) ?/ ?([1-9][0-9]{0,3})")
MOST_CLOSED = 366
"""Days in a list. Arbitrary: of a year, and more than holidays take."""
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATES = re.compile(r" *[0-9]{4}-")
_WHEN = re.compile(r"([A-Za-z, -]+?) +([0-9]{1,2}):([0-9]{2}) ?- ?([0-9]{1,2}):([0-9]{2})")
_WHEN_RIGHT = "write days and times, for example Mon-Fri 20:00-07:00 or Sat,Sun 00:00-24:00"
LONGEST_CURRENCY = 10
"""Arbitrary: ISO 4217 has three letters, and a unit of one's own, as *credits*, some more."""
_CURRENCY = re.compile(rf"[^\d\s<>&\"']{{1,{LONGEST_CURRENCY}}}")


def parse_currency(value: object) -> str:
    """Read in which currency prices are."""
    if not isinstance(value, str) or not value.isprintable() or not _CURRENCY.fullmatch(value):
        right = f"write it as it stands before an amount, at most {LONGEST_CURRENCY} characters, for example CHF"
        raise BadValue(f"{quoted(value)} is no currency", right)
    return value


def parse_timezone(value: object) -> str:
    """Read the name of a time zone that this machine knows."""
    right = "write a name of the time zone database, for example Europe/Zurich"
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or not value.strip():
        raise BadValue(f"{quoted(value)} is no time zone", right)
    try:
        ZoneInfo(value)
    except (ValueError, OSError, KeyError):
        close = closest(value, sorted(available_timezones()), most=1000)
        raise BadValue(f"{quoted(value)} is no time zone", f"did you mean `{close}`?" if close else right) from None
    return value


def amount_of(what: str, example: str) -> Callable[[object], Fraction]:
    """Return a reader of numbers from 0, with three decimals at most, kept exactly."""
    right = f"write {what}, for example {example}"

    def parse(value: object) -> Fraction:
        text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
        text = text.strip(" ") if isinstance(value, str) and isinstance(text, str) else text
        if not isinstance(text, str) or not _AMOUNT.fullmatch(text) or Fraction(text) > MOST_AMOUNT:
            raise BadValue(f"{quoted(value)} is not {what}", right)
        return Fraction(text)

    return parse


def parse_counts(value: object) -> Fraction:
    """Read how much a GPU counts: a number, or a part such as ``1/7``."""
    if isinstance(value, str) and (found := _PART.fullmatch(value)):
        return Fraction(int(found[1]), int(found[2]))
    return amount_of("how much one GPU counts", "2, 0.5 or 1/7")(value)


def parse_weight(value: object) -> Fraction:
    """Read a team's weight, above 0."""
    weight = amount_of("a weight", "2")(value)
    if weight <= 0:
        raise BadValue(f"{quoted(value)} would give its members nothing", "write a weight above 0; 1 is usual")
    return weight


def parse_each(value: object) -> str:
    """Read whose members a quota limits one by one."""
    if value == "group":
        right = "write group: with its name for all of it together, and each: user besides for each of its members"
        raise BadValue(f"{quoted(value)} is not whom a quota can be for", right)
    if value != "user":
        raise BadValue(f"{quoted(value)} is not whom a quota can be for", "write each: user")
    return "user"


def parse_everybody(value: object) -> bool:
    """Read that a quota is for everybody together."""
    if value is not True:
        raise BadValue(f"{quoted(value)} is not whom a quota can be for", "write everybody: true")
    return True


def parse_full(value: object) -> bool:
    """Read whether a request waits that others have left no room for."""
    if value not in ("wait", "refuse"):
        raise BadValue(f"{quoted(value)} is not what a full quota can do", "write wait or refuse")
    return value == "wait"


def parse_others_wait(value: object) -> bool:
    """Read whether who runs may extend while others wait for the same GPUs."""
    if value not in ("allow", "refuse"):
        raise BadValue(f"{quoted(value)} is not what others' waiting can do", "write allow or refuse")
    return value == "allow"


def parse_per(value: object) -> Per:
    """Read the period of a budget."""
    try:
        return Per(value)
    except ValueError:
        raise BadValue(f"{quoted(value)} is no period", "write day, week or month") from None


def parse_date(value: object) -> dt.date:
    """Read a day: ``2027-02-01``."""
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):  # of a dict that YAML made
        value = value.isoformat()
    right = "write year, month and day, for example 2027-02-01"
    try:
        if not isinstance(value, str) or not _DATE.fullmatch(value):
            raise ValueError  # noqa: TRY301 - one message for all that is no date
        day = dt.date.fromisoformat(value)
    except ValueError:
        raise BadValue(f"{quoted(value)} is no date", right) from None
    if day.year not in YEARS:
        raise BadValue(f"{quoted(value)} is not from {YEARS[0]} to {YEARS[-1]}", right)
    return day


def parse_closed(value: object) -> list[dt.date]:
    """Read days on which nothing is made ready, the earliest first."""
    if not isinstance(value, list) or len(value) > MOST_CLOSED:
        raise BadValue(
            f"{quoted(value)} is no list of at most {MOST_CLOSED} days", "write for example [2026-12-25, 2026-12-26]"
        )
    return sorted({parse_date(item) for item in value})


def parse_when(value: object) -> Window:
    """Read a part of each week: ``Mon-Fri 20:00-07:00``. An end at or before the start is on the next day."""
    found = _WHEN.fullmatch(value.strip(" ")) if isinstance(value, str) and len(value) <= 100 else None  # noqa: PLR2004
    if found is None:
        raise BadValue(f"{quoted(value)} is no part of a week", _WHEN_RIGHT)
    start, end = (_minute(found[hour], found[hour + 1], value) for hour in (2, 4))
    if start == DAY_MINUTES:
        raise BadValue(f"{quoted(value)} begins at 24:00", "let it begin at 00:00 of the next day")
    return Window(_days(found[1], value), start, end % DAY_MINUTES)


def parse_hours(value: object) -> Window:
    """Read a part of each week as :func:`parse_when` does, or whole days: ``2026-12-25``, several with commas."""
    if isinstance(value, dt.date):  # of a dict that YAML made
        value = value.isoformat()
    if not isinstance(value, str) or not _DATES.match(value):
        return parse_when(value)
    days = parse_closed([day.strip(" ") for day in value.split(",")])
    return Window(frozenset(), 0, 0, frozenset(days))


def _minute(hour: str, minute: str, value: object) -> int:
    found = 60 * int(hour) + int(minute)
    if int(minute) > 59 or found > DAY_MINUTES:  # noqa: PLR2004 - the minutes of an hour
        raise BadValue(f"{hour}:{minute} in {quoted(value)} is no time of a day", "write it from 00:00 to 24:00")
    return found


def _days(text: str, value: object) -> frozenset[int]:
    days: set[int] = set()
    for part in text.split(","):
        first, dash, last = (name.strip(" ").capitalize() for name in part.partition("-"))
        ends = [first, last] if dash else [first]
        if wrong := [name for name in ends if name not in DAYS]:
            raise BadValue(f"{quoted(wrong[0])} in {quoted(value)} is no day", f"write days as {', '.join(DAYS)}")
        begin, end = DAYS.index(ends[0]), DAYS.index(ends[-1])
        days |= {(begin + i) % 7 for i in range((end - begin) % 7 + 1)}
    return frozenset(days)
