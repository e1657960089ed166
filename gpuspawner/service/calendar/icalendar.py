"""Calendars in the format of RFC 5545.

Times are in UTC and each time of a weekly rule is an event of its own, so that a file needs no time zones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple

LINE_OCTETS = 75
"""The most octets of a line, without its break. A longer one is folded."""


class CalendarEvent(NamedTuple):
    """One event. Times are seconds since the epoch."""

    uid: str
    begins_at: float
    ends_at: float
    summary: str
    description: str = ""
    category: str = ""


def calendar_text(name: str, events: Iterable[CalendarEvent], now: float) -> str:
    """Return a calendar as a text."""
    return "".join(f"{line}\r\n" for text in _lines(name, events, now) for line in _folded(text))


def _lines(name: str, events: Iterable[CalendarEvent], now: float) -> Iterator[str]:
    yield "BEGIN:VCALENDAR"
    yield "VERSION:2.0"
    yield "PRODID:-//gpuspawner//Calendar//EN"
    yield "METHOD:PUBLISH"
    yield f"X-WR-CALNAME:{_escaped(name)}"
    yield "REFRESH-INTERVAL;VALUE=DURATION:PT1H"
    for one in events:
        yield "BEGIN:VEVENT"
        yield f"UID:{_escaped(one.uid)}"
        yield f"DTSTAMP:{_utc(now)}"
        yield f"DTSTART:{_utc(one.begins_at)}"
        yield f"DTEND:{_utc(one.ends_at)}"
        yield f"SUMMARY:{_escaped(one.summary)}"
        if one.description:
            yield f"DESCRIPTION:{_escaped(one.description)}"
        if one.category:
            yield f"CATEGORIES:{_escaped(one.category)}"
        yield "TRANSP:TRANSPARENT"
        yield "END:VEVENT"
    yield "END:VCALENDAR"


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y%m%dT%H%M%SZ")


def _escaped(text: str) -> str:
    for one, other in (("\\", "\\\\"), (";", "\\;"), (",", "\\,"), ("\r\n", "\\n"), ("\n", "\\n"), ("\r", "\\n")):
        text = text.replace(one, other)
    return "".join(letter for letter in text if letter.isprintable())


def _folded(text: str) -> Iterator[str]:
    """Yield the parts of a line. Each but the first begins with a space. No character is cut."""
    part = ""
    for letter in text:
        if len((part + letter).encode()) > LINE_OCTETS:
            yield part
            part = " "
        part += letter
    yield part
