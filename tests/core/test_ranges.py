"""The range of an estimate covers what it claims, by the errors of the past."""

from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.queue.estimates import LEAST_ERRORS, EstimateOutcome, accuracy_text, shown_range

SECONDS = st.floats(0, 1e5)


def outcome(likely, latest, actual):
    return EstimateOutcome(likely, latest, likely, latest, actual)


def test_few_errors_change_nothing_and_claim_nothing():
    past = [outcome(60, 600, 6000)] * (LEAST_ERRORS - 1)
    assert shown_range(60, 600, past) == (60, 600)
    assert accuracy_text(past) == ""


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=LEAST_ERRORS, max_size=60))
def test_a_range_covers_nine_of_ten_of_the_past(told):
    past = [outcome(min(a, b), max(a, b), actual) for a, b, actual in told]
    ranges = [shown_range(one.likely_seconds, one.latest_seconds, past) for one in past]
    held = sum(low - 1e-6 <= one.actual_seconds <= high + 1e-6 for one, (low, high) in zip(past, ranges, strict=True))
    assert held >= 0.9 * len(past)
    assert all(0 <= low <= high for low, high in ranges)


def test_a_range_narrows_where_people_always_end_early():
    early = [outcome(60, 36000, 600)] * 40
    low, high = shown_range(60, 36000, early)
    assert low == 60
    assert 600 <= high < 1000
    late = [outcome(60, 600, 1200)] * 40
    assert shown_range(60, 600, late) == (60, 1200)


def test_how_often_it_was_right_is_told():
    past = [outcome(60, 600, 300)] * 21 + [outcome(60, 600, 900)] * 9
    assert accuracy_text(past) == "right 7 times in 10 so far"
