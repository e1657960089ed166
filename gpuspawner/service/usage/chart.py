"""A chart of stacked columns, one a day or week. Pure: what is drawn is decided here, how it looks in the template.

Lengths along the time axis are percentages of its width, heights are pixels, as in ``web.chart``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from gpuspawner.service.store.usage_sums import UsageAmounts

HEIGHT = 160
TICKS = 4
LABELS = 6
LAST_LABEL_PERCENT = 87.0
"""One that begins further to the right would be cut on a phone."""
GAP = 0.15
"""How much of a column's place is left free. Arbitrary."""


@dataclass(frozen=True)
class Piece:
    """A part of a column: ``name`` says of what, ``y`` and ``height`` in pixels from the top."""

    name: str
    y: float
    height: float


@dataclass(frozen=True)
class OneColumn:
    """A day or a week. ``left`` and ``width`` in percent; ``label`` is "" where another, or the edge, is too near."""

    day: str
    left: float
    width: float
    pieces: tuple[Piece, ...]
    label: str
    words: str


@dataclass(frozen=True)
class Columns:
    """The whole chart. ``ticks`` are values and where they lie, in pixels from the top."""

    columns: tuple[OneColumn, ...]
    ticks: tuple[tuple[str, float], ...]
    weekly: bool


def columns_of(series: Sequence[tuple[str, UsageAmounts]], *, weekly: bool) -> Columns:
    """Return the columns of a series: active, idle, not measured, from the bottom up."""
    tops = [one.allocated for _, one in series]
    top, step = _scale(max([*tops, 0.0]))
    place = 100 / max(1, len(series))
    every = max(1, math.ceil(len(series) / LABELS))
    columns = []
    for number, (day, one) in enumerate(series):
        left = number * place
        parts = (("work", one.active), ("idle", one.idle), ("unknown", one.not_measured))
        pieces, y = [], float(HEIGHT)
        for name, hours in parts:
            height = round(HEIGHT * hours / top, 2)
            if height > 0:
                y = round(y - height, 2)
                pieces.append(Piece(name, y, height))
        words = ", ".join(f"{hours:.1f} {said}" for hours, said in zip((h for _, h in parts), SAID, strict=True))
        label = _short(day) if number % every == 0 and left <= LAST_LABEL_PERCENT else ""
        width = round(place * (1 - GAP), 3)
        columns.append(OneColumn(day, round(left, 3), width, tuple(pieces), label, f"{day}: {words}"))
    ticks = tuple((f"{value:g}", round(HEIGHT * (1 - value / top), 1)) for value in _steps(top, step))
    return Columns(tuple(columns), ticks, weekly)


SAID = ("GPU h active", "idle", "not measured")


def _short(day: str) -> str:
    there = date.fromisoformat(day)
    return f"{there.day} {there:%b}"


def _scale(most: float) -> tuple[float, float]:
    """Return the highest value of the axis, and the step between two: 1, 2 or 5 times a power of ten."""
    if most <= 0:
        return 1.0, 1.0
    rough = most / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough)
    return step * math.ceil(most / step), step


def _steps(top: float, step: float) -> list[float]:
    return [round(number * step, 6) for number in range(round(top / step) + 1)]
