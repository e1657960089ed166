"""The interface of a scheduler.

``sync`` is level-triggered. It gives a scheduler all claims, and the scheduler answers with the state of each claim.
Repeating it changes nothing, so it is also the recovery after a crash of either side. ``sync`` withdraws a claim that
is gone. It also returns a grant that was not taken, because its claim still waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from typing import Any, Protocol

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet, GpuKind, Kinds, Slot
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.backfill import Reservation
from gpuspawner.core.queue.decisions import BlockingRule, ReservedForOthers
from gpuspawner.core.queue.estimates import QueuePosition
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.namespaces import NamespaceBounds
from gpuspawner.core.rules import LatestEnd

SCHEDULER = "scheduler"
"""Marks a notice or a bound on an end that comes from a scheduler with its own queue."""


@dataclass(frozen=True)
class Capabilities:
    """The abilities of a scheduler.

    Args:
        name: the label in metrics.
        owns_queue: the scheduler decides the order, and pages name it. Otherwise our own queue decides.
        tells_positions: the scheduler reports queue positions.
        pod_waits_seconds: how long a pod may wait in the scheduler's queue. None if it grants before a pod exists.
        preemption_notice_seconds: how early the scheduler announces a preemption. None if it gives no notice.
        substitutes: the scheduler may grant another GPU kind, with the user's consent.
        answers_at_once: ``sync`` waits for nothing and never raises Unavailable. A free GPU is then granted in the
            same step as the request.
        title: the name on pages of a scheduler that owns the queue.
        version: the scheduler's own version, "" until it reported one.
        keeps_from_all: reserved GPUs are reserved from everybody, not only from our own queue.
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
    """The lease of this claim, at its revision, holds these slots from now on.

    Args:
        claim: the claim.
        slots: the granted GPUs.
        expires_at: time, in seconds of the service's clock, by which the start must take the grant. None if the grant
            stays valid while the service reserves it.
        kind: the granted GPU kind, "" for the requested one.
        latest_end: upper bound of the workspace's end.
    """

    claim: Claim
    slots: tuple[Slot, ...]
    expires_at: float | None = None
    kind: str = ""
    latest_end: LatestEnd | None = None


@dataclass(frozen=True)
class Refusal:
    """This claim, at its revision, is never granted. ``why`` is a sentence for its user."""

    claim: Claim
    why: str


@dataclass(frozen=True)
class Preempted:
    """The workspace of this lease must end by ``at``. ``why`` is a sentence for its user."""

    lease_id: str
    at: float
    why: str


@dataclass(frozen=True)
class Offer:
    """The GPUs of one kind at one time.

    Args:
        kind: the GPU kind.
        free: number of free GPUs. None, never 0, if the fleet is unknown.
        total: number of GPUs.
        largest: the most GPUs that one workspace may request.
        waiting: number of waiting requests.
        simulated: the GPUs are simulated.
        note: a short remark about the numbers.
        away: GPUs of ``total`` that are unhealthy or on a node that takes no new workspace.
        held: how many free GPUs are reserved, and the reason.
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
    """The state of each claim of a snapshot: granted, refused, or waiting.

    Args:
        as_of: time of the last change, in seconds of the service's clock.
        grants: computes the grants to make now, in order. Pages never call it.
        places: computes the queue position of each claim by lease id. Its cost grows with the queue only.
        wait_reasons: computes by lease id which rule a claim waits for, apart from free GPUs.
        refused: claims that are never granted.
        reservations: computes the GPUs reserved for each claim in our own queue.
        preempted: running workspaces that must end. A notice that is missing here is void.
        changed_at: time of the last change if ``as_of`` is the time of the last look, else None.
    """

    as_of: float
    grants: Callable[[], Sequence[Grant]]
    places: Callable[[], Mapping[str, QueuePosition]]
    wait_reasons: Callable[[], Mapping[str, BlockingRule]]
    refused: tuple[Refusal, ...] = ()
    reservations: Callable[[], Sequence[Reservation]] = tuple
    preempted: tuple[Preempted, ...] = ()
    changed_at: float | None = None

    @property
    def last_changed(self) -> float:
        """Time of the last change. Pages are updated then."""
        return self.as_of if self.changed_at is None else self.changed_at


def join_answers(as_of: float, answers: Sequence[Answer]) -> Answer:
    """Return one answer about the claims of several answers, without reservations."""
    return Answer(
        as_of,
        lambda: [grant for one in answers for grant in one.grants()],
        lambda: {name: place for one in answers for name, place in one.places().items()},
        lambda: {name: rule for one in answers for name, rule in one.wait_reasons().items()},
        tuple(chain.from_iterable(one.refused for one in answers)),
        preempted=tuple(chain.from_iterable(one.preempted for one in answers)),
    )


def without_gpu_claims(seen: Snapshot) -> Snapshot:
    """Return the snapshot without the waiting GPU requests, which another scheduler decides."""
    return replace(seen, leases=tuple(x for x in seen.leases if x.phase not in WAITING or x.request.gpu is None))


def unknown_position(says: str) -> QueuePosition:
    """Return the position of a request of which the scheduler reports no position. ``says`` is for its user."""
    return QueuePosition(None, None, None, None, says=says)


async def run_limited(calls: Iterable[Coroutine[Any, Any, None]], concurrent: int, until: float = inf) -> bool:
    """Run calls until a time of the event loop, or until one of them raises Unavailable, which is then raised.

    Returns:
        Whether all calls ran.
    """
    failed: list[Unavailable] = []
    clock, turns = asyncio.get_running_loop().time, asyncio.Semaphore(concurrent)

    async def one(call: Coroutine[Any, Any, None]) -> None:
        try:
            async with turns:  # Otherwise all would have begun before the first fails.
                if not failed and clock() <= until:
                    await call
        except Unavailable as error:
            failed.append(error)
        finally:
            call.close()  # It may not have begun.

    await asyncio.gather(*(one(call) for call in calls))
    if failed:
        raise failed[0]
    return clock() <= until


async def stop_task(task: asyncio.Task[None] | None) -> None:
    """Cancel a background task, if there is one, and wait until it has ended."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass(frozen=True)
class Preview:
    """The answer to a request that is not made yet.

    Args:
        place: the queue position.
        wait_reason: the rule that the request would wait for, apart from free GPUs.
        node_seconds: expected time until a new node for it is up. None if no node would be started.
        kind: the substitute that would be granted now, "" for the requested kind.
        latest_end: the bound of its end if it were granted now.
        beyond_share: a sentence about the soft quota that the request would exceed, "" for none.
        kept_free: free GPUs that are reserved for a request ahead of it.
        says: more sentences from its scheduler.
        slots: the GPUs that our own queue would grant now, None if it would wait or if another scheduler decides.
    """

    place: QueuePosition
    wait_reason: BlockingRule | None = None
    node_seconds: float | None = None
    kind: str = ""
    latest_end: LatestEnd | None = None
    beyond_share: str = ""
    kept_free: ReservedForOthers | None = None
    says: str = ""
    slots: tuple[Slot, ...] | None = None


class UnusableScheduler(Unavailable):
    """A scheduler answers but cannot be used. The message says why and what to do."""


class Scheduler(Protocol):
    """Decides which requests get GPUs, and reports their queue positions.

    Only the owner of the queue computes positions. Each answer is about the given snapshot.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Abilities of the scheduler, or those that several schedulers have in common."""
        ...

    def capabilities_of(self, kind: str | None) -> Capabilities:
        """Return the abilities of the scheduler of this GPU kind, or for None, of workspaces without a GPU."""
        ...

    @property
    def kinds(self) -> Kinds:
        """The GPU kinds that this scheduler serves. Snapshots for it contain these."""
        ...

    def use_kinds(self, kinds: Kinds) -> None:
        """Serve the kinds of a changed catalog."""
        ...

    async def observe(self, now: float) -> Fleet:
        """Return the newest view of the GPUs. Raises Unavailable, and the last complete view stays valid."""
        ...

    @property
    def fleet(self) -> Fleet:
        """The last observed view."""
        ...

    @property
    def room(self) -> NamespaceBounds:
        """Limits of the backend for resources other than GPUs, as last observed."""
        ...

    @property
    def unseen(self) -> tuple[str, ...]:
        """Sentences for the administrator about GPU users that cannot be observed. An outage is in ``fleet``."""
        ...

    async def sync(self, seen: Snapshot) -> Answer:
        """Send all claims to the scheduler and return their state.

        The call limits its own duration.

        Raises:
            Unavailable: The scheduler does not answer. The last state stays valid.
        """
        ...

    async def offers(self, seen: Snapshot, claim: Claim) -> Preview:
        """Preview a new claim, or a changed claim with the same id. Nothing changes.

        Raises:
            Unavailable: The scheduler does not answer.
        """
        ...

    async def extend(self, lease: Lease, until: float) -> None:
        """Ask to run a workspace until then. Raises Conflict with the scheduler's reason, or Unavailable."""
        ...

    def listen(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` when the state may have changed. Only schedulers that do not answer at once call it."""
        ...

    def stock(self, seen: Snapshot) -> list[Offer]:
        """Return the GPUs of each kind, in the catalog's order."""
        ...

    def check(self, request: Request) -> None:
        """Raise RequestRefused for a request that the backend can never run."""
        ...

    def node_seconds(self, lease: Lease) -> float | None:
        """Return the expected time until a new node for the lease is up. None if no node is started."""
        ...

    def start_words(self, lease: Lease) -> str:
        """Return where the pod of a start waits and why, like "it waits in ...". "" if it waits in no queue."""
        ...

    def patch(self, lease: Lease, off: Collection[str] = (), instead: Sequence[GpuKind] = ()) -> dict[str, Any]:
        """Return the JSON patch that the spawner applies to the workspace of a lease that holds its slots.

        On one machine the patch is ``{"environment": {...}, "path_prefix": str}``. On Kubernetes it is the pod's patch.
        ``"node_seconds"`` is then the expected time until a new node is up. ``"waits_in"`` names the cluster's queue.

        Args:
            lease: the lease.
            off: names of nodes to avoid, unless the slots are there.
            instead: substitutes that the cluster may use if another pod took the GPUs first.
        """
        ...
