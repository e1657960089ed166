"""Plain kube-scheduler: GPUs are granted by the fleet before a pod is made, and it then places the pod.

What it gave is seen by the service (``service.leases.seating``); a pod without a place goes back to the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.fleet import resource_of
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.autoscale import coming_gpus, is_coming
from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Slot
from gpuspawner.core.gpus.groups import unmarked
from gpuspawner.core.leases.lease import HOLDING, WAITING, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.limits import (
    OF_ALL,
    Left,
    check_nodes,
    check_room,
    demand,
    full_words,
    lacking,
    lacking_words,
    quotas_left,
    taken,
)
from gpuspawner.core.queue.order import Conditions, Place
from gpuspawner.core.queue.placement import grantable, place, used_shares
from gpuspawner.core.units import show_duration
from gpuspawner.schedulers.base import Grant, Offer
from gpuspawner.schedulers.memory import InMemoryScheduler


class KubernetesScheduler(InMemoryScheduler):
    """As the in-memory scheduler, within what the namespace's quotas and limits leave.

    A GPU that the quotas leave out is withheld: as if in use, by nobody whose end would free it.
    """

    def __init__(self, backend: KubernetesBackend, kinds: Mapping[str, GpuKind]) -> None:
        """Serve ``kinds`` (``cluster_kinds``) from a cluster."""
        super().__init__(backend, kinds)
        self._cluster = backend
        self._counted: tuple[Gpu, ...] = ()
        self._resources: dict[str, set[str]] = {}

    @property
    def unseen(self) -> tuple[str, ...]:
        """Why the last look at the GPUs failed, and what of the cluster the service has no right to see."""
        return (*super().unseen, *self._cluster.limits)

    def decide(self, leases: Sequence[Lease], at: Conditions) -> list[Grant]:
        """Return the grants to make now, in order. The first that would exceed a quota makes the rest of its pool wait.

        What is withheld bounds each pool by itself; several pools may share a resource, and so a quota. What no limit
        ever lets through blocks nobody.
        """
        left = self._left(leases)
        leases = [lease for lease in leases if lease.phase not in WAITING or self._possible(lease.request)]
        within: list[Grant] = []
        over: set[str] = set()
        for grant in super().decide(leases, replace(at, others=(*at.others, *self._withheld(leases, at.others)))):
            pool = self._kinds[grant.lease.request.gpu].pool if grant.lease.request.gpu else ""
            asked = demand(grant.lease.request, Counter(resource_of(slot.gpu) for slot in grant.slots))
            if pool in over or lacking(asked, left):
                over.add(pool)
                continue
            left = taken(left, asked)
            within.append(grant)
        return within

    def node_seconds(self, lease: Lease, leases: Sequence[Lease], others: Sequence[Slot]) -> float | None:
        """Return in about how long the node is there that is started for a lease, or would be; None for no such."""
        kind = self._kinds.get(lease.request.gpu or "")
        if kind is None or kind.autoscale is None:
            return None
        if lease.phase in WAITING:
            comes = self._comes(kind, lease.request.count, leases, (*others, *self._withheld(leases, others)))
        else:
            comes = any(is_coming(slot.gpu) for slot in lease.slots)
        return kind.autoscale.start_seconds if comes else None

    def _comes(self, kind: GpuKind, count: int, leases: Sequence[Lease], used: Sequence[Slot]) -> bool:
        """Whether so many would be given on a node that is started for them; ``used`` beside what leases hold."""
        slots = place(kind, count, self._as_held(leases, used), used_shares(leases, used))
        return any(is_coming(slot.gpu) for slot in slots or ())

    def patch(self, lease: Lease) -> dict[str, Any]:
        """Return the pod's patch, with ``node_seconds`` where a node is started for it."""
        patch, seconds = super().patch(lease), self.node_seconds(lease, (), ())
        return patch if seconds is None else {**patch, "node_seconds": seconds}

    def check(self, request: Request) -> None:
        """Raise RequestRefused for what the namespace's limits and quotas, or the nodes' sizes, never allow.

        Where a node may be started for it, that one's size is not known.
        """
        asked, room = self._demand(request), self._cluster.room()
        check_room(asked, room)
        kind = self._kinds.get(request.gpu or "")
        if kind is not None and kind.autoscale is None:
            check_nodes(asked, kind.pool, room.nodes)

    def offers(self, leases: Sequence[Lease], others: Sequence[Slot]) -> list[Offer]:
        """Return what could be had of every kind, in the catalog's order: nothing where a quota is full."""
        left, used = self._left(leases), (*others, *self._withheld(leases, others))
        found = []
        for offer in super().offers(leases, used):
            kind = self._kinds[offer.kind]
            comes = kind.autoscale is not None and self._comes(kind, 1, leases, used)
            found.append(self._bounded(offer, kind, left, comes=comes))
        return found

    def places(self, leases: Sequence[Lease], others: Sequence[Slot], now: float) -> dict[str, Place]:
        """Return where each waiting lease stands, by its id."""
        found = super().places(leases, (*others, *self._withheld(leases, others)), now)
        left = self._left(leases)
        return {x.id: self._within(found[x.id], x.request, left) for x in leases if x.id in found}

    def place(self, lease: Lease, leases: Sequence[Lease], others: Sequence[Slot], now: float) -> Place:
        """Return where a lease would stand that does not wait yet."""
        found = super().place(lease, leases, (*others, *self._withheld(leases, others)), now)
        return self._within(found, lease.request, self._left(leases))

    def _within(self, place: Place, request: Request, left: Sequence[Left]) -> Place:
        """Return a place as the quotas leave it. When others leave a quota's CPU, memory or pods, nobody knows."""
        if place.at_most_seconds == 0 and lacking(self._demand(request), left):
            return replace(place, at_most_seconds=None, likely_seconds=None)
        return place

    def shortage(self, lease: Lease, leases: Sequence[Lease], others: Sequence[Slot]) -> str:
        """Return which quota a lease waits for, in a sentence: "" where GPUs are what is short."""
        kind = self._kinds.get(lease.request.gpu or "")
        if kind is not None:
            used = used_shares(leases, others)
            if place(kind, lease.request.count, self._as_held(leases, others), used) is None:
                return ""
        asked = self._demand(lease.request)
        short = lacking(asked, self._left([x for x in leases if x.id != lease.id]))
        return "" if short is None else lacking_words(short, asked)

    def _demand(self, request: Request) -> dict[str, int]:
        """Return what a request would take. Which resource counts its GPUs is known where all of its kind have one."""
        kind = self._kinds.get(request.gpu or "")
        resources = self._resources_of(kind.pool) if kind is not None else set()
        return demand(request, {next(iter(resources)): request.count} if len(resources) == 1 else {})

    def _resources_of(self, pool: str) -> set[str]:
        """Return the resources by which the cluster counts the GPUs of a pool."""
        if self._counted is not self.fleet.gpus:
            self._counted, self._resources = self.fleet.gpus, {}
            for gpu in self._counted:
                self._resources.setdefault(gpu.pool, set()).add(resource_of(gpu.id))
        return self._resources.get(pool, set())

    def _possible(self, request: Request) -> bool:
        try:
            self.check(request)
        except RequestRefused:
            return False
        return True

    def _bounded(self, offer: Offer, kind: GpuKind, left: Sequence[Left], *, comes: bool) -> Offer:
        """Return the offer within what the namespace leaves.

        The most that one workspace may ever ask for is bounded by the nodes, and by what quotas and limits let through
        at best. Nodes that are cordoned, drained or not ready come back: what they have is waited for, and not refused.
        """
        gpus = [gpu for gpu in self.fleet.gpus if gpu.pool == kind.pool]
        if offer.largest is None or not (gpus or kind.autoscale):
            return offer
        on_one_node = max([offer.largest, *Counter(gpu.node for gpu in gpus).values()])
        resources, room = self._resources_of(kind.pool), self._cluster.room()
        bounds = [quota.hard for quota in room.quotas if quota.resource in resources]
        bounds += [limit.most for limit in room.limits if limit.resource in resources and limit.most is not None]
        note = full_words(one for one in left if one.quota.resource in OF_ALL | resources)
        free = 0 if note else offer.free
        if free == 0 and comes and kind.autoscale is not None and not note:
            running = "" if gpus else "none running, "
            note = f"{running}a node starts in about {show_duration(kind.autoscale.start_seconds)}"
        return replace(offer, free=free, largest=min([on_one_node, *bounds]), note=note)

    def _left(self, leases: Sequence[Lease]) -> tuple[Left, ...]:
        """Return what each quota of the namespace leaves beside what leases hold."""
        held = {
            lease.id: demand(lease.request, Counter(resource_of(slot.gpu) for slot in lease.slots))
            for lease in leases
            if lease.phase in HOLDING and lease.request.template  # of what ran before us, the quotas alone know
        }
        return quotas_left(self._cluster.room(), held)

    def _withheld(self, leases: Sequence[Lease], others: Sequence[Slot]) -> tuple[Slot, ...]:
        """Return the free GPUs beyond what the quotas leave. Of each pool the fullest nodes keep theirs last.

        1. What is left stays on nodes that are there;
        2. where most is free, so that several GPUs on one node can still be had;
        3. node name, then index.
        """
        promised = self._promised(leases, others)
        left: dict[str, int] = {}
        for one in self._left(leases):
            left[one.quota.resource] = min(one.left, left.get(one.quota.resource, one.left))
        if not left:
            return promised
        used = used_shares(leases, (*others, *promised))
        free: dict[tuple[str, str], list[Gpu]] = {}
        for gpu in self._as_held(leases, others).gpus:
            if grantable(gpu) and gpu.id not in used and resource_of(gpu.id) in left:
                free.setdefault((gpu.pool, resource_of(gpu.id)), []).append(gpu)
        beyond = (slot for (_, resource), gpus in sorted(free.items()) for slot in _beyond(gpus, left[resource]))
        return (*promised, *beyond)

    def _promised(self, leases: Sequence[Lease], others: Sequence[Slot]) -> tuple[Slot, ...]:
        """Return the free GPUs that pods will take which wait for a node: whatever comes free first is theirs."""
        waiting = [x for x in leases if x.phase in HOLDING and any(is_coming(slot.gpu) for slot in x.slots)]
        promised: list[Slot] = []
        for lease in sorted(waiting, key=lambda x: (x.asked_at, x.id)):
            kind = self._kinds.get(lease.request.gpu or "")
            used = used_shares(leases, (*others, *promised))
            slots = place(kind, lease.request.count, unmarked(self.fleet, used), used) if kind else None
            promised += slots or ()
        return tuple(promised)

    def _as_held(self, leases: Iterable[Lease], others: Iterable[Slot]) -> Fleet:
        """Return the fleet as leases hold it, with the nodes that may still be started."""
        leases = tuple(leases)
        found = super()._as_held(leases, others)
        coming = coming_gpus(self._kinds.values(), found.gpus, leases)
        return replace(found, gpus=(*found.gpus, *coming)) if coming else found


def _beyond(gpus: Iterable[Gpu], left: int) -> Iterable[Slot]:
    """Return slots on all but ``left`` of these free GPUs."""
    gpus = tuple(gpus)
    on_node = Counter(gpu.node for gpu in gpus)
    ordered = sorted(gpus, key=lambda gpu: (is_coming(gpu.node), -on_node[gpu.node], gpu.node, gpu.index))
    return [Slot(gpu.id, Fraction(1)) for gpu in ordered[left:]]
