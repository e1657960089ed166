"""When what a user wishes to be ready is asked for: once a day of theirs, in time, and no more after three in vain."""

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.schedules import (
    LATE_MINUTES,
    LEAST_LEAD_SECONDS,
    MOST_LEAD_SECONDS,
    MOST_MISSED,
    Schedule,
    ScheduleStep,
    after_outcome,
    after_start,
    decide_schedule,
    lead_seconds_of,
    parse_time_of_day,
    parse_weekdays,
)
from gpuspawner.core.units import BadValue

ZURICH = ZoneInfo("Europe/Zurich")


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=ZURICH).timestamp()


def a_wish(minute=480, days=(0, 1, 2, 3, 4), made_at="2026-11-25 12:00", **changes):
    return Schedule("w", "alice", "", {}, minute, days, at(made_at), **{"start_seconds": 30.0, **changes})


def do(wish, now, lead=0.0):
    return decide_schedule(wish, lead, at(now), ZURICH)


def test_it_is_asked_for_as_early_as_the_queue_is_long_and_not_on_the_day_that_has_passed():
    wish = a_wish()
    told = do(wish, "2026-11-25 12:00")
    words = (
        "Next ready Thu 26 Nov 08:00. Your request joins the queue about Thu 26 Nov 07:55 if the queue stays as it is."
    )
    assert (told.sentence, told.begins) == (words, at("2026-11-26 07:55"))
    unknown = "Next ready 08:00. Your request joins the queue about 04:00, because the wait is not known."
    assert do(wish, "2026-11-26 03:00", None).sentence == unknown
    assert do(wish, "2026-11-26 07:54").do is ScheduleStep.WAIT
    assert do(wish, "2026-11-26 07:55").do is ScheduleStep.ASK
    assert (do(wish, "2026-11-26 06:54", 3600.0).do, do(wish, "2026-11-26 06:55", 3600.0).do) == (
        ScheduleStep.WAIT,
        ScheduleStep.ASK,
    )
    assert (do(wish, "2026-11-26 03:59", None).do, do(wish, "2026-11-26 04:00", None).do) == (
        ScheduleStep.WAIT,
        ScheduleStep.ASK,
    )
    assert do(wish, "2026-11-26 08:59").at == at("2026-11-26 08:00"), "the service was away"
    assert do(wish, "2026-11-26 09:00").at == at("2026-11-27 08:00")
    asked = replace(wish, asked_for=at("2026-11-27 08:00"), said="Not asked for last time: no.")
    sentence = do(asked, "2026-11-27 08:00").sentence
    assert sentence.startswith("Next ready Mon 30 Nov 08:00. Your request joins the queue about Mon 30 Nov 07:55")
    assert sentence.endswith("if the queue stays as it is. Not asked for last time: no.")


def test_three_unused_days_pause_a_schedule_and_a_used_one_restarts_the_count():
    wish = a_wish(lease="l")
    for came in (False, False, None):
        wish = after_outcome(replace(wish, lease="l"), came=came)
    assert (wish.missed, wish.lease, do(wish, "2026-11-26 08:00").do) == (2, "", ScheduleStep.ASK)
    assert after_outcome(wish, came=True).missed == 0
    paused = do(after_outcome(wish, came=False), "2026-11-26 08:00")
    assert (paused.do, paused.at) == (ScheduleStep.PAUSE, None)
    assert paused.sentence == "Paused, because you missed it on 3 days in a row. Resume it to use it again."


def test_a_time_that_was_stored_while_the_clock_was_a_month_ahead_delays_nothing():
    wish = a_wish(asked_for=at("2026-12-28 08:00"))
    assert do(wish, "2026-11-26 07:00").at == at("2026-11-26 08:00")
    assert do(replace(wish, asked_for=at("2026-11-26 08:00")), "2026-11-26 07:50").at == at("2026-11-27 08:00")


@given(
    minute=st.integers(0, 1439),
    days=st.sets(st.integers(0, 6), min_size=1),
    lead=st.none() | st.floats(0, 1e6),
    begin=st.integers(0, 370 * 24 * 60),
    step=st.integers(25, LATE_MINUTES - 1),
    missed=st.integers(0, MOST_MISSED),
)
def test_each_time_is_asked_for_once_and_only_near_it_and_never_while_paused(minute, days, lead, begin, step, missed):
    now = at("2026-01-01 00:00") + 60 * begin
    wish = replace(a_wish(minute, tuple(sorted(days))), made_at=now, missed=missed)
    asked = []
    for _ in range(9 * 24 * 60 // step):
        found = decide_schedule(wish, lead, now, ZURICH)
        if found.do is ScheduleStep.ASK:
            assert -60 * LATE_MINUTES < found.at - now <= MOST_LEAD_SECONDS
            asked.append(found.at)
            wish = replace(wish, asked_for=found.at)
        now += 60 * step
    assert asked == sorted(set(asked))
    there = [datetime.fromtimestamp(one, ZURICH) for one in asked]
    assert all(one.weekday() in days and one.hour * 60 + one.minute == minute for one in there if one.month != 3)
    assert (not asked) == (missed >= MOST_MISSED)
    assert LEAST_LEAD_SECONDS < 60 * LATE_MINUTES


def test_a_slow_start_for_example_an_image_pull_is_requested_earlier():
    slow = a_wish(start_seconds=900.0)
    assert (do(slow, "2026-11-26 07:44").do, do(slow, "2026-11-26 07:45").do) == (ScheduleStep.WAIT, ScheduleStep.ASK)
    assert do(slow, "2026-11-26 07:30", 900.0).do is ScheduleStep.ASK
    assert do(a_wish(start_seconds=9.0), "2026-11-26 07:54").do is ScheduleStep.WAIT


def test_before_a_start_was_seen_and_after_a_slow_one_a_node_is_taken_to_have_no_image():
    new = a_wish(start_seconds=0.0)
    assert (do(new, "2026-11-26 07:44").do, do(new, "2026-11-26 07:45").do) == (ScheduleStep.WAIT, ScheduleStep.ASK)
    leads, wish = [], new
    for _ in range(6):
        wish = after_start(wish, 30.0)
        leads.append(round(lead_seconds_of(0.0, wish.start_seconds)))
    assert leads == [720, 576, 461, 369, 300, 300], "each that was quick lowers it"
    assert lead_seconds_of(0.0, after_start(wish, 1500.0).start_seconds) == 1500.0, (
        "and one that pulled is believed at once"
    )


def test_on_a_closed_day_it_is_not_ready_and_that_is_said():
    days = {"2026-12-24", "2026-12-25", *(f"2027-01-{day:02}" for day in range(1, 29))}
    closed = {at(f"{day} 08:00") for day in days}.__contains__
    told = decide_schedule(a_wish(), 0.0, at("2026-12-23 09:00"), ZURICH, closed)
    assert told.at == at("2026-12-28 08:00")
    assert told.sentence.startswith(
        "Next ready Mon 28 Dec 08:00. It skips Thu 24 Dec 08:00, because that day is closed. Your request "
    )
    assert decide_schedule(a_wish(), 0.0, at("2026-12-25 08:00"), ZURICH, closed).do is ScheduleStep.WAIT
    told = decide_schedule(a_wish(made_at="2026-12-31 09:00"), None, at("2026-12-31 09:00"), ZURICH, closed)
    assert told.at == at("2027-01-29 08:00"), "a month of them is no end"
    told = decide_schedule(a_wish(), 0.0, at("2026-12-23 09:00"), ZURICH, lambda _at: True)
    assert (told.do, told.at) == (ScheduleStep.WAIT, None)
    assert told.sentence == "It never starts, because its next 100 times are closed."


def test_paused_by_its_user_it_is_not_asked_for():
    told = do(replace(a_wish(), paused=True), "2026-11-26 08:00")
    assert (told.do, told.at, told.sentence) == (ScheduleStep.PAUSE, None, "Paused. Resume it to use it again.")


def test_times_and_days_are_read_as_people_write_them():
    assert [parse_time_of_day(text) for text in ("8:00", "08:05", " 17:30 ", "0:00")] == [480, 485, 1050, 0]
    assert parse_weekdays("Weekdays") == (0, 1, 2, 3, 4)
    assert (parse_weekdays("wed, mon"), parse_weekdays("daily")) == ((0, 2), tuple(range(7)))
    assert a_wish(days=(0, 2)).words == "Mon, Wed 8:00"
    assert a_wish(485).words == "weekdays 8:05"
    for text in ("8", "24:00", "8:60", "", None, 8):
        with pytest.raises(BadValue):
            parse_time_of_day(text)
    for text in ("", "someday", "mon,", None, 3):
        with pytest.raises(BadValue):
            parse_weekdays(text)
