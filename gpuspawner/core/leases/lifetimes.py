"""Deadlines: how they are set, told, moved by their user, and when they have passed; and how often Keep may be used.

Pure: times are seconds since the epoch by the service's clock, given by the caller (design, section 7).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpuspawner.core.errors import Conflict
from gpuspawner.core.idle.policies import ExtendPolicy, KeepPolicy
from gpuspawner.core.rules import LatestEnd
from gpuspawner.core.units import show_duration

LEAST_NOTICE_SECONDS = 600.0
"""People are told at least this long before the end (design, section 7), where their policy and lifetime allow it."""
LATE_SECONDS = 60.0
"""A last warning later than this was held up by an outage: nobody could extend meanwhile either."""


@dataclass(frozen=True)
class Due:
    """A warning to send now: one message, however many thresholds it tells.

    ``deadline`` is the lease's deadline from now on; ``thresholds`` (seconds before it, falling) are told for it. Both
    are to be stored before the message is sent.
    """

    deadline: float
    thresholds: tuple[float, ...]


def deadline(running_at: float, lifetime_seconds: float) -> float:
    """Return when a workspace that has been running since ``running_at`` ends."""
    return running_at + lifetime_seconds


def extend(
    deadline: float, extended_seconds: float, policy: ExtendPolicy, now: float, latest_end: LatestEnd | None = None
) -> tuple[float, float]:
    """Move a deadline as far as one Extend may: the policy's step, or what is left of its total, or of its budget.

    Args:
        deadline: the present one.
        extended_seconds: by how much this lease was extended before.
        policy: the step and the total.
        now: the present time.
        latest_end: a bound that it may not pass. What it leaves is given, if that is worth it.

    Returns:
        The new deadline, for which nothing has been told yet, and the new ``extended_seconds``.

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
            f"Extend: {each} more asked; {used} of {total} are used. "
            f"Save your work: this workspace ends in {left}. Its files are kept; start it again afterwards."
        )
    if latest_end is not None and latest_end.at < deadline + step_seconds:
        left_seconds = latest_end.at - deadline
        if left_seconds < min(LEAST_NOTICE_SECONDS, step_seconds):
            raise Conflict(
                f"Extend: {show_duration(step_seconds)} more asked, but this workspace {latest_end.words}. Save your "
                f"work: it ends in {show_duration(deadline - now)}. Its files are kept; start it again afterwards."
            )
        step_seconds = left_seconds
    return deadline + step_seconds, extended_seconds + step_seconds


def due_warnings(
    deadline: float, told: Collection[float], policy: ExtendPolicy, lifetime_seconds: float, now: float
) -> Due | None:
    """Return the warning that is due, if any; where the first or the last one is late, the deadline moves.

    It leaves enough notice then: ten minutes, or the policy's shortest threshold, or the whole lifetime where one is
    shorter. As all warnings are told with the move, no deadline moves twice.

    Args:
        deadline: the present one, whether or not it has passed.
        told: the thresholds told for this very deadline; empty again after an Extend.
        policy: the thresholds.
        lifetime_seconds: all the time given, extensions included. Thresholds no shorter say nothing new.
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
    """Whether a workspace's time is over. None ends untold: see :func:`due_warnings`."""
    return bool(told) and now >= deadline


def keep(keeps_used: int, policy: KeepPolicy, now: float) -> float:
    """Return until when a workspace is kept by one more Keep.

    Raises:
        Conflict: the policy's number is used up.
    """
    if keeps_used >= policy.times:
        raise Conflict(
            f"Keep: one more asked; {keeps_used} of {policy.times} are used. "
            "Compute on the GPU, or save your work and stop; files are kept."
        )
    return now + policy.each_seconds
