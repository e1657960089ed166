"""The base of schedulers that own the queue: our own queue gives them the GPUs, and serves workspaces without one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from gpuspawner.core.gpus.fleet import Fleet, GpuKind, Kinds
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.namespaces import NamespaceBounds
from gpuspawner.schedulers.base import Capabilities, Offer, Preview, Scheduler, without_gpu_claims


class DelegatingScheduler:
    """Base of schedulers with their own queue. Our own queue provides the GPUs and serves workspaces without one."""

    def __init__(self, own_queue: Scheduler) -> None:
        self._own_queue = own_queue

    @property
    def capabilities(self) -> Capabilities:
        """Abilities of the scheduler."""
        return self._own_queue.capabilities

    def capabilities_of(self, kind: str | None) -> Capabilities:  # noqa: ARG002 - part of the interface
        """Return the same for each kind."""
        return self.capabilities

    @property
    def kinds(self) -> Kinds:
        """The GPU kinds."""
        return self._own_queue.kinds

    @property
    def fleet(self) -> Fleet:
        """The last view that was observed."""
        return self._own_queue.fleet

    @property
    def room(self) -> NamespaceBounds:
        """Limits of the backend for resources other than GPUs."""
        return self._own_queue.room

    @property
    def unseen(self) -> tuple[str, ...]:
        """Sentences about GPU users that cannot be observed."""
        return self._own_queue.unseen

    async def observe(self, now: float) -> Fleet:
        """Return the newest view of the GPUs."""
        return await self._own_queue.observe(now)

    def stock(self, seen: Snapshot) -> list[Offer]:
        """Return the GPUs of each kind. The owner of the queue decides which are available."""
        return self._own_queue.stock(seen)

    def use_kinds(self, kinds: Kinds) -> None:
        """Serve the kinds of a changed catalog."""
        self._own_queue.use_kinds(kinds)

    def check(self, request: Request) -> None:
        """Raise RequestRefused for a request that the backend can never run."""
        self._own_queue.check(request)

    def start_words(self, lease: Lease) -> str:
        """Return where the pod of a start waits and why."""
        return self._own_queue.start_words(lease)

    def node_seconds(self, lease: Lease) -> float | None:
        """Return the expected time until a new node for the lease is up."""
        return self._own_queue.node_seconds(lease)

    async def offers(self, seen: Snapshot, claim: Claim) -> Preview:
        """Preview a new or changed claim. Our own queue previews workspaces without a GPU."""
        if claim.request.gpu is None:
            return await self._own_queue.offers(without_gpu_claims(seen), claim)
        return await self._preview(seen, claim)

    async def _preview(self, seen: Snapshot, claim: Claim) -> Preview:
        return await self._own_queue.offers(seen, claim)

    async def extend(self, lease: Lease, until: float) -> None:
        """Allow each extension."""

    def listen(self, notify: Callable[[], None]) -> None:
        """Never call ``notify``."""

    def patch(self, lease: Lease, off: Collection[str] = (), instead: Sequence[GpuKind] = ()) -> dict[str, Any]:
        """Return the patch that gives a workspace its GPUs."""
        return self._own_queue.patch(lease, off, instead)
