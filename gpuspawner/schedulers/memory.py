"""The in-memory scheduler: GPUs as a backend sees them, first come, first served. It decides before a start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuspawner.backends.base import Backend
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet, GpuKind, Slot
from gpuspawner.core.gpus.groups import unmarked
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.order import Conditions, Place, next_grants, pool_of, queue_place, queue_places
from gpuspawner.core.queue.placement import count_all, count_away, count_free, largest_fit, used_shares
from gpuspawner.schedulers.base import Grant, Offer


class InMemoryScheduler:
    """Grants what the backend's fleet has, by the functions of ``core.queue.order`` and ``core.queue.placement``."""

    owns_queue = True

    def __init__(self, backend: Backend, kinds: Mapping[str, GpuKind]) -> None:
        """Serve ``kinds`` from ``backend``. The fleet is unknown, and nothing granted, before the first observation."""
        self._backend = backend
        self._kinds = kinds
        self._fleet = Fleet()
        self._unseen: tuple[str, ...] = ()

    @property
    def unseen(self) -> tuple[str, ...]:
        """Why the last look at the GPUs failed: a sentence, or none."""
        return self._unseen

    @property
    def fleet(self) -> Fleet:
        """The last view that was observed."""
        return self._fleet

    async def observe(self, now: float) -> Fleet:
        """Ask the backend. Raises Unavailable; the last complete view stays in force."""
        try:
            seen = await self._backend.fleet()
        except Unavailable as error:
            self._unseen = (str(error),)
            raise
        self._unseen = ()
        self._fleet = Fleet(seen.gpus, seen.complete, now)
        return self._fleet

    def decide(self, leases: Sequence[Lease], at: Conditions) -> list[Grant]:
        """Return the grants to make now, in order."""
        fleet = self._as_held(leases, at.others)
        return [Grant(lease, slots) for lease, slots in next_grants(leases, fleet, self._kinds, at)]

    def check(self, request: Request) -> None:
        """Allow everything: the machine sets no limits of its own."""

    def offers(self, leases: Sequence[Lease], others: Sequence[Slot]) -> list[Offer]:
        """Return what could be had of every kind, in the catalog's order."""
        used = used_shares(leases, others)
        fleet = self._as_held(leases, others)
        known = fleet.complete
        waiting = [pool_of(lease, self._kinds) for lease in leases if lease.phase in WAITING]
        return [
            Offer(
                kind.name,
                count_free(kind, fleet, used) if known else None,
                count_all(kind, fleet) if known else None,
                largest_fit(kind, fleet, foreign_too=True) if known else None,
                waiting.count(kind.pool),
                any(gpu.simulated for gpu in fleet.gpus if gpu.pool == kind.pool),
                note="none is there now" if known and not count_all(kind, fleet) else "",
                away=count_away(kind, fleet),
            )
            for kind in self._kinds.values()
        ]

    def places(self, leases: Sequence[Lease], others: Sequence[Slot], now: float) -> dict[str, Place]:
        """Return where each waiting lease stands, by its id."""
        return queue_places(leases, self._as_held(leases, others), self._kinds, others, now)

    def place(self, lease: Lease, leases: Sequence[Lease], others: Sequence[Slot], now: float) -> Place:
        """Return where a lease would stand that does not wait yet."""
        return queue_place(lease, leases, self._as_held(leases, others), self._kinds, others, now)

    def node_seconds(self, lease: Lease, leases: Sequence[Lease], others: Sequence[Slot]) -> float | None:  # noqa: ARG002 - the seam's
        """Return None: there is one machine, and it is there."""
        return None

    def shortage(self, lease: Lease, leases: Sequence[Lease], others: Sequence[Slot]) -> str:  # noqa: ARG002 - the seam's
        """Return "": nothing but GPUs is short."""
        return ""

    def patch(self, lease: Lease) -> dict[str, Any]:
        """Return what shows the workspace its GPUs, and no others."""
        return self._backend.patch(lease.slots)

    def _as_held(self, leases: Iterable[Lease], others: Iterable[Slot]) -> Fleet:
        """Return the fleet whose GPUs that only count are marked where no lease holds them."""
        return unmarked(self._fleet, used_shares(leases, others))
