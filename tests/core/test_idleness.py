"""Streaks and verdicts: the rules of the design's section 7, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from streak_player import BEGIN, END, ENFORCE, GRACE, NONE, OBSERVE, POLICY, RECLAIM, WARN, evidence, hidden, play

from gpuspawner.core.idle.evidence import Evidence, read_evidence
from gpuspawner.core.idle.policies import Mode
from gpuspawner.core.idle.readings import GpuReading, Sample
from gpuspawner.core.idle.verdicts import SampleKind, Streak, Verdict, judge, reset_idle_time


def days(kind: str) -> list[str]:
    return 2 * 24 * 60 * [kind]


def test_thirty_idle_minutes_and_ten_of_grace() -> None:
    streak, verdicts = play(42 * ["idle"])
    assert verdicts == [*29 * [NONE], BEGIN, *9 * [GRACE], RECLAIM, RECLAIM, RECLAIM]
    assert (streak.idle_seconds, streak.observed_seconds, streak.grace_left_seconds) == (2520, 2520, 0)


def test_busy_sets_the_streak_to_zero() -> None:
    streak, verdicts = play([*29 * ["idle"], "busy"])
    assert (streak.idle_seconds, streak.observed_seconds, streak.since_busy_seconds) == (0, 0, 0)
    assert verdicts == 30 * [NONE]
    assert play([*29 * ["idle"], "busy", *30 * ["idle"]])[1] == [*59 * [NONE], BEGIN]


def test_soft_evidence_counts_as_use_and_renews_no_budget() -> None:
    streak, verdicts = play([*29 * ["idle"], "soft"])
    assert (streak.idle_seconds, streak.observed_seconds, streak.since_busy_seconds) == (0, 0, 1800)
    assert verdicts == 30 * [NONE]
    assert play(30 * ["idle"], streak=streak)[1] == [*29 * [NONE], BEGIN]


def test_soft_evidence_shields_no_longer_than_its_budget() -> None:
    _, verdicts = play(["busy", *100 * ["soft"]])
    assert verdicts.index(BEGIN) == 60 + 30  # an hour of budget, then thirty minutes idle


def test_unknown_adds_nothing_and_five_in_a_row_reset_nothing() -> None:
    streak, _ = play([*25 * ["idle"], *5 * ["unknown"]])
    assert (streak.idle_seconds, streak.observed_seconds, streak.unknown_seconds) == (1500, 1800, 300)
    assert play(5 * ["idle"], streak=streak)[1] == [*4 * [NONE], BEGIN]


def test_more_than_five_minutes_unknown_reset() -> None:
    streak, _ = play([*25 * ["idle"], *6 * ["unknown"]])
    assert (streak.idle_seconds, streak.observed_seconds) == (0, 0)
    assert play(30 * ["idle"], streak=streak)[1] == [*29 * [NONE], BEGIN]


def test_unknown_time_is_counted_without_a_break() -> None:
    streak, _ = play([*20 * ["idle"], *3 * ["unknown"], "idle", *3 * ["unknown"]])
    assert (streak.unknown_seconds, streak.idle_seconds) == (180, 1260)


def test_unknown_before_the_first_idle_sample_is_no_part_of_the_streak() -> None:
    assert play([*5 * ["unknown"], "idle"])[0].observed_seconds == 60


def test_thirty_minutes_of_which_too_little_is_known_are_not_enough() -> None:
    uncovered = 8 * ["idle", "idle", "idle", "unknown"]  # 24 idle in 32: 75 %
    streak, verdicts = play([*uncovered, *6 * ["idle"]])
    assert (streak.idle_seconds, streak.observed_seconds) == (1800, 2280)
    assert verdicts == 38 * [NONE]  # 30 of 38 are 79 %
    assert play(["idle", "idle"], streak=streak)[1] == [NONE, BEGIN]  # 32 of 40 are 80 %


def test_a_night_of_flapping_readings_does_not_shield_an_idle_workspace_for_days() -> None:
    streak, verdicts = play(200 * ["idle", "unknown", "idle", "unknown", "unknown"])
    assert set(verdicts) == {NONE}
    assert play(40 * ["idle"], streak=streak)[1].index(BEGIN) <= 31


@pytest.mark.parametrize("kinds", [days("unknown"), days("busy"), 1440 * ["idle", "unknown", "unknown", "busy"]])
def test_promise_4_without_enough_known_idle_minutes_nothing_ever_begins(kinds: list[str]) -> None:
    assert set(play(kinds)[1]) == {NONE}


def test_a_gap_counts_for_one_and_a_half_periods_at_most() -> None:
    before, _ = play(10 * ["idle"])
    after, _ = judge(before, evidence("idle", 80), POLICY, ENFORCE)
    assert (after.idle_seconds, after.observed_seconds) == (680, 680)
    after, _ = judge(before, evidence("idle", 400), POLICY, ENFORCE)
    assert (after.idle_seconds, after.observed_seconds) == (690, 1000)


def test_a_gap_too_long_for_the_streak_begins_a_new_one() -> None:
    before, _ = play(29 * ["idle"])
    after, verdict = judge(before, evidence("idle", 3 * 3600), POLICY, ENFORCE)
    assert (after.idle_seconds, after.observed_seconds, verdict) == (90, 90, NONE)


def test_a_gap_does_not_let_the_grace_pass() -> None:
    streak, _ = play(30 * ["idle"])
    after, verdict = judge(streak, evidence("idle", 3600), POLICY, ENFORCE)
    assert (after.grace_left_seconds, verdict) == (510, GRACE)


def test_unknown_pauses_the_grace() -> None:
    streak, _ = play([*30 * ["idle"], *4 * ["idle"]])
    paused, verdicts = play(5 * ["unknown"], streak=streak)
    assert verdicts == 5 * [GRACE]
    assert paused.grace_left_seconds == streak.grace_left_seconds == 360
    assert play(6 * ["idle"], streak=paused)[1] == [*5 * [GRACE], RECLAIM]


@pytest.mark.parametrize("use", ["busy", "soft"])
def test_use_ends_the_grace(use: str) -> None:
    streak, verdicts = play([*35 * ["idle"], use, "idle"])
    assert verdicts[-2:] == [END, NONE]
    assert (streak.grace_left_seconds, streak.idle_seconds) == (None, 60)


def test_too_long_unknown_ends_the_grace() -> None:
    streak, verdicts = play([*35 * ["idle"], *7 * ["unknown"]])
    assert verdicts[-7:] == [*5 * [GRACE], END, NONE]
    assert (streak.grace_left_seconds, streak.idle_seconds) == (None, 0)


@pytest.mark.parametrize("last", ["soft", "unknown", "busy"])
def test_only_an_idle_sample_reclaims(last: str) -> None:
    _, verdicts = play([*39 * ["idle"], last])
    assert verdicts[-1] is (GRACE if last == "unknown" else END)


def test_keep_sets_the_streak_to_zero_and_ends_the_grace() -> None:
    streak, _ = play(["busy", *35 * ["idle"]])
    after = reset_idle_time(streak)
    assert (after.idle_seconds, after.observed_seconds, after.grace_left_seconds) == (0, 0, None)
    assert after.peak_percent is None
    assert after.since_busy_seconds == 2100  # Keep is not use: it renews no budget
    assert play(30 * ["idle"], streak=after)[1] == [*29 * [NONE], BEGIN]


def test_the_peak_is_the_highest_of_the_streak_alone() -> None:
    streak, _ = play(["idle", "busy"])
    for percent in (2.0, 4.0, 3.0):
        streak, _ = judge(streak, evidence("idle", percent=percent), POLICY, ENFORCE)
    assert streak.peak_percent == 4.0
    assert play(["busy"], streak=streak)[0].peak_percent is None


def test_unknown_time_is_kept_for_each_gpu() -> None:
    def seen(first: float | None, second: float | None) -> Evidence:
        gpus = GpuReading("a", first, 0), GpuReading("b", second, 0)
        return read_evidence(Sample(("a", "b"), gpus, 60.0, 86400.0, 0.0), POLICY)

    streak, _ = judge(Streak(), seen(None, None), POLICY, ENFORCE)
    streak, _ = judge(streak, seen(97, None), POLICY, ENFORCE)
    assert (streak.kind, streak.unknown_since) == (SampleKind.BUSY, (("b", 120.0),))
    streak, _ = judge(streak, seen(97, 0), POLICY, ENFORCE)
    assert streak.unknown_since == ()


def test_observe_only_records_what_it_would_have_done() -> None:
    streak, verdicts = play(42 * ["idle"], mode=OBSERVE)
    would = [*29 * [NONE], Verdict.WOULD_BEGIN_GRACE, *9 * [NONE], Verdict.WOULD_RECLAIM, NONE, NONE]
    assert verdicts == would
    assert streak.grace_left_seconds is None
    assert play([*35 * ["idle"], "busy"], mode=OBSERVE)[1][-1] is NONE


def test_warn_tells_people_and_stops_nothing() -> None:
    streak, verdicts = play(42 * ["idle"], mode=WARN)
    assert verdicts == [*29 * [NONE], BEGIN, *9 * [GRACE], Verdict.WOULD_RECLAIM, GRACE, GRACE]
    assert streak.grace_left_seconds == 0


@pytest.mark.parametrize(
    ("before", "after", "verdicts"),
    [
        pytest.param(OBSERVE, ENFORCE, [BEGIN, GRACE], id="no user was warned of this grace"),
        pytest.param(OBSERVE, WARN, [BEGIN, GRACE], id="nor does it where people are only told"),
        pytest.param(WARN, ENFORCE, [END, BEGIN, GRACE], id="the warning is repeated with an end"),
        pytest.param(ENFORCE, WARN, [END, BEGIN, GRACE], id="and the other way round"),
        pytest.param(ENFORCE, OBSERVE, [END, Verdict.WOULD_BEGIN_GRACE, NONE], id="no workspace is stopped any more"),
    ],
)
def test_a_change_of_mode_begins_a_new_grace(before: Mode, after: Mode, verdicts: list[Verdict]) -> None:
    streak, _ = play(50 * ["idle"], mode=before)
    assert play(len(verdicts) * ["idle"], streak=streak, mode=after)[1] == verdicts


def test_a_longer_idle_time_ends_a_grace_and_a_shorter_one_none() -> None:
    streak, _ = play(33 * ["idle"])
    assert play(["idle"], streak=streak, policy=replace(POLICY, for_seconds=600.0))[1] == [GRACE]
    longer, verdicts = play(["idle"], streak=streak, policy=replace(POLICY, for_seconds=7200.0))
    assert (longer.countdown_seconds, verdicts) == (None, [END])


def test_a_workspace_without_grace_is_still_told_first() -> None:
    policy = replace(POLICY, grace_seconds=0.0)
    assert play(31 * ["idle"], policy=policy)[1][-2:] == [BEGIN, RECLAIM]


def test_work_possibly_hidden_between_readings_restarts_the_streak_and_ends_the_grace() -> None:
    grace, verdicts = play([*30 * ["idle"], "idle"])
    assert verdicts[-1] is GRACE
    streak, verdict = judge(grace, hidden(), POLICY, ENFORCE)
    assert (streak.kind, verdict, streak.idle_seconds) == (SampleKind.SOFT, END, 0)
    assert streak.since_busy_seconds == 32 * 60, "it is no proof of work: budgets run on"


def test_once_its_budget_is_spent_what_may_hide_holds_nothing_any_more() -> None:
    streak, verdicts = Streak(), []
    for _ in range(60 + 30 + 10):
        streak, verdict = judge(streak, hidden(), POLICY, ENFORCE)
        verdicts.append(verdict)
    assert (verdicts[:89], verdicts[89], verdicts[99]) == (89 * [NONE], BEGIN, RECLAIM)


def test_the_longest_gap_is_from_work_or_the_start_to_the_next_work() -> None:
    assert play(30 * ["idle"])[0].longest_gap_seconds == 0
    assert play([*9 * ["idle"], "busy"])[0].longest_gap_seconds == 600
    streak, _ = play([*9 * ["idle"], "busy", *14 * ["idle"], "busy", "busy", *20 * ["idle"]])
    assert streak.longest_gap_seconds == 900


def test_a_gap_without_readings_spends_no_budget() -> None:
    streak, _ = play(["busy", "idle"])
    after, _ = judge(streak, evidence("idle", 3600.0), POLICY, ENFORCE)
    assert after.since_busy_seconds == 60.0 + 1.5 * POLICY.sample_seconds
