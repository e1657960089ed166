"""What a scheduler that owns the queue leaves to ours, which sees the GPUs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gpuspawner.core.gpus.fleet import Fleet, Kinds
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.core.quotas.namespaces import Room
from gpuspawner.schedulers.base import Capabilities, Offer, Scheduler


class PassingOn(ABC):
    """Passes on to ``mine`` what is about GPUs, and not about who gets them."""

    def __init__(self, mine: Scheduler) -> None:
        """Pass on to ``mine``."""
        self._mine = mine

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it can do."""

    def capabilities_of(self, kind: str | None) -> Capabilities:  # noqa: ARG002 - the seam's
        """Return what it can: the same of every kind."""
        return self.capabilities

    @property
    def kinds(self) -> Kinds:
        """The GPU kinds as they are served here."""
        return self._mine.kinds

    @property
    def fleet(self) -> Fleet:
        """The last view that was observed."""
        return self._mine.fleet

    @property
    def room(self) -> Room:
        """What the backend allows beside its GPUs."""
        return self._mine.room

    @property
    def unseen(self) -> tuple[str, ...]:
        """Why not all that uses GPUs is seen."""
        return self._mine.unseen

    async def observe(self, now: float) -> Fleet:
        """Look at the GPUs."""
        return await self._mine.observe(now)

    def stock(self, seen: Snapshot) -> list[Offer]:
        """Return what is there of every kind: what of it a queue may have, its owner decides."""
        return self._mine.stock(seen)

    def use_kinds(self, kinds: Kinds) -> None:
        """Serve these kinds from now on."""
        self._mine.use_kinds(kinds)

    def check(self, request: Request) -> None:
        """Raise RequestRefused for what the backend never allows."""
        self._mine.check(request)

    def start_words(self, lease: Lease) -> str:
        """Return where the pod of a start waits, and why; "" where none does."""
        return self._mine.start_words(lease)

    def node_seconds(self, lease: Lease) -> float | None:
        """Return in about how long the node is there that is started for a lease."""
        return self._mine.node_seconds(lease)
