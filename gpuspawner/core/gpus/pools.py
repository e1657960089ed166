"""The free and used GPUs of a fleet by pool and node, kept up to date while a pass grants.

Nodes in the same state are kept together, so a placement compares states instead of nodes. Also here: which GPU of a
counted group a workspace holds, and the nodes that an autoscaler may start.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType

from gpuspawner.core.gpus.fleet import (
    NO_HOST_RESOURCES,
    Autoscale,
    Fleet,
    Gpu,
    GpuKind,
    Group,
    HostResources,
    NodeName,
    Slot,
    coming_node_group,
)
from gpuspawner.core.gpus.fragmentation import Demand, NodeState
from gpuspawner.core.gpus.placement import (
    UNKNOWN_DEMAND,
    NodeRank,
    choose_devices,
    is_grantable,
    node_state,
    rank_node,
    resource_request,
)
from gpuspawner.core.gpus.topology import largest_domain
from gpuspawner.core.leases.lease import HOLDING, Lease

# --- pools


_Alike = tuple[bool, NodeState]
"""Whether a node is coming, and its state."""


@dataclass
class _Pool:
    """The grantable GPUs of one pool by node, and the nodes with free GPUs by their state, sorted."""

    gpus: dict[NodeName, list[Gpu]] = field(default_factory=dict)
    look: dict[NodeName, _Alike] = field(default_factory=dict)
    alike: dict[_Alike, list[NodeName]] = field(default_factory=dict)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """The number of nodes by their number of GPUs and that of their largest domain."""

    def show(self, node: NodeName, look: _Alike | None) -> None:
        """Set the state of a node. None removes it."""
        before = self.look.pop(node, None)
        if before is not None and (nodes := self.alike.get(before)) is not None:
            del nodes[bisect_left(nodes, node)]
            if not nodes:
                del self.alike[before]
        if look is not None:
            self.look[node] = look
            if look[1].free[-1] > 0:
                insort(self.alike.setdefault(look, []), node)


class Pools:
    """The grantable GPUs of all pools. ``used`` is the used share of each GPU by id."""

    def __init__(
        self,
        fleet: Fleet,
        used: Mapping[str, Fraction],
        left: Mapping[NodeName, HostResources] = MappingProxyType({}),
        demand: Demand = UNKNOWN_DEMAND,
    ) -> None:
        self.complete, self.demand = fleet.complete, demand
        self.used = dict(used)
        self._left = dict(left)
        self._pools: dict[str, _Pool] = {}
        self._where: dict[str, tuple[str, NodeName]] = {}
        self._pools_on: dict[NodeName, list[str]] = {}
        on: dict[NodeName, list[Gpu]] = {}
        for gpu in fleet.gpus:
            on.setdefault(gpu.on, []).append(gpu)
        for node, gpus in on.items():
            self.put_node(node, gpus)

    def put_node(self, node: NodeName, gpus: Iterable[Gpu]) -> None:
        """Set the GPUs of a node. Without GPUs the node is removed."""
        for name in self._pools_on.pop(node, ()):
            pool = self._pools[name]
            gone = pool.gpus.pop(node)
            for gpu in gone:
                if self._where.get(gpu.id) == (name, node):  # else it is on another node by now
                    del self._where[gpu.id]
            pool.sizes[len(gone), largest_domain(gone)] -= 1
            pool.show(node, None)
        gpus_by_pool: dict[str, list[Gpu]] = {}
        for gpu in gpus:
            if is_grantable(gpu):
                self._where[gpu.id] = (gpu.pool, node)
                gpus_by_pool.setdefault(gpu.pool, []).append(gpu)
        if gpus_by_pool:
            self._pools_on[node] = list(gpus_by_pool)
        for name, own in gpus_by_pool.items():
            pool = self._pools.setdefault(name, _Pool())
            pool.gpus[node] = own
            pool.sizes[len(own), largest_domain(own)] += 1
        self._look_at(node)

    def put_left(self, node: NodeName, left: HostResources | None) -> None:
        """Set the free CPU and memory of a node, or None if they are not known."""
        if left is None:
            self._left.pop(node, None)
        else:
            self._left[node] = left
        self._look_at(node)

    def largest(self, pool: str, *, one_domain: bool = False) -> int:
        """Return the number of GPUs of the largest node of a pool, or with ``one_domain`` of its largest domain."""
        sizes = +self._pools[pool].sizes if pool in self else ()
        return max((in_one_domain if one_domain else in_all for in_all, in_one_domain in sizes), default=0)

    def __contains__(self, pool: str) -> bool:
        return pool in self._pools

    def nodes(self, pool: str) -> Collection[NodeName]:
        """Return the nodes of a pool with grantable GPUs."""
        return self._pools[pool].gpus.keys() if pool in self else ()

    def looks(self, pool: str) -> Iterable[tuple[NodeState, Sequence[NodeName]]]:
        """Yield each state of nodes with free GPUs in a pool, with its nodes."""
        if pool in self:
            yield from ((look, nodes) for (_, look), nodes in self._pools[pool].alike.items())

    def has_free(self, pool: str) -> bool:
        """Return whether a GPU of a pool has a free share."""
        return pool in self and bool(self._pools[pool].alike)

    def gpus(self, pool: str, node: NodeName) -> Sequence[Gpu]:
        """Return the grantable GPUs of a pool on a node."""
        return self._pools[pool].gpus.get(node, ()) if pool in self else ()

    def where(self, gpu: str) -> tuple[str, NodeName] | None:
        """Return the pool and the node of a GPU, or None if it is not grantable."""
        return self._where.get(gpu)

    def left(self, node: NodeName) -> HostResources | None:
        """Return the free CPU and memory of a node, or None if they are not known."""
        return self._left.get(node)

    def take(self, slots: Iterable[Slot], needs: HostResources = NO_HOST_RESOURCES) -> None:
        """Mark slots and host resources as used."""
        self._change(slots, 1, needs)

    def give(self, slots: Iterable[Slot], needs: HostResources = NO_HOST_RESOURCES) -> None:
        """Mark slots and host resources as free."""
        self._change(slots, -1, needs)

    def _change(self, slots: Iterable[Slot], sign: int, needs: HostResources) -> None:
        touched: dict[NodeName, None] = {}
        for slot in slots:
            used, share = self.used.get(slot.gpu), slot.share
            if sign < 0 and used == share:
                del self.used[slot.gpu]  # most are whole: fractions are slow
            elif sign > 0 and used is None:
                self.used[slot.gpu] = share
            else:
                self.used[slot.gpu] = (used or Fraction(0)) + sign * share
            if (where := self._where.get(slot.gpu)) is not None:
                touched[where[1]] = None
        for node in touched:
            if (left := self._left.get(node)) is not None:
                self._left[node] = HostResources(left.cpu - sign * needs.cpu, left.memory - sign * needs.memory)
            self._look_at(node)

    def _look_at(self, node: NodeName) -> None:
        for name in self._pools_on.get(node, ()):
            pool = self._pools[name]
            gpus = pool.gpus[node]
            look = gpus[0].is_coming, node_state(name, gpus, self.used, self._left.get(node))
            if look != pool.look.get(node):
                pool.show(node, look)

    def find(
        self,
        kind: GpuKind,
        count: int,
        tried: Sequence[str] = (),
        kept: Mapping[str, Fraction] | None = None,
        needs: HostResources = NO_HOST_RESOURCES,
        topology: str = "",
    ) -> tuple[Slot, ...] | None:
        """Return a placement as ``placement.place`` does. ``kept`` has further used shares."""
        pool, kept = self._pools.get(kind.pool), kept or {}
        if pool is None or not self.complete:
            return None
        ask = resource_request(kind, count, needs, topology)
        last_tried = {node: at for at, node in enumerate(tried, 1)}
        special = {where[1] for gpu in kept if (where := self._where.get(gpu)) and where[0] == kind.pool}
        if last_tried:
            special |= {node for node in pool.gpus if node.node in last_tried}
        best: NodeRank | None = None
        for node in special:
            used, gpus = self._used_with(kept, pool.gpus[node]), pool.gpus[node]
            look = node_state(kind.pool, gpus, used, self._left.get(node))
            rank = rank_node(look, ask, self.demand, last_tried.get(node.node, 0), gpus[0].is_coming)
            best = _least(best, rank, node)
        for (comes, look), nodes in pool.alike.items():
            if len(look.free) < count or look.free[-count] < ask.share:
                continue
            rank = rank_node(look, ask, self.demand, 0, comes)
            if rank is None or (best is not None and rank > best):
                continue
            if (first := next((node for node in nodes if node not in special), None)) is not None:
                best = _least(best, rank, first)
        if best is None:
            return None
        gpus = pool.gpus[best.node]
        chosen = choose_devices(gpus, self._used_with(kept, gpus), best.taken, ask.topology)
        return tuple(Slot(gpu.id, kind.share) for gpu in chosen)

    def _used_with(self, kept: Mapping[str, Fraction], gpus: Iterable[Gpu]) -> dict[str, Fraction]:
        found: dict[str, Fraction] = {}
        for gpu in gpus:
            used, more = self.used.get(gpu.id), kept.get(gpu.id)
            if used is not None:
                found[gpu.id] = used if more is None else used + more  # few are both: fractions are slow
            elif more is not None:
                found[gpu.id] = more
        return found


def _least(best: NodeRank | None, rank: NodeRank | None, node: NodeName) -> NodeRank | None:
    if rank is None:
        return best
    rank = rank._replace(node=node)
    return rank if best is None else min(best, rank)


# --- counted GPUs


@dataclass(frozen=True)
class GpuHolder:
    """A workspace that holds GPUs. ``given`` counts them by group. None: it holds exactly its ``slots``.

    ``slots`` are those of its lease or, without a lease, those that it reports.
    """

    slots: tuple[Slot, ...]
    given: Mapping[Group, int] | None = None


def assign_counted_slots(occupants: Iterable[GpuHolder], reserved: Iterable[Slot] = ()) -> list[tuple[Slot, ...]]:
    """Return the slots of each workspace, with as many GPUs of each group as it holds.

    1. A workspace keeps its own slots of these groups, as far as it holds that many.
    2. For the rest it takes the first GPUs of the group that no other workspace keeps and that are not ``reserved`` for
       a lease without GPUs. If the group is too small, the next numbers are used.
    """
    occupants = list(occupants)
    kept = [_kept_slots(occupant) for occupant in occupants]
    taken = {slot.gpu for slot in reserved} | {slot.gpu for slots in kept for slot in slots}
    for occupant, slots in zip(occupants, kept, strict=True):
        for group, count in sorted((occupant.given or {}).items()):
            index, missing = 0, count - sum(slot.group == group for slot in slots)
            while missing > 0:
                gpu = group.gpu(index)
                if gpu not in taken:
                    taken.add(gpu)
                    slots.append(Slot(gpu))
                    missing -= 1
                index += 1
    return [tuple(slots) for slots in kept]


def _kept_slots(occupant: GpuHolder) -> list[Slot]:
    if occupant.given is None:
        return list(occupant.slots)
    left = dict(occupant.given)
    kept = []
    for slot in occupant.slots:
        if slot.group is not None and left.get(slot.group, 0) > 0:
            left[slot.group] -= 1
            kept.append(slot)
    return kept


def counting_resource(kind: GpuKind, fleet: Fleet) -> str:
    """Return the resource that counts a kind's GPUs, or "" on a single machine."""
    groups = (gpu.group for gpu in fleet.gpus_by_pool.get(kind.pool, ()))
    return kind.resource or next((group.resource for group in groups if group is not None), "")


def move_marks_to_free_gpus(fleet: Fleet, held: Collection[str]) -> Fleet:
    """Return the fleet with the foreign and unhealthy GPUs of each group among those not in use.

    Any GPU of a group may be the foreign one. If a GPU in use were marked, the group would seem to have one more free.
    """
    members_of: dict[Group | None, list[Gpu]] = {
        g.group: [] for g in fleet.gpus if g.id in held and g.group and is_marked(g)
    }
    if not members_of:
        return fleet
    for gpu in fleet.gpus:
        if gpu.group in members_of:
            members_of[gpu.group].append(gpu)
    changed: dict[str, Gpu] = {}
    for members in members_of.values():
        free = [gpu for gpu in members if gpu.id not in held and not is_marked(gpu)]
        for gpu in [gpu for gpu in members if gpu.id in held and is_marked(gpu)][: len(free)]:
            other = free.pop()
            changed[gpu.id] = _with_mark_of(other, gpu)
            changed[other.id] = _with_mark_of(gpu, other)
    return replace(fleet, gpus=tuple(changed.get(gpu.id, gpu) for gpu in fleet.gpus))


def is_marked(gpu: Gpu) -> bool:
    """Return whether a GPU is foreign or unhealthy."""
    return gpu.foreign or not gpu.healthy


def _with_mark_of(marked: Gpu, gpu: Gpu) -> Gpu:
    return replace(gpu, healthy=marked.healthy, foreign=marked.foreign, note=marked.note)


# --- nodes that are not there yet


WHOLE_GPU = "nvidia.com/gpu"
NODE_WAIT_FACTOR = 2.0
"""A node that takes longer than this multiple of the catalog's time is not coming now. Arbitrary."""


def coming_gpus(kinds: Iterable[GpuKind], there: Sequence[Gpu], leases: Iterable[Lease]) -> tuple[Gpu, ...]:
    """Return the GPUs of nodes that an autoscaler may still start.

    1. Each kind may have as many nodes as its maximum allows, less those that exist. A lease may hold GPUs of a node
       that is not seen yet. Its pod runs, so the node exists.
    2. Nodes of which a lease holds GPUs come first. The others are numbered from 0.
    """
    scaled = [kind for kind in kinds if kind.autoscale is not None]
    if not scaled:
        return ()
    held = {(x.kind, slot) for x in leases if x.phase in HOLDING for slot in x.slots}
    found: list[Gpu] = []
    for kind in scaled:
        assert kind.autoscale is not None, "only those were taken"
        own = {slot for name, slot in held if name == kind.name}
        have = {gpu.id for gpu in there if gpu.pool == kind.pool} | {slot.gpu for slot in own if not slot.is_coming}
        nodes = max(0, kind.autoscale.most - len(have)) // kind.autoscale.each
        promised = {slot.group for slot in own if slot.group and slot.group.is_coming}
        found += (gpu for group in _groups(kind, nodes, promised) for gpu in _gpus(kind, kind.autoscale, group))
    return tuple(found)


def node_wait_seconds(kind: GpuKind | None) -> float:
    """Return how long a pod of this kind may wait for a node, or 0 if no node is started for it."""
    return 0.0 if kind is None or kind.autoscale is None else NODE_WAIT_FACTOR * kind.autoscale.start_seconds


def _groups(kind: GpuKind, nodes: int, held: Collection[Group]) -> list[Group]:
    fresh = (coming_node_group(kind.name, number, kind.resource or WHOLE_GPU) for number in range(nodes))
    return [*sorted(held), *(group for group in fresh if group not in held)][:nodes]


def _gpus(kind: GpuKind, autoscale: Autoscale, group: Group) -> Iterable[Gpu]:
    for index in range(autoscale.each):
        yield Gpu(group.gpu(index), kind.pool, group.node, index, kind.title, kind.memory_bytes, group=group)
