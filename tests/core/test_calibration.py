"""Past estimates decide how wide a range must be, which times are shown, and what is reported."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.queue.calibration import (
    LEAST_ERRORS,
    MOST_ERRORS,
    Calibration,
    EstimateOutcome,
    Form,
    ShownStart,
    accuracies,
    adjusted_range,
    at_horizon,
    least_chance,
    range_around,
    shown_start,
)

SECONDS = st.floats(0, 1e5)


def outcome(point, actual, chance=0.5, low=None, high=None, *, shown=True):
    low, high = point if low is None else low, point if high is None else high
    return EstimateOutcome(point, chance, low, high, low, high, is_shown=shown, actual_seconds=actual)


def test_few_errors_change_nothing():
    past = [outcome(300, 6000)] * (LEAST_ERRORS - 1)
    assert adjusted_range(60, 600, past) == (60, 600)
    assert range_around(300, past) is None
    unchanged = EstimateOutcome(300, 1.0, 60, 600, 60, 600, is_shown=False, actual_seconds=inf)
    assert Calibration(past).estimate(300, 1.0, 60, 600) == unchanged


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=LEAST_ERRORS, max_size=60))
def test_a_range_covers_four_of_five_of_the_past(told):
    past = [outcome(a, actual, low=min(a, b), high=max(a, b)) for a, b, actual in told]
    ranges = [adjusted_range(one.low_seconds, one.high_seconds, past) for one in past]
    held = sum(low - 1e-3 <= one.actual_seconds <= high + 1e-3 for one, (low, high) in zip(past, ranges, strict=True))
    assert held >= 0.8 * len(past) - 1
    assert all(0 <= low <= high for low, high in ranges)


def test_a_range_follows_the_errors_of_the_past():
    early = [outcome(300, 600, low=60, high=36000)] * 40
    low, high = adjusted_range(60, 36000, early)
    assert (low, high) == pytest.approx((600, 600))
    assert adjusted_range(60, inf, early) == (60, inf), "one draw in ten has no start"
    assert range_around(300, early) == pytest.approx((600, 600))


def test_errors_at_the_same_horizon_count():
    near, far = [outcome(300, 360, low=300, high=300)] * MOST_ERRORS, [outcome(9000, 18000, low=9000, high=9000)] * 500
    assert at_horizon([*near, *far], 350) == near
    assert set(at_horizon([*near, *far], 9000)) == set(far)
    _, end = range_around(300, [*near, *far])
    assert end == pytest.approx(360)


def test_a_time_is_shown_from_the_chance_at_which_four_of_five_were_right():
    past = [outcome(0, 0 if right else 5000, chance) for chance, right in [(0.9, True)] * 20 + [(0.6, True)] * 4
            + [(0.6, False)] * 6 + [(0.3, False)] * 20]  # fmt: skip
    assert least_chance(past) == 0.6, "24 of 30"
    assert least_chance([*past, outcome(0, 5000, 0.6)]) == 0.9
    assert least_chance(past[:19]) == inf
    assert least_chance([outcome(0, 5000, 1.0)] * 50) == inf


@pytest.mark.parametrize(
    ("estimate", "shown"),
    [
        (outcome(900, inf, low=600, high=1200), ShownStart(Form.TIME, 900, 600, 1200)),
        (outcome(900, inf, low=600, high=3000, shown=False), ShownStart(Form.HOUR, None, 600, 3000)),
        (outcome(900, inf, low=600, high=6000, shown=False), ShownStart(Form.RANGE, None, 600, 6000)),
        (outcome(900, inf, low=600, high=inf, shown=False), ShownStart(Form.LONG, None, 600, inf)),
    ],
)
def test_an_estimate_is_shown_as_precisely_as_it_is_known(estimate, shown):
    assert shown_start(estimate) == shown


def test_a_start_comes_nearer_with_time():
    assert ShownStart(Form.TIME, 900, 600, 1200).after(700) == ShownStart(Form.TIME, 200, 0, 500)
    assert ShownStart(Form.RANGE, None, 600, 1200).after(700) == ShownStart(Form.RANGE, None, 0, 500)


def test_the_report_tells_horizons_times_and_ranges_apart_and_overdue_waits_are_misses():
    short = [outcome(300, 400, low=100, high=500), outcome(300, 4000, low=100, high=500, shown=False)]
    overdue = outcome(5000, inf, low=100, high=inf)
    found = [one for one in accuracies([*short, overdue]) if one.estimates]
    first, last = (one._asdict() for one in found)
    assert first == {
        "upto_seconds": 600, "estimates": 2, "near": 1, "shown": 1, "shown_near": 1, "ranges": 2, "within": 1,
    }  # fmt: skip
    assert last == {
        "upto_seconds": 10800, "estimates": 1, "near": 0, "shown": 1, "shown_near": 0, "ranges": 0, "within": 0,
    }  # fmt: skip
