"""Streaks under hypothesis: no sequence of samples, keeps, restarts and changes of mode breaks the promises.

The machine keeps its own books, plainly and in full: every sample since the streak could have begun.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pydantic import TypeAdapter

from gpuspawner.core.idle.evidence import Evidence, read_evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import GpuReading, Sample
from gpuspawner.core.idle.verdicts import Streak, Verdict, judge, reset_idle_time, resume_streak

# A short window, so that sequences of a few dozen steps reach every verdict.
POLICY = IdlePolicy(for_seconds=6.0, sample_seconds=1.0, grace_seconds=4.0, soft_seconds=40.0, start_up_seconds=0.0)
INTERVALS = st.sampled_from([1.0, 1.0, 1.0, 0.5, 1.5, 2.0, 30.0])
PERCENT = {"idle": 1.0, "soft": 4.0, "busy": 80.0, "unknown": None}


@dataclass(frozen=True)
class Seen:
    """One record of the model: the kind of a sample and its credited time."""

    kind: str
    interval_seconds: float

    @property
    def known_idle_seconds(self) -> float:
        return min(self.interval_seconds, 1.5) if self.kind == "idle" else 0.0


STORED = TypeAdapter(Streak)


def evidence(kind: str, interval_seconds: float) -> Evidence:
    rest = {"memory_used_bytes": 2**30, "holders": 1, "holders_cpu_cores": 0.0}
    readings = (GpuReading("a", 0.0, **rest), GpuReading("b", PERCENT[kind], **rest))
    cores = 1.0 if kind == "soft" else 0.0
    return read_evidence(Sample(("a", "b"), readings, interval_seconds, 3600.0, cpu_cores=cores), POLICY)


def is_covered(books: list[Seen]) -> bool:
    """Whether some time up to now, begun by an idle sample, has the minutes and the coverage."""
    idle_seconds = known_seconds = 0.0
    for seen in reversed(books):
        idle_seconds += seen.known_idle_seconds
        begun_seconds = known_seconds + seen.known_idle_seconds
        known_seconds += seen.interval_seconds
        if seen.kind == "idle" and idle_seconds >= 6.0 and idle_seconds >= 0.8 * begun_seconds:
            return True
    return False


class Idleness(RuleBasedStateMachine):
    """A workspace's life: samples, keeps, restarts and changes of mode in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.streak = Streak()
        self.books: list[Seen] = []
        self.warned_in: Mode | None = None
        self.grace_passed_seconds = 0.0
        self.since_busy_seconds = 0.0
        self.unknown_seconds = 0.0

    @initialize(mode=st.sampled_from(Mode))
    def start(self, mode: Mode) -> None:
        self.mode = mode

    @rule(kind=st.sampled_from(sorted(PERCENT)), interval_seconds=INTERVALS)
    def one_sample(self, kind: str, interval_seconds: float) -> None:
        self.see(kind, interval_seconds)

    @rule(kind=st.sampled_from(["idle", "idle", "soft", "unknown"]), count=st.integers(4, 12))
    def the_same_for_a_while(self, kind: str, count: int) -> None:
        for _ in range(count):
            self.see(kind, 1.0)

    @rule(idle=st.integers(2, 4), unknown=st.integers(1, 2), times=st.integers(2, 4))
    def flapping_readings(self, idle: int, unknown: int, times: int) -> None:
        for kind in times * [*idle * ["idle"], *unknown * ["unknown"]]:
            self.see(kind, 1.0)

    @rule()
    def keep(self) -> None:
        self.streak = reset_idle_time(self.streak)
        self.forget()

    @rule()
    def restart(self) -> None:
        before = self.streak.grace_left_seconds
        self.streak = resume_streak(STORED.validate_json(STORED.dump_json(self.streak)), POLICY)
        if before is not None:
            assert before <= self.streak.grace_left_seconds <= 4.0

    @rule(mode=st.sampled_from(Mode))
    def change_mode(self, mode: Mode) -> None:
        self.mode = mode

    @invariant()
    def the_grace_that_is_shown_is_the_one_people_were_told_of(self) -> None:
        assert (self.streak.grace_left_seconds is not None) == (self.warned_in is not None)

    @invariant()
    def no_time_is_known_twice(self) -> None:
        assert 0 <= self.streak.idle_seconds <= self.streak.observed_seconds
        assert self.streak.idle_seconds <= sum(seen.known_idle_seconds for seen in self.books)

    def forget(self) -> None:
        self.books, self.warned_in, self.grace_passed_seconds = [], None, 0.0

    def see(self, kind: str, interval_seconds: float) -> None:
        self.streak, verdict = judge(self.streak, evidence(kind, interval_seconds), POLICY, self.mode)
        # An unseen gap spends at most a period and a half of the soft budget.
        self.since_busy_seconds = 0.0 if kind == "busy" else self.since_busy_seconds + min(interval_seconds, 1.5)
        if kind == "soft" and self.since_busy_seconds > 40.0:
            kind = "idle"
        self.unknown_seconds = self.unknown_seconds + interval_seconds if kind == "unknown" else 0.0
        is_use = kind in {"busy", "soft"} or self.unknown_seconds > 5.0
        self.books.append(Seen(kind, interval_seconds))
        ends = is_use or self.warned_in not in (None, self.mode)
        self.check(verdict, ends=ends)
        if verdict is Verdict.BEGIN_GRACE:
            self.warned_in, self.grace_passed_seconds = self.mode, 0.0
        elif verdict is Verdict.END_GRACE:
            self.warned_in = None
        if is_use:
            self.forget()

    def check(self, verdict: Verdict, *, ends: bool) -> None:
        seen = self.books[-1]
        if self.warned_in is not None and not ends:
            self.grace_passed_seconds += seen.known_idle_seconds
        assert (verdict is Verdict.END_GRACE) == (self.warned_in is not None and ends)
        if verdict is Verdict.BEGIN_GRACE:
            assert self.warned_in is None
            assert self.mode is not Mode.OBSERVE
            assert seen.kind == "idle"
            assert is_covered(self.books)
        if verdict is Verdict.GRACE:
            assert self.warned_in is self.mode
        if verdict is Verdict.RECLAIM:
            assert self.mode is Mode.ENFORCE
            assert self.warned_in is Mode.ENFORCE
            assert seen.kind == "idle"
            assert self.grace_passed_seconds >= 4.0
        if verdict is Verdict.WOULD_BEGIN_GRACE:
            assert self.mode is Mode.OBSERVE
            assert is_covered(self.books)
        if verdict is Verdict.WOULD_RECLAIM:
            assert self.mode is not Mode.ENFORCE


class TestPromise4AndPromise5(Idleness.TestCase):
    """Promises 4 and 5: see :meth:`Idleness.check`."""

    settings = settings(stateful_step_count=40)


KINDS = st.lists(st.tuples(st.sampled_from(sorted(PERCENT)), INTERVALS), max_size=60)


def verdicts(kinds: list[tuple[str, float]], mode: Mode = Mode.ENFORCE) -> list[Verdict]:
    streak, given_verdicts = Streak(), []
    for kind, interval_seconds in kinds:
        streak, verdict = judge(streak, evidence(kind, interval_seconds), POLICY, mode)
        given_verdicts.append(verdict)
    return given_verdicts


@given(KINDS)
def test_promise_4_no_grace_without_the_policys_minutes_of_known_idle_time(kinds: list[tuple[str, float]]) -> None:
    for count, verdict in enumerate(verdicts(kinds), start=1):
        # Soft evidence whose budget is spent counts as idle: its GPU is known to be low.
        low = [interval for kind, interval in kinds[:count] if kind in {"idle", "soft"}]
        if verdict is Verdict.BEGIN_GRACE:
            assert sum(min(interval, 1.5) for interval in low) >= 6.0


@given(st.lists(INTERVALS, max_size=60), st.sampled_from(["unknown", "busy"]), st.sampled_from(Mode))
def test_promise_4_one_busy_or_unknown_gpu_of_several_saves_the_workspace(
    intervals: list[float], kind: str, mode: Mode
) -> None:
    assert set(verdicts([(kind, interval) for interval in intervals], mode)) <= {Verdict.NONE}


@given(st.floats(10.0, 1e6), st.integers(1, 3))
def test_promise_4_gaps_do_not_count(gap_seconds: float, count: int) -> None:
    assert set(verdicts(count * [("idle", gap_seconds)])) == {Verdict.NONE}  # at most 4.5 of 6 seconds are known


@given(KINDS)
def test_promise_5_nothing_is_reclaimed_that_was_not_warned_in_the_same_streak(kinds: list[tuple[str, float]]) -> None:
    warned = False
    for verdict in verdicts([*kinds, *20 * [("idle", 1.0)]]):
        if verdict is Verdict.RECLAIM:
            assert warned
        warned = verdict is Verdict.BEGIN_GRACE or (warned and verdict is not Verdict.END_GRACE)
    assert warned  # and twenty idle samples always end in a warning: nothing shields an idle workspace for ever


@given(KINDS)
def test_an_idle_workspace_is_reclaimed_in_time_whatever_came_before(kinds: list[tuple[str, float]]) -> None:
    assert verdicts([*kinds, *20 * [("idle", 1.0)]])[-1] is Verdict.RECLAIM
