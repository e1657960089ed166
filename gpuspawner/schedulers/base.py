"""The seam to a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpuspawner.core.gpus.fleet import Fleet, Slot
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.order import Conditions, Place


@dataclass(frozen=True)
class Grant:
    """A decision: this lease holds these slots from now on."""

    lease: Lease
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class Offer:
    """What could be had of one kind at one instant. ``free`` is None where the fleet is unknown: never 0 for that.

    ``note`` says, in a few words, what is to be known beside the numbers. ``away`` are those of ``total`` that may not
    be given, whoever holds them: unhealthy, or on a node that takes nothing new.
    """

    kind: str
    free: int | None
    total: int | None
    largest: int | None
    waiting: int
    simulated: bool
    note: str = ""
    away: int = 0


class Scheduler(Protocol):
    """Answers what could be had, decides who gets it, and says where everybody stands.

    ``owns_queue`` tells whether the order of waiting is ours or the scheduler's: places come from the owner alone.
    """

    owns_queue: bool

    async def observe(self, now: float) -> Fleet:
        """Return the newest view of the GPUs. Raises Unavailable; the last complete view stays in force."""
        ...

    @property
    def fleet(self) -> Fleet:
        """The last view that was observed."""
        ...

    @property
    def unseen(self) -> tuple[str, ...]:
        """Why the GPUs are not seen, or not all that uses them: sentences for the administrator."""
        ...

    def decide(self, leases: Sequence[Lease], at: Conditions) -> list[Grant]:
        """Return the grants to make now, in order."""
        ...

    def check(self, request: Request) -> None:
        """Raise RequestRefused for what the place never allows, however much of it is free."""
        ...

    def offers(self, leases: Sequence[Lease], others: Sequence[Slot]) -> list[Offer]:
        """Return what could be had of every kind."""
        ...

    def places(self, leases: Sequence[Lease], others: Sequence[Slot], now: float) -> dict[str, Place]:
        """Return where each waiting lease stands, by its id, in a time that grows with the queue alone."""
        ...

    def place(self, lease: Lease, leases: Sequence[Lease], others: Sequence[Slot], now: float) -> Place:
        """Return where a lease would stand that does not wait yet."""
        ...

    def node_seconds(self, lease: Lease, leases: Sequence[Lease], others: Sequence[Slot]) -> float | None:
        """Return in about how long the node is there that is started for a lease, or would be; None for no such."""
        ...

    def shortage(self, lease: Lease, leases: Sequence[Lease], others: Sequence[Slot]) -> str:
        """Return, in a sentence, what but GPUs a lease waits for: "" where that is nothing, or GPUs are short too."""
        ...

    def patch(self, lease: Lease) -> dict[str, Any]:
        """Return, as JSON, what the spawner applies to the workspace of a lease that holds its slots.

        On one machine ``{"environment": {...}, "path_prefix": str}``; on Kubernetes the pod's patch, and as
        ``"node_seconds"`` in about how long the node is there that is started for it, where one is.
        """
        ...
