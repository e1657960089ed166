"""When what holds GPUs, or a part of a quota, gives them back, as far as it is known."""

from __future__ import annotations

from math import inf

from gpuspawner.core.leases.lease import UP, Lease, Phase

LEAST_WAIT_SECONDS = 1.0
"""GPUs that are held, though their holder's time is over, are not free now: a stop takes at least this."""


def end_at(lease: Lease, now: float, *, use_grace: bool = False) -> float:
    """Return when a lease that holds something ends at the latest, if nobody extends it; infinite where nothing tells.

    ``use_grace``: an idle one ends with its grace period.
    """
    if lease.phase is Phase.STOPPING:
        at = now
    elif use_grace and lease.phase is Phase.RECLAIMING and lease.streak.grace_left_seconds is not None:
        at = now + lease.streak.grace_left_seconds
    elif lease.phase in UP:
        at = inf if lease.deadline_at is None else lease.deadline_at
    else:
        bound = inf if lease.latest_end is None else lease.latest_end.at
        at = min(now + lease.request.lifetime_seconds, bound)
    return max(at, now + LEAST_WAIT_SECONDS)
