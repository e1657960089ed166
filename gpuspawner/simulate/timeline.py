"""A quantity over time that is 0 outside some spans: GPU work, CPU use, a browser being open."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Span = tuple[float, float, float]
"""Begin, end, and the value between them. Times in seconds from a start of the caller's."""


class Timeline:
    """Spans in order, none overlapping. Every question costs the logarithm of their number."""

    __slots__ = ("_area", "_begins", "_ends", "spans")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        """Take spans in order of time; empty ones are dropped.

        Raises:
            ValueError: a span ends before it begins, or begins before the one before it has ended.
        """
        self.spans: tuple[Span, ...] = tuple(span for span in spans if span[1] != span[0])
        self._begins = [begin for begin, _, _ in self.spans]
        self._ends = [end for _, end, _ in self.spans]
        self._area = [0.0]
        before = float("-inf")
        for begin, end, value in self.spans:
            if not before <= begin < end:
                raise ValueError(f"the span from {begin} to {end} does not follow the one that ends at {before}")
            before = end
            self._area.append(self._area[-1] + (end - begin) * value)

    def __bool__(self) -> bool:
        return bool(self.spans)

    def integral(self, begin: float, end: float) -> float:
        """Return the value times seconds from ``begin`` to ``end``."""
        return self._until(end) - self._until(begin) if end > begin else 0.0

    def mean(self, begin: float, end: float) -> float:
        """Return the average value from ``begin`` to ``end``, an instant's value where they are the same."""
        return self.integral(begin, end) / (end - begin) if end > begin else self.at(begin)

    def at(self, instant: float) -> float:
        """Return the value at an instant; a span holds its begin, not its end."""
        index = bisect_right(self._begins, instant) - 1
        return self.spans[index][2] if index >= 0 and instant < self._ends[index] else 0.0

    def highest(self, begin: float, end: float) -> float:
        """Return the highest value between ``begin`` and ``end``."""
        first, last = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        return max((value for _, _, value in self.spans[first:last]), default=0.0)

    def touches(self, begin: float, end: float) -> bool:
        """Return whether any span overlaps the time from ``begin`` to ``end``."""
        index = bisect_right(self._ends, begin)
        return begin < end and index < len(self.spans) and self._begins[index] < end

    def last_end(self, before: float) -> float | None:
        """Return when, up to ``before``, a span was last under way; None if none had begun."""
        index = bisect_left(self._begins, before) - 1
        return min(before, self._ends[index]) if index >= 0 else None

    def next_begin(self, after: float) -> float | None:
        """Return when, from ``after`` on, a span is next under way; None if never again."""
        index = bisect_right(self._ends, after)
        return max(after, self._begins[index]) if index < len(self.spans) else None

    def next_end(self, instant: float) -> float:
        """Return when what is under way at an instant ends; the instant itself where nothing is."""
        index = bisect_right(self._begins, instant) - 1
        return max(instant, self._ends[index]) if index >= 0 else instant

    def _until(self, instant: float) -> float:
        index = bisect_right(self._begins, instant) - 1
        if index < 0:
            return 0.0
        begin, end, value = self.spans[index]
        return self._area[index] + (min(instant, end) - begin) * value


def merged(timelines: Iterable[Timeline]) -> Timeline:
    """Return when any of them is under way, with the value 1."""
    spans: list[Span] = []
    for begin, end, _ in sorted(span for timeline in timelines for span in timeline.spans):
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]), 1.0)
        else:
            spans.append((begin, end, 1.0))
    return Timeline(spans)


def gaps(timeline: Timeline, end: float) -> list[float]:
    """Return the length of every stretch from 0 to ``end`` with nothing under way."""
    edges = [0.0, *(edge for begin, until, _ in timeline.spans for edge in (begin, until)), end]
    return [max(0.0, min(begin, end) - min(since, end)) for since, begin in zip(edges[::2], edges[1::2], strict=True)]
