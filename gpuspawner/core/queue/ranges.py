"""How far estimates were off, and how wide a range has to be told so that nine of ten starts fall into it.

A range is widened, or narrowed, by the errors of the past: as if the next error were one of them. It claims no more
than the past bears out: with few errors nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

LEAST_ERRORS = 20
"""With fewer, nine of ten can't be told apart from eight or ten."""
MOST_ERRORS = 200
"""So many of the last are looked at: a cluster changes."""
AROUND_SECONDS = 60.0
"""Added before errors are compared as ratios: seconds do not matter as minutes do."""
EACH_SIDE = 0.05


@dataclass(frozen=True)
class Outcome:
    """What was told to somebody who waited, in seconds from then, and how long they waited.

    ``likely_seconds`` and ``latest_seconds`` are as computed, ``from_seconds`` and ``to_seconds`` the range told.
    """

    likely_seconds: float
    latest_seconds: float
    from_seconds: float
    to_seconds: float
    actual_seconds: float

    @property
    def was_right(self) -> bool:
        """Whether the start fell into the range."""
        return self.from_seconds <= self.actual_seconds <= self.to_seconds


def range_of(
    likely_seconds: float, latest_seconds: float, past: Sequence[Outcome], each_side: float = EACH_SIDE
) -> tuple[float, float]:
    """Return the range to tell for an estimate, so that it covers the errors of the past.

    A share of ``each_side`` may be below, and as much above: of one in twenty the range covers nine of ten.
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
    """Return how often ranges were right: ``right 7 times in 10 so far``; "" where it is too early to say."""
    if len(past) < LEAST_ERRORS:
        return ""
    right = sum(one.was_right for one in past) / len(past)
    return f"right {round(10 * right)} times in 10 so far"


def _ratio(actual_seconds: float, told_seconds: float) -> float:
    return (actual_seconds + AROUND_SECONDS) / (told_seconds + AROUND_SECONDS)


def _times(seconds: float, ratio: float) -> float:
    return max(0.0, (seconds + AROUND_SECONDS) * ratio - AROUND_SECONDS)
