"""The ended workspaces that the home page shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpuspawner.core.leases.lease import Lease

ENDED_READ = 50
"""The last workspace of each server is found among these. Arbitrary: more servers than people have."""
ENDED_SHOWN = 5
SERVERS_SHOWN = 20


def ended_shown(ended: Iterable[Lease], live: Collection[str]) -> list[tuple[Lease, bool]]:
    """Return the workspaces that ended last, and the last of every other server, with whether each can start again.

    ``ended`` is the newest first. ``live`` are the names of the servers that run now.
    """
    seen: set[str] = set(live)
    found: list[tuple[Lease, bool]] = []
    for number, lease in enumerate(ended):
        newest = lease.key.server not in seen
        seen.add(lease.key.server)
        if number < ENDED_SHOWN or (newest and len(found) < SERVERS_SHOWN):
            found.append((lease, newest))
    return found
