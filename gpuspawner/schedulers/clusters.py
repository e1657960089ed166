"""Several clusters, some with a scheduler that owns its queue. Our own queue serves all other clusters.

Each lease belongs to one scheduler, by the cluster of its GPU kind. Workspaces without a GPU belong to our own queue.
The schedulers are asked in parallel, each for a limited time: an outage of one stops no grant elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol

from gpuspawner.backends.base import OutageLog
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet, GpuKind, Kinds
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.queue.decisions import BlockingRule
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.schedulers.base import (
    SCHEDULER,
    Answer,
    Capabilities,
    Preempted,
    Preview,
    Scheduler,
    join_answers,
    stop_task,
    unknown_position,
)
from gpuspawner.schedulers.delegation import DelegatingScheduler

log = logging.getLogger("gpuspawner.scheduler")

PATIENCE_SECONDS = 1.0
"""How long grants elsewhere wait for a scheduler that answered before. Arbitrary: a few times a usual answer."""


class ClusterScheduler(Scheduler, Protocol):
    """A scheduler that owns the queue of a cluster."""

    async def connect(self) -> None:
        """Check once that the scheduler can be used. Raises Unavailable with the reason."""
        ...

    async def close(self) -> None:
        """Stop all background tasks."""
        ...


class BoundedScheduler:
    """A cluster's scheduler with its last answer, asked for a limited time.

    A failure stays in its cluster: nothing is granted there, and the last state stays valid.
    """

    def __init__(self, title: str, scheduler: ClusterScheduler) -> None:
        """``title`` is the cluster's display name."""
        self._title, self.scheduler = title, scheduler
        self._outages = OutageLog()
        self._answer: Answer | None = None
        self._late_answer: Answer | None = None
        """An answer that came too late and was not used yet."""
        self._task: asyncio.Task[None] | None = None
        self.version: tuple[str, float | None] = ("", None)
        """Reason of the outage and time of the answer. Changes only when the scheduler itself changed its state."""
        self._connected = self._is_late = self._again = False
        self._notify: Callable[[], None] = lambda: None

    @property
    def away(self) -> str:
        """Why the scheduler does not answer, "" if it does."""
        outage = self._outages.outage
        return "" if outage is None else f"{outage.part} does not answer: {outage.why}"

    @property
    def unseen(self) -> tuple[str, ...]:
        """Sentences for the administrator about its problems."""
        told = self.scheduler.unseen
        return (*([self.away] if self.away else []), *(f"Cluster {self._title}: {words}" for words in told))

    def listen(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` when the state may have changed."""
        self._notify = notify
        self.scheduler.listen(notify)

    async def close(self) -> None:
        """Stop all background tasks."""
        self._notify = lambda: None
        await stop_task(self._task)
        await self.scheduler.close()

    async def ask(self, seen: Snapshot) -> Answer:
        """Return the scheduler's answer, or the last state if the answer takes too long.

        A late answer is used the next time the scheduler is late, so a scheduler that is always slow is also used.
        """
        if self._task is not None:
            self._again = True
            return self._record(None, seen)
        self._is_late = self._again = False
        late, self._late_answer = self._late_answer, None
        patience = 0.0 if self.away else PATIENCE_SECONDS
        task = self._task = asyncio.create_task(self._sync(seen))
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait({task}, timeout=patience)
        finally:
            self._is_late = not task.done()
        answer = late if self._is_late else self._answer
        return self._record(None if self.away else answer, seen)

    def _record(self, answer: Answer | None, seen: Snapshot) -> Answer:
        last, at_once = answer or self._answer, self.scheduler.capabilities.answers_at_once
        self.version = self.away, None if last is None or at_once else last.as_of
        return self._last_state(seen) if answer is None else answer

    async def _sync(self, seen: Snapshot) -> None:
        before, was_away = self._as_of, self.away
        try:
            if not self._connected:
                await self.scheduler.connect()
                self._connected = True
            self._answer = await self.scheduler.sync(seen)
            self._outages.end(seen.now)
        except Unavailable as error:
            self._begin_outage(str(error), seen.now)
        except Exception as error:
            log.exception("The answer of the scheduler of cluster %s could not be processed", self._title)
            self._begin_outage(f"{type(error).__name__}: see the service's log.", seen.now)
        self._again |= (was_away, before) != (self.away, self._as_of)

    @property
    def _as_of(self) -> float | None:
        return None if self._answer is None else self._answer.as_of

    def _begin_outage(self, why: str, now: float) -> None:
        self._outages.begin(f"The scheduler of cluster {self._title}", why, now)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._task = None
        if self._is_late and not self.away:
            self._late_answer = self._answer
        if self._is_late and self._again:
            self._notify()

    def _last_state(self, seen: Snapshot) -> Answer:
        """Return the last state: no new grants, all notices stay, and all held-back claims stay held back."""
        outage, name = self._outages.outage, self.scheduler.capabilities.title
        says = outage.waiting_words(seen.now) if outage else f"{name} in {self._title} has not answered yet."
        places = {x.id: unknown_position(says) for x in seen.leases if x.phase in WAITING}
        if not self.away and self._answer is not None:
            places |= {lease: place for lease, place in self._answer.places().items() if lease in places}
        held = {
            x.id: BlockingRule(x.wait_reason.rule, x.wait_reason.words)
            for x in seen.leases
            if x.wait_reason is not None
        }
        notices = ((x.id, x.notice) for x in seen.leases if x.notice and x.notice.preemption == SCHEDULER)
        preempted = tuple(Preempted(lease, notice.at, notice.why) for lease, notice in notices)
        return Answer(seen.now, tuple, lambda: places, lambda: held, preempted=preempted)


class ClustersScheduler(DelegatingScheduler):
    """Splits the claims by scheduler and joins the answers. Our own queue observes the GPUs of all clusters."""

    def __init__(self, own_queue: Scheduler, home: str, others: Mapping[str, BoundedScheduler]) -> None:
        """``others`` are the clusters' schedulers by catalog name. ``home`` is the hub's own cluster."""
        super().__init__(own_queue)
        self._home, self._others = home, others
        self._parts: tuple[Fleet, Kinds, dict[str, tuple[Fleet, Kinds]]] | None = None
        self._version: tuple[Any, ...] = ()
        """The inputs of the last answer, without the time and the GPUs."""
        self._changed_at = 0.0

    @property
    def capabilities(self) -> Capabilities:
        """The common abilities. A grant waits until all schedulers were asked."""
        found = [self._own_queue.capabilities, *(one.scheduler.capabilities for one in self._others.values())]
        return Capabilities(
            name="clusters",
            tells_positions=all(one.tells_positions for one in found),
            substitutes=all(one.substitutes for one in found),
            answers_at_once=False,
            keeps_from_all=all(one.keeps_from_all for one in found),
        )

    def capabilities_of(self, kind: str | None) -> Capabilities:
        """Return the abilities of the scheduler of this GPU kind."""
        cluster = self._of_kind(self.kinds.get(kind or ""))
        return (self._others[cluster].scheduler if cluster else self._own_queue).capabilities_of(kind)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Sentences about GPUs that cannot be observed, and about schedulers that do not answer."""
        return (*super().unseen, *chain.from_iterable(one.unseen for one in self._others.values()))

    def listen(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` when the state in one of the clusters may have changed."""
        for one in self._others.values():
            one.listen(notify)

    async def close(self) -> None:
        """Stop all background tasks."""
        await asyncio.gather(*(one.close() for one in self._others.values()))

    async def observe(self, now: float) -> Fleet:
        """Observe the GPUs of all clusters, once."""
        fleet = await self._own_queue.observe(now)
        for one in self._others.values():
            await one.scheduler.observe(now)
        return fleet

    async def sync(self, seen: Snapshot) -> Answer:
        """Send each scheduler its claims and join the answers. A late answer counts in a later call."""
        asked = (one.ask(self.part(seen, cluster)) for cluster, one in self._others.items())
        theirs = await asyncio.gather(*asked)
        ours = await self._own_queue.sync(self.part(seen, ""))
        version = (seen.leases, seen.hub_answers, *(one.version for one in self._others.values()))
        if version != self._version:
            self._version, self._changed_at = version, seen.now
        joined = join_answers(ours.as_of, [ours, *theirs])
        return replace(joined, reservations=ours.reservations, changed_at=self._changed_at)

    async def offers(self, seen: Snapshot, claim: Claim) -> Preview:
        """Ask the scheduler of the GPU kind. Raises Unavailable if it does not answer."""
        cluster = self._of_kind(seen.kinds.get(claim.request.gpu or ""))
        if not cluster:
            return await self._own_queue.offers(self.part(seen, ""), claim)
        one = self._others[cluster]
        if one.away:
            raise Unavailable(one.away)
        return await one.scheduler.offers(self.part(seen, cluster), claim)

    async def extend(self, lease: Lease, until: float) -> None:
        """Ask the lease's scheduler."""
        await self._scheduler_of(lease).extend(lease, until)

    def patch(self, lease: Lease, off: Collection[str] = (), instead: Sequence[GpuKind] = ()) -> dict[str, Any]:
        """Return the patch of the lease's scheduler. Raises Unavailable if the patch is not known."""
        return self._scheduler_of(lease).patch(lease, off, instead)

    def start_words(self, lease: Lease) -> str:
        """Return where the pod waits, as the lease's scheduler says."""
        return self._scheduler_of(lease).start_words(lease)

    def part(self, seen: Snapshot, cluster: str) -> Snapshot:
        """Return the part of a snapshot for the scheduler of a cluster, "" for our own queue.

        Quotas also count the holders of GPUs elsewhere, so our own queue gets them, but not the waiting requests.
        """
        fleet, kinds = self._split(seen.fleet, seen.kinds)[cluster]
        owners = ((lease, self.cluster_of(lease, seen.kinds)) for lease in seen.leases)
        leases = tuple(x for x, owner in owners if owner == cluster or (not cluster and x.phase not in WAITING))
        return replace(seen, leases=leases, fleet=fleet, kinds=kinds)

    def cluster_of(self, lease: Lease, kinds: Kinds) -> str:
        """Return the cluster whose scheduler decides about a lease, "" for our own queue.

        If the kind has left the catalog, the GPUs that the lease holds decide.
        """
        kind = lease.request.gpu
        if kind is None or kind in kinds:
            return self._of_kind(kinds.get(kind or ""))
        groups = [slot.group for slot in lease.slots if slot.group and not slot.is_coming]
        return self._of_cluster(groups[0].cluster) if groups else ""

    def _scheduler_of(self, lease: Lease) -> Scheduler:
        cluster = self.cluster_of(lease, self.kinds)
        return self._others[cluster].scheduler if cluster else self._own_queue

    def _of_kind(self, kind: GpuKind | None) -> str:
        return "" if kind is None else self._of_cluster(kind.cluster)

    def _of_cluster(self, name: str) -> str:
        """Return the cluster if its scheduler owns a queue, else "". "" names the hub's own cluster in kinds."""
        name = name or self._home
        return name if name in self._others else ""

    def _split(self, fleet: Fleet, kinds: Kinds) -> Mapping[str, tuple[Fleet, Kinds]]:
        """Return the GPUs and kinds for each scheduler. They are computed once for each observation.

        Quotas count the kinds of all clusters, so our own queue gets them, but starts no node for others' kinds.
        """
        if self._parts is not None and self._parts[0] is fleet and self._parts[1] is kinds:
            return self._parts[2]
        names = ("", *self._others)
        gpus = {name: tuple(x for x in fleet.gpus if self._of_cluster(x.cluster) == name) for name in names}
        of: dict[str, Kinds] = {}
        for name in names:
            of[name] = {x.name: x for x in kinds.values() if self._of_kind(x) == name}
        of[""] = {x.name: replace(x, autoscale=None) if self._of_kind(x) else x for x in kinds.values()}
        found = {name: (replace(fleet, gpus=own), of[name]) for name, own in gpus.items()}
        self._parts = fleet, kinds, found
        return found


class SharedGpus(DelegatingScheduler):
    """The GPUs of all clusters for one cluster's scheduler. Our own queue observes them and grants the rest."""

    @property
    def unseen(self) -> tuple[str, ...]:
        """Empty: our own queue reports this once for all clusters."""
        return ()

    async def observe(self, now: float) -> Fleet:  # noqa: ARG002 - part of the interface
        """Return the GPUs as our own queue last observed them."""
        return self.fleet

    async def sync(self, seen: Snapshot) -> Answer:
        """Grant nothing."""
        return Answer(seen.now, tuple, dict, dict)
