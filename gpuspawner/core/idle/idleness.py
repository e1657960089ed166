"""When a workspace has been idle for long enough: streaks of known idle time, and the verdicts on them.

Pure, and the same for the live service and for the replay of histories (design, section 7). The evidence of one
sample is judged in :mod:`gpuspawner.core.idle.evidence`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from gpuspawner.core.errors import quoted
from gpuspawner.core.idle.evidence import Classified, SampleKind, classify
from gpuspawner.core.idle.policy import IdlePolicy, Mode
from gpuspawner.core.idle.readings import Sample
from gpuspawner.core.idle.soft import CPU

LONGEST_CREDIT = 1.5
"""An idle sample counts for at most this many periods: what lies further back was not seen (design, section 7)."""
LEAST_GRACE_SAMPLES, LEAST_GRACE_SECONDS = 2, 60.0
"""After a restart at least this many samples and seconds of the grace remain: nobody could object meanwhile."""
CLOSER, CLOSEST_SECONDS = 12, 5.0
"""Looking closely takes this many samples a period, not closer than this: a probe itself takes 2 to 3 s."""
SUSPECT_PERIODS = 5
UNREADABLE_TOLD_SECONDS = 7200.0
"""A GPU unknown for this long is told to its user and the administrator (design, section 7)."""


class Verdict(str, Enum):
    """What follows from a sample."""

    NONE = "none"
    BEGIN_GRACE = "begin_grace"
    """Idle for long enough: warn, and let the grace period run."""
    GRACE = "grace"
    """The grace period goes on, or pauses."""
    END_GRACE = "end_grace"
    """Used again, unknown for too long, or under another mode: the workspace is running as before."""
    RECLAIM = "reclaim"
    """The grace has passed, idle: stop it. Only in mode enforce; given with each further idle sample."""
    WOULD_BEGIN_GRACE = "would_begin_grace"
    """Mode observe, once a streak: the moment to record that people would have been warned."""
    WOULD_RECLAIM = "would_reclaim"
    """Modes observe and warn, once a streak: the moment to record that it would have been stopped."""


@dataclass(frozen=True)
class Streak:
    """The idle time accumulated, all of it by adding up samples, so that it survives a restart as it is.

    :func:`dataclasses.asdict` gives JSON, :meth:`from_json` reads it back.
    """

    idle_seconds: float = 0.0
    """Known idle time since the streak began with its first idle sample; 0 when there is no streak."""
    observed_seconds: float = 0.0
    """Time since then, idle or unknown, without the soft: what ``idle_seconds`` must cover."""
    unknown_in_a_row: int = 0
    since_busy_seconds: float = 0.0
    """Since the last busy sample, or the start: what the budgets of softer evidence are counted from."""
    peak_percent: float | None = None
    """The highest utilization of an exclusive GPU within the streak; None where none was measured."""
    countdown_seconds: float | None = None
    """What is left of the grace, in mode observe of an imagined one; None outside. See ``grace_left_seconds``."""
    mode: Mode = Mode.OBSERVE
    """The mode of the last verdict: a grace that began under one mode is not carried out under another."""
    unknown_since: tuple[tuple[str, float], ...] = ()
    """Each GPU that is unknown at present, and for how many seconds so far."""
    kind: SampleKind | None = None
    """What the last sample proved; None before the first."""
    because: str = ""
    """Why, in words for people."""
    perhaps_ago_seconds: float | None = None
    """Since the last sample between whose readings GPU work may have fallen: processes that hold a GPU computed, or the
    workspace's own monitor alone saw work."""
    since_proved_seconds: float = 0.0
    """Since the last sample that was busy without the workspace's own monitor, or the start."""

    @property
    def grace_left_seconds(self) -> float | None:
        """What is left of the grace that people were told of; None when there is none, as always in mode observe."""
        return None if self.mode is Mode.OBSERVE else self.countdown_seconds

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Streak:
        """Read back what :func:`dataclasses.asdict` wrote.

        Raises:
            ValueError: a field is missing, too many, or not a value that a streak can have.
        """
        if not isinstance(stored, Mapping) or set(stored) != set(_READERS):
            raise ValueError(f"{quoted(stored)} is no streak: its fields are {', '.join(_READERS)}")
        return cls(**{name: read(stored[name]) for name, read in _READERS.items()})


def judge(streak: Streak, sample: Sample, policy: IdlePolicy, mode: Mode) -> tuple[Streak, Verdict]:
    """Add one sample to a streak, and say what follows.

    - idle adds its interval, at most 1.5 periods; in grace it lets as much of the grace pass.
    - busy sets the streak to 0 and ends the grace.
    - soft adds nothing, resets nothing and leaves coverage out; it pauses the grace. But if processes that hold a GPU
      computed, its work may have fallen between two readings: the streak begins anew, and the grace ends.
    - unknown adds nothing, counts against coverage and pauses the grace; more than five in a row reset like busy.
    - The grace begins with an idle sample, once the streak has the policy's known idle time, which covers 80 % of
      the non-soft time since it began. A streak with such a hole that a new one would get there no later begins anew.

    The machine is the same in every mode; ``mode`` chooses the verdicts. Observe imagines the grace and tells nobody.
    Warn lets it pass and stops nothing. A change of mode ends the grace, so that none is told one thing and has
    another done to them: the next idle sample begins a new one.
    """
    credit_seconds = credit_of(sample, policy)
    seen = classify(
        sample, policy, streak.since_busy_seconds + credit_seconds, streak.since_proved_seconds + credit_seconds
    )
    after = _counted(streak, sample, seen, policy)
    if not grace_stands(after, policy, mode):
        after = replace(after, mode=mode, countdown_seconds=None)
    if streak.grace_left_seconds is not None and after.countdown_seconds is None:
        return after, Verdict.END_GRACE
    if seen.kind is SampleKind.IDLE:
        return _with_grace(after, credit_seconds, policy)
    return after, _in_grace(after)


def grace_stands(streak: Streak, policy: IdlePolicy, mode: Mode) -> bool:
    """Whether a grace that began would begin under this policy too: a catalog may have changed since."""
    return mode is streak.mode and streak.idle_seconds >= policy.for_seconds


def _with_grace(streak: Streak, credit_seconds: float, policy: IdlePolicy) -> tuple[Streak, Verdict]:
    """Begin the grace, or let it pass, after an idle sample."""
    left_seconds = streak.countdown_seconds
    if left_seconds is None:
        if streak.idle_seconds < max(policy.for_seconds, policy.coverage * streak.observed_seconds):
            return streak, Verdict.NONE
        begun = replace(streak, countdown_seconds=policy.grace_seconds)
        return begun, Verdict.WOULD_BEGIN_GRACE if streak.mode is Mode.OBSERVE else Verdict.BEGIN_GRACE
    passed = replace(streak, countdown_seconds=max(0.0, left_seconds - credit_seconds))
    if passed.countdown_seconds:
        return passed, _in_grace(passed)
    if streak.mode is Mode.ENFORCE:
        return passed, Verdict.RECLAIM
    return passed, Verdict.WOULD_RECLAIM if left_seconds else _in_grace(passed)


def _in_grace(streak: Streak) -> Verdict:
    return Verdict.NONE if streak.grace_left_seconds is None else Verdict.GRACE


def kept(streak: Streak) -> Streak:
    """Return the streak after Keep: 0 and out of grace.

    While the Keep lasts, each sample is judged as ever (busy ones renew the budgets, unknown ones are told), its
    verdict is left alone, and the streak it gives is kept again.
    """
    return replace(streak, idle_seconds=0.0, observed_seconds=0.0, peak_percent=None, countdown_seconds=None)


def after_restart(streak: Streak, policy: IdlePolicy) -> Streak:
    """Return a stored streak as a restarted service goes on with it.

    Of a grace that will be carried out, at least two samples and a minute remain, at most the whole grace. A service
    that restarts more often than that reclaims nothing: while it was away nobody could press Keep. The interval of the
    first sample afterwards may be all the time since the last one: it counts against coverage, hardly as idle.
    """
    left_seconds = streak.countdown_seconds
    if left_seconds is None or streak.mode is not Mode.ENFORCE:
        return streak
    least_seconds = LEAST_GRACE_SAMPLES * policy.sample_seconds + LEAST_GRACE_SECONDS
    return replace(streak, countdown_seconds=max(left_seconds, min(least_seconds, policy.grace_seconds)))


def next_sample_seconds(streak: Streak, policy: IdlePolicy) -> float:
    """Return in how many seconds to look again: the policy's period, or closely, a twelfth of it, not under 5 s.

    One sample sees a few seconds of a minute: bursts of seconds between waiting fall through it for half an hour
    (``bench/idleness``). So what may soon be stopped is looked at closely:

    1. while the grace passes. One failed probe is repeated as soon, or it would hide a minute of work; when the second
       fails too there is time: what resets a streak are minutes of these;
    2. for five periods after processes that hold a GPU computed while it read low, once half of CPU's budget is spent;
       after the workspace's monitor alone saw work, once half of its time is: one look that meets it proves it.
    """
    budgets, ago = dict(policy.soft_budget_seconds), streak.perhaps_ago_seconds
    # Where no GPU is read (shared, MIG, none), CPU time judges: it misses no burst, and short looks blur it.
    read = streak.peak_percent is not None
    in_grace = read and bool(streak.countdown_seconds) and streak.unknown_in_a_row <= 1
    recent = ago is not None and ago <= SUSPECT_PERIODS * policy.sample_seconds
    half_spent = streak.since_busy_seconds > budgets.get(CPU, 0.0) / 2
    suspect = recent and (half_spent or streak.since_proved_seconds > policy.monitor_seconds / 2 > 0)
    if not in_grace and not suspect:
        return policy.sample_seconds
    return min(policy.sample_seconds, max(policy.sample_seconds / CLOSER, CLOSEST_SECONDS))


class State(str, Enum):
    """How idle a workspace is, as pages and the command line show it."""

    UNMEASURED = "unmeasured"
    BUSY = "busy"
    UNKNOWN = "unknown"
    SOFT = "soft"
    IDLE = "idle"
    GRACE = "grace"
    GRACE_PAUSED = "grace_paused"


@dataclass(frozen=True)
class Explanation:
    """The numbers of the sentence "idle 12 of 30 min, because: GPU 0 at 1 %"."""

    state: State
    idle_seconds: float
    for_seconds: float
    because: str
    known_share: float
    """The part of the streak that is known idle, 0 to 1: below the policy's coverage no grace begins."""
    peak_percent: float | None
    grace_left_seconds: float | None
    unreadable: tuple[tuple[str, float], ...]
    """GPUs that have been unknown for two hours or more, and for how many seconds: to be told."""
    budgets: tuple[tuple[str, float, float], ...] = ()
    """Each softer evidence that the policy counts: its budget, and what is left of it, in seconds."""


def explain(streak: Streak, policy: IdlePolicy) -> Explanation:
    """Say where a streak stands."""
    state = State.UNMEASURED if streak.kind is None else State(streak.kind.value)
    if streak.grace_left_seconds is not None:
        state = State.GRACE if streak.kind is SampleKind.IDLE else State.GRACE_PAUSED
    return Explanation(
        state=state,
        idle_seconds=streak.idle_seconds,
        for_seconds=policy.for_seconds,
        because=streak.because,
        known_share=streak.idle_seconds / streak.observed_seconds if streak.observed_seconds else 1.0,
        peak_percent=streak.peak_percent,
        grace_left_seconds=streak.grace_left_seconds,
        unreadable=tuple((gpu, seconds) for gpu, seconds in streak.unknown_since if seconds >= UNREADABLE_TOLD_SECONDS),
        budgets=tuple(
            (name, seconds, max(0.0, seconds - streak.since_busy_seconds))
            for name, seconds in policy.soft_budget_seconds
        ),
    )


def credit_of(sample: Sample, policy: IdlePolicy) -> float:
    """Return the time that a sample stands for: what lies further back was not seen."""
    return min(sample.interval_seconds, LONGEST_CREDIT * policy.sample_seconds)


def _counted(streak: Streak, sample: Sample, seen: Classified, policy: IdlePolicy) -> Streak:
    """Return the streak with the sample added, its grace untouched unless it is reset."""
    interval_seconds, unknown_before = sample.interval_seconds, dict(streak.unknown_since)
    # A gap that nobody saw, or a clock that jumped, spends no budget.
    credit_seconds = credit_of(sample, policy)
    proved = seen.kind is SampleKind.BUSY and not seen.alone
    after = replace(
        streak,
        unknown_in_a_row=streak.unknown_in_a_row + 1 if seen.kind is SampleKind.UNKNOWN else 0,
        since_busy_seconds=0.0 if seen.kind is SampleKind.BUSY else streak.since_busy_seconds + credit_seconds,
        since_proved_seconds=0.0 if proved else streak.since_proved_seconds + credit_seconds,
        unknown_since=tuple(
            (one.gpu, unknown_before.get(one.gpu, 0.0) + interval_seconds)
            for one in seen.gpus
            if one.kind is SampleKind.UNKNOWN
        ),
        kind=seen.kind,
        because=seen.because,
        perhaps_ago_seconds=0.0 if seen.perhaps else _grown(streak.perhaps_ago_seconds, credit_seconds),
    )
    if seen.kind is SampleKind.BUSY or seen.anew or after.unknown_in_a_row > policy.unknown_in_a_row:
        return kept(after)
    if seen.kind is SampleKind.IDLE:
        return _with_idle(after, sample, seen, policy)
    if seen.kind is SampleKind.UNKNOWN and streak.idle_seconds:
        return replace(after, observed_seconds=streak.observed_seconds + interval_seconds)
    return after


def _grown(seconds: float | None, by_seconds: float) -> float | None:
    return None if seconds is None else seconds + by_seconds


def _with_idle(streak: Streak, sample: Sample, seen: Classified, policy: IdlePolicy) -> Streak:
    credit_seconds = credit_of(sample, policy)
    idle_seconds = streak.idle_seconds + credit_seconds
    observed_seconds = streak.observed_seconds + sample.interval_seconds
    # Even another for_seconds of nothing but idle would not cover the hole, and a new streak needs no longer:
    # without this, a night of flapping readings would shield an idle workspace for days.
    hopeless = policy.coverage * (observed_seconds + policy.for_seconds) > idle_seconds + policy.for_seconds
    if not streak.idle_seconds or (hopeless and streak.countdown_seconds is None):
        return replace(
            streak, idle_seconds=credit_seconds, observed_seconds=credit_seconds, peak_percent=seen.peak_percent
        )
    peaks = [peak for peak in (streak.peak_percent, seen.peak_percent) if peak is not None]
    return replace(
        streak,
        idle_seconds=idle_seconds,
        observed_seconds=observed_seconds,
        peak_percent=max(peaks, default=None),
    )


def _amount(value: object) -> float:
    if (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max
    ):  # NaN fails
        return float(value)
    raise ValueError(f"{quoted(value)} is no amount")


def _optional_amount(value: object) -> float | None:
    return None if value is None else _amount(value)


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f"{quoted(value)} is no count")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"{quoted(value)} is no text")


def _kind(value: object) -> SampleKind | None:
    return None if value is None else SampleKind(value)


def _amounts_by_gpu(value: object) -> tuple[tuple[str, float], ...]:
    if isinstance(value, (list, tuple)) and all(isinstance(pair, (list, tuple)) for pair in value):
        return tuple((_text(gpu), _amount(seconds)) for gpu, seconds in value)
    raise ValueError(f"{quoted(value)} is no list of GPUs and seconds")


_READERS: dict[str, Callable[[Any], Any]] = {
    "idle_seconds": _amount,
    "observed_seconds": _amount,
    "unknown_in_a_row": _count,
    "since_busy_seconds": _amount,
    "peak_percent": _optional_amount,
    "countdown_seconds": _optional_amount,
    "mode": Mode,
    "unknown_since": _amounts_by_gpu,
    "kind": _kind,
    "because": _text,
    "perhaps_ago_seconds": _optional_amount,
    "since_proved_seconds": _amount,
}
