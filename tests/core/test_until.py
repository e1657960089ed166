"""Until when: moments as people write them."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.calendar import day_end, day_start, parse_day, parse_from, parse_until
from gpuspawner.core.units import BadValue, show_end

ZURICH = ZoneInfo("Europe/Zurich")


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=ZURICH).timestamp()


NOW = at("2026-11-24T12:00")  # a Tuesday


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("Friday", "2026-11-28"),
        ("fri", "2026-11-28"),
        ("Tuesday", "2026-11-25"),
        ("Monday", "2026-12-01"),
        ("today", "2026-11-25"),
        (" Tomorrow ", "2026-11-26"),
        ("this week", "2026-11-30"),
        ("this  month", "2026-12-01"),
        ("this day", "2026-11-25"),
        ("2026-12-24", "2026-12-25"),
        ("2026-12-24 18:00", "2026-12-24T18:00"),
        ("2026-12-24T18:00", "2026-12-24T18:00"),
        ("3d", "2026-11-27T12:00"),
        ("2h", "2026-11-24T14:00"),
    ],
)
def test_a_day_means_its_end(text, until):
    assert parse_until(text, NOW, ZURICH) == at(until)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("today", "24:00"),
        ("tomorrow", "Wed 25 Nov 24:00"),
        ("Sunday", "Sun 29 Nov 24:00"),
        ("this month", "Mon 30 Nov 24:00"),
        ("2026-11-29 18:00", "Sun 29 Nov 18:00"),
        ("2026-11-29 23:59", "Sun 29 Nov 23:59"),
        ("2h", "14:00"),
    ],
)
def test_the_end_of_a_day_is_shown_as_its_end(written, shown):
    assert show_end(parse_until(written, NOW, ZURICH), NOW, ZURICH) == shown


def test_a_time_may_name_its_own_zone():
    assert parse_until("2026-12-24 18:00+00:00", NOW, ZURICH) == at("2026-12-24T19:00")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("2026-11-23", "has passed"),
        ("2026-11-24 11:59", "has passed"),
        ("2028-01-01", "over a year away"),
        ("2026-02-30", "is not a time"),
        ("soon", "is not a time"),
        ("", "is not a time"),
        (None, "is not a time"),
        (5, "is not a time"),
    ],
)
def test_an_invalid_time_is_refused_with_valid_examples(text, wrong):
    with pytest.raises(BadValue, match=wrong) as refused:
        parse_until(text, NOW, ZURICH)
    assert "2026-12-24 18:00" in refused.value.right


@given(st.one_of(st.text(max_size=30), st.integers(), st.none()))
def test_any_value_at_all_is_read_or_refused(value):
    for parse in (parse_until, parse_day):
        try:
            parse(value, NOW, ZURICH)
        except BadValue:
            continue


def test_a_day_is_read():
    assert parse_day("2026-11-01", NOW, ZURICH) == "2026-11-01"
    assert parse_day("today", NOW, ZURICH) == "2026-11-24"
    with pytest.raises(BadValue, match="is not a day"):
        parse_day("yesterday", NOW, ZURICH)


@pytest.mark.parametrize("day", ["0001-01-01", "0001-12-31", "0002-01-01", "9998-12-31", "9999-01-01", "9999-12-31"])
def test_a_day_that_is_read_begins_and_ends(day):
    try:
        read = parse_day(day, NOW, ZURICH)
    except BadValue:
        return
    assert day_start(read, ZURICH) < day_end(read, ZURICH)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2026-11-26 10:00"),
        ("today", "2026-11-26 10:00"),
        ("tomorrow", "2026-11-27 00:00"),
        ("Friday", "2026-11-27 00:00"),
        ("2026-12-24", "2026-12-24 00:00"),
        ("2026-12-24 18:00", "2026-12-24 18:00"),
        ("2h", "2026-11-26 12:00"),
    ],
)
def test_a_time_on_a_day_starts_with_that_day(text, expected):
    now = datetime(2026, 11, 26, 10, tzinfo=ZURICH).timestamp()
    assert datetime.fromtimestamp(parse_from(text, now, ZURICH), ZURICH).strftime("%Y-%m-%d %H:%M") == expected


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-25", "this week", None, 3, "9999-12-31"])
def test_an_invalid_start_time_is_refused(text):
    with pytest.raises(BadValue):
        parse_from(text, datetime(2026, 11, 26, 10, tzinfo=ZURICH).timestamp(), ZURICH)
