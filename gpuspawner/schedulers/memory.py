"""The in-memory scheduler: GPUs as a backend sees them, by the queue of ours. It decides before a start."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from gpuspawner.backends.base import Backend
from gpuspawner.core.gpus.fleet import Fleet, GpuKind, Kinds
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.namespaces import Room
from gpuspawner.schedulers.base import Answer, Capabilities, Offer, Preview
from gpuspawner.schedulers.own_queue import OwnQueue, View, answer_of, offers_of


class InMemoryScheduler(OwnQueue):
    """Grants what the backend's fleet has, by the functions of ``core.queue``."""

    capabilities = Capabilities(substitutes=True)
    room = Room()

    def __init__(self, backend: Backend, kinds: Kinds) -> None:
        """Serve ``kinds`` from ``backend``, which starts no nodes."""
        self._backend = backend
        self._view = View(backend)
        self.kinds = _without_nodes(kinds)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Nothing: all of this machine is seen, or nothing."""
        return ()

    @property
    def fleet(self) -> Fleet:
        """The last view that was observed."""
        return self._view.fleet

    def use_kinds(self, kinds: Kinds) -> None:
        """Serve these kinds from now on."""
        self._backend.use_kinds(kinds.values())
        self.kinds = _without_nodes(kinds)

    async def observe(self, now: float) -> Fleet:
        """Ask the backend. Raises Unavailable; the last complete view stays in force."""
        return await self._view.observe(now)

    async def sync(self, seen: Snapshot) -> Answer:
        """Return what stands for each claim: it has no side of its own."""
        seen = self._view.knowing_demand(seen)
        return answer_of(
            seen.now,
            lambda: decide(seen, index=self._view.index(seen)),
            lambda: self._view.places(seen),
        )

    async def offers(self, seen: Snapshot, claim: Claim) -> Preview:
        """Return where a claim would stand, and what it would get."""
        return self._view.preview(self._view.knowing_demand(seen), claim)

    def stock(self, seen: Snapshot) -> list[Offer]:
        """Return what could be had of every kind, in the catalog's order."""
        return offers_of(seen)

    def check(self, request: Request) -> None:
        """Allow everything: the machine sets no limits of its own."""

    def node_seconds(self, lease: Lease) -> float | None:  # noqa: ARG002 - the seam's
        """Return None: there is one machine, and it is there."""
        return None

    def patch(
        self,
        lease: Lease,
        off: Collection[str] = (),  # noqa: ARG002 - the seam's
        instead: Sequence[GpuKind] = (),  # noqa: ARG002 - the seam's
    ) -> dict[str, Any]:
        """Return what shows the workspace its GPUs, and no others."""
        return self._backend.patch(lease.slots)


def _without_nodes(kinds: Kinds) -> Kinds:
    return {name: replace(kind, autoscale=None) for name, kind in kinds.items()}
