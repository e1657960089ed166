"""Idle verdicts: the timeline of a workspace's evidence, and the verdict on each sample.

The live service and the replay of histories use the same functions. Three limits decide:

- **Idle time** (30 min): how long the GPUs must be known to be idle before the warning.
- **Grace** (10 min): the time between the warning and the stop. Any use ends it.
- **Soft budget** (1 h): how long after the last GPU work soft evidence, and work that may have been missed, count as
  use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby

from gpuspawner.core.idle.evidence import Evidence, describe_unreadable, judge_hub_activity
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import GpuState, SoftReading

_OF_GPU = re.compile(r"GPU ([0-9]+) ")
LEAST_LISTED = 3
"""Number of GPUs with equal readings that are listed as a range. Arbitrary: two are as quick to read one by one."""
LONGEST_CREDIT = 1.5
"""A sample counts for at most this many periods, because older time was not seen."""
LONGEST_UNKNOWN = 5
"""After more than this many periods of unknown time, the idle time starts from 0."""
LEAST_GRACE_SAMPLES, LEAST_GRACE_SECONDS = 2, 60.0
"""After a restart at least this many samples and seconds of a grace remain."""
CLOSER, CLOSEST_SECONDS = 12, 5.0
"""A closer look takes this many samples in a period, but none sooner than this. One probe takes 2 to 3 s."""
UNREADABLE_SECONDS = 7200.0
"""A GPU that is unknown for this long is reported to its user and the administrators."""


class SampleKind(str, Enum):
    """The proof of a sample about a workspace, strongest first."""

    BUSY = "busy"
    """A GPU is in use."""
    UNKNOWN = "unknown"
    """A GPU or the soft evidence could not be read."""
    SOFT = "soft"
    """The GPUs look idle, but soft evidence counts, or work may have been missed."""
    IDLE = "idle"
    """Every GPU is known to be idle."""


class Verdict(str, Enum):
    """The consequence of a sample."""

    NONE = "none"
    BEGIN_GRACE = "begin_grace"
    """The workspace was idle for long enough: warn its user and begin the grace period."""
    GRACE = "grace"
    """The grace period continues or pauses."""
    END_GRACE = "end_grace"
    """The workspace was used again, unknown for too long, or the mode changed."""
    RECLAIM = "reclaim"
    """The grace period has passed: stop the workspace. Only in mode enforce, with each further idle sample."""
    WOULD_BEGIN_GRACE = "would_begin_grace"
    """Mode observe, once for each streak: record that the user would have been warned."""
    WOULD_RECLAIM = "would_reclaim"
    """Modes observe and warn, once for each streak: record that the workspace would have been stopped."""


@dataclass(frozen=True)
class Streak:
    """The timeline of one workspace as sums over its samples, so that it survives a restart.

    Attributes:
        idle_seconds: known idle time since the first idle sample, or 0.
        observed_seconds: all time since then, idle or unknown. ``idle_seconds`` must cover it.
        unknown_seconds: how long the workspace has been unknown without a break.
        since_busy_seconds: the time since the last GPU work or the start. The soft budget counts from it.
        longest_gap_seconds: the longest time so far from GPU work or the start to the next work.
        closer_seconds: how long before a stop a closer look helps, by the newest sample.
        peak_percent: the highest utilization of an exclusive GPU in the idle time, or None if it was not measured.
        countdown_seconds: the rest of the grace. In mode observe it is not real. None outside of a grace.
        mode: the mode of the last verdict. A grace that began in one mode does not end in another.
        unknown_since: each GPU that is unknown at present, and for how many seconds.
        kind: what the last sample proved, or None before the first.
        because: the reason, for display.
    """

    idle_seconds: float = 0.0
    observed_seconds: float = 0.0
    unknown_seconds: float = 0.0
    since_busy_seconds: float = 0.0
    longest_gap_seconds: float = 0.0
    closer_seconds: float = 0.0
    peak_percent: float | None = None
    countdown_seconds: float | None = None
    mode: Mode = Mode.OBSERVE
    unknown_since: tuple[tuple[str, float], ...] = ()
    kind: SampleKind | None = None
    because: str = ""

    @property
    def grace_left_seconds(self) -> float | None:
        """The rest of the grace that the user was warned of, or None. Mode observe never has a grace."""
        return None if self.mode is Mode.OBSERVE else self.countdown_seconds


def judge(streak: Streak, evidence: Evidence, policy: IdlePolicy, mode: Mode) -> tuple[Streak, Verdict]:
    """Add the evidence of one sample to the timeline and return the verdict.

    - Busy and soft set the idle time to 0 and end the grace. Only busy renews the soft budget.
    - Idle adds its interval, at most 1.5 periods. In a grace it reduces the rest of the grace by as much.
    - Unknown adds nothing and pauses the grace. More than five periods of it set the idle time to 0.
    - The grace begins with an idle sample, once the policy's idle time is reached and covers 80 % of the time since it
      began.

    Each mode has its verdicts. Observe computes a grace without a warning. Warn lets it pass and stops nothing. A
    change of mode ends the grace, and the next idle sample begins a new one. So users get the grace that they were
    warned of.
    """
    kind, because = classify(streak, evidence, policy)
    after = _extend_timeline(streak, evidence, kind, because, policy)
    if not is_grace_valid(after, policy, mode):
        after = replace(after, mode=mode, countdown_seconds=None)
    if streak.grace_left_seconds is not None and after.countdown_seconds is None:
        return after, Verdict.END_GRACE
    if kind is SampleKind.IDLE:
        return _advance_grace(after, credited_seconds(evidence, policy), policy)
    return after, _grace_verdict(after)


def classify(streak: Streak, evidence: Evidence, policy: IdlePolicy) -> tuple[SampleKind, str]:
    """Classify a sample by the first rule that fits, and return the reason for display.

    1. Busy: a GPU is in use. Without a GPU, any activity is use.
    2. Unknown: a GPU, or the workspace as a whole, cannot be judged.
    3. Soft, within the soft budget: soft evidence is active, or work may have been missed between two readings.
    4. Unknown, within the soft budget: soft evidence could not be read.
    5. Idle.
    """
    since_busy_seconds = streak.since_busy_seconds + credited_seconds(evidence, policy)
    by_activity = policy.by_activity and not evidence.gpus
    soft = evidence.soft
    if by_activity and not evidence.problem:
        soft = (*soft, judge_hub_activity(evidence.hub_idle_seconds, since_busy_seconds))
    active = [one.words for one in soft if one.active]
    if busy := [gpu.words for gpu in evidence.busy] or (active if by_activity else []):
        return SampleKind.BUSY, list_readings(busy)
    unknown = [gpu.words for gpu in evidence.gpus if gpu.state is GpuState.UNKNOWN]
    if evidence.unknown and (evidence.problem or not unknown):
        unknown = [evidence.unknown]
    if unknown:
        return SampleKind.UNKNOWN, list_readings(unknown)
    idle = [gpu.words for gpu in evidence.gpus]
    soft_counts = by_activity or since_busy_seconds <= policy.soft_seconds
    if soft_counts and (active or evidence.may_work(GpuState.IDLE)):
        return SampleKind.SOFT, list_readings([*active, *idle])
    if soft_counts and (unread := [describe_unreadable(one) for one in soft if one.active is None]):
        return SampleKind.UNKNOWN, ", ".join(unread)
    return SampleKind.IDLE, list_readings([*idle, *_describe_soft(soft, by_activity=by_activity, counts=soft_counts)])


def list_readings(words: Sequence[str]) -> str:
    """Join readings. Three or more GPUs in a row with the same reading become one: ``GPUs 0 to 6 at 0 %``."""
    listed: list[str] = []
    for reading, group in groupby(words, lambda one: _OF_GPU.sub("", one)):
        same = list(group)
        numbers = [found[1] for one in same if (found := _OF_GPU.match(one))]
        listed += [f"GPUs {numbers[0]} to {numbers[-1]} {reading}"] if len(numbers) >= LEAST_LISTED else same
    return ", ".join(listed)


def _describe_soft(soft: tuple[SoftReading, ...], *, by_activity: bool, counts: bool) -> list[str]:
    if not counts:
        return [f"{one.words} (no longer counts)" for one in soft if one.active]
    return [one.words for one in soft if one.words and (by_activity or one.name != "cpu")]


def is_grace_valid(streak: Streak, policy: IdlePolicy, mode: Mode) -> bool:
    """Return whether a grace goes on under this policy and mode. The catalog may have changed since it began."""
    return mode is streak.mode and streak.idle_seconds >= policy.for_seconds


def _advance_grace(streak: Streak, credit_seconds: float, policy: IdlePolicy) -> tuple[Streak, Verdict]:
    """Begin the grace if the idle time is reached, or reduce the rest of it. Return the verdict on an idle sample."""
    left_seconds = streak.countdown_seconds
    if left_seconds is None:
        if streak.idle_seconds < max(policy.for_seconds, policy.coverage * streak.observed_seconds):
            return streak, Verdict.NONE
        begun = replace(streak, countdown_seconds=policy.grace_seconds)
        return begun, Verdict.WOULD_BEGIN_GRACE if streak.mode is Mode.OBSERVE else Verdict.BEGIN_GRACE
    passed = replace(streak, countdown_seconds=max(0.0, left_seconds - credit_seconds))
    if passed.countdown_seconds:
        return passed, _grace_verdict(passed)
    if streak.mode is Mode.ENFORCE:
        return passed, Verdict.RECLAIM
    return passed, Verdict.WOULD_RECLAIM if left_seconds else _grace_verdict(passed)


def _grace_verdict(streak: Streak) -> Verdict:
    """Return GRACE while a grace lasts that the user was warned of, else NONE."""
    return Verdict.NONE if streak.grace_left_seconds is None else Verdict.GRACE


def credited_seconds(evidence: Evidence, policy: IdlePolicy) -> float:
    """Return the time that a sample counts for. Older time was not seen."""
    return min(evidence.interval_seconds, LONGEST_CREDIT * policy.sample_seconds)


# Adding a sample to the timeline


def _extend_timeline(streak: Streak, evidence: Evidence, kind: SampleKind, because: str, policy: IdlePolicy) -> Streak:
    unknown_before = dict(streak.unknown_since)
    # A gap that was not seen, or a clock that jumped, spends no budget.
    since_busy_seconds = streak.since_busy_seconds + credited_seconds(evidence, policy)
    gap_seconds = streak.longest_gap_seconds
    if kind is SampleKind.BUSY:
        gap_seconds = max(gap_seconds, since_busy_seconds)
        since_busy_seconds = 0.0
    unknown_seconds = streak.unknown_seconds + evidence.interval_seconds if kind is SampleKind.UNKNOWN else 0.0
    after = replace(
        streak,
        unknown_seconds=unknown_seconds,
        since_busy_seconds=since_busy_seconds,
        longest_gap_seconds=gap_seconds,
        unknown_since=tuple(
            (gpu.gpu, unknown_before.get(gpu.gpu, 0.0) + evidence.interval_seconds)
            for gpu in evidence.gpus
            if gpu.state is GpuState.UNKNOWN
        ),
        kind=kind,
        because=because,
    )
    is_use = kind in {SampleKind.BUSY, SampleKind.SOFT} or evidence.may_work(GpuState.UNKNOWN)
    if is_use or unknown_seconds > LONGEST_UNKNOWN * policy.sample_seconds:
        return reset_idle_time(after)
    if kind is SampleKind.IDLE:
        return _add_idle_time(after, evidence, policy)
    observed_seconds = streak.observed_seconds + evidence.interval_seconds if streak.idle_seconds else 0.0
    return replace(after, observed_seconds=observed_seconds)


def _add_idle_time(streak: Streak, evidence: Evidence, policy: IdlePolicy) -> Streak:
    credit_seconds = credited_seconds(evidence, policy)
    idle_seconds = streak.idle_seconds + credit_seconds
    observed_seconds = streak.observed_seconds + evidence.interval_seconds
    peaks = [peak for peak in (streak.peak_percent, evidence.peak_percent) if peak is not None]
    # If another whole idle time would not make up for the gaps, a new one is reached no later. Without this rule, a
    # night of readings that come and go would protect an idle workspace for days.
    is_too_patchy = policy.coverage * (observed_seconds + policy.for_seconds) > idle_seconds + policy.for_seconds
    if not streak.idle_seconds or (is_too_patchy and streak.countdown_seconds is None):
        idle_seconds = observed_seconds = credit_seconds
        peaks = [] if evidence.peak_percent is None else [evidence.peak_percent]
    return replace(
        streak,
        idle_seconds=idle_seconds,
        observed_seconds=observed_seconds,
        peak_percent=max(peaks, default=None),
        closer_seconds=_closer_seconds(streak, evidence, policy),
    )


def _closer_seconds(streak: Streak, evidence: Evidence, policy: IdlePolicy) -> float:
    """Return how long before a stop a closer look helps.

    Sources that see all of the time need it for their delay only. The probe alone needs it for the grace, and before
    the warning for the longest pause of this workspace so far, within half and all of the idle time.
    """
    seconds = [one.closer_seconds for one in evidence.gpus]
    if None not in seconds:
        longest = max((one for one in seconds if one is not None), default=0.0)
        return longest + policy.sample_seconds if longest > CLOSEST_SECONDS else 0.0
    pause_seconds = min(max(streak.longest_gap_seconds, policy.for_seconds / 2), policy.for_seconds)
    return policy.grace_seconds + pause_seconds


# Other changes of the timeline


def reset_idle_time(streak: Streak) -> Streak:
    """Return the timeline without idle time and grace, as after Keep.

    While a Keep lasts, samples are judged as always: busy ones renew the soft budget, unknown ones are reported. The
    verdict is ignored, and the resulting timeline is reset again.
    """
    return replace(streak, idle_seconds=0.0, observed_seconds=0.0, peak_percent=None, countdown_seconds=None)


def resume_streak(streak: Streak, policy: IdlePolicy) -> Streak:
    """Return a stored timeline for a restarted service. The rest of a grace in mode enforce is long enough to object.

    The first interval afterwards may be long. It counts for coverage, and hardly as idle.
    """
    left_seconds = streak.countdown_seconds
    if left_seconds is None or streak.mode is not Mode.ENFORCE:
        return streak
    least_seconds = min(least_remaining_seconds(policy), policy.grace_seconds)
    return replace(streak, countdown_seconds=max(left_seconds, least_seconds))


def least_remaining_seconds(policy: IdlePolicy) -> float:
    """Return the time that remains at least after a restart: no user could object while the service was away."""
    return LEAST_GRACE_SAMPLES * policy.sample_seconds + LEAST_GRACE_SECONDS


# Results of the timeline


def next_sample_seconds(streak: Streak, policy: IdlePolicy) -> float:
    """Return the time until the next sample: the policy's period, or a twelfth of it, at least 5 s.

    One probe sees some seconds of a minute, so short bursts may be missed for half an hour. Before a stop samples are
    therefore more frequent, as long as that helps. A failed probe is repeated soon, because it would hide a minute of
    work.
    """
    left_seconds = streak.countdown_seconds
    if left_seconds is None:
        left_seconds = policy.for_seconds - streak.idle_seconds + policy.grace_seconds
    is_near = 0 < left_seconds <= streak.closer_seconds and streak.idle_seconds > 0
    if not is_near or streak.unknown_seconds > policy.sample_seconds:
        return policy.sample_seconds
    return min(policy.sample_seconds, max(policy.sample_seconds / CLOSER, CLOSEST_SECONDS))


class IdleState(str, Enum):
    """How idle a workspace is, for pages and the command line."""

    UNMEASURED = "unmeasured"
    BUSY = "busy"
    UNKNOWN = "unknown"
    SOFT = "soft"
    IDLE = "idle"
    GRACE = "grace"
    GRACE_PAUSED = "grace_paused"


@dataclass(frozen=True)
class Explanation:
    """The numbers of the sentence "idle 12 of 30 min, because: GPU 0 at 1 %".

    Attributes:
        known_share: the part of the time that is known to be idle, 0 to 1. Below the policy's coverage no grace begins.
        unreadable: GPUs that have been unknown for two hours or more, with the seconds, to be reported.
        soft_left_seconds: the rest of the soft budget.
    """

    state: IdleState
    idle_seconds: float
    for_seconds: float
    because: str
    known_share: float
    peak_percent: float | None
    grace_left_seconds: float | None
    unreadable: tuple[tuple[str, float], ...]
    soft_left_seconds: float = 0.0


def explain(streak: Streak, policy: IdlePolicy) -> Explanation:
    """Return how idle a workspace is."""
    state = IdleState.UNMEASURED if streak.kind is None else IdleState(streak.kind.value)
    if streak.grace_left_seconds is not None:
        state = IdleState.GRACE if streak.kind is SampleKind.IDLE else IdleState.GRACE_PAUSED
    return Explanation(
        state=state,
        idle_seconds=streak.idle_seconds,
        for_seconds=policy.for_seconds,
        because=streak.because,
        known_share=streak.idle_seconds / streak.observed_seconds if streak.observed_seconds else 1.0,
        peak_percent=streak.peak_percent,
        grace_left_seconds=streak.grace_left_seconds,
        unreadable=tuple((gpu, seconds) for gpu, seconds in streak.unknown_since if seconds >= UNREADABLE_SECONDS),
        soft_left_seconds=max(0.0, policy.soft_seconds - streak.since_busy_seconds),
    )
