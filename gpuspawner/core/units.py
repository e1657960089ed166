"""Readers and writers of sizes, times, percentages and counts.

Every reader accepts any value and raises only :class:`BadValue`. It takes ASCII digits only: no NaN, infinity,
exponent, sign or digits of another script. ``True`` is not a number.

A form is read more freely than a file, because it shows what was understood: ``8 GB``, ``64gb``, ``90``, ``1h30``, ``3
days``. The readers of forms pass what they do not know to the strict readers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, time, timezone
from fractions import Fraction
from typing import TypeVar
from zoneinfo import ZoneInfo

from gpuspawner.core.errors import quoted

T = TypeVar("T", int, float)

LONGEST = 40
"""The most characters of a value. Arbitrary: no sensible value is longer."""
MEBIBYTE = 2**20
GIBIBYTE = 2**30
MOST_BYTES = 2**50
"""1 PiB. Arbitrary: more than any machine's memory."""
MOST_SECONDS = 366 * 86400.0
"""A leap year. Arbitrary."""
MOST_CORES = 4096
"""Arbitrary: no machine has more cores."""
MOST_GPUS = 1024
"""Arbitrary: no user holds more GPUs."""
SECONDS_SHOWN_BELOW = 600.0
"""Times are shown to the second if they are less than ten minutes away. Arbitrary."""

_SIZES = {"KiB": 2**10, "MiB": MEBIBYTE, "GiB": GIBIBYTE, "TiB": 2**40}
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(KiB|MiB|GiB|TiB)")
_DURATION = re.compile(r"(?: ?[0-9]+(?:\.[0-9]+)? ?(?:min|[dhms]))+")
_DURATION_PART = re.compile(r"([0-9.]+) ?([dhms])")
_DECIMAL = re.compile(r"[0-9]+(?:\.[0-9]{1,3})?")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]{1,3})?) ?%?")
_WHOLE = re.compile(r"[0-9]+")


class BadValue(ValueError):
    """A value that cannot be read. ``wrong`` quotes it and says why. ``right`` says how to write it."""

    def __init__(self, wrong: str, right: str) -> None:
        self.wrong, self.right = wrong, right
        super().__init__(f"{wrong}; {right}")


class OutOfRange(BadValue):
    """A value that is written correctly, but is out of range."""


def parse_bytes(value: object) -> int:
    """Read a size: ``64GiB``, ``1.5 GiB``, ``512MiB``, or a whole number of bytes, from 1 MiB to 1 PiB.

    ``16G`` and ``16GB`` are refused: they mean 10^9 to some and 2^30 to others.

    Raises:
        BadValue: anything else.
    """
    right = "write a size with its unit, for example 64GiB or 512MiB"
    if isinstance(value, int) and not isinstance(value, bool):
        size = Fraction(value)
    else:
        text = _text(value, "a size", right)
        if found := _SIZE.fullmatch(text):
            size = Fraction(found[1]) * _SIZES[found[2]]
        elif _WHOLE.fullmatch(text):
            size = Fraction(text)
        else:
            raise BadValue(f"{quoted(value)} is not a size", right)
    if size < MEBIBYTE:
        unit_forgotten = not isinstance(value, str) or value.strip(" ").isdigit()
        raise (BadValue if unit_forgotten else OutOfRange)(f"{quoted(value)} is less than 1 MiB", right)
    if size > MOST_BYTES:
        raise _beyond(value, "is more than 1024 TiB", right)
    return int(size)


def parse_duration(value: object) -> float:
    """Read a time: ``90s``, ``30m``, ``1h30m``, ``1.5h``, ``2d``, ``1 h 30 min``; seconds, at most 366 days.

    A bare number is refused: it does not say whether it means seconds or minutes.

    Raises:
        BadValue: anything else.
    """
    right = "write a time with its unit, for example 90s, 30m, 8h, 1h30m or 2d"
    text = _text(value, "a time", right)
    if not _DURATION.fullmatch(text):
        raise BadValue(f"{quoted(value)} is not a time", right)
    parts = _DURATION_PART.findall(text)
    units = [unit for _, unit in parts]
    if units != [unit for unit in _SECONDS if unit in units]:
        raise BadValue(f"{quoted(value)} does not go from long to short, each unit once", right)
    seconds = float(sum(Fraction(number) * _SECONDS[unit] for number, unit in parts))
    if seconds > MOST_SECONDS:
        raise OutOfRange(f"{quoted(value)} is more than 366 days", right)
    return seconds


def parse_percent(value: object) -> float:
    """Read a percentage from 0 to 100: ``5%``, ``5``, ``2.5``.

    Raises:
        BadValue: anything else.
    """
    right = "write a percentage from 0% to 100%, for example 5%"
    text = _number_text(value, "a percentage", right)
    found = _PERCENT.fullmatch(text)
    if not found:
        raise BadValue(f"{quoted(value)} is not a percentage", right)
    percent = float(found[1])
    if percent > 100:  # noqa: PLR2004 - what a percentage is
        raise OutOfRange(f"{quoted(value)} is more than 100 %", right)
    return percent


def parse_cpu(value: object) -> float:
    """Read a number of cores above 0: ``8``, ``0.5``; three decimals at most.

    Raises:
        BadValue: anything else.
    """
    right = "write a number of cores, for example 4 or 0.5"
    text = _number_text(value, "a number of cores", right)
    if not _DECIMAL.fullmatch(text):
        raise BadValue(f"{quoted(value)} is not a number of cores", right)
    cores = float(text)
    if not 0 < cores <= MOST_CORES:
        raise _beyond(value, f"is not from 0.001 to {MOST_CORES} cores", right)
    return cores


def parse_count(value: object, least: int = 0, most: int = MOST_GPUS) -> int:
    """Read a whole number, of GPUs unless said otherwise: ``4``, ``"4"``.

    Raises:
        BadValue: anything else.
    """
    right = "write a whole number, for example 2"
    if isinstance(value, int) and not isinstance(value, bool):
        count = value
    else:
        text = _text(value, "a whole number", right)
        if not _WHOLE.fullmatch(text):
            raise BadValue(f"{quoted(value)} is not a whole number", right)
        count = int(text)
    if not least <= count <= most:
        raise _beyond(value, f"is not from {least} to {most}", right)
    return count


def parse_range(value: object, parse: Callable[[object], T]) -> tuple[T, T]:
    """Read ``1-4`` into its two ends, each by ``parse``; a single value is both ends of its range.

    Raises:
        BadValue: an end that ``parse`` refuses, or ends in the wrong order.
    """
    if not isinstance(value, str) or "-" not in value[: 2 * LONGEST]:
        only = parse(value)
        return only, only
    low_text, _, high_text = value.partition("-")
    if not low_text.strip(" ") or not high_text.strip(" "):
        raise BadValue(
            f"{quoted(value)} is not a range", "write it from low to high, for example 1-4, 8GiB-64GiB, 1h-8h"
        )
    low, high = parse(low_text.strip(" ")), parse(high_text.strip(" "))
    if low > high:
        raise BadValue(f"{quoted(value)} runs backwards", f"write {high_text.strip(' ')}-{low_text.strip(' ')}")
    return low, high


def show_bytes(size_bytes: float) -> str:
    """Write a size for people: ``64 GiB``, ``1.5 GiB``, ``512 MiB``, ``0 MiB``."""
    for unit in ("TiB", "GiB"):
        if size_bytes >= _SIZES[unit]:
            return f"{_short(size_bytes / _SIZES[unit], 1)} {unit}"
    return f"{_short(size_bytes / MEBIBYTE, 1)} MiB"


def show_duration(seconds: float) -> str:
    """Write a time for people, its two largest units: ``45 s``, ``1 h 30 min``, ``24 h``, ``3 d 2 h``.

    Seconds only under ten minutes; tenths of them under ten seconds.
    """
    if seconds < 10:  # noqa: PLR2004 - tenths still matter there
        return f"{_short(max(seconds, 0.0), 1)} s"
    rest = round(seconds) if seconds < SECONDS_SHOWN_BELOW else 60 * round(seconds / 60)
    parts: list[str] = []
    for unit, size, least in (("d", 86400, 172800), ("h", 3600, 3600), ("min", 60, 60), ("s", 1, 1)):
        if rest >= (size if parts else least):
            parts.append(f"{rest // size} {unit}")
            rest %= size
        elif parts:
            break
    return " ".join(parts[:2])


def show_wait(seconds: float) -> str:
    """Write in how long something starts, rounded to what can be known: ``25 s``, ``26 min``, ``2 h 50 min``."""
    step = 5 if seconds < 120 else 60 if seconds < 7200 else 600  # noqa: PLR2004 - seconds, minutes, tens of minutes
    return show_duration(max(step, round(seconds / step) * step))


def show_money(amount: float, currency: str = "") -> str:
    """Write an amount of money for people, with its currency where one is known: ``CHF 16.80``, ``16.80``."""
    return f"{currency} {amount:.2f}".lstrip()


def show_time(at: float, now: float, zone: ZoneInfo | None = None) -> str:
    """Write a time of day, such as ``18:30``. Add the day if it is not today, and the seconds if the time is near.

    The time zone is ``zone``, or that of this process (:mod:`gpuspawner.service.process_setup`).
    """
    there, here = (datetime.fromtimestamp(moment, zone) for moment in (at, now))
    text = there.strftime("%H:%M:%S" if abs(at - now) < SECONDS_SHOWN_BELOW else "%H:%M")
    return text if there.date() == here.date() else there.strftime("%a %d %b ") + text


def show_end(at: float, now: float, zone: ZoneInfo | None = None) -> str:
    """Write an end as people write it: the end of Sunday is ``Sun 29 Nov 24:00``, not Monday at 00:00.

    Other times and the time zone are as in :func:`show_time`.
    """
    if datetime.fromtimestamp(at, zone).time() != time():
        return show_time(at, now, zone)
    last, here = (datetime.fromtimestamp(moment, zone) for moment in (at - 1, now))
    return "24:00" if last.date() == here.date() else last.strftime("%a %d %b 24:00")


def show_iso(at: float, zone: ZoneInfo | None = None) -> str:
    """Write a time for programs, ISO 8601 with its offset, in this process's zone or another: see :func:`show_time`."""
    return datetime.fromtimestamp(at, zone or timezone.utc).astimezone(zone).isoformat(timespec="seconds")


def show_cpu(cores: float) -> str:
    """Write a number of cores: ``8``, ``0.5``."""
    return _short(cores, 3)


_ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}
_TENS, _TEEN = 10, 1


def show_count(number: int, noun: str = "workspace") -> str:
    """Return a number with its noun: ``1 workspace``, ``3 workspaces``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ordinal(number: int) -> str:
    """Return ``1st``, ``2nd``, ``11th``."""
    if number // _TENS % _TENS == _TEEN:
        return f"{number}th"
    return _ORDINALS.get(number % _TENS, "").replace(str(number % _TENS), str(number), 1) or f"{number}th"


def _short(number: float, decimals: int) -> str:
    return f"{number:.{decimals}f}".rstrip("0").rstrip(".")


def _beyond(value: object, wrong: str, right: str) -> BadValue:
    """Return the error of what is outside all that is read; a number that no text could say is wrong as that text is.

    One with a sign, one of more than LONGEST digits, and NaN.
    """
    said = not isinstance(value, (int, float)) or 0 <= value < 10**LONGEST
    return (OutOfRange if said else BadValue)(f"{quoted(value)} {wrong}", right)


def _text(value: object, what: str, right: str) -> str:
    if not isinstance(value, str):
        raise BadValue(f"{quoted(value)} is not {what}", right)
    if len(value) > LONGEST:
        raise BadValue(f"{quoted(value)} is {len(value)} characters long", right)
    return value.strip(" ")


def _number_text(value: object, what: str, right: str) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not 0 <= value < 10**9:  # NaN fails this too
            raise _beyond(value, f"is not {what}", right)
        return _short(value, 3) if round(value, 3) == value else str(value)
    return _text(value, what, right)


# --- sizes and times as people write them in a form


_FORM_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_FORM_SIZE = re.compile(rf"({_FORM_NUMBER}) *(?:([kmgt])i?b?)?", re.IGNORECASE)
_FORM_CORES = re.compile(rf"({_FORM_NUMBER}) *(?:cores?|cpus?|cpu cores?)", re.IGNORECASE)
_FORM_CLOCK = re.compile(r"([0-9]{1,3}):([0-5][0-9])")
_FORM_UNITS = {
    "d": ("d", "day", "days"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "s": ("s", "sec", "secs", "second", "seconds"),
}
_FORM_UNIT = {word: unit for unit, words in _FORM_UNITS.items() for word in words}
_FORM_PART = rf"({_FORM_NUMBER}) *({'|'.join(sorted(_FORM_UNIT, key=len, reverse=True))})"
_FORM_TIME = re.compile(rf"(?:{_FORM_PART}(?: +| *, *| +and +)?)+", re.IGNORECASE)
_FORM_HOURS_AND_MINUTES = re.compile(r"(.*[0-9] *h) *([0-5]?[0-9])", re.IGNORECASE)


def parse_form_bytes(value: object) -> int:
    """Return a size from a form in bytes: ``8`` and ``8 GB`` are 8 GiB, ``512 MB`` is 512 MiB.

    Memory is sold and measured in powers of two, whatever its unit is called. Digits alone count in GiB. A number that
    is too large for that is in bytes, as stored values are.

    Raises:
        BadValue: the value is not a size.
    """
    found = _FORM_SIZE.fullmatch(_form_text(value))
    if not found:
        return parse_bytes(value)
    number, unit = found[1], (found[2] or "g").upper()
    if found[2] is None and "." not in number and int(number) >= MEBIBYTE:
        return parse_bytes(value)
    return parse_bytes(f"{number}{unit}iB")


def parse_form_duration(value: object) -> float:
    """Return a time from a form in seconds: ``90`` is 90 minutes, ``1h30`` and ``1:30`` are 90 minutes too.

    Raises:
        BadValue: the value is not a time.
    """
    text = _form_text(value)
    if re.fullmatch(_FORM_NUMBER, text):
        return parse_duration(f"{text}m")
    if found := _FORM_CLOCK.fullmatch(text):
        return parse_duration(f"{found[1]}h{found[2]}m")
    if found := _FORM_HOURS_AND_MINUTES.fullmatch(text):
        text = f"{found[1]} {found[2]}m"
    if not _FORM_TIME.fullmatch(text):
        return parse_duration(value)
    parts = re.findall(_FORM_PART, text, re.IGNORECASE)
    return parse_duration("".join(f"{number}{_FORM_UNIT[unit.lower()]}" for number, unit in parts))


def parse_form_cpu(value: object) -> float:
    """Return a number of cores from a form: ``8``, ``0.5``, ``8 cores``.

    Raises:
        BadValue: the value is not a number of cores.
    """
    found = _FORM_CORES.fullmatch(_form_text(value))
    return parse_cpu(found[1] if found else value)


def _form_text(value: object) -> str:
    return value.strip(" ") if isinstance(value, str) and len(value) <= LONGEST else ""
