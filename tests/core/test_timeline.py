"""Timelines, compared with a look at every second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.simulate.timeline import Span, Timeline, gaps, merged


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    edges = sorted(draw(st.sets(st.integers(0, 60), max_size=12)))
    values = st.integers(1, 100)
    return [(float(a), float(b), float(draw(values))) for a, b in zip(edges[::2], edges[1::2], strict=False)]


def value_of_second(given_spans: list[Span], second: int) -> float:
    return next((value for begin, end, value in given_spans if begin <= second < end), 0.0)


@given(spans(), st.integers(-5, 70), st.integers(0, 70))
def test_every_question_is_answered_as_second_by_second(of: list[Span], begin: int, length: int) -> None:
    line, end = Timeline(of), begin + length
    seconds = range(begin, end)
    values = [value_of_second(of, second) for second in seconds]
    assert line.integral(begin, end) == sum(values)
    assert line.mean(begin, end) == (sum(values) / length if length else value_of_second(of, begin))
    assert line.touches(begin, end) == any(values)
    assert line.at(begin) == value_of_second(of, begin)
    assert line.next_end(begin) == next((until for since, until, _ in of if since <= begin < until), begin)
    busy_before = [second for second in range(-5, begin) if value_of_second(of, second)]
    assert line.last_end(begin) == (busy_before[-1] + 1 if busy_before else None)
    busy_after = [second for second in range(begin, 70) if value_of_second(of, second)]
    assert line.next_begin(begin) == (busy_after[0] if busy_after else None)


@given(st.lists(spans(), max_size=3))
def test_merged_is_under_way_when_any_is(lines: list[list[Span]]) -> None:
    together = merged(Timeline(line) for line in lines)
    assert [together.at(second) for second in range(65)] == [
        float(any(value_of_second(line, second) for line in lines)) for second in range(65)
    ]


@given(spans(), st.integers(0, 80))
def test_gaps_and_spans_are_all_the_time_there_is(of: list[Span], end: int) -> None:
    free = [second for second in range(end) if not value_of_second(of, second)]
    found = gaps(Timeline(of), end)
    assert sum(found) == len(free)
    assert len(found) == len(of) + 1


@pytest.mark.parametrize(
    "bad", [[(1.0, 0.0, 1.0)], [(0.0, 2.0, 1.0), (1.0, 3.0, 1.0)], [(5.0, 6.0, 1.0), (0.0, 1.0, 1.0)]]
)
def test_spans_out_of_order_are_refused(bad: list[Span]) -> None:
    with pytest.raises(ValueError, match="does not follow"):
        Timeline(bad)


def test_empty_spans_are_dropped() -> None:
    assert not Timeline([(1.0, 1.0, 5.0)])
    assert Timeline([(1.0, 2.0, 5.0)])
