"""Compare estimates with the actual starts: which times are worth showing, and how wide a range must be.

A time is right if the start comes within ten minutes of it. A start that is overdue counts as a miss.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil, floor, inf, log
from typing import NamedTuple

NEAR_SECONDS = 600.0
"""A time is right if the start comes at most this much earlier or later."""
LEAST_ERRORS = 20
"""With fewer outcomes, four of five cannot be distinguished from three of five."""
MOST_ERRORS = 200
"""Number of the last outcomes at the same horizon that count. A cluster changes."""
MOST_OUTCOMES = 2000
"""Number of the last outcomes of which those at the same horizon are taken."""
THRESHOLD_OUTCOMES = 500
"""Number of the last outcomes by which it is decided which times are shown."""
AROUND_SECONDS = 60.0
"""Added before times are compared as ratios, so that seconds matter less than minutes."""
EACH_SIDE = 0.1
"""The share of starts on each side of a range: four of five fall into it."""
RIGHT_SHARE = 0.8
"""The share of shown times that must be right."""
HOUR_SECONDS = 3600.0


@dataclass(frozen=True)
class EstimateOutcome:
    """An estimate and the actual start, in seconds from when the estimate was made.

    ``low_seconds`` and ``high_seconds`` are the range as drawn. ``from_seconds`` and ``to_seconds`` are the adjusted
    range. Both ends may be infinite. ``is_shown`` is whether the time was shown. ``actual_seconds`` is infinite for a
    request that still waits.
    """

    point_seconds: float
    chance: float
    low_seconds: float
    high_seconds: float
    from_seconds: float
    to_seconds: float
    is_shown: bool
    actual_seconds: float

    @property
    def is_near(self) -> bool:
        """Whether the start came within ten minutes of the time."""
        return abs(self.actual_seconds - self.point_seconds) <= NEAR_SECONDS

    @property
    def is_within(self) -> bool:
        """Whether the start was within the range."""
        return self.from_seconds <= self.actual_seconds <= self.to_seconds


def least_chance(past: Iterable[EstimateOutcome]) -> float:
    """Return the least chance at which a time is shown, so that four in five shown times are right.

    It is the lowest chance at which four in five past estimates of at least that chance were right. It is infinite
    without one, or if fewer than LEAST_ERRORS estimates had at least that chance.
    """
    found, right = inf, 0
    ordered = sorted(past, key=lambda one: -one.chance)
    for number, one in enumerate(ordered, 1):
        right += one.is_near
        is_last = number == len(ordered) or ordered[number].chance < one.chance
        if is_last and number >= LEAST_ERRORS and right >= RIGHT_SHARE * number:
            found = one.chance
    return found


def at_horizon(past: Sequence[EstimateOutcome], point_seconds: float) -> list[EstimateOutcome]:
    """Return the last outcomes whose estimated waits were most similar to this one."""
    at = log(point_seconds + AROUND_SECONDS)
    ordered = sorted(past[-MOST_OUTCOMES:], key=lambda one: abs(log(one.point_seconds + AROUND_SECONDS) - at))
    return ordered[:MOST_ERRORS]


def adjusted_range(
    low_seconds: float, high_seconds: float, past: Sequence[EstimateOutcome], each_side: float = EACH_SIDE
) -> tuple[float, float]:
    """Return a range that would have held in the past: ``each_side`` of the starts came before it, and after it.

    Args:
        low_seconds: the begin of the range as drawn.
        high_seconds: the end of the range as drawn.
        past: the outcomes at the same horizon. With few of them the range stays as it was drawn.
        each_side: the share of starts on each side.
    """
    known = [one for one in past if one.high_seconds < inf]
    if len(known) < LEAST_ERRORS or high_seconds == inf:
        return low_seconds, high_seconds
    below = sorted(_ratio(one.actual_seconds, one.low_seconds) for one in known)
    above = sorted(_ratio(one.actual_seconds, one.high_seconds) for one in known)
    out = each_side * (len(known) + 1)
    first, last = below[max(0, floor(out) - 1)], above[min(len(known), ceil(len(known) + 1 - out)) - 1]
    begin, end = _times(low_seconds, first), _times(high_seconds, last)
    return min(begin, end), max(begin, end)


def range_around(point_seconds: float, past: Sequence[EstimateOutcome]) -> tuple[float, float] | None:
    """Return the range around a time that was not drawn, by past errors at this horizon; None with few of them."""
    near = [one for one in at_horizon(past, point_seconds) if one.actual_seconds < inf]
    if len(near) < LEAST_ERRORS:
        return None
    points = [replace(one, low_seconds=one.point_seconds, high_seconds=one.point_seconds) for one in near]
    return adjusted_range(point_seconds, point_seconds, points)


def _ratio(actual_seconds: float, told_seconds: float) -> float:
    return (actual_seconds + AROUND_SECONDS) / (told_seconds + AROUND_SECONDS)


def _times(seconds: float, ratio: float) -> float:
    return max(0.0, (seconds + AROUND_SECONDS) * ratio - AROUND_SECONDS)


# --- what is shown


class Form(str, Enum):
    """How precisely a start is shown."""

    TIME = "time"
    """A time that is right in four of five cases."""
    RANGE = "range"
    HOUR = "within the hour"
    LONG = "more than 3 hours"
    """At least one draw in ten has no start within three hours."""


class ShownStart(NamedTuple):
    """How the start of a request is shown. Times are in seconds from now, ``seconds`` only for ``Form.TIME``."""

    form: Form
    seconds: float | None
    from_seconds: float
    to_seconds: float

    def after(self, passed_seconds: float) -> ShownStart:
        """Return the same start some time later."""
        low, high = (max(0.0, seconds - passed_seconds) for seconds in (self.from_seconds, self.to_seconds))
        seconds = None if self.seconds is None else max(0.0, self.seconds - passed_seconds)
        return ShownStart(self.form, seconds, low, high)


class Calibration:
    """The outcomes of past estimates. It adjusts ranges by them, and decides which times are shown."""

    def __init__(self, past: Sequence[EstimateOutcome]) -> None:
        self._past = past[-MOST_OUTCOMES:]
        self._least_chance = least_chance(past[-THRESHOLD_OUTCOMES:])

    def estimate(self, point_seconds: float, chance: float, low_seconds: float, high_seconds: float) -> EstimateOutcome:
        """Return an estimate with its adjusted range, whose outcome is not known yet."""
        past = at_horizon(self._past, point_seconds) if point_seconds < inf else []
        begin, end = adjusted_range(low_seconds, high_seconds, past)
        is_shown = chance >= self._least_chance
        return EstimateOutcome(point_seconds, chance, low_seconds, high_seconds, begin, end, is_shown, inf)


def shown_start(estimate: EstimateOutcome) -> ShownStart:
    """Return how an estimate is shown, at the moment when it is made."""
    if estimate.is_shown:
        form = Form.TIME
    elif estimate.high_seconds == inf:
        form = Form.LONG
    else:
        form = Form.HOUR if estimate.to_seconds < HOUR_SECONDS else Form.RANGE
    seconds = estimate.point_seconds if estimate.is_shown else None
    return ShownStart(form, seconds, estimate.from_seconds, estimate.to_seconds)


# --- report


HORIZONS_SECONDS = (600.0, 1800.0, 3600.0, 10800.0)
"""The upper ends of the horizons that a report tells apart."""


class Accuracy(NamedTuple):
    """How many estimates there were, how many showed a time, and how many of each were right.

    ``upto_seconds`` is the upper end of the horizon: the estimated wait. ``near`` counts all times, also hidden ones.
    """

    upto_seconds: float
    estimates: int = 0
    near: int = 0
    shown: int = 0
    shown_near: int = 0
    ranges: int = 0
    within: int = 0


def accuracies(outcomes: Iterable[EstimateOutcome]) -> list[Accuracy]:
    """Return the accuracy at each horizon. The last one has no upper end."""
    sums = [[0] * 6 for _ in (*HORIZONS_SECONDS, inf)]
    for one in outcomes:
        counted = sums[bisect_right(HORIZONS_SECONDS, one.point_seconds)]
        has_range = one.to_seconds < inf
        parts = (
            True, one.is_near, one.is_shown, one.is_shown and one.is_near, has_range, has_range and one.is_within,
        )  # fmt: skip
        for number, part in enumerate(parts):
            counted[number] += part
    return [Accuracy(upto, *counted) for upto, counted in zip((*HORIZONS_SECONDS, inf), sums, strict=True)]
