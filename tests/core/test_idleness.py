"""Streaks and verdicts: the rules of the design's section 7, one by one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace

import pytest

from gpuspawner.core.evidence import SampleKind
from gpuspawner.core.idleness import (
    Explanation,
    State,
    Streak,
    Verdict,
    after_restart,
    explain,
    judge,
    kept,
    next_sample_seconds,
)
from gpuspawner.core.policy import IdlePolicy, Mode
from gpuspawner.core.readings import GpuReading, Sample

POLICY = IdlePolicy()
FAST = IdlePolicy(for_seconds=30, sample_seconds=1, grace_seconds=5, start_up_seconds=1)
OBSERVE, WARN, ENFORCE = Mode.OBSERVE, Mode.WARN, Mode.ENFORCE
NONE, BEGIN, GRACE = Verdict.NONE, Verdict.BEGIN_GRACE, Verdict.GRACE
END, RECLAIM = Verdict.END_GRACE, Verdict.RECLAIM
FRESH = Streak()
PERCENT = {"idle": 1.0, "busy": 97.0, "unknown": None, "soft": 1.0}


def sample(kind: str, interval_seconds: float = 60.0, percent: float | None = None) -> Sample:
    reading = GpuReading("a", PERCENT[kind] if percent is None else percent, 2**30, holders=1)
    cores = 2.0 if kind == "soft" else 0.0
    return Sample(("a",), (reading,), interval_seconds, age_seconds=86400.0, cpu_cores=cores)


def play(
    kinds: Iterable[str], *, streak: Streak = FRESH, mode: Mode = ENFORCE, policy: IdlePolicy = POLICY
) -> tuple[Streak, list[Verdict]]:
    """Judge one sample a period, and return the last streak and all verdicts."""
    verdicts = []
    for kind in kinds:
        streak, verdict = judge(streak, sample(kind, policy.sample_seconds), policy, mode)
        verdicts.append(verdict)
    return streak, verdicts


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


def test_soft_adds_nothing_resets_nothing_and_leaves_coverage_out() -> None:
    before, _ = play(29 * ["idle"])
    after, verdicts = play(20 * ["soft"], streak=before)
    assert (after.idle_seconds, after.observed_seconds) == (before.idle_seconds, before.observed_seconds)
    assert verdicts == 20 * [NONE]
    assert play(["idle"], streak=after)[1] == [BEGIN]


def test_soft_evidence_shields_no_longer_than_its_budget() -> None:
    _, verdicts = play(["busy", *100 * ["soft"]])
    assert verdicts.index(BEGIN) == 60 + 30  # an hour of budget, then thirty minutes idle


def test_unknown_adds_nothing_and_five_in_a_row_reset_nothing() -> None:
    streak, _ = play([*25 * ["idle"], *5 * ["unknown"]])
    assert (streak.idle_seconds, streak.observed_seconds, streak.unknown_in_a_row) == (1500, 1800, 5)
    assert play(5 * ["idle"], streak=streak)[1] == [*4 * [NONE], BEGIN]


def test_the_sixth_unknown_in_a_row_resets() -> None:
    streak, _ = play([*25 * ["idle"], *6 * ["unknown"]])
    assert (streak.idle_seconds, streak.observed_seconds) == (0, 0)
    assert play(30 * ["idle"], streak=streak)[1] == [*29 * [NONE], BEGIN]


@pytest.mark.parametrize("between", ["idle", "soft"])
def test_unknown_is_counted_in_a_row(between: str) -> None:
    streak, _ = play([*20 * ["idle"], *3 * ["unknown"], between, *3 * ["unknown"]])
    assert streak.unknown_in_a_row == 3
    assert streak.idle_seconds >= 1200


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
    after, _ = judge(before, sample("idle", 80), POLICY, ENFORCE)
    assert (after.idle_seconds, after.observed_seconds) == (680, 680)
    after, _ = judge(before, sample("idle", 400), POLICY, ENFORCE)
    assert (after.idle_seconds, after.observed_seconds) == (690, 1000)


def test_a_gap_too_long_for_the_streak_begins_a_new_one() -> None:
    before, _ = play(29 * ["idle"])
    after, verdict = judge(before, sample("idle", 3 * 3600), POLICY, ENFORCE)
    assert (after.idle_seconds, after.observed_seconds, verdict) == (90, 90, NONE)


def test_a_gap_does_not_let_the_grace_pass() -> None:
    streak, _ = play(30 * ["idle"])
    after, verdict = judge(streak, sample("idle", 3600), POLICY, ENFORCE)
    assert (after.grace_left_seconds, verdict) == (510, GRACE)


@pytest.mark.parametrize("pause", ["soft", "unknown"])
def test_soft_and_unknown_pause_the_grace(pause: str) -> None:
    streak, _ = play([*30 * ["idle"], *4 * ["idle"]])
    paused, verdicts = play(5 * [pause], streak=streak)
    assert verdicts == 5 * [GRACE]
    assert paused.grace_left_seconds == streak.grace_left_seconds == 360
    assert play(6 * ["idle"], streak=paused)[1] == [*5 * [GRACE], RECLAIM]


def test_busy_ends_the_grace() -> None:
    streak, verdicts = play([*35 * ["idle"], "busy", "idle"])
    assert verdicts[-2:] == [END, NONE]
    assert (streak.grace_left_seconds, streak.idle_seconds) == (None, 60)


def test_too_many_unknown_in_a_row_end_the_grace() -> None:
    streak, verdicts = play([*35 * ["idle"], *7 * ["unknown"]])
    assert verdicts[-7:] == [*5 * [GRACE], END, NONE]
    assert (streak.grace_left_seconds, streak.idle_seconds) == (None, 0)


@pytest.mark.parametrize("last", ["soft", "unknown", "busy"])
def test_only_an_idle_sample_reclaims(last: str) -> None:
    _, verdicts = play([*39 * ["idle"], last])
    assert verdicts[-1] is (END if last == "busy" else GRACE)


def test_keep_sets_the_streak_to_zero_and_ends_the_grace() -> None:
    streak, _ = play(["busy", *35 * ["idle"]])
    after = kept(streak)
    assert (after.idle_seconds, after.observed_seconds, after.grace_left_seconds) == (0, 0, None)
    assert after.peak_percent is None
    assert after.since_busy_seconds == 2100  # Keep is no use: it renews no budget
    assert play(30 * ["idle"], streak=after)[1] == [*29 * [NONE], BEGIN]


def test_the_peak_is_the_highest_of_the_streak_alone() -> None:
    streak, _ = play(["idle", "busy"])
    for percent in (2.0, 4.0, 3.0):
        streak, _ = judge(streak, sample("idle", percent=percent), POLICY, ENFORCE)
    assert streak.peak_percent == 4.0
    assert play(["busy"], streak=streak)[0].peak_percent is None


def test_unknown_time_is_kept_for_each_gpu() -> None:
    def seen(first: float | None, second: float | None) -> Sample:
        return Sample(("a", "b"), (GpuReading("a", first), GpuReading("b", second)), 60.0, 86400.0, 0.0)

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
        pytest.param(OBSERVE, ENFORCE, [BEGIN, GRACE], id="an imagined grace warned nobody"),
        pytest.param(OBSERVE, WARN, [BEGIN, GRACE], id="nor does it where people are only told"),
        pytest.param(WARN, ENFORCE, [END, BEGIN, GRACE], id="a grace without an end is told anew, with one"),
        pytest.param(ENFORCE, WARN, [END, BEGIN, GRACE], id="and the other way round"),
        pytest.param(ENFORCE, OBSERVE, [END, Verdict.WOULD_BEGIN_GRACE, NONE], id="nobody is stopped any more"),
    ],
)
def test_a_change_of_mode_begins_a_new_grace(before: Mode, after: Mode, verdicts: list[Verdict]) -> None:
    streak, _ = play(50 * ["idle"], mode=before)
    assert play(len(verdicts) * ["idle"], streak=streak, mode=after)[1] == verdicts


def test_a_workspace_without_grace_is_still_told_first() -> None:
    policy = replace(POLICY, grace_seconds=0.0)
    assert play(31 * ["idle"], policy=policy)[1][-2:] == [BEGIN, RECLAIM]


@pytest.mark.parametrize(
    ("policy", "left_seconds", "remains_seconds"),
    [
        pytest.param(POLICY, 600.0, 600.0, id="never more than was left, where enough was"),
        pytest.param(POLICY, 181.0, 181.0, id="just enough was left"),
        pytest.param(POLICY, 60.0, 180.0, id="two samples and a minute"),
        pytest.param(POLICY, 0.0, 180.0, id="passed, but not carried out"),
        pytest.param(FAST, 1.0, 5.0, id="at most the grace"),
    ],
)
def test_after_a_restart_enough_of_the_grace_remains(
    policy: IdlePolicy, left_seconds: float, remains_seconds: float
) -> None:
    streak = Streak(idle_seconds=1800, observed_seconds=1800, countdown_seconds=left_seconds, mode=ENFORCE)
    assert after_restart(streak, policy) == replace(streak, countdown_seconds=remains_seconds)


@pytest.mark.parametrize(
    "streak",
    [
        pytest.param(Streak(idle_seconds=600, observed_seconds=600, mode=ENFORCE), id="not in grace"),
        pytest.param(Streak(countdown_seconds=0.0, mode=WARN), id="nobody is stopped: nothing to tell again"),
        pytest.param(Streak(countdown_seconds=0.0, mode=OBSERVE), id="nobody was told"),
    ],
)
def test_a_restart_leaves_other_streaks_alone(streak: Streak) -> None:
    assert after_restart(streak, POLICY) == streak


@pytest.mark.parametrize(
    ("every", "policy"),
    [
        pytest.param(20, POLICY, id="every 20 minutes"),
        pytest.param(4, POLICY, id="every 4 minutes, more often than the grace is long"),
        pytest.param(20, FAST, id="every 20 minutes at a sample a second"),
    ],
)
@pytest.mark.parametrize("phase", range(4))
def test_a_service_restarted_again_and_again_lets_the_grace_pass_once(
    every: int, policy: IdlePolicy, phase: int
) -> None:
    streak, verdicts, passed_seconds = Streak(), [], 0.0
    for minute in range(1, 121):
        if (minute + phase) % every == 0:
            streak = after_restart(Streak.from_json(json.loads(json.dumps(asdict(streak)))), policy)
        streak, verdict = judge(streak, sample("idle", policy.sample_seconds), policy, ENFORCE)
        verdicts.append(verdict)
        passed_seconds += policy.sample_seconds if verdict in {GRACE, RECLAIM} else 0.0
        if verdict is RECLAIM:
            break
    assert (verdicts.count(BEGIN), verdicts[-1]) == (1, RECLAIM)
    assert policy.grace_seconds <= passed_seconds <= 2 * policy.grace_seconds


def hidden(interval_seconds: float = 60.0) -> Sample:
    """The GPU reads 0, and a process that holds it used 3 s of CPU."""
    reading = GpuReading("a", 0.0, 2**30, holders=1, holders_cpu_cores=3 / interval_seconds)
    return Sample(("a",), (reading,), interval_seconds, age_seconds=86400.0, cpu_cores=3 / interval_seconds)


def test_work_that_may_hide_between_readings_begins_the_streak_anew_and_ends_the_grace() -> None:
    grace, verdicts = play([*30 * ["idle"], "idle"])
    assert verdicts[-1] is GRACE
    streak, verdict = judge(grace, hidden(), POLICY, ENFORCE)
    assert (streak.kind, verdict, streak.idle_seconds) == (SampleKind.SOFT, END, 0)
    assert streak.since_busy_seconds == 32 * 60, "it is no proof of work: budgets run on"


def test_once_its_budget_is_spent_what_may_hide_holds_nothing_any_more() -> None:
    streak, verdicts = Streak(), []
    for _ in range(120 + 30 + 10):
        streak, verdict = judge(streak, hidden(), POLICY, ENFORCE)
        verdicts.append(verdict)
    assert (verdicts[:149], verdicts[149], verdicts[159]) == (149 * [NONE], BEGIN, RECLAIM)


class TestLookingClosely:
    def test_in_the_grace_that_passes(self) -> None:
        assert next_sample_seconds(play(29 * ["idle"])[0], POLICY) == 60
        assert next_sample_seconds(play(30 * ["idle"])[0], POLICY) == 5
        assert next_sample_seconds(play([*30 * ["idle"], "soft"])[0], POLICY) == 5
        assert next_sample_seconds(play([*30 * ["idle"], "unknown"])[0], POLICY) == 5
        assert next_sample_seconds(play([*30 * ["idle"], "unknown", "unknown"])[0], POLICY) == 60
        assert next_sample_seconds(play([*30 * ["idle"], "busy"])[0], POLICY) == 60

    def test_in_an_imagined_grace_too_so_that_observing_tells_what_enforcing_would_do(self) -> None:
        assert next_sample_seconds(play(30 * ["idle"], mode=OBSERVE)[0], POLICY) == 5

    def test_not_once_the_grace_of_a_mode_that_stops_nothing_has_passed(self) -> None:
        for mode in (OBSERVE, WARN):
            assert next_sample_seconds(play(60 * ["idle"], mode=mode)[0], POLICY) == 60

    def test_where_work_may_hide_once_half_of_the_budget_is_spent(self) -> None:
        suspect = judge(Streak(since_busy_seconds=1741.0), hidden(), POLICY, ENFORCE)[0]
        assert next_sample_seconds(suspect, POLICY) == 5
        assert next_sample_seconds(judge(Streak(), hidden(), POLICY, ENFORCE)[0], POLICY) == 60
        assert next_sample_seconds(play(5 * ["idle"], streak=suspect)[0], POLICY) == 5
        assert next_sample_seconds(play(6 * ["idle"], streak=suspect)[0], POLICY) == 60

    def test_never_closer_than_a_probe_takes_nor_rarer_than_the_policy(self) -> None:
        assert next_sample_seconds(play(30 * ["idle"], policy=FAST)[0], FAST) == 1
        slow = replace(POLICY, sample_seconds=600.0)
        assert next_sample_seconds(play(3 * ["idle"], policy=slow)[0], slow) == 50


def test_a_stored_streak_is_read_back_as_it_was() -> None:
    streak, _ = play([*30 * ["idle"], "idle", "unknown"])
    assert streak.unknown_since
    assert Streak.from_json(json.loads(json.dumps(asdict(streak)))) == streak
    assert Streak.from_json(asdict(Streak())) == Streak()


GOOD = json.loads(json.dumps(asdict(play([*31 * ["idle"], "unknown"])[0])))


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(None, id="nothing"),
        pytest.param([], id="a list"),
        pytest.param({}, id="empty"),
        pytest.param({k: v for k, v in GOOD.items() if k != "because"}, id="a field missing"),
        pytest.param({**GOOD, "more": 1}, id="a field too many"),
        *(
            pytest.param({**GOOD, name: value}, id=f"{name}={value!r:.20}")
            for name, values in {
                "idle_seconds": (None, True, "60", -1, float("nan"), float("inf"), 10**400),
                "observed_seconds": (None, []),
                "since_busy_seconds": (None, {}),
                "unknown_in_a_row": (None, 1.0, True, -1),
                "peak_percent": ("1", -1),
                "countdown_seconds": (False, -1),
                "perhaps_ago_seconds": (False, -1),
                "mode": (None, "off", []),
                "kind": ("odd", 1, []),
                "because": (None, 1),
                "unknown_since": (None, "ab", ["ab"], [1], [["a"]], [["a", 1, 2]], [[1, 1]], [["a", "1"]], {"a": 1}),
            }.items()
            for value in values
        ),
    ],
)
def test_a_bad_stored_streak_is_refused(stored: object) -> None:
    with pytest.raises(ValueError):
        Streak.from_json(stored)


def test_explain_gives_the_numbers_of_the_sentence() -> None:
    streak, _ = play(["busy", "idle", "idle", "idle", "unknown"])
    assert explain(streak, POLICY) == Explanation(
        state=State.UNKNOWN,
        idle_seconds=180.0,
        for_seconds=1800.0,
        because="GPU 0 can't be read (no utilization)",
        known_share=0.75,
        peak_percent=1.0,
        grace_left_seconds=None,
        unreadable=(),
        budgets=(("cpu", 3600.0, 3360.0),),
    )


@pytest.mark.parametrize(
    ("kinds", "mode", "state"),
    [
        pytest.param([], ENFORCE, State.UNMEASURED, id="nothing yet"),
        pytest.param(["busy"], ENFORCE, State.BUSY, id="busy"),
        pytest.param(["soft"], ENFORCE, State.SOFT, id="held by softer evidence"),
        pytest.param(["idle"], ENFORCE, State.IDLE, id="idle"),
        pytest.param(32 * ["idle"], WARN, State.GRACE, id="grace"),
        pytest.param([*32 * ["idle"], "soft"], ENFORCE, State.GRACE_PAUSED, id="grace, paused"),
        pytest.param([*32 * ["idle"], "busy"], ENFORCE, State.BUSY, id="used again"),
        pytest.param(32 * ["idle"], OBSERVE, State.IDLE, id="an imagined grace is not shown"),
    ],
)
def test_explain_names_the_state(kinds: list[str], mode: Mode, state: State) -> None:
    assert explain(play(kinds, mode=mode)[0], POLICY).state is state


def test_a_gpu_unknown_for_two_hours_is_told() -> None:
    streak, _ = play(119 * ["unknown"])
    assert (explain(streak, POLICY).unreadable, explain(streak, POLICY).known_share) == ((), 1.0)
    streak, _ = play(["unknown"], streak=streak)
    assert explain(streak, POLICY).unreadable == (("a", 7200.0),)


def test_what_cpu_time_alone_judges_is_not_looked_at_closely() -> None:
    in_grace = replace(Streak(), countdown_seconds=600.0, mode=ENFORCE)
    assert next_sample_seconds(replace(in_grace, peak_percent=1.0), POLICY) < POLICY.sample_seconds
    assert next_sample_seconds(in_grace, POLICY) == POLICY.sample_seconds


def test_a_gap_that_nobody_saw_spends_no_budget() -> None:
    streak, _ = play(["busy", "idle"])
    after, _ = judge(streak, sample("idle", 3600.0), POLICY, ENFORCE)
    assert after.since_busy_seconds == 60.0 + 1.5 * POLICY.sample_seconds
