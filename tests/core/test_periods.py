"""Days, weeks and months of a time zone: no gap, no overlap, right where the clock changes."""

from datetime import datetime, timezone
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.calendar import Per, TimeSpan, milliseconds, period_of, split_by_period

ZURICH = ZoneInfo("Europe/Zurich")
ZONES = st.sampled_from(sorted(available_timezones())).map(ZoneInfo)
MOMENTS = st.integers(0, 2_100_000_000_000)


def ms(text, zone=ZURICH):
    return milliseconds(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp())


@pytest.mark.parametrize(
    ("per", "begins", "ends", "hours"),
    [
        pytest.param(Per.DAY, "2026-11-24", "2026-11-25", 24, id="a day"),
        pytest.param(Per.WEEK, "2026-11-23", "2026-11-30", 168, id="a week begins on Monday"),
        pytest.param(Per.MONTH, "2026-11-01", "2026-12-01", 720, id="a month"),
        pytest.param(Per.DAY, "2026-03-29", "2026-03-30", 23, id="a day in spring"),
        pytest.param(Per.WEEK, "2026-10-19", "2026-10-26", 169, id="a week in autumn"),
        pytest.param(Per.MONTH, "2026-12-01", "2027-01-01", 744, id="the last month of a year"),
        pytest.param(Per.MONTH, "2028-02-01", "2028-03-01", 696, id="February of a leap year"),
    ],
)
def test_a_period_begins_and_ends_by_the_clock_of_its_zone(per, begins, ends, hours):
    period = TimeSpan(ms(begins), ms(ends))
    assert period.end_ms - period.start_ms == hours * 3_600_000
    for at in (period.start_ms, (period.start_ms + period.end_ms) // 2, period.end_ms - 1):
        assert period_of(at, per, ZURICH) == period


@pytest.mark.parametrize(
    ("zone", "day", "begins"),
    [
        pytest.param("Asia/Beirut", "2026-03-29T12:00", "2026-03-28T22:00", id="there is no midnight"),
        pytest.param("America/Havana", "2026-11-01T12:00", "2026-11-01T04:00", id="there are two: the first"),
        pytest.param("America/Toronto", "1919-03-31T12:00", "1919-03-31T04:30", id="half past 11 to half past 12"),
        pytest.param("Pacific/Apia", "2011-12-31T12:00", "2011-12-30T10:00", id="a whole day is left out"),
    ],
)  # fmt: skip
def test_a_day_begins_at_its_first_moment(zone, day, begins):
    zone = ZoneInfo(zone)
    assert period_of(ms(day, zone), Per.DAY, zone).start_ms == ms(begins, timezone.utc)


@given(zone=ZONES, at=MOMENTS, per=st.sampled_from(Per))
def test_periods_leave_no_gap_and_do_not_overlap(zone, at, per):
    period = period_of(at, per, zone)
    assert period.start_ms <= at < period.end_ms
    assert period_of(period.start_ms, per, zone) == period == period_of(period.end_ms - 1, per, zone)
    assert period_of(period.end_ms, per, zone).start_ms == period.end_ms
    assert period_of(period.start_ms - 1, per, zone).end_ms == period.start_ms


@given(zone=ZONES, at=MOMENTS, length=st.integers(0, 70 * 86_400_000), per=st.sampled_from(Per))
def test_split_periods_add_up(zone, at, length, per):
    parts = list(split_by_period(at, at + length, per, zone))
    assert sum(part.end_ms - part.start_ms for part, _ in parts) == length
    assert [part.start_ms for part, _ in parts[1:]] == [part.end_ms for part, _ in parts[:-1]]
    for part, period in parts:
        assert period == period_of(part.start_ms, per, zone)
        assert period.overlap(at, at + length) == part.end_ms - part.start_ms > 0
