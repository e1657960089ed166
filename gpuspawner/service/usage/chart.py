"""A chart of stacked columns, one a day or week. Pure: heights are decided here, and drawn by the style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from gpuspawner.service.store.usage_sums import UsageAmounts

TICKS = 3
HEADROOM = 1.12
"""The axis is higher than its highest value by this factor, so that the uppermost tick does not touch the heading."""
LABELS = 7
MIN_CAPACITY_PERCENT = 15.0
"""The line of all GPUs is left out if the highest column would be lower than this. Arbitrary: bars must be readable."""


@dataclass(frozen=True)
class ColumnPart:
    """A part of a column. ``kind`` is its class in the style sheet, ``percent`` its height."""

    kind: str
    percent: float


@dataclass(frozen=True)
class ChartColumn:
    """A day or a week. ``label`` is "" if another one is too near. ``words`` says its numbers."""

    day: str
    parts: tuple[ColumnPart, ...]
    label: str
    words: str


@dataclass(frozen=True)
class Columns:
    """The whole chart.

    Args:
        columns: its columns.
        ticks: the values of the axis, and their heights in percent.
        capacity_percent: the height of the line of all GPUs, None without one.
        weekly: whether a column is a week.
        summary: the range of the columns in words.
    """

    columns: tuple[ChartColumn, ...]
    ticks: tuple[tuple[str, float], ...]
    capacity_percent: float | None
    weekly: bool
    summary: str


def columns_of(
    series: Sequence[tuple[str, UsageAmounts]], *, weekly: bool, capacity_hours: float | None = None
) -> Columns:
    """Return the columns of a series: active, idle and not measured, from the bottom up.

    ``capacity_hours`` are the GPU hours of all GPUs in one column's time.
    """
    totals = [one.allocated for _, one in series]
    highest = max([*totals, 0.0])
    shows_capacity = bool(capacity_hours) and 100 * highest >= MIN_CAPACITY_PERCENT * (capacity_hours or 0.0)
    top, step = _scale(max(highest, (capacity_hours or 0.0) if shows_capacity else 0.0))
    every = max(1, math.ceil(len(series) / LABELS))
    is_one_month = len({day[:7] for day, _ in series}) == 1
    columns = []
    for number, (day, one) in enumerate(series):
        amounts = (("hole", one.not_measured), ("idle", one.idle), ("gpu", one.active))
        parts = tuple(ColumnPart(kind, round(100 * hours / top, 2)) for kind, hours in amounts if hours > 0)
        words = f"{one.active:.1f} active, {one.idle:.1f} idle, {one.not_measured:.1f} not measured"
        label = "" if number % every else str(int(day[8:])) if number and is_one_month else _short(day)
        columns.append(ChartColumn(day, parts, label, f"{_short(day)}: {words}"))
    ticks = tuple((f"{value:,g}", round(100 * value / top, 1)) for value in reversed(_steps(top / HEADROOM, step)))
    capacity = round(100 * (capacity_hours or 0.0) / top, 1) if shows_capacity else None
    unit = "week" if weekly else "day"
    summary = f"GPU hours by {unit}, from {min(totals, default=0.0):.1f} to {highest:.1f}"
    return Columns(tuple(columns), ticks, capacity, weekly, summary)


def _short(day: str) -> str:
    there = date.fromisoformat(day)
    return f"{there.day} {there:%b}"


def _scale(highest: float) -> tuple[float, float]:
    """Return the height of the axis, and the step between two ticks: 1, 2 or 5 times a power of ten."""
    if highest <= 0:
        return 1.0, 1.0
    rough = highest / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough)
    return HEADROOM * highest, step


def _steps(highest: float, step: float) -> list[float]:
    return [round(number * step, 6) for number in range(math.floor(highest / step) + 1)]
