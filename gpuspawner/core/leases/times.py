"""The times that a lease remembers: for a clock that went back between two services, and what an end is judged by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Lease

_PAST: tuple[str, ...] = ("asked_at", "phase_since", "heard_at", "granted_at", "first_granted_at", "running_at")
_PAST += (
    "sampled_at",
    "stop_sent_at",
    "impossible_since",
    "waiting_since",
    "made_room_at",
    "claimed_at",
    "memory_killed_at",
)
_AHEAD = ("deadline_at", "granted_until", "kept_until", "not_before", "disrupted_until")
_INNER = {
    "latest_end": ("at",),
    "reaches_into": ("at",),
    "fixed_end": ("at",),
    "notice": ("at",),
    "held_back": ("since",),
    "estimate": ("told_at", "likely_at", "latest_at", "from_at", "to_at"),
}
"""The records of a lease that hold times, and which."""


def last_moment(lease: Lease) -> float:
    """Return the latest moment that the lease remembers: a clock that shows an earlier one went back."""
    return max(getattr(lease, name) or 0.0 for name in _PAST)


def move_back(lease: Lease, seconds: float) -> Lease:
    """Return the lease with all its times so many seconds earlier: as long ago, and as far ahead, as they were."""
    times = {name: getattr(lease, name) for name in (*_PAST, *_AHEAD)}
    moved: dict[str, Any] = {name: at - seconds for name, at in times.items() if at}
    for name, inner in _INNER.items():
        if (value := getattr(lease, name)) is not None:
            moved[name] = _earlier(value, inner, seconds)
    lost = tuple(_earlier(one, ("since", "until"), seconds) for one in lease.lost)
    return replace(lease, **moved, lost=lost)


def _earlier(value: Any, names: tuple[str, ...], seconds: float) -> Any:
    times = {name: getattr(value, name) for name in names}
    return replace(value, **{name: at - seconds for name, at in times.items() if at is not None})


def deciding_since(lease: Lease, evidence_seconds: float) -> float:
    """Return from when on readings speak of why a lease ended: its idle time, or else its last ``evidence_seconds``.

    Args:
        lease: one that is stopping or has ended.
        evidence_seconds: how much to look at where no idle time decided.
    """
    if lease.reason is ExitReason.IDLE and lease.sampled_at is not None:
        return lease.sampled_at - lease.streak.observed_seconds
    if lease.reason is ExitReason.NOBODY_CAME and lease.running_at is not None:
        return lease.running_at
    return (lease.ended_at if lease.ended_at is not None else lease.phase_since) - evidence_seconds
