"""Programs of a workspace that were killed because it had used all of its memory, while its server lived on. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpuspawner.core.events import KilledForMemory
from gpuspawner.core.leases.lease import Lease

TOLD_SECONDS = 3600.0
"""For how long its page says so, and how far apart two messages of it are at least. Arbitrary."""


def count_kills(lease: Lease, count: int | None, now: float) -> tuple[Lease, KilledForMemory | None]:
    """Return the lease with its new memory kills, and an event if its user gets a message.

    Args:
        lease: one that runs.
        count: how many processes of its container were killed so far; None if that is not known. A count that fell
            belongs to a restarted container.
        now: seconds since the epoch.
    """
    if count is None or count == lease.memory_kills:
        return lease, None
    new = count - lease.memory_kills if count > lease.memory_kills else count
    counted = replace(lease, memory_kills=count)
    if not new:
        return counted, None
    told = lease.memory_killed_at is not None and now - lease.memory_killed_at < TOLD_SECONDS
    event = None if told else KilledForMemory(new, lease.request.memory_bytes)
    return replace(counted, memory_killed_at=now), event


def is_recent(lease: Lease, now: float) -> bool:
    """Return whether the page of a workspace shows that a program was killed."""
    return lease.memory_killed_at is not None and now - lease.memory_killed_at < TOLD_SECONDS
