"""What schedulers share whose queue is ours: the view of a backend's GPUs, and offers of them."""

from __future__ import annotations

from gpuspawner.backends.base import Backend
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet
from gpuspawner.core.queue.order import pool_of
from gpuspawner.core.queue.placement import count_all, count_away, count_free, largest_fit
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.schedulers.base import Offer


class View:
    """The GPUs of a backend, as they were last seen. Nothing is known before the first look."""

    def __init__(self, backend: Backend) -> None:
        """Look at nothing yet."""
        self._backend = backend
        self.fleet = Fleet()
        self.unseen: tuple[str, ...] = ()
        """Why the last look failed: a sentence, or none."""

    async def observe(self, now: float) -> Fleet:
        """Ask the backend. Raises Unavailable; the last complete view stays in force."""
        try:
            found = await self._backend.fleet()
        except Unavailable as error:
            self.unseen = (str(error),)
            raise
        self.unseen = ()
        self.fleet = Fleet(found.gpus, found.complete, now)
        return self.fleet


def offers_of(seen: Snapshot) -> list[Offer]:
    """Return what could be had of every kind, in the catalog's order."""
    fleet = seen.gpus_as_held
    known = fleet.complete
    waiting = [pool_of(claim, seen.kinds) for claim in seen.claims]
    return [
        Offer(
            kind.name,
            count_free(kind, fleet, seen.used) if known else None,
            count_all(kind, fleet) if known else None,
            largest_fit(kind, fleet, foreign_too=True) if known else None,
            waiting.count(kind.pool),
            any(gpu.simulated for gpu in fleet.gpus if gpu.pool == kind.pool),
            note="none is there now" if known and not count_all(kind, fleet) else "",
            away=count_away(kind, fleet),
        )
        for kind in seen.kinds.values()
    ]
