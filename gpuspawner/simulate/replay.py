"""Replay of a draft policy: the live service's own verdicts over recorded samples, compared with the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from gpuspawner.core.idle.arrival import Arrival, ArrivalStep, advance_arrival, arrival_sign, resume_arrival
from gpuspawner.core.idle.evidence import read_evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import Sample
from gpuspawner.core.idle.verdicts import (
    SampleKind,
    Streak,
    Verdict,
    credited_seconds,
    judge,
    next_sample_seconds,
    reset_idle_time,
    resume_streak,
)
from gpuspawner.simulate.timeline import Timeline, gaps

HOUR = 3600.0


@dataclass(frozen=True)
class Step:
    """One sample, taken ``at`` (seconds since the workspace ran); ``restarted``: the service had been away before."""

    at: float
    sample: Sample
    restarted: bool = False


class Sampler(Protocol):
    """Something that samples one workspace."""

    def __call__(self, seconds: float) -> Step | None:
        """Return the sample that is due this many seconds after the last one. None: the workspace has ended."""
        ...

    def resume(self, at: float) -> None:
        """Go on with a new start of the workspace at that time."""
        ...


@dataclass(frozen=True)
class Grace:
    """A warning, and the sample that ended its grace: ``over_by`` at ``over_at``.

    Both are None if a stop or the end of the session ended it.
    """

    began_at: float
    over_at: float | None = None
    over_by: SampleKind | None = None


@dataclass(frozen=True)
class Replay:
    """The verdicts on one start of a workspace. Times are seconds since it first ran."""

    graces: tuple[Grace, ...]
    stopped_at: float | None
    """None: it would not have been stopped."""
    seconds: tuple[tuple[SampleKind, float], ...]
    """The time in each state, up to the stop."""
    stretches: tuple[tuple[float, SampleKind], ...] = ()
    """The end and the state of each stretch of time, for a chart."""
    began_at: float = 0.0
    nobody_came: bool = False
    """The stop was made because the user never came."""

    @property
    def warned_at(self) -> tuple[float, ...]:
        """Each begin of a grace period."""
        return tuple(grace.began_at for grace in self.graces)


_VERDICTS = {ArrivalStep.WARN: Verdict.BEGIN_GRACE, ArrivalStep.NOBODY_CAME: Verdict.RECLAIM}


def replay(
    look: Sampler,
    policy: IdlePolicy,
    mode: Mode = Mode.ENFORCE,
    began_at: float = 0.0,
    claim_seconds: float | None = None,
) -> Replay:
    """Judge all samples as the live service does in this mode, until the stop or the end.

    ``claim_seconds`` is the time that a user who was away has to come, or None if the user was there.
    """
    streak = Streak(mode=mode)
    arrival = None if claim_seconds is None else Arrival(claim_seconds)
    graces: list[Grace] = []
    stretches: list[tuple[float, SampleKind]] = []
    seconds = dict.fromkeys(SampleKind, 0.0)
    stopped_at = None
    while (step := look(next_sample_seconds(streak, policy))) is not None:
        if step.restarted:
            streak = resume_streak(streak, policy)
            arrival = arrival and resume_arrival(arrival, policy)
        evidence = read_evidence(step.sample, policy)
        streak, verdict = judge(streak, evidence, policy, mode)
        if arrival is not None:
            sign = arrival_sign(evidence)
            arrival, turn = advance_arrival(arrival, sign, credited_seconds(evidence, policy), policy, mode)
            streak, verdict = reset_idle_time(streak), _VERDICTS.get(turn, Verdict.NONE)
            if turn in {ArrivalStep.CAME, ArrivalStep.OVER}:
                streak, arrival = replace(streak, since_busy_seconds=0.0), None
            if turn is ArrivalStep.CAME and graces:
                verdict = Verdict.END_GRACE
        kind = streak.kind or SampleKind.UNKNOWN
        seconds[kind] += step.sample.interval_seconds
        if stretches and stretches[-1][1] is kind:
            stretches[-1] = (step.at, kind)
        else:
            stretches.append((step.at, kind))
        if verdict is Verdict.BEGIN_GRACE:
            graces.append(Grace(step.at))
        elif verdict is Verdict.END_GRACE:
            graces[-1] = replace(graces[-1], over_at=step.at, over_by=kind)
        elif verdict is Verdict.RECLAIM:
            stopped_at = step.at
            break
    unclaimed = stopped_at is not None and arrival is not None
    return Replay(tuple(graces), stopped_at, tuple(seconds.items()), tuple(stretches), began_at, unclaimed)


@dataclass(frozen=True)
class Stop:
    """A stop, compared with the truth. Times are seconds since the workspace first ran."""

    at: float
    warned_at: float | None
    wrong: bool
    """The workspace was in use: GPU work in the idle minutes before the stop, or in the grace."""
    won_hours: float
    """GPU hours between a rightful stop and the next GPU work of its user, or the end."""
    freed_after_seconds: float | None
    """From the last GPU work, or the start, to a rightful stop."""
    wanted_at: float | None
    """The next GPU work of its user; None for none."""


@dataclass(frozen=True)
class SessionResult:
    """One workspace with its stops. Hours are of all its GPUs together."""

    stops: tuple[Stop, ...]
    gpu_hours: float
    """GPU hours of the workspace without any stop."""
    winnable_hours: float
    """GPU hours after the first rightful moments for a stop. A policy cannot save more."""


def simulate(
    look: Sampler,
    work: Timeline,
    gpus: int,
    end: float,
    policy: IdlePolicy,
    mode: Mode = Mode.ENFORCE,
    claim_seconds: float | None = None,
) -> tuple[SessionResult, list[Replay]]:
    """Judge a workspace by a policy from its start to its end, with one replay for each start.

    After a rightful stop its user starts it again for the next GPU work. After a wrong stop the work is lost.

    Args:
        look: samples the workspace.
        work: GPU work of any of its GPUs: the truth.
        gpus: the number of its GPUs.
        end: when it ended by itself.
        policy: the draft.
        mode: enforce, or warn, which stops nothing.
        claim_seconds: the time that its user has to come to its first start, or None if the user was there.
    """
    replays = []

    def decide(begin: float) -> tuple[float | None, float | None]:
        if begin:
            look.resume(begin)
        replays.append(replay(look, policy, mode, begin, None if begin else claim_seconds))
        return replays[-1].stopped_at, replays[-1].warned_at[-1] if replays[-1].warned_at else None

    return judged(decide, work, gpus, end, policy), replays


def judged(
    decide: Callable[[float], tuple[float | None, float | None]],
    work: Timeline,
    gpus: int,
    end: float,
    policy: IdlePolicy,
) -> SessionResult:
    """Compare the stops of a rule with the known GPU work.

    ``decide`` takes the time of a start. It returns when the rule stops that workspace and when it warns.
    """
    stops: list[Stop] = []
    begin: float | None = 0.0
    while begin is not None:
        stopped_at, warned_at = decide(begin)
        if stopped_at is None or stopped_at >= end:
            break
        stop = _stop(stopped_at, warned_at, begin, work, gpus, end, policy)
        stops.append(stop)
        begin = None if stop.wrong else stop.wanted_at
    window_seconds = policy.for_seconds + policy.grace_seconds
    winnable_seconds = sum(max(0.0, gap - window_seconds) for gap in gaps(work, end))
    return SessionResult(tuple(stops), end * gpus / HOUR, winnable_seconds * gpus / HOUR)


def _stop(
    at: float, warned_at: float | None, begin: float, work: Timeline, gpus: int, end: float, policy: IdlePolicy
) -> Stop:
    """In use means GPU work within the idle minutes before the stop or during the grace.

    That is ``for_seconds`` and ``grace_seconds``, less one sampling period: no sampling can say when within a period
    the work ended.
    """
    window_seconds = policy.for_seconds + policy.grace_seconds
    slack_seconds = min(policy.sample_seconds, window_seconds)
    wanted_at = work.next_begin(at)
    if work.touches(max(begin, at - window_seconds + slack_seconds), at):
        return Stop(at, warned_at, wrong=True, won_hours=0.0, freed_after_seconds=None, wanted_at=wanted_at)
    last = max(begin, work.last_end(at) or 0.0)
    won_seconds = (end if wanted_at is None else min(wanted_at, end)) - max(at, last + window_seconds)
    won_hours = max(0.0, won_seconds) * gpus / HOUR
    return Stop(at, warned_at, wrong=False, won_hours=won_hours, freed_after_seconds=at - last, wanted_at=wanted_at)


class WarningOutcome(str, Enum):
    """The event after a warning."""

    STOPPED = "stopped"
    USED = "used again"
    UNKNOWN = "could not be measured any more"
    LEFT = "left idle"
    """To its own end: in mode warn, or where that came within the grace."""


@dataclass(frozen=True)
class WarningResult:
    """A warning, compared with the truth. Times are seconds since the workspace first ran."""

    at: float
    wrong: bool
    """The workspace was in use: GPU work in the idle minutes before the warning."""
    then: WarningOutcome
    then_at: float | None
    """None for its own end."""


def warnings(replays: Iterable[Replay], work: Timeline, end: float, policy: IdlePolicy) -> list[WarningResult]:
    """Return every warning of a workspace that ended by itself at ``end``, in order, with what followed it."""
    return [_warned(one, grace, work, end, policy) for one in replays for grace in one.graces if grace.began_at < end]


def _warned(one: Replay, grace: Grace, work: Timeline, end: float, policy: IdlePolicy) -> WarningResult:
    slack_seconds = min(policy.sample_seconds, policy.for_seconds)
    idle_since = max(one.began_at, grace.began_at - policy.for_seconds + slack_seconds)
    wrong = work.touches(idle_since, grace.began_at)
    if grace.over_by is not None:
        then = WarningOutcome.UNKNOWN if grace.over_by is SampleKind.UNKNOWN else WarningOutcome.USED
        return WarningResult(grace.began_at, wrong, then, grace.over_at)
    if one.stopped_at is None or one.stopped_at >= end:
        return WarningResult(grace.began_at, wrong, WarningOutcome.LEFT, None)
    return WarningResult(grace.began_at, wrong, WarningOutcome.STOPPED, one.stopped_at)


@dataclass(frozen=True)
class Totals:
    """Many workspaces, judged. ``session_hours`` are of workspaces, the other hours of GPUs."""

    workspaces: int
    session_hours: float
    stops: int
    wrong: int
    gpu_hours: float
    won_hours: float
    winnable_hours: float
    freed_after_seconds: tuple[float, ...]
    """The delay of each rightful stop, in rising order."""

    @property
    def wrong_per_100k_hours(self) -> float:
        """Stops while in use, per 100,000 session hours."""
        return 1e5 * self.wrong / self.session_hours if self.session_hours else 0.0

    @property
    def recovered_share(self) -> float:
        """The part of the winnable GPU hours that was won, 0 to 1; 1 where nothing was to be won."""
        return self.won_hours / self.winnable_hours if self.winnable_hours else 1.0

    def freed_after(self, share: float) -> float | None:
        """Return within how many seconds ``share`` of the rightful stops came; None without any."""
        times = self.freed_after_seconds
        return times[min(len(times) - 1, int(share * len(times)))] if times else None


def totals(results: Iterable[tuple[SessionResult, float]]) -> Totals:
    """Add up workspaces, each with its length in seconds."""
    rows = list(results)
    stops = [stop for row, _ in rows for stop in row.stops]
    return Totals(
        workspaces=len(rows),
        session_hours=sum(seconds for _, seconds in rows) / HOUR,
        stops=len(stops),
        wrong=sum(stop.wrong for stop in stops),
        gpu_hours=sum(row.gpu_hours for row, _ in rows),
        won_hours=sum(stop.won_hours for stop in stops),
        winnable_hours=sum(row.winnable_hours for row, _ in rows),
        freed_after_seconds=tuple(
            sorted(stop.freed_after_seconds for stop in stops if stop.freed_after_seconds is not None)
        ),
    )
