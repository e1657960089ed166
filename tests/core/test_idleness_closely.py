"""When the next sample is due: sooner in a grace that passes, and where work may hide."""

from __future__ import annotations

from dataclasses import replace

from idleness_play import ENFORCE, FAST, OBSERVE, POLICY, WARN, hidden, play

from gpuspawner.core.idle.idleness import Streak, judge, next_sample_seconds


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


def test_what_cpu_time_alone_judges_is_not_looked_at_closely() -> None:
    in_grace = replace(Streak(), countdown_seconds=600.0, mode=ENFORCE)
    assert next_sample_seconds(replace(in_grace, peak_percent=1.0), POLICY) < POLICY.sample_seconds
    assert next_sample_seconds(in_grace, POLICY) == POLICY.sample_seconds
