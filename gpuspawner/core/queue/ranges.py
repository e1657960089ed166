"""Ranges of estimated starts, adjusted by the errors of past estimates.

A range is widened or narrowed as if the next error were one of the past. With few past errors it is not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

LEAST_ERRORS = 20
"""With fewer errors, nine of ten cannot be distinguished from eight or ten."""
MOST_ERRORS = 200
"""Number of the last errors that count. A cluster changes."""
AROUND_SECONDS = 60.0
"""Added before times are compared as ratios, so that seconds matter less than minutes."""
EACH_SIDE = 0.05


@dataclass(frozen=True)
class Outcome:
    """An estimate and the actual wait, in seconds from when the estimate was made.

    ``likely_seconds`` and ``latest_seconds`` are as computed. ``from_seconds`` and ``to_seconds`` are the range shown.
    """

    likely_seconds: float
    latest_seconds: float
    from_seconds: float
    to_seconds: float
    actual_seconds: float

    @property
    def was_right(self) -> bool:
        """Whether the start was within the range."""
        return self.from_seconds <= self.actual_seconds <= self.to_seconds


def range_of(
    likely_seconds: float, latest_seconds: float, past: Sequence[Outcome], each_side: float = EACH_SIDE
) -> tuple[float, float]:
    """Return the range to show for an estimate, so that it covers the errors of the past.

    ``each_side`` is the share of starts below the range, and above it. With 0.05 it covers nine of ten starts.
    """
    low, high = min(likely_seconds, latest_seconds), latest_seconds
    if len(past) < LEAST_ERRORS:
        return low, high
    below = sorted(_ratio(one.actual_seconds, min(one.likely_seconds, one.latest_seconds)) for one in past)
    above = sorted(_ratio(one.actual_seconds, one.latest_seconds) for one in past)
    out = each_side * (len(past) + 1)
    first, last = below[max(0, floor(out) - 1)], above[min(len(past), ceil(len(past) + 1 - out)) - 1]
    begin, end = _times(low, min(1.0, first)), _times(high, last)
    return begin, max(begin, low, end)


def right_words(past: Sequence[Outcome]) -> str:
    """Return how often ranges were right: ``right 7 times in 10 so far``, or "" with few past estimates."""
    if len(past) < LEAST_ERRORS:
        return ""
    right = sum(one.was_right for one in past) / len(past)
    return f"right {round(10 * right)} times in 10 so far"


def _ratio(actual_seconds: float, told_seconds: float) -> float:
    return (actual_seconds + AROUND_SECONDS) / (told_seconds + AROUND_SECONDS)


def _times(seconds: float, ratio: float) -> float:
    return max(0.0, (seconds + AROUND_SECONDS) * ratio - AROUND_SECONDS)
