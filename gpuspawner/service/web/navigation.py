"""What stands at the top of every page: where one can go, and the state that the tab's icon shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuspawner.core.leases.lease import WAITING, Lease, Phase


@dataclass(frozen=True)
class Entry:
    """A page of the navigation. ``path`` is below the service's prefix; ``admins``: only administrators see it.

    ``also`` are pages of it that lie elsewhere.
    """

    path: str
    words: str
    admins: bool = False
    also: tuple[str, ...] = ()

    def has(self, here: str) -> bool:
        """Whether an address is its page's, or of one below it."""
        return any(here == path or here.startswith(f"{path}/") for path in (self.path.strip("/"), *self.also))


NAVIGATION = (
    Entry("", "GPU workspaces"),
    Entry("inbox", "Inbox"),
    Entry("quota", "Quota"),
    Entry("tokens", "Command line", also=("login-code", "reference")),
    Entry("console/", "Console", admins=True, also=("quotas",)),
    Entry("messages", "Messages", admins=True),
)
"""In the order shown. A page adds itself here; it is marked as the current one by its path, and those below it too."""


@dataclass(frozen=True)
class Shown:
    """An entry on one page."""

    path: str
    words: str
    current: bool


def navigation(path: str, *, admin: bool) -> tuple[Shown, ...]:
    """Return what a page at ``path``, below the service's prefix, shows."""
    here = path.strip("/")
    may = [entry for entry in NAVIGATION if admin or not entry.admins]
    current = max((e for e in may if e.has(here)), key=lambda e: len(e.path), default=NAVIGATION[0])
    return tuple(Shown(e.path, e.words, e is current) for e in may)


def icon_of(leases: Iterable[Lease]) -> str:
    """Return the file of the icon for somebody's live workspaces: what needs them most, as a shape."""
    phases = {lease.phase for lease in leases}
    if Phase.RECLAIMING in phases:
        return "gpu-warned.svg"
    if phases & WAITING:
        return "gpu-waiting.svg"
    return "gpu-running.svg" if phases & {Phase.RUNNING, Phase.STARTING, Phase.RESERVED} else "gpu.svg"
