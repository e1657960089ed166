"""Plain kube-scheduler: our own queue grants GPUs before a pod exists, and kube-scheduler then places the pod.

The service observes which GPUs a pod got (``service.leases.seating``). A pod that finds no node returns to the queue.
With several clusters, the quotas and limits of a namespace bind only workspaces in its cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any

from gpuspawner.backends.clusters import ClusterBackend
from gpuspawner.backends.kubernetes.patches import keep_off
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Kinds, Slot, nodes_of_cluster
from gpuspawner.core.gpus.placement import is_grantable, place, used_shares
from gpuspawner.core.gpus.pools import move_marks_to_free_gpus
from gpuspawner.core.gpus.topology import requires_domain
from gpuspawner.core.leases.lease import HOLDING, WAITING, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.decisions import BlockingRule, Decision, decide
from gpuspawner.core.queue.estimates import QueuePosition
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.namespaces import (
    COMMON_RESOURCES,
    Amounts,
    NamespaceBounds,
    QuotaRemainder,
    check_namespace,
    check_nodes,
    find_lacking_quota,
    full_quota_text,
    lacking_quota_sentence,
    pod_amounts,
    quotas_after_grant,
    remaining_quotas,
)
from gpuspawner.core.units import show_duration
from gpuspawner.schedulers.base import Answer, Capabilities, Offer, Preview
from gpuspawner.schedulers.own_queue import OwnQueueScheduler, list_offers, to_answer


class KubernetesScheduler(OwnQueueScheduler):
    """Grants GPUs of the fleet within the namespace's quotas and limits.

    GPUs beyond the quotas count as in use, by a workspace without an end.
    """

    capabilities = Capabilities(name="kubernetes", substitutes=True, keeps_from_all=False)

    def __init__(self, backend: ClusterBackend, kinds: Kinds) -> None:
        """Serve ``kinds`` (``cluster_kinds``) from one cluster, or from several joined into one backend."""
        super().__init__(backend, kinds)
        self._cluster = backend
        self._counted: tuple[Gpu, ...] = ()
        self._resources: dict[str, set[str]] = {}

    @property
    def unseen(self) -> tuple[str, ...]:
        """Sentences about objects that the service has no right to observe."""
        return self._cluster.limits

    @property
    def room(self) -> NamespaceBounds:
        """Limits of the namespace's quotas and of the nodes' sizes."""
        return self._cluster.room()

    async def sync(self, seen: Snapshot) -> Answer:
        """Return the state of each claim. The queue is ours: kube-scheduler learns of a pod after the grant."""
        seen = self._view.with_demand(seen)
        return to_answer(seen.now, partial(self._decide, seen), partial(self._places, seen))

    def _decide(self, seen: Snapshot) -> Decision:
        """Return the grants of now. The first claim that would exceed a quota of the namespace makes its pool wait.

        The bound is for each pool, but several pools may share a resource and so a quota. A claim that no limit ever
        allows blocks no other claim.
        """
        possible = tuple(x for x in seen.leases if x.phase not in WAITING or self._possible(x.request))
        able, left = replace(seen, leases=possible), _left(seen)
        bounded = _bounded(able)
        decision = decide(bounded, _NamespaceLimits(left, seen.kinds), index=self._view.index(bounded))
        granted = {one.claim.id for one in decision.grants}
        waiting = (claim for claim in able.claims if claim.id not in granted and claim.id not in decision.wait_reasons)
        short = ((claim.id, self._short_of(seen, claim, left)) for claim in (waiting if left else ()))
        return replace(
            decision, wait_reasons={**decision.wait_reasons, **{name: x for name, x in short if x is not None}}
        )

    def _short_of(self, seen: Snapshot, claim: Claim, left: Sequence[QuotaRemainder]) -> BlockingRule | None:
        """Return the quota of the namespace that a claim waits for. None if it waits for GPUs."""
        kind = self.kinds.get(claim.request.gpu or "")
        if kind is not None and _place(kind, claim.request, seen.placement_fleet, seen.used) is None:
            return None
        return _held_by(_bound(kind, left), self._demand(claim.request))

    def node_seconds(self, lease: Lease) -> float | None:
        """Return the expected time until a new node for the lease is up. None if no node is started."""
        kind = self.kinds.get(lease.kind or "")
        if kind is None or kind.autoscale is None or not any(slot.is_coming for slot in lease.slots):
            return None
        return kind.autoscale.start_seconds

    def patch(self, lease: Lease, off: Collection[str] = (), instead: Sequence[GpuKind] = ()) -> dict[str, Any]:
        """Return the pod's patch, with ``node_seconds`` if a node is started for it."""
        own = {slot.group.node for slot in lease.slots if slot.group}
        kind = self.kinds.get(lease.kind or "")
        here = nodes_of_cluster(kind.cluster if kind else "", off)
        one_domain = kind is not None and requires_domain(lease.request, kind)
        patch = keep_off(self._cluster.patch(lease.slots, tuple(instead), one_domain=one_domain), here - own)
        seconds = self.node_seconds(lease)
        return patch if seconds is None else {**patch, "node_seconds": seconds}

    def check(self, request: Request) -> None:
        """Raise RequestRefused for a request beyond the namespace's limits and quotas or the nodes' sizes.

        The size of a node that would be started is unknown.
        """
        asked, room, kind = self._demand(request), self.room, self.kinds.get(request.gpu or "")
        here = room.of(_cluster_of(kind))
        if kind is None:  # a limit's minimum of GPUs binds workspaces without one, too
            asked |= {limit.resource: 0 for limit in here.limits if limit.resource not in COMMON_RESOURCES}
        check_namespace(asked, here)
        if kind is not None and kind.autoscale is None:
            check_nodes(asked, kind.pool, room.nodes)

    def stock(self, seen: Snapshot) -> list[Offer]:
        """Return the GPUs of each kind, in the catalog's order. No GPU is free if a quota is full."""
        left, bounded = _left(seen), _bounded(seen)
        return [self._within_room(offer, bounded, left) for offer in list_offers(bounded)]

    def _places(self, seen: Snapshot) -> dict[str, QueuePosition]:
        """Return the queue position of each waiting lease."""
        left, found = _left(seen), self._view.places(_bounded(seen))
        return {claim.id: self._place(found[claim.id], claim.request, left) for claim in seen.claims}

    async def offers(self, seen: Snapshot, claim: Claim) -> Preview:
        """Preview a claim, with the quota it would wait for and whether a node would start."""
        bounded, left = _bounded(self._view.with_demand(seen)), _left(seen)
        would = self._view.preview(bounded, claim, _NamespaceLimits(left, seen.kinds))
        kind, seconds = self.kinds.get(would.kind or claim.request.gpu or ""), None
        if (
            kind is not None
            and kind.autoscale is not None
            and _comes(_place(kind, claim.request, bounded.placement_fleet, bounded.used))
        ):
            seconds = kind.autoscale.start_seconds
        held = would.wait_reason or (None if would.kind else self._short_of(seen, claim, left))
        stands = self._place(would.place, claim.request, left)
        return replace(would, place=stands, wait_reason=held, node_seconds=seconds)

    def _place(self, found: QueuePosition, request: Request, left: Sequence[QuotaRemainder]) -> QueuePosition:
        """Return the queue position, without estimates if a quota is short: the ends of other pods are unknown."""
        kind = self.kinds.get(found.kind or request.gpu or "")
        if found.unchanged_seconds == 0 and find_lacking_quota(self._demand(request), _bound(kind, left)):
            return replace(found, unchanged_seconds=None, likely_seconds=None)
        return found

    def _demand(self, request: Request) -> dict[str, int]:
        """Return the resources of a request. The name of its GPUs' resource is known only if its kind has just one."""
        kind = self.kinds.get(request.gpu or "")
        resources = self._resources_of(kind.pool) if kind is not None else set()
        return pod_amounts(request, {next(iter(resources)): request.count} if len(resources) == 1 else {})

    def _resources_of(self, pool: str) -> set[str]:
        """Return the resource names of the GPUs of a pool."""
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

    def _within_room(self, offer: Offer, bounded: Snapshot, left: Sequence[QuotaRemainder]) -> Offer:
        """Return the offer within the limits of the namespace.

        The nodes' sizes, quotas and limits bound the largest request. Cordoned, drained and unready nodes count,
        because they come back.
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
        note = full_quota_text(one for one in left if one.quota.resource in COMMON_RESOURCES | resources)
        free = 0 if note else offer.free
        if (
            free == 0
            and kind.autoscale is not None
            and not note
            and _comes(place(kind, 1, bounded.placement_fleet, bounded.used))
        ):
            running = "" if gpus else "none running, "
            note = f"{running}a node starts in about {show_duration(kind.autoscale.start_seconds)}"
        return replace(offer, free=free, largest=min([on_one_node, *bounds]), note=note or offer.note)


def _cluster_of(kind: GpuKind | None) -> str:
    """Return the cluster of a kind, "" for the hub's own cluster and for workspaces without a GPU."""
    return kind.cluster if kind else ""


def _bound(kind: GpuKind | None, left: Sequence[QuotaRemainder]) -> Sequence[QuotaRemainder]:
    """Return the remaining quotas of the kind's cluster."""
    return tuple(one for one in left if one.quota.cluster == _cluster_of(kind))


def _resource(one: Gpu | Slot) -> str:
    """Return the resource name by which the cluster counts the GPU."""
    return one.group.resource if one.group else ""


class _NamespaceLimits:
    """The remaining quotas of each cluster's namespace while grants are made."""

    def __init__(self, left: tuple[QuotaRemainder, ...], kinds: Kinds) -> None:
        self._left: dict[str, tuple[QuotaRemainder, ...]] = {}
        for one in left:
            self._left[one.quota.cluster] = (*self._left.get(one.quota.cluster, ()), one)
        self._kinds = kinds

    def wait_reason(self, claim: Claim, slots: Sequence[Slot]) -> BlockingRule | None:
        return _held_by(self._left.get(self._cluster_of(slots), ()), _demand_on(claim, slots))

    def take(self, claim: Claim, slots: Sequence[Slot]) -> None:
        cluster = self._cluster_of(slots)
        self._left[cluster] = quotas_after_grant(self._left.get(cluster, ()), _demand_on(claim, slots))

    def _cluster_of(self, slots: Sequence[Slot]) -> str:
        group = slots[0].group if slots else None
        if group is None:
            return ""
        return _cluster_of(self._kinds.get(group.coming_kind)) if group.is_coming else group.cluster


def _demand_on(claim: Claim, slots: Sequence[Slot]) -> dict[str, int]:
    return pod_amounts(claim.request, Counter(_resource(slot) for slot in slots))


def _held_by(left: Sequence[QuotaRemainder], asked: Amounts) -> BlockingRule | None:
    short = find_lacking_quota(asked, left)
    return (
        None
        if short is None
        else BlockingRule(f"namespace quota {short.quota.name}", lacking_quota_sentence(short, asked))
    )


def _place(kind: GpuKind, request: Request, fleet: Fleet, used: Mapping[str, Fraction]) -> tuple[Slot, ...] | None:
    return place(kind, request.count, fleet, used, topology=request.topology)


def _comes(slots: Sequence[Slot] | None) -> bool:
    """Return whether GPUs are on a node that is started for them."""
    return any(slot.is_coming for slot in slots or ())


def _left(seen: Snapshot) -> tuple[QuotaRemainder, ...]:
    """Return the rest of each namespace quota after the leases of its cluster."""
    held: dict[str, dict[str, Amounts]] = {quota.cluster: {} for quota in seen.room.quotas}
    for lease in seen.leases if held else ():
        cluster = _cluster_of(seen.kinds.get(lease.kind or ""))
        if lease.phase in HOLDING and lease.request.template and cluster in held:
            # Workspaces from before gpuspawner have no template: only the quotas count them.
            held[cluster][lease.id] = pod_amounts(lease.request, Counter(_resource(slot) for slot in lease.slots))
    return tuple(
        chain.from_iterable(remaining_quotas(seen.room.of(cluster), leases) for cluster, leases in held.items())
    )


def _bounded(seen: Snapshot) -> Snapshot:
    """Return the snapshot with GPUs beyond the quotas, and GPUs promised to waiting pods, marked as in use.

    The remaining quota of each pool stays on these GPUs, in this order:

    1. GPUs of nodes that exist;
    2. nodes with the most free GPUs, so that several GPUs on one node stay available;
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
    for gpu in seen.placement_fleet.gpus:
        key = _cluster_of(seen.kinds.get(gpu.pool)), _resource(gpu)
        if key in left and is_grantable(gpu) and gpu.id not in used:
            free.setdefault((gpu.pool, key), []).append(gpu)
    beyond = (slot for (_, key), gpus in sorted(free.items()) for slot in _beyond(gpus, left[key]))
    return replace(seen, others=(*seen.others, *promised, *beyond))


def _promised(seen: Snapshot) -> tuple[Slot, ...]:
    """Return the free GPUs that pods waiting for a new node will take."""
    waiting = [x for x in seen.leases if x.phase in HOLDING and any(slot.is_coming for slot in x.slots)]
    promised: list[Slot] = []
    for lease in sorted(waiting, key=lambda x: (x.asked_at, x.id)):
        kind = seen.kinds.get(lease.kind or "")
        used = used_shares(seen.leases, (*seen.others, *promised))
        slots = _place(kind, lease.request, move_marks_to_free_gpus(seen.fleet, used), used) if kind else None
        promised += slots or ()
    return tuple(promised)


def _beyond(gpus: Iterable[Gpu], left: int) -> Iterable[Slot]:
    """Return slots on all but ``left`` of these free GPUs."""
    gpus = tuple(gpus)
    on_node = Counter(gpu.on for gpu in gpus)
    ordered = sorted(gpus, key=lambda gpu: (gpu.is_coming, -on_node[gpu.on], gpu.on, gpu.index))
    return [Slot(gpu.id, Fraction(1)) for gpu in ordered[left:]]
