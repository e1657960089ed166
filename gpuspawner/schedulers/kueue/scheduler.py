"""The adapter of Kueue: makes Workloads of leases, and grants what Kueue admits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from gpuspawner.catalog import KueueQueues
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.gpus.placement import accepted_kinds
from gpuspawner.core.idle.policies import Terms
from gpuspawner.core.leases.lease import UP, WAITING, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.estimates import QueuePosition
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.schedulers.base import (
    SCHEDULER,
    Answer,
    Capabilities,
    Grant,
    Preempted,
    Preview,
    Refusal,
    Scheduler,
    join_answers,
    unknown_position,
    without_gpu_claims,
)
from gpuspawner.schedulers.delegation import DelegatingScheduler
from gpuspawner.schedulers.kueue.cluster import KueueCluster
from gpuspawner.schedulers.kueue.models import VERSION, Pending, Queue, Workload, Write
from gpuspawner.schedulers.kueue.workloads import (
    HELD,
    REVISION,
    TITLE,
    WHOLE_GPU,
    WorkloadRequest,
    allowed_flavors,
    excluded_flavors,
    held_by,
    labels_of,
    name_of,
    place_on_flavor,
    pod_fields,
    pod_set,
    pools_by_node,
    queue_of,
    resource_of,
    to_place,
    why_evicted,
)
from gpuspawner.schedulers.kueue.writes import SyncTime, finish_write, next_write
from gpuspawner.schedulers.own_queue import use_slots


class KueueScheduler(DelegatingScheduler):
    """Asks Kueue. Our own queue observes the GPUs and serves workspaces without one."""

    def __init__(
        self,
        cluster: KueueCluster,
        own_queue: Scheduler,
        queues: KueueQueues,
        hub: str,
        tolerations: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """``tolerations`` are those of workspaces' pods."""
        super().__init__(own_queue)
        self._cluster, self._queues, self._hub = cluster, queues, hub
        self._tolerations = tolerations
        self._workloads: dict[str, Workload] = {}
        self._queue_by_name: dict[str, Queue] = {}
        self._workload_names: dict[str, str] = {}
        """The names of Workloads, by lease id."""
        self._pools: dict[str, dict[str, set[str]]] = {}
        self._as_of, self._last_state = 0.0, object()
        self._connected = False
        self._refused: dict[str, str] = {}
        """Why Kueue refused writes, by the name of the Workload."""

    @property
    def capabilities(self) -> Capabilities:
        """Kueue's abilities."""
        return Capabilities(
            name="kueue",
            owns_queue=True,
            preemption_notice_seconds=Terms().notice_seconds,
            substitutes=True,
            answers_at_once=False,
            title=TITLE,
            version=VERSION,
        )

    @property
    def unseen(self) -> tuple[str, ...]:
        """Sentences about GPUs that cannot be observed, and about what Kueue does not report or refuses."""
        words = (self._cluster.positions_unknown, *(f"Kueue refuses: {why}" for why in [*self._refused.values()][:1]))
        return (*super().unseen, *(sentence for sentence in words if sentence))

    def patch(
        self,
        lease: Lease,
        off: Collection[str] = (),
        instead: Sequence[GpuKind] = (),  # noqa: ARG002 - Kueue chooses the kind
    ) -> dict[str, Any]:
        """Return the patch that gives a pod its GPUs on the nodes of its flavors.

        Raises:
            Unavailable: Kueue has not answered since the service's start.
        """
        patch, workload = self._own_queue.patch(lease, off), self._workloads.get(name_of(lease))
        if not patch.get("pod"):
            return patch
        queue = self._queue_by_name.get(queue_of(lease.request, self._queues))
        if queue is None:
            raise Unavailable(f"{TITLE} has not yet reported the nodes of this workspace.")
        if workload is None:
            return patch
        flavors = [flavor for name in workload.flavors() if (flavor := queue.flavor(name)) is not None]
        fields = pod_fields(workload, flavors)
        return {**patch, "pod": {**patch["pod"], "beside": fields}} if fields else patch

    def listen(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` when a Workload changed."""
        self._cluster.changed = notify

    async def close(self) -> None:
        """Stop all background tasks."""
        await self._cluster.close()

    async def connect(self) -> None:
        """Check once that a usable Kueue exists. Raises Unavailable with the reason."""
        if not self._connected:
            await self._cluster.connect()
            self._connected = True

    async def _preview(self, seen: Snapshot, claim: Claim) -> Preview:
        """Preview a claim from the queue's state. Kueue has no dry run."""
        queue = await self._cluster.queue(queue_of(claim.request, self._queues), as_now=True)
        if queue.why_refused:
            return Preview(unknown_position(queue.why_refused))
        where = f"the cluster's queue {queue.cluster_queue or queue.name}"
        if queue.stopped:
            return Preview(unknown_position(f"{where} is on hold. Nothing new starts from it."))
        pending = await self._cluster.pending(queue.name, as_now=True)
        priority = await self._priority(claim.request)
        before = [one.position for one in pending.values() if one.priority >= priority]
        own = pending.get(self._workload_names.get(claim.id, ""))
        position = own.position if own is not None else max(before, default=0) + 1
        says = f"{TITLE} decides when it starts, in {where}, and may reclaim borrowed GPUs, with notice."
        if not before and (kind := self._find_free_kind(seen, claim, queue)) is not None:
            return Preview(
                QueuePosition(1, 1, 0.0, 0.0, kind), kind="" if kind == claim.request.gpu else kind, says=says
            )
        known = None if self._cluster.positions_unknown else position
        return Preview(QueuePosition(known, None, None, None, says=says))

    def _find_free_kind(self, seen: Snapshot, claim: Claim, queue: Queue) -> str | None:
        """Return the kind that its queue's own quota would grant at once, else None."""
        kinds = accepted_kinds(claim.request, seen.kinds)
        if not kinds:
            return None
        resource, pools = resource_of(kinds[0], seen.fleet), pools_by_node(seen.fleet)
        for flavor in allowed_flavors(queue.flavors.get(resource, ()), kinds, pools.get(resource, {})):
            if queue.left.get((flavor.name, resource), 0) >= claim.request.count:
                placed = place_on_flavor(None, claim, kinds, flavor, seen, seen.used)
                return None if placed is None else placed[0].name
        return None

    async def _priority(self, request: Request) -> int:
        priority_class = self._queues.priority_class
        return await self._cluster.priority(priority_class) if priority_class else request.priority

    async def sync(self, seen: Snapshot) -> Answer:
        """Send all claims and return their state. Raises Unavailable if Kueue does not answer."""
        await self.connect()
        claimed = [x for x in seen.leases if x.live and x.request.gpu is not None and not x.unasked]
        leases = {name_of(x): x for x in sorted(claimed, key=lambda x: (x.asked_at, x.id))}
        names = sorted({queue_of(lease.request, self._queues) for lease in leases.values()})
        self._workload_names = {lease.id: name for name, lease in leases.items()}
        queues = {name: await self._cluster.queue(name) for name in names}
        self._queue_by_name, self._workloads = queues, await self._cluster.workloads()  # patches need both
        at = SyncTime(seen.now, _wall(), seen.hub_answers)
        self._pools = pools_by_node(seen.fleet)
        written = [await self._write_of(lease, seen, at) for lease in leases.values()]
        gone = [one for name, one in self._workloads.items() if name not in leases]
        writes = [one for one in (*written, *(finish_write(x, at) for x in gone)) if one is not None]
        self._refused = await self._cluster.write(writes) if writes else {}
        if writes:
            self._workloads = await self._cluster.workloads()
        return await self._answer(seen, leases, written=bool(writes))

    async def _write_of(self, lease: Lease, seen: Snapshot, at: SyncTime) -> Write | None:
        queue = self._queue_by_name[queue_of(lease.request, self._queues)]
        if lease.phase in WAITING and queue.why_refused:
            return None
        name = name_of(lease)
        workload = self._workloads.get(name)
        return next_write(lease, workload, await self._wanted(lease, seen, queue, workload), at)

    async def _wanted(self, lease: Lease, seen: Snapshot, queue: Queue, workload: Workload | None) -> WorkloadRequest:
        request, kinds = lease.request, accepted_kinds(lease.request, seen.kinds)
        resource = resource_of(kinds[0], seen.fleet) if kinds else WHOLE_GPU
        flavors = allowed_flavors(queue.flavors.get(resource, ()), kinds, self._pools.get(resource, {}))
        excluded = frozenset[str]() if workload is None else excluded_flavors(workload.annotations)
        allowed = [one for one in flavors if one.name not in excluded] or flavors
        return WorkloadRequest(
            name_of(lease),
            queue.name,
            resource,
            pod_set(request, resource, queue, allowed, self._tolerations),
            await self._priority(request),
            self._queues.priority_class,
            labels_of(lease, self._hub),
            claim_of(lease).revision,
        )

    async def _answer(self, seen: Snapshot, leases: Mapping[str, Lease], *, written: bool) -> Answer:
        without = await self._own_queue.sync(without_gpu_claims(seen))
        waiting = {name: lease for name, lease in leases.items() if lease.phase in WAITING}
        queues = {name: self._queue_by_name[queue_of(lease.request, self._queues)] for name, lease in waiting.items()}
        pending = dict[str, Pending]()
        for local in sorted({one.name for one in queues.values() if one.cluster_queue}):
            pending |= await self._cluster.pending(local, as_now=written)
        grants = self._grants(seen, waiting, queues)
        granted = {grant.claim.id for grant in grants}
        places, held, refused = dict[str, QueuePosition](), dict[str, Any](), list[Refusal]()
        for name, lease in waiting.items():
            workload, queue = self._workloads.get(name), queues[name]
            if queue.why_refused:
                refused.append(Refusal(claim_of(lease), queue.why_refused))
            elif lease.id not in granted:
                unknown = f"Kueue refuses: {self._refused[name]}" if name in self._refused else ""
                places[lease.id] = to_place(
                    workload, queue, pending.get(name), unknown or self._cluster.positions_unknown
                )
                if workload is not None and not workload.reserved and (by := held_by(workload, queue)):
                    held[lease.id] = by
        preempted = tuple(self._preempted(seen, leases))
        state = (places, held, granted, preempted)
        if state != self._last_state:
            self._last_state, self._as_of = state, max(seen.now, self._as_of)
        own = Answer(self._as_of, lambda: grants, lambda: places, lambda: held, tuple(refused), preempted=preempted)
        return join_answers(self._as_of, [without, own])

    def _grants(self, seen: Snapshot, waiting: Mapping[str, Lease], queues: Mapping[str, Queue]) -> list[Grant]:
        """Return grants of admitted Workloads, on free GPUs of their flavor's nodes."""
        found, used = list[Grant](), dict(seen.used)
        for name, lease in sorted(waiting.items(), key=lambda x: (x[1].asked_at, x[1].id)):
            workload, claim = self._workloads.get(name), claim_of(lease)
            if workload is None or not self._is_current(workload, claim, seen):
                continue
            kinds = accepted_kinds(claim.request, seen.kinds)
            resource = resource_of(kinds[0], seen.fleet) if kinds else ""
            flavor = queues[name].flavor(workload.flavor_of(resource))
            placed = place_on_flavor(workload, claim, kinds, flavor, seen, used)
            if placed is None:
                continue
            kind, slots = placed
            found.append(Grant(claim, slots, kind="" if kind.name == claim.request.gpu else kind.name))
            use_slots(used, slots)
        return found

    def _is_current(self, workload: Workload, claim: Claim, seen: Snapshot) -> bool:
        """Return whether an admission is for the claim's current revision."""
        return (
            workload.admitted
            and workload.active
            and not workload.going
            and HELD not in workload.annotations
            and workload.annotations.get(REVISION) == claim.revision
            and claim.not_before <= seen.now
        )

    def _preempted(self, seen: Snapshot, leases: Mapping[str, Lease]) -> Iterable[Preempted]:
        """Yield evicted workspaces, each with its policy's notice from when the eviction was first observed."""
        for name, lease in leases.items():
            workload = self._workloads.get(name)
            if lease.phase not in UP or workload is None or not workload.evicted:
                continue
            notice = lease.notice
            is_known = notice is not None and notice.preemption == SCHEDULER
            at = notice.at if is_known and notice is not None else seen.now + (lease.terms or Terms()).notice_seconds
            yield Preempted(lease.id, at, why_evicted(workload))


def _wall() -> str:
    """Return the current time in the format of Kubernetes."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
