"""Months of the ledger: how they are written, when they close, and numbers that add up."""

import random
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gpuspawner.core.quotas.months import (
    closes_at,
    last_day,
    month_of,
    month_span,
    month_words,
    next_month,
    previous_month,
    read_month,
    round_to_sum,
)
from gpuspawner.core.units import BadValue

ZURICH = ZoneInfo("Europe/Zurich")


def at(*parts):
    return datetime(*parts, tzinfo=ZURICH).timestamp()


@pytest.mark.parametrize("text", ["2026-13", "26-10", "2026-1", "2026-10-01", "", None, 202610])
def test_what_is_no_month_is_refused(text):
    with pytest.raises(BadValue):
        read_month(text)


def test_a_month_has_its_days_its_neighbours_and_its_words():
    assert read_month("2028-02") == month_of("2028-02-29") == "2028-02"
    assert f"{last_day('2028-02')} {last_day('2026-12')}" == "2028-02-29 2026-12-31"
    assert (previous_month("2027-01"), next_month("2026-12"), next_month("2026-01")) == (
        "2026-12",
        "2027-01",
        "2026-02",
    )
    assert month_words("2026-10") == "October 2026"


def test_a_month_closes_at_the_beginning_of_the_third_day_of_the_next_whatever_the_clocks_do():
    span = month_span("2027-03", ZURICH)
    assert (span.start, span.end) == (at(2027, 3, 1), at(2027, 4, 1))
    assert span.end_ms - span.start_ms == (31 * 24 - 1) * 3_600_000
    assert closes_at("2027-03", ZURICH) == at(2027, 4, 3)
    assert closes_at("2026-12", ZURICH) == at(2027, 1, 3)


def test_rounded_numbers_add_up_to_their_rounded_sum():
    chance = random.Random(1)
    for _ in range(500):
        numbers = [chance.uniform(-5, 50) for _ in range(chance.randrange(8))]
        rounded = round_to_sum(numbers, 1)
        assert sum(rounded) == pytest.approx(round(sum(numbers), 1))
        assert all(abs(a - b) < 0.1 + 1e-9 for a, b in zip(numbers, rounded, strict=True))
