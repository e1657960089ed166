"""What a draft policy would have done: the live service's own judgement, replayed over samples and compared with truth.

Pure. The samples come from the recorded history (``gpuspawner.service.store.history``) or from generated sessions
(:mod:`gpuspawner.core.simulate_sessions`); who stops and who is warned is decided by :func:`core.idleness.judge` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from gpuspawner.core.evidence import SampleKind
from gpuspawner.core.idleness import Streak, Verdict, after_restart, judge, next_sample_seconds
from gpuspawner.core.policy import IdlePolicy, Mode
from gpuspawner.core.readings import Sample
from gpuspawner.core.timeline import Timeline, first_gap_end

HOUR = 3600.0


@dataclass(frozen=True)
class Step:
    """One sample, taken ``at`` (seconds since the workspace ran); ``restarted``: the service had been away before."""

    at: float
    sample: Sample
    restarted: bool = False


Look = Callable[[float], "Step | None"]
"""Takes the sample that is due so many seconds after the one before; None once the workspace has ended."""


@dataclass(frozen=True)
class Replay:
    """What the judgement said of one workspace. Times in seconds since it ran."""

    warned_at: tuple[float, ...]
    """Each begin of a grace period."""
    stopped_at: float | None
    """None: it would have been left alone."""
    seconds: tuple[tuple[SampleKind, float], ...]
    """How long it was known to be what, up to the stop."""
    stretches: tuple[tuple[float, SampleKind], ...] = ()
    """Until when it was what, in order: what a chart draws."""


def replay(look: Look, policy: IdlePolicy) -> Replay:
    """Judge one sample after the other as the live service in mode enforce, until the stop or the end."""
    streak = Streak(mode=Mode.ENFORCE)
    warned: list[float] = []
    stretches: list[tuple[float, SampleKind]] = []
    seconds = dict.fromkeys(SampleKind, 0.0)
    stopped_at = None
    while (step := look(next_sample_seconds(streak, policy))) is not None:
        if step.restarted:
            streak = after_restart(streak, policy)
        streak, verdict = judge(streak, step.sample, policy, Mode.ENFORCE)
        kind = streak.kind or SampleKind.UNKNOWN
        seconds[kind] += step.sample.interval_seconds
        if stretches and stretches[-1][1] is kind:
            stretches[-1] = (step.at, kind)
        else:
            stretches.append((step.at, kind))
        if verdict is Verdict.BEGIN_GRACE:
            warned.append(step.at)
        elif verdict is Verdict.RECLAIM:
            stopped_at = step.at
            break
    return Replay(tuple(warned), stopped_at, tuple(seconds.items()), tuple(stretches))


class Outcome(str, Enum):
    """How a stop looks against the truth."""

    LEFT = "left"
    """It was not stopped."""
    RIGHT = "right"
    """No GPU work in the idle minutes before the stop, nor in the grace."""
    WRONG = "wrong"
    """There was."""


@dataclass(frozen=True)
class Judged:
    """One workspace, judged. Times in seconds since it ran, hours of all its GPUs together."""

    outcome: Outcome
    stopped_at: float | None
    gpu_hours: float
    """Held by it, had nobody stopped it."""
    won_hours: float
    """Given back early by a rightful stop."""
    winnable_hours: float
    """What a stop at the first rightful moment would have given back: nobody can win more under this policy."""
    freed_after_seconds: float | None
    """From the last GPU work, or the start, to a rightful stop."""
    used_again_after_seconds: float | None
    """From a rightful stop to the next GPU work of its user, had it gone on; None: never, or not stopped."""


def judged(stopped_at: float | None, work: Timeline, gpus: int, end: float, policy: IdlePolicy) -> Judged:
    """Compare a stop with the truth.

    In use means GPU work within the idle minutes before the stop or during the grace: ``for_seconds`` and
    ``grace_seconds``, less one sampling period, since no sampling can say when within a period the work ended.

    Args:
        stopped_at: when the workspace would have been stopped, None for never; from ``end`` on is never.
        work: GPU work of any of its GPUs.
        gpus: how many it holds.
        end: when it ended by itself.
        policy: whose idle minutes and grace are meant.
    """
    window_seconds = policy.for_seconds + policy.grace_seconds
    earliest = first_gap_end(work, window_seconds, end)
    hours = gpus / HOUR
    winnable = 0.0 if earliest is None else (end - earliest) * hours
    if stopped_at is None or stopped_at >= end:
        return Judged(Outcome.LEFT, None, end * hours, 0.0, winnable, None, None)
    slack_seconds = min(policy.sample_seconds, window_seconds)
    if work.touches(stopped_at - window_seconds + slack_seconds, stopped_at):
        return Judged(Outcome.WRONG, stopped_at, end * hours, 0.0, winnable, None, None)
    last, again = work.last_end(stopped_at), work.next_begin(stopped_at)
    return Judged(
        Outcome.RIGHT,
        stopped_at,
        gpu_hours=end * hours,
        won_hours=0.0 if earliest is None else (end - max(stopped_at, earliest)) * hours,
        winnable_hours=winnable,
        freed_after_seconds=stopped_at - (last or 0.0),
        used_again_after_seconds=None if again is None else again - stopped_at,
    )


@dataclass(frozen=True)
class Totals:
    """Many workspaces, judged. Hours of ``session_hours`` are of workspaces, all others of GPUs."""

    workspaces: int
    session_hours: float
    stopped: int
    wrong: int
    gpu_hours: float
    won_hours: float
    winnable_hours: float
    freed_after_seconds: tuple[float, ...]
    """In rising order."""

    @property
    def wrong_per_100k_hours(self) -> float:
        """Workspaces stopped while in use, per 100,000 session hours."""
        return 1e5 * self.wrong / self.session_hours if self.session_hours else 0.0

    @property
    def recovered_share(self) -> float:
        """The part of the winnable GPU hours that was won, 0 to 1; 1 where nothing was to be won."""
        return self.won_hours / self.winnable_hours if self.winnable_hours else 1.0

    def freed_after(self, share: float) -> float | None:
        """Return within how many seconds ``share`` of the rightful stops came; None without any."""
        times = self.freed_after_seconds
        return times[min(len(times) - 1, int(share * len(times)))] if times else None


def totals(results: Iterable[tuple[Judged, float]]) -> Totals:
    """Add up workspaces, each with its length in seconds."""
    rows = list(results)
    found = [row for row, _ in rows]
    return Totals(
        workspaces=len(rows),
        session_hours=sum(seconds for _, seconds in rows) / HOUR,
        stopped=sum(row.outcome is not Outcome.LEFT for row in found),
        wrong=sum(row.outcome is Outcome.WRONG for row in found),
        gpu_hours=sum(row.gpu_hours for row in found),
        won_hours=sum(row.won_hours for row in found),
        winnable_hours=sum(row.winnable_hours for row in found),
        freed_after_seconds=tuple(
            sorted(row.freed_after_seconds for row in found if row.freed_after_seconds is not None)
        ),
    )
