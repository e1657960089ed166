"""The replay is the live judgement, and what it reports is measured against what was really done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from gpuspawner.core.idle.evidence import read_evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import GpuReading, Sample
from gpuspawner.core.idle.verdicts import SampleKind, Streak, Verdict, judge, resume_streak
from gpuspawner.simulate.habits import Frontend, Habits, Sharing, Work
from gpuspawner.simulate.probe import GeneratedSampler, Probe
from gpuspawner.simulate.replay import (
    SessionResult,
    Step,
    Stop,
    WarningOutcome,
    WarningResult,
    judged,
    replay,
    simulate,
    totals,
    warnings,
)
from gpuspawner.simulate.sessions import Restart, Session, draw, sessions
from gpuspawner.simulate.timeline import Timeline, merged

POLICY = IdlePolicy()
MINUTE, HOUR, NEVER = 60.0, 3600.0, Timeline()
SURE = Probe(failing_share=0.0)


def session(work: Timeline = NEVER, *others: Timeline, hours: float = 4.0, **more: object) -> Session:
    plain = Session(
        seed=7,
        work_kind=Work.STEADY,
        frontend=Frontend.NOTEBOOK,
        sharing=Sharing.EXCLUSIVE,
        end=hours * HOUR,
        work=(work, *others),
        cpu=work and Timeline((begin, end, 1.0) for begin, end, _ in work.spans),
        held=Timeline([(merged((work, *others)).spans[0][0], hours * HOUR, 1.0)]) if work or others else NEVER,
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def stopped(of: Session, policy: IdlePolicy = POLICY, probe: Probe = SURE) -> float | None:
    return replay(GeneratedSampler(of, policy, probe), policy).stopped_at


def samples(*percents: float | None) -> Iterable[Step]:
    for number, percent in enumerate(percents):
        gpu = GpuReading("a", percent, 2**30, holders=1, holders_cpu_cores=0.0)
        yield Step(60.0 * number, Sample(("a",), (gpu,), 60.0, 600.0 + 60 * number, cpu_cores=0.0))


class looking:  # noqa: N801 - it stands where a function would
    def __init__(self, steps: Iterable[Step]) -> None:
        self.rest = iter(steps)

    def __call__(self, seconds: float) -> Step | None:
        return next(self.rest, None)

    def resume(self, at: float) -> None:
        raise AssertionError("one start is replayed")


class TestReplay:
    def test_it_says_what_judge_says(self) -> None:
        percents = [90.0, *3 * [0.0], None, *60 * [1.0], 50.0]
        streak, told = Streak(mode=Mode.ENFORCE), {}
        for step in samples(*percents):
            streak, verdict = judge(streak, read_evidence(step.sample, POLICY), POLICY, Mode.ENFORCE)
            told.setdefault(verdict, step.at)
        seen = replay(looking(samples(*percents)), POLICY)
        assert seen.warned_at == (told[Verdict.BEGIN_GRACE],)
        assert seen.stopped_at == told[Verdict.RECLAIM]

    def test_it_ends_with_the_stop_and_tells_the_time_before(self) -> None:
        seen = replay(looking(samples(90.0, None, *100 * [0.0])), POLICY)
        assert dict(seen.seconds) == {
            SampleKind.BUSY: 60.0,
            SampleKind.UNKNOWN: 60.0,
            SampleKind.SOFT: 0.0,
            SampleKind.IDLE: 2400.0,
        }
        assert seen.stretches == ((0.0, SampleKind.BUSY), (60.0, SampleKind.UNKNOWN), (41 * 60.0, SampleKind.IDLE))

    def test_a_restart_is_one(self) -> None:
        steps = [*samples(*41 * [0.0])]
        steps[39] = replace(steps[39], restarted=True)
        streak = Streak(mode=Mode.ENFORCE)
        for step in steps[:39]:
            streak = judge(streak, read_evidence(step.sample, POLICY), POLICY, Mode.ENFORCE)[0]
        assert resume_streak(streak, POLICY) != streak
        assert replay(looking(steps), POLICY).stopped_at is None
        assert replay(looking(samples(*41 * [0.0])), POLICY).stopped_at == 39 * 60.0


class TestWarnings:
    def warned(self, *percents: float | None, mode: Mode = Mode.ENFORCE, work: Timeline = NEVER) -> list[WarningResult]:
        seen = replay(looking(samples(*percents)), POLICY, mode)
        return warnings([seen], work, 60.0 * len(percents), POLICY)

    def test_a_warning_that_is_carried_out(self) -> None:
        assert self.warned(*60 * [0.0]) == [
            WarningResult(29 * 60.0, wrong=False, then=WarningOutcome.STOPPED, then_at=39 * 60.0)
        ]

    def test_one_after_which_it_is_used_again(self) -> None:
        first, second = self.warned(*35 * [0.0], 90.0, *45 * [0.0])
        assert first == WarningResult(29 * 60.0, wrong=False, then=WarningOutcome.USED, then_at=35 * 60.0)
        assert second.then is WarningOutcome.STOPPED

    def test_one_after_which_it_cannot_be_measured(self) -> None:
        assert self.warned(*35 * [0.0], *6 * [None]) == [
            WarningResult(29 * 60.0, wrong=False, then=WarningOutcome.UNKNOWN, then_at=40 * 60.0)
        ]

    def test_one_in_whose_grace_it_ends(self) -> None:
        assert self.warned(*35 * [0.0]) == [
            WarningResult(29 * 60.0, wrong=False, then=WarningOutcome.LEFT, then_at=None)
        ]
        assert self.warned(*40 * [0.0])[0].then is WarningOutcome.STOPPED
        seen = replay(looking(samples(*40 * [0.0])), POLICY)
        (at_its_end,) = warnings([seen], NEVER, seen.stopped_at, POLICY)
        assert at_its_end.then is WarningOutcome.LEFT

    def test_mode_warn_stops_nothing_and_warns_once(self) -> None:
        assert self.warned(*90 * [0.0], mode=Mode.WARN) == [
            WarningResult(29 * 60.0, wrong=False, then=WarningOutcome.LEFT, then_at=None)
        ]

    @pytest.mark.parametrize(("begin", "wrong"), [(0.0, True), (-60.0, False)])
    def test_it_is_wrong_where_a_gpu_was_at_work_in_the_idle_minutes_before(self, begin: float, wrong: bool) -> None:
        work = Timeline([(begin, begin + 50.0, 80.0)])  # 29 minutes before the warning, or 30: within its first period
        seen = replay(looking(samples(*60 * [0.0])), POLICY)
        (one,) = warnings([replace(seen, began_at=-60.0)], work, HOUR, POLICY)
        assert one.wrong is wrong


def a_stop(
    at: float, *, wrong: bool = False, won: float = 0.0, freed: float | None = None, wanted: float | None = None
):
    return Stop(at, None, wrong=wrong, won_hours=won, freed_after_seconds=freed, wanted_at=wanted)


def once(at: float | None):
    """Stop each start at that time, if it has not passed."""
    return lambda begin: (at if at is not None and begin < at else None, None)


class TestTruth:
    @pytest.mark.parametrize(
        ("work", "wrong"),
        [
            pytest.param((0.0, 100.0), False, id="long before"),
            pytest.param((7000.0, 7020.0), True, id="within the idle minutes"),
            pytest.param((8900.0, 8901.0), True, id="within the grace"),
            pytest.param((8999.0, 9100.0), True, id="at the stop"),
            pytest.param((6600.0, 6659.0), False, id="within the first period, which no sampling can place"),
            pytest.param((6600.0, 6661.0), True, id="just after it"),
            pytest.param((9000.0, 9100.0), False, id="after the stop"),
        ],
    )
    def test_in_use_is_gpu_work_in_the_idle_minutes_or_the_grace(self, work: tuple[float, float], wrong: bool) -> None:
        (stop,) = judged(once(9000.0), Timeline([(*work, 50.0)]), 1, 4 * HOUR, POLICY).stops
        assert stop.wrong is wrong

    def test_hours_are_of_all_gpus_and_won_by_rightful_stops_alone(self) -> None:
        work = Timeline([(0.0, 1200.0, 50.0)])
        right = judged(once(1.5 * HOUR), work, 2, 4 * HOUR, POLICY)
        assert (right.gpu_hours, right.winnable_hours) == (8.0, 6.0)
        assert right.stops == (a_stop(1.5 * HOUR, won=5.0, freed=1.5 * HOUR - 1200),)
        wrong = judged(once(1000.0), work, 2, 4 * HOUR, POLICY)
        assert (wrong.stops, wrong.winnable_hours) == ((a_stop(1000.0, wrong=True, wanted=1000.0),), 6.0)
        left = judged(once(None), work, 2, 4 * HOUR, POLICY)
        assert (left.stops, left.winnable_hours) == ((), 6.0)
        assert judged(once(4 * HOUR), work, 2, 4 * HOUR, POLICY) == left, "at its own end it is not stopped"

    def test_hours_are_won_until_its_user_wants_it_again_and_starts_it_again(self) -> None:
        work = Timeline([(0.0, 60.0, 50.0), (3 * HOUR, 3.5 * HOUR, 50.0)])
        begun = []

        def an_hour_after_each_start(begin: float) -> tuple[float, float]:
            begun.append(begin)
            return begin + 1.5 * HOUR, begin + HOUR

        seen = judged(an_hour_after_each_start, work, 1, 5 * HOUR, POLICY)
        assert begun == [0.0, 3 * HOUR]
        assert [(stop.at, stop.warned_at, stop.won_hours) for stop in seen.stops] == [
            (1.5 * HOUR, HOUR, 1.5),
            (4.5 * HOUR, 4 * HOUR, 0.5),
        ]
        assert seen.winnable_hours == pytest.approx((3 * 60 - 1 - 40 + 90 - 40) / 60)

    def test_a_wrong_stop_is_the_end_of_it(self) -> None:
        work = Timeline([(0.0, 4 * HOUR, 50.0)])
        assert len(judged(lambda begin: (begin + HOUR, None), work, 1, 4 * HOUR, POLICY).stops) == 1

    def test_totals(self) -> None:
        stops = (a_stop(60.0, won=2.0, freed=90.0), a_stop(90.0, won=1.0, freed=30.0))
        rows = [
            (SessionResult(stops, 4.0, 3.0), 2 * HOUR),
            (SessionResult((a_stop(60.0, wrong=True),), 4.0, 1.0), 4 * HOUR),
            (SessionResult((), 4.0, 0.0), 4 * HOUR),
        ]
        seen = totals(rows)
        assert (seen.workspaces, seen.session_hours, seen.stops, seen.wrong) == (3, 10.0, 3, 1)
        assert (seen.wrong_per_100k_hours, seen.recovered_share) == (10_000.0, 0.75)
        assert (seen.freed_after(0.5), seen.freed_after(0.95), seen.freed_after(0.0)) == (90.0, 90.0, 30.0)
        empty = totals([])
        assert (empty.wrong_per_100k_hours, empty.recovered_share, empty.freed_after(0.5)) == (0.0, 1.0, None)


def bursts(begin: float, end: float, seconds: float, every: float) -> Timeline:
    spans, at = [], begin
    while at < end:
        spans.append((at, at + seconds, 80.0))
        at += every
    return Timeline(spans)


class TestWhatTheProbeSees:
    def test_never_used_is_stopped_after_its_minutes_and_grace(self) -> None:
        at = stopped(session())
        assert at is not None
        assert 40 * MINUTE <= at <= 45 * MINUTE

    def test_at_work_it_is_left_alone(self) -> None:
        assert stopped(session(Timeline([(60.0, 4 * HOUR, 60.0)]))) is None

    def test_one_busy_gpu_of_several_keeps_all(self) -> None:
        assert stopped(session(NEVER, Timeline([(60.0, 4 * HOUR, 60.0)]))) is None

    def test_bursts_of_three_seconds_a_minute_are_use(self) -> None:
        assert stopped(session(bursts(60.0, 4 * HOUR, 3.0, 61.0))) is None

    @pytest.mark.parametrize("sharing", [Sharing.SHARED, Sharing.MIG])
    def test_so_they_are_on_a_gpu_whose_readings_say_nothing(self, sharing: Sharing) -> None:
        assert stopped(session(bursts(60.0, 4 * HOUR, 3.0, 61.0), sharing=sharing)) is None

    def test_a_busy_neighbour_hides_no_idle_workspace(self) -> None:
        neighbours = Timeline([(0.0, 4 * HOUR, 100.0)])
        at = stopped(session(sharing=Sharing.SHARED, neighbours=neighbours))
        assert at is not None
        assert at <= 45 * MINUTE

    def test_an_unreadable_record_is_skipped(self) -> None:
        forever = Timeline([(0.0, 4 * HOUR, 1.0)])
        assert stopped(session(lost=forever)) is None
        assert stopped(session(faults=forever)) is None

    def test_a_restart_and_a_clock_set_an_hour_on_stop_nothing_that_works(self) -> None:
        restarts = tuple(Restart(at * HOUR, 300.0, HOUR) for at in range(1, 4))
        assert stopped(session(Timeline([(60.0, 4 * HOUR, 60.0)]), restarts=restarts)) is None

    def test_an_hour_away_is_no_idle_hour(self) -> None:
        used = Timeline([(60.0, HOUR, 60.0), (2.2 * HOUR, 3 * HOUR, 60.0)])
        at = stopped(session(used, restarts=(Restart(HOUR + 60, HOUR, 0.0),), hours=3.0))
        assert at is None, "idle for 2 min, away for an hour, idle for 11 min"

    def test_a_clock_set_back_gives_no_negative_interval(self) -> None:
        look = GeneratedSampler(session(restarts=(Restart(100.0, 10.0, -HOUR),)), POLICY, SURE)
        intervals = [step.sample.interval_seconds for step in iter(lambda: look(60.0), None)]
        assert min(intervals) == 0.0


class TestDrawing:
    def test_a_seed_gives_the_same_sessions_and_another_seed_others(self) -> None:
        first, again, other = ([(one.end, one.used.spans) for one in sessions(seed, 200)] for seed in (3, 3, 4))
        assert first == again != other

    def test_they_add_up_to_the_hours_asked_for(self) -> None:
        hours = [one.hours for one in sessions(1, 500)]
        assert sum(hours) >= 500 > sum(hours[:-1])

    def test_the_published_shares_are_met(self) -> None:
        many = list(sessions(1, 20_000))
        never = sum(not one.used for one in many) / len(many)
        assert never == pytest.approx(0.70, abs=0.05)
        used_seconds = [one.used.integral(0.0, one.end) for one in many]
        assert 1 - sum(used_seconds) / sum(one.end for one in many) > 0.81, "idle over 81 % of the time"
        at_most_5_percent = sum(used <= 0.05 * one.end for used, one in zip(used_seconds, many, strict=True))
        assert at_most_5_percent / len(many) == pytest.approx(0.75, abs=0.05)

    @pytest.mark.parametrize("work", [work for work in Work if work is not Work.NEVER])
    def test_every_kind_of_work_leaves_its_traces_in_order(self, work: Work) -> None:
        habits = Habits(never_share=0.0, works=((work, 1.0),), several_share=1.0, sharing=((Sharing.EXCLUSIVE, 1.0),))
        for seed in range(20):
            one = draw(seed, habits)
            assert one.work_kind is work
            assert len(one.work) > 1
            assert 0 <= one.held.spans[0][0] <= one.used.spans[0][0]
            assert all(one.held.at(begin) for begin, _, _ in one.used.spans)
            assert one.used.spans[-1][1] <= one.end

    def test_all_activity_that_a_peer_reads_occurs(self) -> None:
        many = list(sessions(1, 5000))
        for name in ("neighbours", "browser", "kernel", "terminal", "connected", "lost", "faults", "restarts", "steps"):
            assert any(getattr(one, name) for one in many), name


def test_after_a_stop_a_workspace_is_judged_from_its_next_start() -> None:
    work = Timeline([(60.0, 600.0, 60.0), (3 * HOUR, 3.2 * HOUR, 60.0)])
    one = session(work, hours=6.0)
    seen, replays = simulate(GeneratedSampler(one, POLICY, SURE), one.used, 1, one.end, POLICY)
    assert len(replays) == len(seen.stops) == 2
    first, second = (stop.at for stop in seen.stops)
    assert 600 + 40 * MINUTE <= first <= 600 + 43 * MINUTE
    assert 3.2 * HOUR + 40 * MINUTE <= second <= 3.2 * HOUR + 43 * MINUTE
    assert seen.stops[1].warned_at == pytest.approx(second - 600, abs=10)


def test_ours_stops_none_in_use_and_wins_what_there_is_to_win() -> None:
    """A small share of what ``bench/idleness`` shows on many more hours."""
    rows = [
        (simulate(GeneratedSampler(one, POLICY), one.used, len(one.work), one.end, POLICY)[0], one.end)
        for one in sessions(5, 1000)
    ]
    seen = totals(rows)
    assert seen.wrong == 0
    assert seen.recovered_share > 0.93
