"""The ended workspaces that the home page shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpuspawner.core.leases.lease import Lease

ENDED_READ = 50
"""Among so many that ended last, the last of each server is looked for. Arbitrary: more servers than people have."""
ENDED_SHOWN = 5
SERVERS_SHOWN = 20


def ended_shown(ended: Iterable[Lease], live: Collection[str]) -> list[tuple[Lease, bool]]:
    """Return what ended last and the last of every other server, each with whether it can be started again.

    ``ended`` is the newest first; ``live`` are the names of servers that somebody has now.
    """
    seen: set[str] = set(live)
    found: list[tuple[Lease, bool]] = []
    for number, lease in enumerate(ended):
        newest = lease.key.server not in seen
        seen.add(lease.key.server)
        if number < ENDED_SHOWN or (newest and len(found) < SERVERS_SHOWN):
            found.append((lease, newest))
    return found
