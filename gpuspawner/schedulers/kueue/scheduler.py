"""Kueue as the seam has it: it owns queue, quota and borrowing; our Workloads stand in it, one for each place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from fractions import Fraction
from typing import Any

from gpuspawner.catalog import KueueQueues
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.gpus.placement import kinds_of
from gpuspawner.core.idle.policies import Terms
from gpuspawner.core.leases.lease import UP, WAITING, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.estimates import Place
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.schedulers.base import SCHEDULER, Answer, Capabilities, Grant, PassingOn, Preempted, Preview, Refusal
from gpuspawner.schedulers.base import Scheduler as Seam
from gpuspawner.schedulers.kueue import asks, gives, steps
from gpuspawner.schedulers.kueue.cluster import KueueCluster
from gpuspawner.schedulers.kueue.models import VERSION, Pending, Queue, Workload
from gpuspawner.schedulers.own_queue import without_gpus


class KueueScheduler(PassingOn):
    """Makes Workloads of leases, and grants what Kueue admits; ``mine`` sees the GPUs, and grants what takes none."""

    def __init__(
        self,
        cluster: KueueCluster,
        mine: Seam,
        queues: KueueQueues,
        hub: str,
        tolerations: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Ask nothing yet. ``tolerations`` are those of workspaces' pods."""
        super().__init__(mine)
        self._cluster, self._queues, self._hub = cluster, queues, hub
        self._tolerations = tolerations
        self._workloads: dict[str, Workload] = {}
        self._of: dict[str, Queue] = {}
        self._named: dict[str, str] = {}
        """The names of Workloads, by lease id."""
        self._on: dict[str, dict[str, set[str]]] = {}
        self._as_of, self._stood = 0.0, object()
        self._met = False
        self._refused: dict[str, str] = {}
        """Why Workloads can't be as they should, by their names."""

    @property
    def capabilities(self) -> Capabilities:
        """What Kueue can."""
        return Capabilities(
            name="kueue",
            owns_queue=True,
            preemption_notice_seconds=Terms().notice_seconds,
            substitutes=True,
            answers_at_once=False,
            title=gives.TITLE,
            version=VERSION,
        )

    @property
    def unseen(self) -> tuple[str, ...]:
        """Why the GPUs are not seen, and what Kueue does not tell."""
        told = (self._cluster.places_away, *(f"Kueue refuses: {why}" for why in [*self._refused.values()][:1]))
        return (*super().unseen, *(words for words in told if words))

    def patch(
        self,
        lease: Lease,
        off: Collection[str] = (),
        instead: Sequence[GpuKind] = (),  # noqa: ARG002 - which kind it gives, that scheduler decides
    ) -> dict[str, Any]:
        """Return what makes the cluster give a pod its GPUs, on the nodes of the flavors that it was admitted with.

        Raises Unavailable while that is not known: before the first answer after a restart.
        """
        patch, workload = self._mine.patch(lease, off), self._workloads.get(asks.name_of(lease))
        if not patch.get("pod"):
            return patch
        queue = self._of.get(asks.queue_of(lease.request, self._queues))
        if queue is None:
            raise Unavailable(f"{gives.TITLE} has not told yet on which nodes it may run.")
        if workload is None:
            return patch
        flavors = [flavor for name in workload.flavors() if (flavor := queue.flavor(name)) is not None]
        beside = gives.beside(workload, flavors)
        return {**patch, "pod": {**patch["pod"], "beside": beside}} if beside else patch

    def listen(self, told: Callable[[], None]) -> None:
        """Have ``told`` called whenever a Workload changed."""
        self._cluster.changed = told

    async def close(self) -> None:
        """Follow no more."""
        await self._cluster.close()

    async def meet(self) -> None:
        """See that Kueue is there, and of a version that fits, once. Raises Unavailable: the words say why."""
        if not self._met:
            await self._cluster.meet()
            self._met = True

    async def extend(self, lease: Lease, until: float) -> None:
        """Allow it: Kueue bounds no time."""

    async def offers(self, seen: Snapshot, claim: Claim) -> Preview:
        """Return what is known before the request is made: Kueue has no dry run."""
        if claim.request.gpu is None:
            return await self._mine.offers(without_gpus(seen), claim)
        queue = await self._cluster.queue(asks.queue_of(claim.request, self._queues), as_now=True)
        if queue.why_refused:
            return Preview(Place(None, None, None, None, says=queue.why_refused))
        where = f"the cluster's queue {queue.cluster_queue or queue.name}"
        if queue.stopped:
            return Preview(Place(None, None, None, None, says=f"{where} is on hold: nothing new starts from it."))
        pending = await self._cluster.pending(queue.name, as_now=True)
        priority = await self._priority(claim.request)
        before = [one.place for one in pending.values() if one.priority >= priority]
        mine = pending.get(self._named.get(claim.id, ""))
        place = mine.place if mine is not None else max(before, default=0) + 1
        says = f"{gives.TITLE} decides when it starts, in {where}, and may take back what is borrowed, with notice."
        if not before and (kind := self._starts_now(seen, claim, queue)) is not None:
            return Preview(Place(1, 1, 0.0, 0.0, kind), kind="" if kind == claim.request.gpu else kind, says=says)
        known = None if self._cluster.places_away else place
        return Preview(Place(known, None, None, None, says=says))

    def _starts_now(self, seen: Snapshot, claim: Claim, queue: Queue) -> str | None:
        """Return the kind that it would be given at once of its queue's own quota, None for none."""
        kinds = kinds_of(claim.request, seen.kinds)
        if not kinds:
            return None
        resource, on = asks.resource_of(kinds[0], seen.fleet), asks.pools_on(seen.fleet)
        for flavor in asks.consented(queue.flavors.get(resource, ()), kinds, on.get(resource, {})):
            if queue.left.get((flavor.name, resource), 0) >= claim.request.count:
                given = gives.given(None, claim, kinds, flavor, seen, seen.used)
                return None if given is None else given[0].name
        return None

    async def _priority(self, request: Request) -> int:
        klass = self._queues.priority_class
        return await self._cluster.priority(klass) if klass else request.priority

    async def sync(self, seen: Snapshot) -> Answer:
        """Make its side equal to the leases, and return what stands. Raises Unavailable where it does not answer."""
        await self.meet()
        told = [x for x in seen.leases if x.live and x.request.gpu is not None and not x.unasked]
        leases = {asks.name_of(x): x for x in sorted(told, key=lambda x: (x.asked_at, x.id))}
        names = sorted({asks.queue_of(lease.request, self._queues) for lease in leases.values()})
        self._named = {lease.id: name for name, lease in leases.items()}
        queues = {name: await self._cluster.queue(name) for name in names}
        self._of, self._workloads = queues, await self._cluster.workloads()  # patches are made of both
        at = steps.Moment(seen.now, _wall(), seen.hub_answers)
        self._on = asks.pools_on(seen.fleet)
        written = [await self._write_of(lease, seen, at) for lease in leases.values()]
        gone = [one for name, one in self._workloads.items() if name not in leases]
        writes = [one for one in (*written, *(steps.finishing(x, at) for x in gone)) if one is not None]
        self._refused = await self._cluster.write(writes) if writes else {}
        if writes:
            self._workloads = await self._cluster.workloads()
        return await self._answer(seen, leases, written=bool(writes))

    async def _write_of(self, lease: Lease, seen: Snapshot, at: steps.Moment) -> steps.Write | None:
        queue = self._of[asks.queue_of(lease.request, self._queues)]
        if lease.phase in WAITING and queue.why_refused:
            return None
        name = asks.name_of(lease)
        workload = self._workloads.get(name)
        return steps.next_write(lease, workload, await self._wanted(lease, seen, queue, workload), at)

    async def _wanted(self, lease: Lease, seen: Snapshot, queue: Queue, workload: Workload | None) -> asks.Wanted:
        request, kinds = lease.request, kinds_of(lease.request, seen.kinds)
        resource = asks.resource_of(kinds[0], seen.fleet) if kinds else asks.WHOLE_GPU
        flavors = asks.consented(queue.flavors.get(resource, ()), kinds, self._on.get(resource, {}))
        out = frozenset[str]() if workload is None else asks.left_out(workload.annotations)
        allowed = [one for one in flavors if one.name not in out] or flavors
        return asks.Wanted(
            asks.name_of(lease),
            queue.name,
            resource,
            asks.pod_set(request, resource, queue, allowed, self._tolerations),
            await self._priority(request),
            self._queues.priority_class,
            asks.labels_of(lease, self._hub),
            claim_of(lease).revision,
        )

    async def _answer(self, seen: Snapshot, leases: Mapping[str, Lease], *, written: bool) -> Answer:
        without = await self._mine.sync(without_gpus(seen))
        waiting = {name: lease for name, lease in leases.items() if lease.phase in WAITING}
        queue_of = {name: self._of[asks.queue_of(lease.request, self._queues)] for name, lease in waiting.items()}
        stands = dict[str, Pending]()
        for local in sorted({one.name for one in queue_of.values() if one.cluster_queue}):
            stands |= await self._cluster.pending(local, as_now=written)
        grants = self._grants(seen, waiting, queue_of)
        granted = {grant.claim.id for grant in grants}
        places, held, refused = dict[str, Place](), dict[str, Any](), list[Refusal]()
        for name, lease in waiting.items():
            workload, queue = self._workloads.get(name), queue_of[name]
            if queue.why_refused:
                refused.append(Refusal(claim_of(lease), queue.why_refused))
            elif lease.id not in granted:
                told = f"Kueue refuses: {self._refused[name]}" if name in self._refused else self._cluster.places_away
                places[lease.id] = gives.place_of(workload, queue, stands.get(name), told)
                if workload is not None and not workload.reserved and (by := gives.held_by(workload, queue)):
                    held[lease.id] = by
        preempted = tuple(self._preempted(seen, leases))
        stood = (places, held, granted, preempted)
        if stood != self._stood:
            self._stood, self._as_of = stood, max(seen.now, self._as_of)
        return Answer(
            self._as_of,
            lambda: [*without.grants(), *grants],
            lambda: {**without.places(), **places},
            lambda: {**without.held_back(), **held},
            tuple(refused),
            preempted=preempted,
        )

    def _grants(self, seen: Snapshot, waiting: Mapping[str, Lease], queue_of: Mapping[str, Queue]) -> list[Grant]:
        """Return the grants of what was admitted, as it asks now, on GPUs that are free on its flavor's nodes."""
        found, used = list[Grant](), dict(seen.used)
        for name, lease in sorted(waiting.items(), key=lambda x: (x[1].asked_at, x[1].id)):
            workload, claim = self._workloads.get(name), claim_of(lease)
            if workload is None or not self._counts(workload, claim, seen):
                continue
            kinds = kinds_of(claim.request, seen.kinds)
            resource = asks.resource_of(kinds[0], seen.fleet) if kinds else ""
            flavor = queue_of[name].flavor(workload.flavor_of(resource))
            given = gives.given(workload, claim, kinds, flavor, seen, used)
            if given is None:
                continue
            kind, slots = given
            found.append(Grant(claim, slots, kind="" if kind.name == claim.request.gpu else kind.name))
            for slot in slots:
                used[slot.gpu] = used.get(slot.gpu, Fraction(0)) + slot.share
        return found

    def _counts(self, workload: Workload, claim: Claim, seen: Snapshot) -> bool:
        """Whether an admission is for what a claim asks now."""
        return (
            workload.admitted
            and workload.active
            and not workload.going
            and asks.HELD not in workload.annotations
            and workload.annotations.get(asks.REVISION) == claim.revision
            and claim.not_before <= seen.now
        )

    def _preempted(self, seen: Snapshot, leases: Mapping[str, Lease]) -> Iterable[Preempted]:
        """Yield what Kueue evicted, each with its policy's notice from when it was first seen: that is ours to give."""
        for name, lease in leases.items():
            workload = self._workloads.get(name)
            if lease.phase not in UP or workload is None or not workload.evicted:
                continue
            notice = lease.notice
            told = notice is not None and notice.preemption == SCHEDULER
            at = notice.at if told and notice is not None else seen.now + (lease.terms or Terms()).notice_seconds
            yield Preempted(lease.id, at, gives.why_evicted(workload))


def _wall() -> str:
    """Return the present as Kubernetes writes it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
