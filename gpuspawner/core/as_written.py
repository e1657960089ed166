"""Sizes and times as people write them in a form: ``8 GB``, ``64gb``, ``90``, ``1h30``, ``3 days``, ``2 days 4 h``.

Each reader writes what it understands as :mod:`gpuspawner.core.units` reads it, which judges it, and leaves everything
else to that: a number of JSON, and what is no size or time. The form shows what was understood. Files of the
administrator are read strictly: nobody looks at how they were understood.
"""

from __future__ import annotations

import re

from gpuspawner.core.units import LONGEST, MEBIBYTE, parse_bytes, parse_cpu, parse_duration

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_SIZE = re.compile(rf"({_NUMBER}) *(?:([kmgt])i?b?)?", re.IGNORECASE)
_CORES = re.compile(rf"({_NUMBER}) *(?:cores?|cpus?|cpu cores?)", re.IGNORECASE)
_CLOCK = re.compile(r"([0-9]{1,3}):([0-5][0-9])")
_UNITS = {
    "d": ("d", "day", "days"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "s": ("s", "sec", "secs", "second", "seconds"),
}
_UNIT = {word: unit for unit, words in _UNITS.items() for word in words}
_PART = rf"({_NUMBER}) *({'|'.join(sorted(_UNIT, key=len, reverse=True))})"
_TIME = re.compile(rf"(?:{_PART}(?: +| *, *| +and +)?)+", re.IGNORECASE)
_HOURS_AND_MINUTES = re.compile(r"(.*[0-9] *h) *([0-5]?[0-9])", re.IGNORECASE)


def read_bytes(value: object) -> int:
    """Read a size: ``8`` and ``8 GB`` are 8 GiB, as ``8g`` is; ``512 MB`` is 512 MiB. Else as ``parse_bytes``.

    Memory is sold and measured in powers of two, whatever its unit is called. A text of digits alone counts in GiB, up
    to the most that is read; a greater one in bytes, as what was stored is written.

    Raises:
        BadValue: what neither means.
    """
    found = _SIZE.fullmatch(_text(value))
    if not found:
        return parse_bytes(value)
    number, unit = found[1], (found[2] or "g").upper()
    if found[2] is None and "." not in number and int(number) >= MEBIBYTE:
        return parse_bytes(value)
    return parse_bytes(f"{number}{unit}iB")


def read_duration(value: object) -> float:
    """Read a time in seconds: ``90`` is 90 minutes, ``1h30`` and ``1:30`` an hour and a half; ``3 days``, ``2 d 4 h``.

    Raises:
        BadValue: anything else, as ``parse_duration``.
    """
    text = _text(value)
    if re.fullmatch(_NUMBER, text):
        return parse_duration(f"{text}m")
    if found := _CLOCK.fullmatch(text):
        return parse_duration(f"{found[1]}h{found[2]}m")
    if found := _HOURS_AND_MINUTES.fullmatch(text):
        text = f"{found[1]} {found[2]}m"
    if not _TIME.fullmatch(text):
        return parse_duration(value)
    parts = re.findall(_PART, text, re.IGNORECASE)
    return parse_duration("".join(f"{number}{_UNIT[unit.lower()]}" for number, unit in parts))


def read_cpu(value: object) -> float:
    """Read a number of cores: ``8``, ``0.5``, ``8 cores``.

    Raises:
        BadValue: anything else, as ``parse_cpu``.
    """
    found = _CORES.fullmatch(_text(value))
    return parse_cpu(found[1] if found else value)


def _text(value: object) -> str:
    """Return a text to look at, "" for one that is left to the strict reader: what is no text, and a flood."""
    return value.strip(" ") if isinstance(value, str) and len(value) <= LONGEST else ""
