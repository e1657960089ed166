"""The zone of the times that a command shows: the service's, as its answers say, as in the sentences beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpuspawner.core import units

HEADER = "Gpuspawner-Timezone"
TIME = re.compile(r"\b[0-2][0-9]:[0-5][0-9]\b")


class _Shown:
    """What was answered and shown so far; one command runs in a process."""

    zone: ZoneInfo | None = None
    has_time = False


def note_zone(headers: Mapping[str, str]) -> None:
    """Show times in the zone that an answer names, from now on; a service that names none leaves it as it is."""
    try:
        _Shown.zone = ZoneInfo(headers.get(HEADER) or "")
    except (OSError, ValueError, ZoneInfoNotFoundError):  # none, or no name of one that is known here
        return


def note_time(text: str) -> None:
    """Remember that a text with a time was shown."""
    _Shown.has_time = _Shown.has_time or bool(TIME.search(text))


def show_time(at: float, now: float) -> str:
    """Write a time as the service's sentences do: ``18:30``, with the day where it is not today."""
    return units.show_time(at, now, _Shown.zone)


def show_iso(at: float) -> str:
    """Write a time for a program: ISO 8601, with its offset."""
    return units.show_iso(at, _Shown.zone)


def zone_words(now: float) -> str:
    """Return which zone the times were in that were shown, "" where there were none; and forget them."""
    zone, had = _Shown.zone, _Shown.has_time
    _Shown.zone, _Shown.has_time = None, False
    if zone is None or not had:
        return ""
    return f"Times are in {zone.key} ({datetime.fromtimestamp(now, zone):%H:%M} now)."
