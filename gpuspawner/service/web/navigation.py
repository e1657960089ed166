"""The top of every page: the entry that the page belongs to, and the state that the icon of the tab shows."""

from __future__ import annotations

from collections.abc import Iterable

from gpuspawner.core.leases.lease import WAITING, Lease, Phase

ENTRIES = {
    "home": ("", "workspaces", "calendar"),
    "usage": ("quota",),
    "inbox": ("inbox",),
    "admin": ("console", "quotas", "messages"),
}
"""The entries of the navigation (see gs_shell.html), each with the first parts of its pages' addresses."""


def current_entry(path: str) -> str:
    """Return the entry of the navigation that a page belongs to, "" if it belongs to none.

    Args:
        path: the page's address below the service's prefix.
    """
    first = path.strip("/").split("/")[0]
    return next((entry for entry, firsts in ENTRIES.items() if first in firsts), "")


def icon_of(leases: Iterable[Lease]) -> str:
    """Return the file of the tab's icon for a person's live workspaces: the state that needs the person most."""
    phases = {lease.phase for lease in leases}
    if Phase.RECLAIMING in phases:
        return "gpu-warned.svg"
    if phases & WAITING:
        return "gpu-waiting.svg"
    return "gpu-running.svg" if phases & {Phase.RUNNING, Phase.STARTING, Phase.RESERVED} else "gpu.svg"
