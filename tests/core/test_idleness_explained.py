"""Idleness for display, and closer looks before a stop."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evidence_builders import LOW, exported, monitored, sample, shared
from streak_player import ENFORCE, FAST, OBSERVE, POLICY, WARN, play

from gpuspawner.core.idle.evidence import read_evidence
from gpuspawner.core.idle.policies import Mode
from gpuspawner.core.idle.readings import Sample
from gpuspawner.core.idle.verdicts import Explanation, IdleState, Streak, explain, judge, next_sample_seconds


def test_explain_gives_the_numbers_of_the_sentence() -> None:
    streak, _ = play(["busy", "idle", "idle", "idle", "unknown"])
    assert explain(streak, POLICY) == Explanation(
        state=IdleState.UNKNOWN,
        idle_seconds=180.0,
        for_seconds=1800.0,
        because="GPU 0 can't be read (no utilization)",
        known_share=0.75,
        peak_percent=1.0,
        grace_left_seconds=None,
        unreadable=(),
        soft_left_seconds=3360.0,
    )


@pytest.mark.parametrize(
    ("kinds", "mode", "state"),
    [
        pytest.param([], ENFORCE, IdleState.UNMEASURED, id="nothing yet"),
        pytest.param(["busy"], ENFORCE, IdleState.BUSY, id="busy"),
        pytest.param(["soft"], ENFORCE, IdleState.SOFT, id="held by softer evidence"),
        pytest.param(["idle"], ENFORCE, IdleState.IDLE, id="idle"),
        pytest.param(32 * ["idle"], WARN, IdleState.GRACE, id="grace"),
        pytest.param([*32 * ["idle"], "unknown"], ENFORCE, IdleState.GRACE_PAUSED, id="grace, paused"),
        pytest.param([*32 * ["idle"], "soft"], ENFORCE, IdleState.SOFT, id="used again, perhaps"),
        pytest.param([*32 * ["idle"], "busy"], ENFORCE, IdleState.BUSY, id="used again"),
        pytest.param(32 * ["idle"], OBSERVE, IdleState.IDLE, id="an imagined grace is not shown"),
    ],
)
def test_explain_names_the_state(kinds: list[str], mode: Mode, state: IdleState) -> None:
    assert explain(play(kinds, mode=mode)[0], POLICY).state is state


def test_a_gpu_unknown_for_two_hours_is_told() -> None:
    streak, _ = play(119 * ["unknown"])
    assert (explain(streak, POLICY).unreadable, explain(streak, POLICY).known_share) == ((), 1.0)
    streak, _ = play(["unknown"], streak=streak)
    assert explain(streak, POLICY).unreadable == (("a", 7200.0),)


# --- closer looks before a stop


def periods(kinds: list[str], **more) -> float:
    return next_sample_seconds(play(kinds, **more)[0], more.get("policy", POLICY))


@pytest.mark.parametrize(
    ("gap_minutes", "closely_after"),
    [
        pytest.param(0, 15, id="none: half of the idle time"),
        pytest.param(1, 15, id="a short one: half of the idle time"),
        pytest.param(20, 10, id="a longer one: as long before the warning"),
        pytest.param(90, 1, id="one longer than the idle time: all of it"),
    ],
)
def test_a_closer_look_covers_the_longest_gap_so_far(gap_minutes: int, closely_after: int) -> None:
    before = Streak(mode=ENFORCE, longest_gap_seconds=60.0 * gap_minutes, kind=None)
    for minutes in range(1, 40):
        expected = 5 if minutes >= closely_after else 60
        assert periods(minutes * ["idle"], streak=before) == expected, minutes


def test_use_ends_it_and_so_does_a_probe_that_keeps_failing() -> None:
    grace = 35 * ["idle"]
    assert periods(grace) == 5
    assert periods([*grace, "busy"]) == periods([*grace, "soft"]) == 60
    assert periods([*grace, "unknown"]) == 5, "one that fails is repeated as soon"
    assert periods([*grace, "unknown", "unknown"]) == 60


def test_an_imagined_grace_too_so_that_observing_tells_what_enforcing_would_do() -> None:
    assert periods(35 * ["idle"], mode=OBSERVE) == 5


def test_a_short_idle_time_and_unknown_time_are_not_looked_at_closely() -> None:
    assert periods(["unknown"]) == periods(["idle"]) == periods(14 * ["idle"]) == 60


def test_not_once_the_grace_of_a_mode_that_stops_nothing_has_passed() -> None:
    for mode in (OBSERVE, WARN):
        assert periods(60 * ["idle"], mode=mode) == 60


def test_never_closer_than_a_probe_takes_nor_rarer_than_the_policy() -> None:
    assert periods(30 * ["idle"], policy=FAST) == 1
    assert periods(2 * ["idle"], policy=replace(POLICY, sample_seconds=600.0)) == 50


@pytest.mark.parametrize(
    ("seen", "closely"),
    [
        pytest.param(sample(LOW, sources=(monitored(0),)), [], id="the monitor sees all of it"),
        pytest.param(sample(LOW, sources=(exported(0),)), [38, 39], id="DCGM comes a minute late"),
        pytest.param(sample(shared(1, 0.0)), [], id="MIG: nothing but CPU time is read"),
        pytest.param(sample(shared(1, 0.0, utilization_percent=0.0)), list(range(15, 40)), id="a device is read"),
        pytest.param(sample(LOW), list(range(15, 40)), id="nothing but the probe"),
    ],
)
def test_continuous_sources_need_no_closer_look(seen: Sample, closely: list[int]) -> None:
    streak, found = Streak(mode=ENFORCE), []
    for minute in range(1, 40):
        streak, _ = judge(streak, read_evidence(seen, POLICY), POLICY, ENFORCE)
        if next_sample_seconds(streak, POLICY) < POLICY.sample_seconds:
            found.append(minute)
    assert found == closely
