"""What came of a warning: of each reason, whether it ended its workspace or what spared that. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import UP, Lease, Phase

CARRIED_OUT: Mapping[str, frozenset[ExitReason]] = {
    "idle": frozenset({ExitReason.IDLE}),
    "nobody came": frozenset({ExitReason.NOBODY_CAME}),
    "claim": frozenset({ExitReason.MADE_ROOM}),
    "administrator": frozenset({ExitReason.STOPPED, ExitReason.MOVED}),
    "end": frozenset({ExitReason.EXPIRED, ExitReason.BUDGET}),
}
"""What people are warned of, and the ends that it threatens."""
OUTCOMES = ("ended", "ended otherwise", "kept", "went on")


def warned_of(lease: Lease) -> frozenset[str]:
    """Return what its user was warned of, and what may still come of it."""
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
    """Return what of its warnings is over by a step: reason and one of OUTCOMES.

    ``kept``: its user pressed Keep, or had it extended; ``went on``: it was used, or nobody needs its GPUs any more.
    """
    return [(reason, _outcome(reason, before, after)) for reason in sorted(warned_of(before) - warned_of(after))]


def _outcome(reason: str, before: Lease, after: Lease) -> str:
    if after.phase not in UP:
        return "ended" if after.reason in CARRIED_OUT[reason] else "ended otherwise"
    kept = after.keeps_used > before.keeps_used or after.extended_seconds > before.extended_seconds
    return "kept" if kept else "went on"
