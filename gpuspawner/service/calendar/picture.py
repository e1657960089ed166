"""The picture of the calendar: rows with a lane for each GPU, and spans of time in them. Views are pure.

Where a reservation is for any node, its lanes are for the picture only: at its time it gets the GPUs that are free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil
from typing import NamedTuple

from gpuspawner.core.calendar import Opening

MOST_LANES = 8
"""The most lanes of a row by kind. A kind with more GPUs is drawn in proportion."""
LETTER_PERCENT = 0.6
"""The width of a letter of a label on a wide screen."""
LABEL_PERCENT = 3.0
"""The least width of a label inside a span."""


class TimeAxis(NamedTuple):
    """The time that the picture shows, in seconds since the epoch."""

    start: float
    end: float
    now: float

    def percent(self, at: float) -> float:
        """Return the position of a time, from 0 to 100."""
        return round(100 * (min(max(at, self.start), self.end) - self.start) / (self.end - self.start), 2)

    def shows(self, opening: Opening) -> bool:
        """Return whether a time is at least partly in the picture."""
        return opening.opens_at < self.end and opening.ends_at > self.start


@dataclass(frozen=True)
class Span:
    """A time in a row. ``kind`` is its class in the style sheet, ``words`` says everything about it."""

    kind: str
    first: int
    lanes: int
    left: float
    width: float
    label: str
    words: str
    side: str = ""
    """Where a label that does not fit inside is: ``before`` or ``after``."""
    pad: float | None = None
    """Per cent of the span that the label leaves to the line of the present time."""

    def reach(self, room: float) -> tuple[float, float]:
        """Return from where to where a label beside it reaches that needs ``room`` per cent."""
        right = self.left + self.width
        return (self.left - room, self.left) if self.side == "before" else (right, right + room)


@dataclass(frozen=True)
class LaneRow:
    """A node, or a kind of GPU, with its spans in the order of their times."""

    title: str
    about: str
    lanes: int
    spans: tuple[Span, ...]


class Use(NamedTuple):
    """A time in which some lanes are used."""

    kind: str
    opening: Opening
    lanes: Sequence[int]
    label: str
    words: str


def spans_of(uses: Iterable[Use], axis: TimeAxis) -> tuple[Span, ...]:
    """Return a span for each run of adjacent lanes of each use that the picture shows."""
    shown = sorted((one for one in uses if one.lanes and axis.shows(one.opening)), key=lambda one: one.opening)
    found = [_span(use, run, axis) for use in shown for run in _runs(use.lanes)]
    return tuple(replace(one, label="") if one.side and _collides(one, found) else one for one in found)


def _collides(one: Span, others: Iterable[Span]) -> bool:
    """Return whether a label beside its span would lie over another span or its label."""
    room = LETTER_PERCENT * len(one.label)
    left, right = one.reach(room)
    return any(
        other is not one
        and other.first < one.first + one.lanes
        and one.first < other.first + other.lanes
        and other.left < right
        and left < other.left + other.width
        for other in others
    )


def _runs(lanes: Sequence[int]) -> list[list[int]]:
    numbered = enumerate(sorted(lanes))
    return [[lane for _, lane in run] for _, run in groupby(numbered, key=lambda one: one[1] - one[0])]


def _span(use: Use, lanes: Sequence[int], axis: TimeAxis) -> Span:
    left, right, now = (axis.percent(at) for at in (*use.opening, axis.now))
    side, pad, label = "", None, use.label
    if left <= now <= right:
        if now - left < LABEL_PERCENT and right - now >= LABEL_PERCENT:
            pad = round(100 * (now - left) / (right - left), 1)
        elif now - left < LABEL_PERCENT:
            label = ""
    elif right - left < 2 * LABEL_PERCENT:
        side = "after" if right < 80 else "before"  # noqa: PLR2004 - where a label still has room
    return Span(use.kind, lanes[0], len(lanes), left, round(right - left, 2), label, use.words, side, pad)


@dataclass(frozen=True)
class Lane:
    """A GPU of the picture."""

    row: str
    number: int
    kind: str


class LaneChoice:
    """Chooses lanes for reservations: those of one row that are not used at that time, before others."""

    def __init__(self, lanes: Iterable[Lane]) -> None:
        """Begin with lanes that nothing uses."""
        self._lanes = list(lanes)
        self._used: dict[Lane, list[Opening]] = defaultdict(list)

    def take_row(self, row: str, opening: Opening) -> list[Lane]:
        """Take all lanes of a row."""
        return self._take([lane for lane in self._lanes if lane.row == row], opening)

    def take(self, kind: str, count: int, row: str, opening: Opening) -> list[Lane]:
        """Take up to ``count`` free lanes of a kind. If ``row`` is not "", take them in this row only."""
        fits = [x for x in self._lanes if x.kind == kind and row in {"", x.row} and self._is_free(x, opening)]
        room: dict[str, int] = defaultdict(int)
        for lane in fits:
            room[lane.row] += 1
        fits.sort(key=lambda lane: (room[lane.row] < count, lane.row, lane.number))
        return self._take(fits[:count], opening)

    def _take(self, lanes: list[Lane], opening: Opening) -> list[Lane]:
        for lane in lanes:
            self._used[lane].append(opening)
        return lanes

    def _is_free(self, lane: Lane, opening: Opening) -> bool:
        return all(opening.ends_at <= x.opens_at or x.ends_at <= opening.opens_at for x in self._used[lane])


def scaled_lanes(total: int) -> int:
    """Return the number of lanes that are drawn for a number of GPUs."""
    return min(total, MOST_LANES)


def scaled_count(count: int, total: int) -> int:
    """Return the number of lanes that are drawn for some of ``total`` GPUs."""
    return min(scaled_lanes(total), ceil(count * scaled_lanes(total) / total)) if total else 0
