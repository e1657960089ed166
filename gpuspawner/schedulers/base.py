"""The seam to a scheduler.

Level-triggered: ``sync`` gives a scheduler all that is claimed, and it answers what stands for each claim. Repeating it
changes nothing, so that it is also the recovery after a crash of either side: a claim that is gone is withdrawn by it,
and a grant that was not taken is given back by it, because its claim still waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet, GpuKind, Kinds, Slot
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.backfill import Reservation
from gpuspawner.core.queue.decisions import Held, KeptFree
from gpuspawner.core.queue.estimates import Place
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.namespaces import Room
from gpuspawner.core.rules import LatestEnd

SCHEDULER = "scheduler"
"""Marks a notice, or a bound on an end, that a scheduler decided which owns the queue."""


@dataclass(frozen=True)
class Capabilities:
    """What a scheduler can do.

    Args:
        name: what metrics call it.
        owns_queue: the order of waiting is its own, and pages name it. Otherwise it is ours.
        tells_positions: it says where everybody stands.
        pod_waits_seconds: it decides after the pod is made, which waits in its queue for so long at most; None where it
            grants GPUs before a pod is made.
        preemption_notice_seconds: how long before a preemption it tells; None where it does not tell.
        substitutes: it may give another kind than was asked for, with consent.
        answers_at_once: its ``sync`` waits for nothing and never raises Unavailable, so that what is free is granted in
            the same step in which it was asked for.
        title: what pages call it, where the queue is its own; ``version`` is its own, "" until it told that.
        keeps_from_all: GPUs that are kept for a stronger claim are kept from everybody, and not only from our queue.
    """

    name: str = "memory"
    owns_queue: bool = False
    tells_positions: bool = True
    pod_waits_seconds: float | None = None
    preemption_notice_seconds: float | None = None
    substitutes: bool = False
    answers_at_once: bool = True
    keeps_from_all: bool = True
    title: str = ""
    version: str = ""


@dataclass(frozen=True)
class Grant:
    """A decision: the lease of this claim, at its revision, holds these slots from now on.

    ``expires_at``, in seconds of the service's clock: the grant is void unless its start took it by then; None where it
    is held for as long as the service reserves it.
    ``kind`` is the one that is given; "" for the one asked for. ``latest_end`` bounds the workspace's end.
    """

    claim: Claim
    slots: tuple[Slot, ...]
    expires_at: float | None = None
    kind: str = ""
    latest_end: LatestEnd | None = None


@dataclass(frozen=True)
class Refusal:
    """A decision: this claim, at its revision, is never granted. ``why`` is a sentence for its user."""

    claim: Claim
    why: str


@dataclass(frozen=True)
class Preempted:
    """A decision: the workspace of this lease must have ended ``at`` then. ``why`` is a sentence for its user."""

    lease_id: str
    at: float
    why: str


@dataclass(frozen=True)
class Offer:
    """What could be had of one kind at one instant. ``free`` is None where the fleet is unknown: never 0 for that.

    ``note`` says, in a few words, what is to be known beside the numbers. ``away`` are those of ``total`` that may not
    be given, whoever holds them: unhealthy, or on a node that takes nothing new. ``held`` says how many would be free
    but are held, and for whom.
    """

    kind: str
    free: int | None
    total: int | None
    largest: int | None
    waiting: int
    simulated: bool
    note: str = ""
    away: int = 0
    held: str = ""


@dataclass(frozen=True)
class Answer:
    """What stands for each claim of a snapshot: granted, refused, or else it waits.

    Args:
        as_of: when this last changed, in seconds of the service's clock.
        grants: computes those to make now, in order; pages never call it.
        refused: what is never granted.
        places: computes where each claim stands, by lease id, in a time that grows with the queue alone.
        held_back: computes which claims a rule holds back, by lease id: what but free GPUs they wait for.
        reservations: computes which GPUs are kept for whom, where the queue is ours.
        preempted: which workspaces are to end, of those that run; a notice that is not among them any more is void.
        changed_at: when this last changed, where ``as_of`` is when it was looked at; None where it is ``as_of``.
    """

    as_of: float
    grants: Callable[[], Sequence[Grant]]
    places: Callable[[], Mapping[str, Place]]
    held_back: Callable[[], Mapping[str, Held]]
    refused: tuple[Refusal, ...] = ()
    reservations: Callable[[], Sequence[Reservation]] = tuple
    preempted: tuple[Preempted, ...] = ()
    changed_at: float | None = None

    @property
    def last_changed(self) -> float:
        """When it last changed: pages are told then, and not before."""
        return self.as_of if self.changed_at is None else self.changed_at


@dataclass(frozen=True)
class Preview:
    """What asking now would give.

    Args:
        place: where the claim would stand.
        held_back: which rule would hold it back: what but free GPUs it would wait for.
        node_seconds: in about how long the node is there that would be started for it; None for no such.
        kind: the kind that it would be given now in place of the one asked for, "" for none.
        latest_end: the bound on its end that it would be granted with now.
        beyond_share: in a sentence, which soft quota it goes beyond; "" for none.
        kept_free: what is free and kept from it for a request that goes first.
        says: what else its scheduler says of it, in sentences.
    """

    place: Place
    held_back: Held | None = None
    node_seconds: float | None = None
    kind: str = ""
    latest_end: LatestEnd | None = None
    beyond_share: str = ""
    kept_free: KeptFree | None = None
    says: str = ""


class Unfit(Unavailable):
    """A scheduler answers, and can't be used as it is: the words say why, and what to do."""


class Scheduler(Protocol):
    """Answers what could be had, decides who gets it, and says where everybody stands.

    Places come from the owner of the queue alone. Every answer is about the snapshot that was given.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; of several as one, the least of them."""
        ...

    def capabilities_of(self, kind: str | None) -> Capabilities:
        """Return what the one can do that decides about a kind, or None: about what takes no GPU."""
        ...

    @property
    def kinds(self) -> Kinds:
        """The GPU kinds as this scheduler serves them: those of a snapshot that it is given."""
        ...

    def use_kinds(self, kinds: Kinds) -> None:
        """Serve these kinds from now on: the catalog has changed."""
        ...

    async def observe(self, now: float) -> Fleet:
        """Return the newest view of the GPUs. Raises Unavailable; the last complete view stays in force."""
        ...

    @property
    def fleet(self) -> Fleet:
        """The last view that was observed."""
        ...

    @property
    def room(self) -> Room:
        """What the backend allows beside its GPUs, as it was last seen."""
        ...

    @property
    def unseen(self) -> tuple[str, ...]:
        """Why not all that uses GPUs is seen: sentences for the administrator. An outage is in ``fleet``."""
        ...

    async def sync(self, seen: Snapshot) -> Answer:
        """Make the scheduler's side equal to what is claimed, and return what stands.

        It bounds its own time. Raises Unavailable where the scheduler does not answer: what stood, stands.
        """
        ...

    async def offers(self, seen: Snapshot, claim: Claim) -> Preview:
        """Return what a claim would get that does not wait, or one in the place of the claim with its id: a dry run.

        Raises Unavailable.
        """
        ...

    async def extend(self, lease: Lease, until: float) -> None:
        """Ask whether a workspace may run until then. Raises Conflict with the scheduler's words, Unavailable."""
        ...

    def listen(self, told: Callable[[], None]) -> None:
        """Have ``told`` called whenever what stands may have changed, by one that does not answer at once."""
        ...

    def stock(self, seen: Snapshot) -> list[Offer]:
        """Return what could be had of every kind, in the catalog's order."""
        ...

    def check(self, request: Request) -> None:
        """Raise RequestRefused for what the backend never allows, however much of it is free."""
        ...

    def node_seconds(self, lease: Lease) -> float | None:
        """Return in about how long the node is there that is started for a lease; None where none is."""
        ...

    def start_words(self, lease: Lease) -> str:
        """Return where the pod of a start waits, and why: as "it waits in ..."; "" where it waits in no queue."""
        ...

    def patch(self, lease: Lease, off: Collection[str] = (), instead: Sequence[GpuKind] = ()) -> dict[str, Any]:
        """Return, as JSON, what the spawner applies to the workspace of a lease that holds its slots.

        It is started on none of the nodes ``off``, by name, unless its slots are there. A scheduler that decides before
        the pod exists may let the cluster give a kind of ``instead``, where another pod was faster.

        On one machine ``{"environment": {...}, "path_prefix": str}``; on Kubernetes the pod's patch, and as
        ``"node_seconds"`` in about how long the node is there that is started for it, where one is, and as
        ``"waits_in"``, in words, in which queue of the cluster the pod waits, where it does.
        """
        ...
