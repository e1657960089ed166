"""Placement: the GPU kinds that a request accepts, and the GPUs that it gets.

It gets GPUs that no lease and no process uses, and of those the GPUs that are least useful to others. A substitute
always has what the template needs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gpuspawner.core.gpus.fleet import (
    NO_HOST_RESOURCES,
    Fleet,
    Gpu,
    GpuKind,
    HostResources,
    Kinds,
    NodeName,
    PoolCount,
    Slot,
    catalog_kind_name,
    is_at_least,
)
from gpuspawner.core.gpus.fragmentation import Demand, NodeState, ResourceRequest
from gpuspawner.core.gpus.topology import REQUIRE, applicable_topology, largest_domain, smallest_sufficient_domain
from gpuspawner.core.leases.lease import HOLDING, WAITING, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.rules import Quota
from gpuspawner.core.units import show_bytes

if TYPE_CHECKING:  # it imports this module
    from gpuspawner.core.queue.snapshot import Claim

# --- placement


class NodeRank(NamedTuple):
    """The rank of a node that fits, by the rules of :func:`place`. The least is taken."""

    tried_at: int
    lacks: bool
    comes: bool
    is_apart: bool
    cost: float
    taken: tuple[float, ...]
    free: int
    node: NodeName = NodeName("", "")


NO_GPUS = PoolCount(0, 0, 0)

UNKNOWN_DEMAND = Demand({}, {})
"""The demand if no later request is known."""


def used_shares(leases: Iterable[Lease], others: Iterable[Slot] = ()) -> dict[str, Fraction]:
    """Return the used share of each GPU by id: by leases, and by ``others`` without a lease.

    ``others`` must not contain GPUs that a lease holds for the same workspace, or they count twice.
    """
    used: dict[str, Fraction] = {}
    for slot in [*(slot for lease in leases if lease.phase in HOLDING for slot in lease.slots), *others]:
        used[slot.gpu] = used[slot.gpu] + slot.share if slot.gpu in used else slot.share  # few are shared
    return used


def unleased_slots(seen: Iterable[tuple[str, Slot]], leases: Iterable[Lease]) -> tuple[Slot, ...]:
    """Return the slots in use that the workspace's lease does not hold. They are not free.

    ``seen`` has the lease id and the slot of each workspace that runs.
    """
    seen = tuple(seen)
    held = {lease.id: lease.slots for lease in leases if lease.phase in HOLDING} if seen else {}
    left = {(name, slot) for name, slot in seen if slot not in held.get(name, ())}
    return tuple(slot for _, slot in sorted(left, key=lambda x: (x[0], x[1].gpu, x[1].share)))


def is_grantable(gpu: Gpu) -> bool:
    """Return whether a device may be granted."""
    return gpu.healthy and not gpu.foreign and not gpu.closed


def host_resources_of(request: Request) -> HostResources:
    """Return the guaranteed CPU and memory of a request."""
    return HostResources(math.ceil(round(1000 * request.guaranteed_cpu_cores, 3)), request.guaranteed_memory_bytes)


def host_resources_left(fleet: Fleet, leases: Iterable[Lease]) -> dict[NodeName, HostResources]:
    """Return the free CPU and memory of each node whose capacity is known."""
    left = dict(fleet.host_resources)
    if not left:
        return left
    for lease in leases:
        gpu = fleet.by_id.get(lease.slots[0].gpu) if lease.slots and lease.phase in HOLDING else None
        if gpu is not None and (has := left.get(gpu.on)) is not None:
            takes = host_resources_of(lease.request)
            left[gpu.on] = HostResources(has.cpu - takes.cpu, has.memory - takes.memory)
    return left


def resource_request(
    kind: GpuKind, count: int, host_resources: HostResources = NO_HOST_RESOURCES, topology: str = ""
) -> ResourceRequest:
    """Return the request for this number of GPUs of a kind, for scores."""
    topology = applicable_topology(topology, count, kind)
    return ResourceRequest(frozenset({kind.pool}), float(kind.share), count, *host_resources, topology)


def sample_demand(requests: Iterable[Request], kinds: Mapping[str, GpuKind], fleet: Fleet) -> Demand:
    """Return the demand of which these requests are a sample."""
    asks: Counter[ResourceRequest] = Counter()
    for request in requests:
        if (kind := kinds.get(request.gpu or "")) is not None:
            ask = resource_request(kind, request.count, host_resources_of(request))
            others = (kinds[name].pool for name in request.substitutes if name in kinds)
            asks[ask._replace(pools=ask.pools.union(others))] += 1
    return Demand(asks, Counter(gpu.pool for gpu in fleet.gpus))


def place(
    kind: GpuKind,
    count: int,
    fleet: Fleet,
    used: Mapping[str, Fraction],
    tried: Sequence[str] = (),
    *,
    needs: HostResources = NO_HOST_RESOURCES,
    left: Mapping[NodeName, HostResources] = MappingProxyType({}),
    demand: Demand = UNKNOWN_DEMAND,
    topology: str = "",
) -> tuple[Slot, ...] | None:
    """Return ``count`` slots of ``kind`` on distinct devices of one node, or None if they do not fit.

    ``needs`` are the host resources of the request and ``left`` those of the nodes. A node that is not in ``left`` may
    have enough. ``demand`` is what others will request. ``topology`` may require one NVLink or NUMA domain. Nodes are
    preferred in this order:

    1. nodes that were not ``tried``, then those tried longest ago, because they lacked something else than GPUs;
    2. nodes that are not known to lack CPU or memory;
    3. nodes that exist, before nodes that an autoscaler would start;
    4. if the topology is preferred, nodes with enough GPUs in one NVLink or NUMA domain;
    5. the node on which the least GPU becomes useless to others (:mod:`fragmentation`), if the demand is known;
    6. the node whose taken devices have the least share left, so that shares stay together;
    7. the node with the fewest free GPUs of the pool;
    8. by cluster and name.

    On the node, the devices by rule 5 are taken, of the smallest domain that has enough if the topology counts. Of
    equal devices, the first by index and id is taken.
    """
    if not fleet.complete:
        return None
    pool, share = kind.pool, kind.share
    on: dict[NodeName, list[Gpu]] = {}
    for gpu in fleet.gpus:  # of tens of thousands, few are in use: only for those is anything computed
        if gpu.pool == pool and is_grantable(gpu) and (gpu.id not in used or used[gpu.id] < 1):
            on.setdefault(gpu.on, []).append(gpu)
    ask = resource_request(kind, count, needs, topology)
    last_tried = {node: at for at, node in enumerate(tried, 1)}
    ranks = (
        rank_node(
            node_state(pool, gpus, used, left.get(node)), ask, demand, last_tried.get(node.node, 0), gpus[0].is_coming
        )
        for node, gpus in on.items()
    )
    best = min((rank._replace(node=node) for node, rank in zip(on, ranks, strict=True) if rank), default=None)
    if best is None:
        return None
    return tuple(Slot(gpu.id, share) for gpu in choose_devices(on[best.node], used, best.taken, ask.topology))


def rank_node(look: NodeState, ask: ResourceRequest, demand: Demand, tried_at: int, comes: bool) -> NodeRank | None:
    """Return the rank of a node in this state, or None if too few of its GPUs have room, or too few in one domain."""
    is_apart = bool(ask.topology) and look.in_one_domain < ask.gpus
    if (room := look.room(ask.share)) < ask.gpus or (is_apart and ask.topology == REQUIRE):
        return None
    growth = demand.growth(look, ask)
    return NodeRank(tried_at, not look.holds(ask), comes, is_apart, growth.cost, growth.taken, room)


def node_state(pool: str, gpus: Iterable[Gpu], used: Mapping[str, Fraction], left: HostResources | None) -> NodeState:
    """Return the state of a node's GPUs of one pool, for scores."""
    gpus = tuple(gpus)
    free = tuple(sorted(free_share(gpu, used) for gpu in gpus))
    domain = largest_domain(gpu for gpu in gpus if gpu.domains and not used.get(gpu.id))
    cpu, memory = (None, None) if left is None else left
    return NodeState(pool, free, cpu, memory, domain)


def free_share(gpu: Gpu, used: Mapping[str, Fraction]) -> float:
    """Return the free share of a device from 0 to 1. Equal fractions give equal floats.

    The used share may exceed 1, because reserved shares are added to it.
    """
    share = used.get(gpu.id)
    return 1.0 if share is None else max(0, share.denominator - share.numerator) / share.denominator


def choose_devices(
    gpus: Iterable[Gpu], used: Mapping[str, Fraction], taken: Sequence[float], topology: str = ""
) -> list[Gpu]:
    """Return the devices of a node with these free shares, in one domain if the topology counts and one has enough."""
    wanted, found, gpus = Counter(taken), [], tuple(gpus)
    if topology:
        gpus = smallest_sufficient_domain((gpu for gpu in gpus if not used.get(gpu.id)), len(taken)) or gpus
    for gpu in sorted(gpus, key=lambda gpu: (free_share(gpu, used), gpu.index, gpu.id)):
        if wanted[free := free_share(gpu, used)] > 0:
            wanted[free] -= 1
            found.append(gpu)
    return found


def largest_fit(kind: GpuKind, fleet: Fleet, *, one_domain: bool = False) -> int:
    """Return the most units of ``kind`` that an empty fleet could give one lease. They share a node.

    GPUs in use by others outside gpuspawner count, because they come back. With ``one_domain`` they share an NVLink or
    NUMA domain.
    """
    counts = fleet.counts.get(kind.pool, NO_GPUS)
    return counts.in_one_domain if one_domain else counts.on_one_node


def count_free(kind: GpuKind, fleet: Fleet, used: Mapping[str, Fraction]) -> int:
    """Return the number of free units of ``kind``, without coming nodes."""
    return sum(units for _, units in _free_units(kind, fleet, used))


def largest_free(kind: GpuKind, fleet: Fleet, used: Mapping[str, Fraction], *, one_domain: bool = False) -> int:
    """Return the most units of ``kind`` that one lease can have now: those free on one node, without coming nodes.

    With ``one_domain`` they share an NVLink or NUMA domain.
    """
    free = Counter[tuple[NodeName, str]]()
    for gpu, units in _free_units(kind, fleet, used):
        for domain in gpu.domains if one_domain else ("",):
            free[gpu.on, domain] += units
    return max(free.values(), default=0)


def _free_units(kind: GpuKind, fleet: Fleet, used: Mapping[str, Fraction]) -> Iterator[tuple[Gpu, int]]:
    for gpu in fleet.gpus_by_pool.get(kind.pool, ()):
        taken = used.get(gpu.id)
        if (taken is not None and taken.numerator >= taken.denominator) or not is_grantable(gpu) or gpu.is_coming:
            continue  # fractions are slow: only of GPUs that are shared anything is computed
        yield gpu, kind.shares if taken is None else int((1 - taken) // kind.share)


def count_all(kind: GpuKind, fleet: Fleet) -> int:
    """Return the number of units of ``kind`` in the fleet, without coming nodes."""
    return kind.shares * fleet.counts.get(kind.pool, NO_GPUS).present


def count_unavailable(kind: GpuKind, fleet: Fleet) -> int:
    """Return the number of units of ``kind`` that are unhealthy, drained or quarantined."""
    return kind.shares * fleet.counts.get(kind.pool, NO_GPUS).unavailable


# --- kinds


def accepted_kinds(request: Request, kinds: Kinds) -> tuple[GpuKind, ...]:
    """Return the kinds that a request accepts in its order, without those that left the catalog.

    If its template chooses the cluster, the requested model of GPU comes first in the clusters that are tried first.
    """
    if request.gpu is None:
        return ()
    if not request.substitutes:
        return (kinds[request.gpu],) if request.gpu in kinds else ()
    found: Iterable[str] = dict.fromkeys((request.gpu, *request.substitutes))
    if request.cluster_order:
        models, order = [*map(catalog_kind_name, found)], (*request.cluster_order, *found)
        found = sorted(found, key=lambda name: (models.index(catalog_kind_name(name)), order.index(name)))
    known = (kinds[name] for name in found if name in kinds)
    return tuple(kind for kind in known if kind.name == request.gpu or meets_needs(kind, request))


def meets_needs(kind: GpuKind, request: Request) -> bool:
    """Return whether a kind has the memory, compute capability, driver and CUDA version that a request needs."""
    return (
        kind.own_memory_bytes >= request.needs_memory_bytes
        and is_at_least(kind.compute, request.needs_compute)
        and is_at_least(kind.driver, request.needs_driver)
        and is_at_least(kind.cuda, request.needs_cuda)
    )


def interchangeable_kinds(lease: Lease, kinds: Kinds, quotas: Iterable[Quota]) -> tuple[GpuKind, ...]:
    """Return the kinds that the cluster may give a granted lease in place of its own.

    They are in the same cluster, are claimed in the same way, and the request accepts them. They neither count nor cost
    more, and no quota names them. So they fit into the limits of the grant.
    """
    own = kinds.get(lease.kind or "")
    if own is None or own.claim is None:
        return ()
    named = {limit.kind for quota in quotas for limit in quota.limits if limit.kind}
    return tuple(
        kind
        for kind in accepted_kinds(lease.request, kinds)
        if kind.claim is not None
        and kind.cluster == own.cluster
        and kind.name not in named | {own.name}
        and (kind.counts or kind.share) <= (own.counts or own.share)
        and (kind.price_per_hour or 0.0) <= (own.price_per_hour or 0.0)
    )


def pool_of(claim: Claim | Lease, kinds: Kinds) -> str | None:
    """Return the pool of the requested kind, or None without a GPU. A kind that left the catalog is its own pool."""
    name = claim.request.gpu
    return None if name is None else kinds[name].pool if name in kinds else name


def pools_of(claim: Claim | Lease, kinds: Kinds) -> tuple[str | None, ...]:
    """Return the pools of the kinds that a request accepts, or (None,) without a GPU."""
    own = pool_of(claim, kinds)
    if not claim.request.substitutes:
        return (own,)
    return (own, *dict.fromkeys(kind.pool for kind in accepted_kinds(claim.request, kinds) if kind.pool != own))


def is_wanted_by_others(lease: Lease, leases: Iterable[Lease], kinds: Kinds) -> bool:
    """Return whether another user waits for GPUs of the pool that a lease holds."""
    kind = kinds.get(lease.kind or "")
    if kind is None:
        return False
    waiting = (x for x in leases if x.phase in WAITING and x.key.owner != lease.key.owner)
    return any(kind.pool in pools_of(one, kinds) for one in waiting)


def quota_weight(kind: GpuKind | None) -> Fraction:
    """Return how much one GPU of a kind counts in quotas and GPU hours, 1 if the kind left the catalog."""
    if kind is None:
        return Fraction(1)
    return kind.share if kind.counts is None else kind.counts


SHARED_MEMORY_NOTE = "others on the same GPU may use up its memory"


def describe_memory(kind: GpuKind) -> Iterator[str]:
    """Yield the memory of a GPU of a kind, and whether others may use it up."""
    if kind.own_memory_bytes or not kind.is_shared:
        yield f"{show_bytes(kind.memory_bytes)} each"
    else:
        yield f"{show_bytes(kind.memory_bytes)} each"
        yield SHARED_MEMORY_NOTE
