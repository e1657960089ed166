"""Plain kube-scheduler: GPUs are granted by the fleet before a pod is made, and it then places the pod.

Of several clusters, quotas and limits of the namespace of each bind what is in that cluster alone.

What it gave is seen by the service (``service.leases.seating``); a pod without a place goes back to the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any

from gpuspawner.backends.clusters import ClusterBackend
from gpuspawner.backends.kubernetes.patches import keep_off
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Kinds, Slot, nodes_of
from gpuspawner.core.gpus.placement import grantable, place, used_shares
from gpuspawner.core.gpus.pools import unmarked
from gpuspawner.core.leases.lease import HOLDING, WAITING, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.decisions import Decision, Held, decide
from gpuspawner.core.queue.estimates import Place
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.namespaces import (
    OF_ALL,
    Amounts,
    Left,
    Room,
    check_nodes,
    check_room,
    demand,
    full_words,
    lacking,
    lacking_words,
    quotas_left,
    taken,
)
from gpuspawner.core.units import show_duration
from gpuspawner.schedulers.base import Answer, Capabilities, Offer, Preview
from gpuspawner.schedulers.own_queue import OwnQueue, View, answer_of, offers_of


class KubernetesScheduler(OwnQueue):
    """Grants by the functions of ``core.queue``, within what the namespace's quotas and limits leave.

    A GPU that the quotas leave out is withheld: as if in use, by nobody whose end would free it.
    """

    capabilities = Capabilities(name="kubernetes", substitutes=True, keeps_from_all=False)

    def __init__(self, backend: ClusterBackend, kinds: Kinds) -> None:
        """Serve ``kinds`` (``cluster_kinds``) from a cluster, or from several as one."""
        self._cluster = backend
        self._view = View(backend)
        self.kinds = kinds
        self._counted: tuple[Gpu, ...] = ()
        self._resources: dict[str, set[str]] = {}

    @property
    def unseen(self) -> tuple[str, ...]:
        """What of the cluster the service has no right to see."""
        return self._cluster.limits

    @property
    def fleet(self) -> Fleet:
        """The last view that was observed."""
        return self._view.fleet

    @property
    def room(self) -> Room:
        """What the namespace's quotas and limits, and the nodes' sizes, allow."""
        return self._cluster.room()

    def use_kinds(self, kinds: Kinds) -> None:
        """Serve these kinds from now on."""
        self._cluster.use_kinds(kinds.values())
        self.kinds = kinds

    async def observe(self, now: float) -> Fleet:
        """Ask the backend. Raises Unavailable; the last complete view stays in force."""
        return await self._view.observe(now)

    async def sync(self, seen: Snapshot) -> Answer:
        """Return what stands for each claim. The queue is ours: kube-scheduler knows a pod once it was granted."""
        seen = self._view.knowing_demand(seen)
        return answer_of(seen.now, partial(self._decide, seen), partial(self._places, seen))

    def _decide(self, seen: Snapshot) -> Decision:
        """Return what is granted now. The first that would exceed a quota of the namespace makes its pool wait.

        What is withheld bounds each pool by itself; several pools may share a resource, and so a quota. What no limit
        ever lets through blocks nobody.
        """
        possible = tuple(x for x in seen.leases if x.phase not in WAITING or self._possible(x.request))
        able, left = replace(seen, leases=possible), _left(seen)
        bounded = _bounded(able)
        decision = decide(bounded, _NamespaceLimits(left, seen.kinds), index=self._view.index(bounded))
        given = {one.claim.id for one in decision.grants}
        waiting = (claim for claim in able.claims if claim.id not in given and claim.id not in decision.held_back)
        short = ((claim.id, self._short_of(seen, claim, left)) for claim in (waiting if left else ()))
        return replace(decision, held_back={**decision.held_back, **{name: x for name, x in short if x is not None}})

    def _short_of(self, seen: Snapshot, claim: Claim, left: Sequence[Left]) -> Held | None:
        """Return which quota of the namespace a claim waits for; None where GPUs are what is short."""
        kind = self.kinds.get(claim.request.gpu or "")
        if kind is not None and place(kind, claim.request.count, seen.gpus_as_held, seen.used) is None:
            return None
        return _held_by(_bound(kind, left), self._demand(claim.request))

    def node_seconds(self, lease: Lease) -> float | None:
        """Return in about how long the node is there that is started for a lease; None where none is."""
        kind = self.kinds.get(lease.kind or "")
        if kind is None or kind.autoscale is None or not any(slot.is_coming for slot in lease.slots):
            return None
        return kind.autoscale.start_seconds

    def patch(self, lease: Lease, off: Collection[str] = (), instead: Sequence[GpuKind] = ()) -> dict[str, Any]:
        """Return the pod's patch, with ``node_seconds`` where a node is started for it."""
        own = {slot.group.node for slot in lease.slots if slot.group}
        kind = self.kinds.get(lease.kind or "")
        here = nodes_of(kind.cluster if kind else "", off)
        patch, seconds = (
            keep_off(self._cluster.patch(lease.slots, tuple(instead)), here - own),
            self.node_seconds(lease),
        )
        return patch if seconds is None else {**patch, "node_seconds": seconds}

    def check(self, request: Request) -> None:
        """Raise RequestRefused for what the namespace's limits and quotas, or the nodes' sizes, never allow.

        Where a node may be started for it, that one's size is not known.
        """
        asked, room, kind = self._demand(request), self.room, self.kinds.get(request.gpu or "")
        check_room(asked, room.of(_cluster_of(kind)))
        if kind is not None and kind.autoscale is None:
            check_nodes(asked, kind.pool, room.nodes)

    def stock(self, seen: Snapshot) -> list[Offer]:
        """Return what could be had of every kind, in the catalog's order: nothing where a quota is full."""
        left, bounded = _left(seen), _bounded(seen)
        return [self._within_room(offer, bounded, left) for offer in offers_of(bounded)]

    def _places(self, seen: Snapshot) -> dict[str, Place]:
        """Return where each waiting lease stands, by its id."""
        left, found = _left(seen), self._view.places(_bounded(seen))
        return {claim.id: self._place(found[claim.id], claim.request, left) for claim in seen.claims}

    async def offers(self, seen: Snapshot, claim: Claim) -> Preview:
        """Return where a claim would stand, which quota it would wait for, and whether a node would start for it."""
        bounded, left = _bounded(self._view.knowing_demand(seen)), _left(seen)
        would = self._view.preview(bounded, claim, _NamespaceLimits(left, seen.kinds))
        kind, seconds = self.kinds.get(would.kind or claim.request.gpu or ""), None
        if kind is not None and kind.autoscale is not None and _comes(kind, claim.request.count, bounded):
            seconds = kind.autoscale.start_seconds
        held = would.held_back or (None if would.kind else self._short_of(seen, claim, left))
        stands = self._place(would.place, claim.request, left)
        return replace(would, place=stands, held_back=held, node_seconds=seconds)

    def _place(self, found: Place, request: Request, left: Sequence[Left]) -> Place:
        """Return a place as the quotas leave it. When others leave a quota's CPU, memory or pods, nobody knows."""
        kind = self.kinds.get(found.kind or request.gpu or "")
        if found.unchanged_seconds == 0 and lacking(self._demand(request), _bound(kind, left)):
            return replace(found, unchanged_seconds=None, likely_seconds=None)
        return found

    def _demand(self, request: Request) -> dict[str, int]:
        """Return what a request would take. Which resource counts its GPUs is known where all of its kind have one."""
        kind = self.kinds.get(request.gpu or "")
        resources = self._resources_of(kind.pool) if kind is not None else set()
        return demand(request, {next(iter(resources)): request.count} if len(resources) == 1 else {})

    def _resources_of(self, pool: str) -> set[str]:
        """Return the resources by which the cluster counts the GPUs of a pool."""
        if self._counted is not self.fleet.gpus:
            self._counted, self._resources = self.fleet.gpus, {}
            for gpu in self._counted:
                self._resources.setdefault(gpu.pool, set()).add(_resource(gpu))
        return self._resources.get(pool, set())

    def _possible(self, request: Request) -> bool:
        try:
            self.check(request)
        except RequestRefused:
            return False
        return True

    def _within_room(self, offer: Offer, bounded: Snapshot, left: Sequence[Left]) -> Offer:
        """Return the offer within what the namespace leaves.

        The most that one workspace may ever ask for is bounded by the nodes, and by what quotas and limits let through
        at best. Nodes that are cordoned, drained or not ready come back: what they have is waited for, and not refused.
        """
        kind = self.kinds[offer.kind]
        left, room = _bound(kind, left), bounded.room.of(_cluster_of(kind))
        gpus = [gpu for gpu in bounded.fleet.gpus if gpu.pool == kind.pool]
        if offer.largest is None or not (gpus or kind.autoscale):
            return offer
        on_one_node = max([offer.largest, *Counter(gpu.on for gpu in gpus).values()])
        resources = self._resources_of(kind.pool)
        bounds = [quota.hard for quota in room.quotas if quota.resource in resources]
        bounds += [limit.most for limit in room.limits if limit.resource in resources and limit.most is not None]
        note = full_words(one for one in left if one.quota.resource in OF_ALL | resources)
        free = 0 if note else offer.free
        if free == 0 and kind.autoscale is not None and not note and _comes(kind, 1, bounded):
            running = "" if gpus else "none running, "
            note = f"{running}a node starts in about {show_duration(kind.autoscale.start_seconds)}"
        return replace(offer, free=free, largest=min([on_one_node, *bounds]), note=note or offer.note)


def _cluster_of(kind: GpuKind | None) -> str:
    """Return the cluster of a kind; "" is the hub's own, as of what takes no GPU."""
    return kind.cluster if kind else ""


def _bound(kind: GpuKind | None, left: Sequence[Left]) -> Sequence[Left]:
    """Return what bounds a kind of what quotas leave."""
    return tuple(one for one in left if one.quota.cluster == _cluster_of(kind))


def _resource(one: Gpu | Slot) -> str:
    """Return the resource by which the cluster counts it."""
    return one.group.resource if one.group else ""


class _NamespaceLimits:
    """What the quotas of each cluster's namespace leave while grants are made."""

    def __init__(self, left: tuple[Left, ...], kinds: Kinds) -> None:
        self._left: dict[str, tuple[Left, ...]] = {}
        for one in left:
            self._left[one.quota.cluster] = (*self._left.get(one.quota.cluster, ()), one)
        self._kinds = kinds

    def held_back(self, claim: Claim, slots: Sequence[Slot]) -> Held | None:
        return _held_by(self._left.get(self._cluster_of(slots), ()), _demand_on(claim, slots))

    def take(self, claim: Claim, slots: Sequence[Slot]) -> None:
        cluster = self._cluster_of(slots)
        self._left[cluster] = taken(self._left.get(cluster, ()), _demand_on(claim, slots))

    def _cluster_of(self, slots: Sequence[Slot]) -> str:
        group = slots[0].group if slots else None
        if group is None:
            return ""
        return _cluster_of(self._kinds.get(group.coming_kind)) if group.is_coming else group.cluster


def _demand_on(claim: Claim, slots: Sequence[Slot]) -> dict[str, int]:
    return demand(claim.request, Counter(_resource(slot) for slot in slots))


def _held_by(left: Sequence[Left], asked: Amounts) -> Held | None:
    short = lacking(asked, left)
    return None if short is None else Held(f"namespace quota {short.quota.name}", lacking_words(short, asked))


def _comes(kind: GpuKind, count: int, bounded: Snapshot) -> bool:
    """Whether so many would be given on a node that is started for them."""
    slots = place(kind, count, bounded.gpus_as_held, bounded.used)
    return any(slot.is_coming for slot in slots or ())


def _left(seen: Snapshot) -> tuple[Left, ...]:
    """Return what each quota of a namespace leaves beside what leases hold in its cluster."""
    held: dict[str, dict[str, Amounts]] = {quota.cluster: {} for quota in seen.room.quotas}
    for lease in seen.leases if held else ():
        cluster = _cluster_of(seen.kinds.get(lease.kind or ""))
        if lease.phase in HOLDING and lease.request.template and cluster in held:
            # of what ran before us, without a template, the quotas alone know
            held[cluster][lease.id] = demand(lease.request, Counter(_resource(slot) for slot in lease.slots))
    return tuple(chain.from_iterable(quotas_left(seen.room.of(cluster), leases) for cluster, leases in held.items()))


def _bounded(seen: Snapshot) -> Snapshot:
    """Return the snapshot with the free GPUs beyond what the quotas leave in use, and those that pods wait for.

    Of each pool the fullest nodes keep theirs last.

    1. What is left stays on nodes that are there;
    2. where most is free, so that several GPUs on one node can still be had;
    3. node name, then index.
    """
    promised = _promised(seen)
    left: dict[tuple[str, str], int] = {}
    for one in _left(seen):
        key = one.quota.cluster, one.quota.resource
        left[key] = min(one.left, left.get(key, one.left))
    if not left:
        return replace(seen, others=(*seen.others, *promised)) if promised else seen
    used = used_shares(seen.leases, (*seen.others, *promised))
    free: dict[tuple[str, tuple[str, str]], list[Gpu]] = {}
    for gpu in seen.gpus_as_held.gpus:
        key = _cluster_of(seen.kinds.get(gpu.pool)), _resource(gpu)
        if key in left and grantable(gpu) and gpu.id not in used:
            free.setdefault((gpu.pool, key), []).append(gpu)
    beyond = (slot for (_, key), gpus in sorted(free.items()) for slot in _beyond(gpus, left[key]))
    return replace(seen, others=(*seen.others, *promised, *beyond))


def _promised(seen: Snapshot) -> tuple[Slot, ...]:
    """Return the free GPUs that pods will take which wait for a node: whatever comes free first is theirs."""
    waiting = [x for x in seen.leases if x.phase in HOLDING and any(slot.is_coming for slot in x.slots)]
    promised: list[Slot] = []
    for lease in sorted(waiting, key=lambda x: (x.asked_at, x.id)):
        kind = seen.kinds.get(lease.kind or "")
        used = used_shares(seen.leases, (*seen.others, *promised))
        slots = place(kind, lease.request.count, unmarked(seen.fleet, used), used) if kind else None
        promised += slots or ()
    return tuple(promised)


def _beyond(gpus: Iterable[Gpu], left: int) -> Iterable[Slot]:
    """Return slots on all but ``left`` of these free GPUs."""
    gpus = tuple(gpus)
    on_node = Counter(gpu.on for gpu in gpus)
    ordered = sorted(gpus, key=lambda gpu: (gpu.is_coming, -on_node[gpu.on], gpu.on, gpu.index))
    return [Slot(gpu.id, Fraction(1)) for gpu in ordered[left:]]
