"""Deadlines of workspaces: how they are set, extended and announced, and the warnings that are open.

Times are seconds since the epoch by the service's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gpuspawner.core.errors import Conflict
from gpuspawner.core.idle.policies import ExtendPolicy, KeepPolicy
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.core.rules import LatestEnd
from gpuspawner.core.units import show_duration

T = TypeVar("T", bound=Any)

LEAST_NOTICE_SECONDS = 600.0
"""Users are warned at least this long before the end, if their policy and lifetime allow it."""
LATE_SECONDS = 60.0
"""A last warning later than this was delayed by an outage. Users could not extend in that time."""


@dataclass(frozen=True)
class Due:
    """A warning to send now, as one message for all thresholds that have passed.

    ``deadline`` is the new deadline. ``thresholds`` are seconds before it, the longest first. Both are stored before
    the message is sent.
    """

    deadline: float
    thresholds: tuple[float, ...]


def deadline(running_at: float, lifetime_seconds: float) -> float:
    """Return when a workspace that has been running since ``running_at`` ends."""
    return running_at + lifetime_seconds


def extend(
    deadline: float, extended_seconds: float, policy: ExtendPolicy, now: float, latest_end: LatestEnd | None = None
) -> tuple[float, float]:
    """Move a deadline by one Extend: the policy's step, or the rest of its total or of the budget.

    Args:
        deadline: the present one.
        extended_seconds: by how much this lease was extended before.
        policy: the step and the total.
        now: the present time.
        latest_end: a bound that the deadline may not pass. The remaining time is given, if it is long enough.

    Returns:
        The new deadline, of which no warning was sent yet, and the new ``extended_seconds``.

    Raises:
        Conflict: the total is used up, the deadline has passed, or the bound leaves less than ten minutes.
    """
    if now >= deadline:
        passed = show_duration(now - deadline)
        raise Conflict(f"Extend: this workspace's time ended {passed} ago. Start it again; its files are kept.")
    step_seconds = min(policy.each_seconds, policy.total_seconds - extended_seconds)
    if step_seconds <= 0:
        each, total = show_duration(policy.each_seconds), show_duration(policy.total_seconds)
        used, left = show_duration(extended_seconds), show_duration(deadline - now)
        raise Conflict(
            f"Extend: You asked for {each} more. {used} of {total} are used. "
            f"Save your work. This workspace ends in {left}. Its files are kept. Start it again afterwards."
        )
    if latest_end is not None and latest_end.at < deadline + step_seconds:
        left_seconds = latest_end.at - deadline
        if left_seconds < min(LEAST_NOTICE_SECONDS, step_seconds):
            raise Conflict(
                f"Extend: You asked for {show_duration(step_seconds)} more, but this workspace {latest_end.words}. "
                f"Save your work: it ends in {show_duration(deadline - now)}. "
                "Its files are kept. Start it again afterwards."
            )
        step_seconds = left_seconds
    return deadline + step_seconds, extended_seconds + step_seconds


def due_warnings(
    deadline: float, told: Collection[float], policy: ExtendPolicy, lifetime_seconds: float, now: float
) -> Due | None:
    """Return the warning that is due, or None. If the first or the last warning is late, the deadline moves.

    Then the notice is ten minutes, the policy's shortest threshold or the whole lifetime, whichever is shortest. All
    warnings are sent with the move, so no deadline moves twice.

    Args:
        deadline: the present one, whether or not it has passed.
        told: the thresholds of this deadline that were sent. An Extend empties them.
        policy: the thresholds.
        lifetime_seconds: the whole lifetime with its extensions. Longer thresholds are left out.
        now: the present time.
    """
    shortest = min(policy.warn_seconds, default=LEAST_NOTICE_SECONDS)
    thresholds = {seconds for seconds in policy.warn_seconds if seconds < lifetime_seconds} or {shortest}
    due = sorted((seconds for seconds in thresholds - set(told) if now >= deadline - seconds), reverse=True)
    if not due:
        return None
    notice_seconds = min(LEAST_NOTICE_SECONDS, shortest, lifetime_seconds)
    last_is_late = not thresholds - set(told) - set(due) and now - (deadline - due[-1]) > LATE_SECONDS
    return Due(max(deadline, now + notice_seconds) if last_is_late or not told else deadline, tuple(due))


def is_expired(deadline: float, told: Collection[float], now: float) -> bool:
    """Return whether the run time is over. A workspace never ends without a warning: see :func:`due_warnings`."""
    return bool(told) and now >= deadline


def keep(keeps_used: int, policy: KeepPolicy, now: float) -> float:
    """Return the time until which another Keep keeps a workspace.

    Raises:
        Conflict: the policy's number is used up.
    """
    if keeps_used >= policy.times:
        raise Conflict(
            f"Keep: You asked for one more. {keeps_used} of {policy.times} are used. "
            "Compute on the GPU, or save your work and stop. Files are kept."
        )
    return now + policy.each_seconds


_PAST = (
    "asked_at",
    "phase_since",
    "heard_at",
    "granted_at",
    "first_granted_at",
    "running_at",
    "billed_until",
    "sampled_at",
    "stop_sent_at",
    "impossible_since",
    "waiting_since",
    "made_room_at",
    "claimed_at",
    "maintenance_told_at",
    "memory_killed_at",
)
_AHEAD = ("deadline_at", "granted_until", "kept_until", "not_before", "disrupted_until")
_INNER = {
    "latest_end": ("at",),
    "reaches_into": ("at",),
    "fixed_end": ("at",),
    "notice": ("at",),
    "wait_reason": ("since",),
    "size_change": ("asked_at", "restarts_at"),
}
"""The records of a lease with times, and the names of these times."""


def last_moment(lease: Lease) -> float:
    """Return the latest past moment of a lease. If the clock shows an earlier one, it was set back."""
    return max(getattr(lease, name) or 0.0 for name in _PAST)


def move_back(lease: Lease, seconds: float) -> Lease:
    """Return the lease with all its times moved back by ``seconds``, so that all distances to now stay the same."""
    times = {name: getattr(lease, name) for name in (*_PAST, *_AHEAD)}
    moved: dict[str, Any] = {name: at - seconds for name, at in times.items() if at}
    for name, inner in _INNER.items():
        if (value := getattr(lease, name)) is not None:
            moved[name] = move_times_back(value, inner, seconds)
    lost = tuple(move_times_back(one, ("since", "until"), seconds) for one in lease.lost)
    return replace(lease, **moved, lost=lost)


def move_times_back(value: T, names: Iterable[str], seconds: float) -> T:
    """Return a record with these of its times moved back, as far as they are set."""
    times = {name: getattr(value, name) for name in names}
    return replace(value, **{name: at - seconds for name, at in times.items() if at is not None})


def deciding_since(lease: Lease, evidence_seconds: float) -> float:
    """Return the start of the readings that explain an end: of its idle time, or of its last ``evidence_seconds``.

    Args:
        lease: one that is stopping or has ended.
        evidence_seconds: the length of the readings if no idle time decided.
    """
    if lease.reason is ExitReason.IDLE and lease.sampled_at is not None:
        return lease.sampled_at - lease.streak.observed_seconds
    if lease.reason is ExitReason.NOBODY_CAME and lease.running_at is not None:
        return lease.running_at
    return (lease.ended_at if lease.ended_at is not None else lease.phase_since) - evidence_seconds


CARRIED_OUT: Mapping[str, frozenset[ExitReason]] = {
    "idle": frozenset({ExitReason.IDLE}),
    "nobody came": frozenset({ExitReason.NOBODY_CAME}),
    "claim": frozenset({ExitReason.MADE_ROOM}),
    "administrator": frozenset({ExitReason.STOPPED, ExitReason.MOVED}),
    "end": frozenset({ExitReason.EXPIRED, ExitReason.BUDGET}),
}
"""The kinds of warnings, and the exit reasons that each of them announces."""
OUTCOMES = ("ended", "ended otherwise", "kept", "went on")


def warned_of(lease: Lease) -> frozenset[str]:
    """Return the warnings of a lease that are still open."""
    notice, arrival = lease.notice, lease.arrival
    found = {
        "idle": lease.phase is Phase.RECLAIMING,
        "nobody came": arrival is not None and arrival.warned_after_seconds is not None,
        "claim": notice is not None and bool(notice.preemption),
        "administrator": notice is not None and not notice.preemption,
        "end": bool(lease.warned_seconds),
    }
    return frozenset(reason for reason, holds in found.items() if holds and lease.phase in UP)


def settled(before: Lease, after: Lease) -> list[tuple[str, str]]:
    """Return the warnings that a step closes, each with one of OUTCOMES.

    ``kept`` means that the user pressed Keep or Extend. ``went on`` means that the workspace was used, or that its GPUs
    are not needed any more.
    """
    return [(reason, _outcome(reason, before, after)) for reason in sorted(warned_of(before) - warned_of(after))]


def _outcome(reason: str, before: Lease, after: Lease) -> str:
    if after.phase not in UP:
        return "ended" if after.reason in CARRIED_OUT[reason] else "ended otherwise"
    kept = after.keeps_used > before.keeps_used or after.extended_seconds > before.extended_seconds
    return "kept" if kept else "went on"
