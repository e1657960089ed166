"""Weekly windows: against a clock that is read minute by minute, over every change of time."""

from datetime import date, datetime, timedelta
from math import inf
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.calendar import Window, find_opening, is_open

ZURICH = ZoneInfo("Europe/Zurich")
ZONES = [
    ZURICH,
    ZoneInfo("UTC"),
    ZoneInfo("America/New_York"),
    ZoneInfo("Australia/Lord_Howe"),
    ZoneInfo("Asia/Tehran"),
]
WEEKDAYS, ALL_DAYS = frozenset(range(5)), frozenset(range(7))
NIGHT = Window(WEEKDAYS, 20 * 60, 7 * 60)


def at(text, zone=ZURICH, fold=0):
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def hours(one):
    return (one.ends_at - one.opens_at) / 3600


@pytest.mark.parametrize(
    ("now", "opens", "ends"),
    [
        ("2026-11-24 12:00", "2026-11-24 20:00", "2026-11-25 07:00"),
        ("2026-11-24 20:00", "2026-11-24 20:00", "2026-11-25 07:00"),
        ("2026-11-25 06:59", "2026-11-24 20:00", "2026-11-25 07:00"),
        ("2026-11-25 07:00", "2026-11-25 20:00", "2026-11-26 07:00"),
        ("2026-11-28 06:59", "2026-11-27 20:00", "2026-11-28 07:00"),
        ("2026-11-28 07:00", "2026-11-30 20:00", "2026-12-01 07:00"),
    ],
)
def test_a_night_of_the_week_goes_on_into_saturday_and_opens_again_on_monday(now, opens, ends):
    assert find_opening(NIGHT, at(now), ZURICH) == (at(opens), at(ends))
    assert is_open(NIGHT, at(now), ZURICH) == (at(now) >= at(opens))


def test_a_night_with_a_change_of_time_is_an_hour_shorter_or_longer():
    every_night = Window(ALL_DAYS, 20 * 60, 7 * 60)
    assert hours(find_opening(every_night, at("2026-03-28 22:00"), ZURICH)) == 10
    assert hours(find_opening(every_night, at("2026-10-24 22:00"), ZURICH)) == 12
    assert hours(find_opening(every_night, at("2026-10-25 22:00"), ZURICH)) == 11


def test_a_time_that_the_clocks_skip_is_the_moment_at_which_they_skip_it():
    sunday = frozenset({6})
    skipped = at("2026-03-29 03:00")
    now = skipped - 3600
    assert find_opening(Window(sunday, 150, 240), now, ZURICH) == (skipped, at("2026-03-29 04:00"))
    assert find_opening(Window(sunday, 60, 150), now, ZURICH) == (at("2026-03-29 01:00"), skipped)
    assert find_opening(Window(sunday, 130, 170), now, ZURICH).opens_at == at("2026-04-05 02:10"), "skipped whole"


def test_a_time_that_the_clocks_show_twice_is_the_first():
    sunday, now = frozenset({6}), at("2026-10-25 00:00")
    assert find_opening(Window(sunday, 150, 210), now, ZURICH) == (at("2026-10-25 02:30"), at("2026-10-25 03:30"))
    assert hours(find_opening(Window(sunday, 150, 210), now, ZURICH)) == 2
    assert hours(find_opening(Window(sunday, 135, 165), now, ZURICH)) == 0.5


def test_days_that_touch_are_one_opening():
    whole = find_opening(Window(frozenset({5, 6}), 0, 0), at("2026-11-28 12:00"), ZURICH)
    assert whole == (at("2026-11-28 00:00"), at("2026-11-30 00:00"))
    assert find_opening(Window(frozenset({5, 6}), 0, 24 * 60), at("2026-11-28 12:00"), ZURICH) == whole
    always = find_opening(Window(ALL_DAYS, 0, 0), at("2026-11-28 12:00"), ZURICH)
    assert always.ends_at == inf
    assert always.covers(at("2026-11-28 12:00"))


def test_a_window_of_dates_opens_on_them_alone_however_far_away_and_never_again():
    holidays = Window(frozenset(), 0, 0, frozenset({date(2026, 12, 24), date(2026, 12, 25), date(2027, 8, 1)}))
    christmas = (at("2026-12-24 00:00"), at("2026-12-26 00:00"))
    assert find_opening(holidays, at("2026-11-01 12:00"), ZURICH) == christmas
    assert find_opening(holidays, at("2026-12-24 00:00"), ZURICH) == christmas
    assert find_opening(holidays, at("2026-12-26 00:00"), ZURICH) == (at("2027-08-01 00:00"), at("2027-08-02 00:00"))
    assert find_opening(holidays, at("2027-08-02 00:00"), ZURICH) is None


def test_a_window_without_days_never_opens():
    assert find_opening(Window(frozenset(), 60, 120), at("2026-11-28 12:00"), ZURICH) is None
    assert not is_open(Window(frozenset(), 60, 120), at("2026-11-28 12:00"), ZURICH)


WINDOWS = st.builds(
    Window, st.frozensets(st.integers(0, 6), min_size=1), st.integers(0, 24 * 60 - 1), st.integers(0, 24 * 60 - 1)
)
MOMENTS = st.floats(at("2020-01-01 00:00"), at("2030-01-01 00:00"))
CHANGES = st.sampled_from([at("2026-03-29 03:00"), at("2026-10-25 03:00")]).flatmap(
    lambda moment: st.floats(-36, 36).map(lambda away: moment + 3600 * away)
)


@given(WINDOWS, st.one_of(MOMENTS, CHANGES), st.sampled_from(ZONES))
def test_an_opening_is_a_whole_one_and_the_next_follows_it(window, now, zone):
    found = find_opening(window, now, zone)
    assert found.opens_at < found.ends_at
    assert now < found.ends_at
    assert is_open(window, now, zone) == (found.opens_at <= now)
    if found.ends_at == inf:
        assert window.days == ALL_DAYS
        return
    assert find_opening(window, found.opens_at, zone) == found, "the same, whenever one looks"
    assert not is_open(window, found.ends_at, zone)
    after = find_opening(window, found.ends_at, zone)
    assert after.opens_at > found.ends_at
    if found.opens_at > now:
        assert not is_open(window, now, zone)
        assert not is_open(window, (now + found.opens_at) / 2, zone)


@given(WINDOWS, st.one_of(MOMENTS, CHANGES), st.sampled_from(ZONES))
def test_away_from_changes_of_time_it_is_open_as_the_clock_on_the_wall_says(window, now, zone):
    now = round(now, 3)  # datetime has whole microseconds
    local = datetime.fromtimestamp(now, zone)
    if len({(local + timedelta(days=days)).replace(tzinfo=zone).utcoffset() for days in (-2, 0, 2)}) > 1:
        return
    minute = local.hour * 60 + local.minute
    over_night = window.end_minute <= window.start_minute
    began_today = local.weekday() in window.days and minute >= window.start_minute
    began_yesterday = (local.weekday() - 1) % 7 in window.days and over_night and minute < window.end_minute
    shown = (began_today and (over_night or minute < window.end_minute)) or began_yesterday
    assert is_open(window, now, zone) == shown
