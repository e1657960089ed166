"""Turns readings into the shapes of a chart. Pure: what is drawn is decided here, how it looks in the template.

Every length along the time axis is a percentage of its width, so that one drawing fits each screen and its text is
never scaled. Nothing is drawn between readings: time that no reading covers is unknown, and shown as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from gpuspawner.service.store import ReadingRow

PLOT_HEIGHT = 120
"""Pixels of the plot: 100 % is at its top."""
LETTER_PERCENT = 5.0
"""The width that a mark's letter needs, in percent of the time axis: on a phone that is about 300 pixels wide."""
STEPS_SECONDS = (1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600)
"""Steps in which people count time."""
MOST_STEPS = 4
"""As many times as a phone has room for."""
SLACK_SECONDS = 0.5
"""Readings come a little late: a crack this narrow between two is none. Arbitrary: under any sampling period."""


@dataclass(frozen=True)
class Bar:
    """A reading's time and height. ``left`` and ``width`` in percent of the time axis, ``y`` in pixels from the top."""

    left: float
    width: float
    y: float

    @property
    def right(self) -> float:
        """Where it ends, in percent of the time axis."""
        return round(self.left + self.width, 3)

    @property
    def height(self) -> float:
        """Down to the bottom, in pixels."""
        return PLOT_HEIGHT - self.y


@dataclass(frozen=True)
class Band:
    """A stretch of time without height."""

    left: float
    width: float


@dataclass(frozen=True)
class Mark:
    """Something that happened: ``letter`` stands in the chart, ``words`` in the key below it.

    ``row`` is how many letters its own stands above the lowest, so that none covers another.
    """

    at: float
    letter: str
    words: str
    left: float
    row: int = 0


def in_rows(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    """Return marks, oldest first, with a row for each: the lowest whose last letter is far enough away."""
    placed: list[Mark] = []
    for mark in marks:
        near = {one.row for one in placed if mark.left - one.left < LETTER_PERCENT}
        placed.append(replace(mark, row=next(row for row in count() if row not in near)))
    return tuple(placed)


@dataclass(frozen=True)
class Panel:
    """One GPU. ``known_seconds`` of the axis's time are covered by readings; ``highest_percent`` is None for none."""

    gpu: str
    used: tuple[Bar, ...]
    others: tuple[Bar, ...]
    """Not counted as this workspace's use: a neighbour's on a shared GPU, which is no part of ``highest_percent``, or a
    high reading that was judged idle all the same."""
    memory: tuple[Bar, ...]
    unknown: tuple[Band, ...]
    highest_percent: float | None
    known_seconds: float
    active: tuple[Band, ...] = ()
    """When softer evidence was seen: a kernel, a terminal, an SSH session, an editor."""


@dataclass(frozen=True)
class Axis:
    """The time shown, in seconds since the epoch. ``utc_offset_seconds`` is that of the clock that people read."""

    start: float
    end: float
    utc_offset_seconds: int = 0

    def left(self, at: float) -> float:
        """Return where a time lies, in percent; what is outside lies on the edge."""
        span = max(self.end - self.start, 1.0)
        return round(100 * min(max((at - self.start) / span, 0.0), 1.0), 3)

    def band(self, start: float, end: float) -> Band:
        """Return a stretch of time."""
        return Band(self.left(start), round(self.left(end) - self.left(start), 3))

    @property
    def step_seconds(self) -> int:
        """How far apart its ticks are: a round number of seconds, minutes or hours, four steps at most."""
        span = self.end - self.start
        return next((step for step in STEPS_SECONDS if span <= MOST_STEPS * step), STEPS_SECONDS[-1])

    def ticks(self) -> tuple[tuple[float, float], ...]:
        """Return round times and where they lie: none reads like another."""
        step = self.step_seconds
        first = -(-(self.start + self.utc_offset_seconds) // step) * step - self.utc_offset_seconds
        times = (first + step * i for i in range(int((self.end - first) // step) + 1))
        return tuple((at, self.left(at)) for at in times) or ((self.start, 0.0),)


def panels(rows: Sequence[ReadingRow], gpus: Iterable[str], axis: Axis, below_percent: float) -> tuple[Panel, ...]:
    """Return one panel a GPU, in the order given. ``rows`` are of one lease, oldest first."""
    each = dict.fromkeys(gpus)
    return tuple(_panel(gpu, [row for row in rows if row.gpu == gpu], axis, below_percent) for gpu in each)


def is_known(row: ReadingRow) -> bool:
    """Whether a reading says how busy its GPU was."""
    return row.kind != "unknown" and row.utilization_percent is not None


def beside(row: ReadingRow) -> str:
    """Return the softer evidence of a reading, as people read it: what was active, and what could not be read."""
    if row.soft is None:
        return "not known"
    active = [one["words"] for one in row.soft.values() if one["active"]]
    unknown = [f"{name} not known" for name, one in row.soft.items() if one["active"] is None]
    return ", ".join([*active, *unknown]) or "nothing in use"


def _panel(gpu: str, rows: Sequence[ReadingRow], axis: Axis, below_percent: float) -> Panel:
    used: list[Bar] = []
    others: list[Bar] = []
    memory, unknown, active = [], [], []
    highest: float | None = None
    known_seconds, covered_until = 0.0, axis.start
    for row in rows:
        # A reading never covers time that an earlier one has covered, nor any outside the axis.
        start, end = max(row.at - row.seconds, covered_until), min(row.at, axis.end)
        if end <= start:
            continue
        if start - covered_until <= SLACK_SECONDS:
            start = covered_until
        else:
            unknown.append((covered_until, start))
        covered_until = end
        band = axis.band(start, end)
        if row.soft and any(one["active"] for one in row.soft.values()):
            active.append((start, end))
        if not is_known(row) or row.utilization_percent is None:
            unknown.append((start, end))
        else:
            known_seconds += end - start
            bar = Bar(band.left, band.width, _y(row.utilization_percent))
            not_counted = row.kind == "idle" and row.utilization_percent >= below_percent
            (others if not_counted else used).append(bar)
            if not (not_counted and row.shared):
                highest = max(highest or 0.0, row.utilization_percent)
        if row.memory_used_bytes is not None and row.memory_total_bytes:
            memory.append(Bar(band.left, band.width, _y(100 * row.memory_used_bytes / row.memory_total_bytes)))
    if axis.end - covered_until > SLACK_SECONDS:
        unknown.append((covered_until, axis.end))
    hatched = tuple(axis.band(start, end) for start, end in _joined(unknown))
    in_use = tuple(axis.band(start, end) for start, end in _joined(active))
    return Panel(gpu, tuple(used), tuple(others), tuple(memory), hatched, highest, known_seconds, in_use)


def _joined(stretches: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in stretches:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _y(percent: float) -> float:
    return round(PLOT_HEIGHT * (1 - min(max(percent, 0.0), 100.0) / 100), 1)
