"""The GPUs of a fleet by pool and node, with what is used of each: found quickly, changed as a pass grants.

Nodes that look the same are alike: a placement chooses among looks, however many nodes there are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

from gpuspawner.core.gpus.fleet import NOTHING, Beside, Fleet, Gpu, GpuKind, NodeName, Slot
from gpuspawner.core.gpus.fragmentation import Demand, Look
from gpuspawner.core.gpus.placement import UNKNOWN, Rank, ask_of, devices, grantable, look_of, rank_of

_Alike = tuple[bool, Look]
"""Whether a node is coming, and how it looks."""


@dataclass
class _Pool:
    """The GPUs of one pool that may be given, by node, and the nodes that have some free by their looks, sorted."""

    gpus: dict[NodeName, list[Gpu]] = field(default_factory=dict)
    look: dict[NodeName, _Alike] = field(default_factory=dict)
    alike: dict[_Alike, list[NodeName]] = field(default_factory=dict)
    sizes: Counter[int] = field(default_factory=Counter)
    """How many nodes have so many GPUs."""

    def show(self, node: NodeName, look: _Alike | None) -> None:
        """Note how a node looks from now on; None where it is gone."""
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
    """What may be given of every pool. ``used`` is the share in use of each GPU, by id."""

    def __init__(
        self,
        fleet: Fleet,
        used: Mapping[str, Fraction],
        left: Mapping[NodeName, Beside] = MappingProxyType({}),
        demand: Demand = UNKNOWN,
    ) -> None:
        """Sort the GPUs by pool and node; ``left`` and ``demand`` are as in ``placement.place``."""
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
        """Take these for the GPUs of a node from now on; none where it is gone."""
        for name in self._pools_on.pop(node, ()):
            pool = self._pools[name]
            gone = pool.gpus.pop(node)
            for gpu in gone:
                if self._where.get(gpu.id) == (name, node):  # else it is on another node by now
                    del self._where[gpu.id]
            pool.sizes[len(gone)] -= 1
            pool.show(node, None)
        of_pool: dict[str, list[Gpu]] = {}
        for gpu in gpus:
            if grantable(gpu):
                self._where[gpu.id] = (gpu.pool, node)
                of_pool.setdefault(gpu.pool, []).append(gpu)
        if of_pool:
            self._pools_on[node] = list(of_pool)
        for name, own in of_pool.items():
            pool = self._pools.setdefault(name, _Pool())
            pool.gpus[node] = own
            pool.sizes[len(own)] += 1
        self._look_at(node)

    def put_left(self, node: NodeName, left: Beside | None) -> None:
        """Take this for the CPU and memory left of a node from now on, None where nobody knows."""
        if left is None:
            self._left.pop(node, None)
        else:
            self._left[node] = left
        self._look_at(node)

    def largest(self, pool: str) -> int:
        """Return how many GPUs the largest node of a pool has."""
        return max(+self._pools[pool].sizes, default=0) if pool in self else 0

    def __contains__(self, pool: str) -> bool:
        """Whether there is a pool that has, or had, GPUs which may be given."""
        return pool in self._pools

    def nodes(self, pool: str) -> Collection[NodeName]:
        """Return the nodes of a pool that have GPUs which may be given."""
        return self._pools[pool].gpus.keys() if pool in self else ()

    def looks(self, pool: str) -> Iterable[tuple[Look, Sequence[NodeName]]]:
        """Yield how nodes of a pool look that have some free, and which look so."""
        if pool in self:
            yield from ((look, nodes) for (_, look), nodes in self._pools[pool].alike.items())

    def has_free(self, pool: str) -> bool:
        """Whether any GPU of a pool has some left."""
        return pool in self and bool(self._pools[pool].alike)

    def gpus(self, pool: str, node: NodeName) -> Sequence[Gpu]:
        """Return the GPUs of a pool on a node that may be given."""
        return self._pools[pool].gpus.get(node, ()) if pool in self else ()

    def where(self, gpu: str) -> tuple[str, NodeName] | None:
        """Return the pool and the node of a GPU; None where it may not be given."""
        return self._where.get(gpu)

    def left(self, node: NodeName) -> Beside | None:
        """Return the CPU and memory left of a node, None where nobody knows."""
        return self._left.get(node)

    def take(self, slots: Iterable[Slot], needs: Beside = NOTHING) -> None:
        """Note that these are in use, and what is needed beside them."""
        self._change(slots, 1, needs)

    def give(self, slots: Iterable[Slot], needs: Beside = NOTHING) -> None:
        """Note that these are not in use any more, nor what was needed beside them."""
        self._change(slots, -1, needs)

    def _change(self, slots: Iterable[Slot], sign: int, needs: Beside) -> None:
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
                self._left[node] = Beside(left.cpu - sign * needs.cpu, left.memory - sign * needs.memory)
            self._look_at(node)

    def _look_at(self, node: NodeName) -> None:
        for name in self._pools_on.get(node, ()):
            pool = self._pools[name]
            gpus = pool.gpus[node]
            look = gpus[0].is_coming, look_of(name, gpus, self.used, self._left.get(node))
            if look != pool.look.get(node):
                pool.show(node, look)

    def find(
        self,
        kind: GpuKind,
        count: int,
        tried: Sequence[str] = (),
        kept: Mapping[str, Fraction] | None = None,
        needs: Beside = NOTHING,
    ) -> tuple[Slot, ...] | None:
        """Return where so many would be placed, as ``placement.place``; ``kept`` is in use beside what is."""
        pool, kept = self._pools.get(kind.pool), kept or {}
        if pool is None or not self.complete:
            return None
        ask, last_tried = ask_of(kind, count, needs), {node: at for at, node in enumerate(tried, 1)}
        special = {where[1] for gpu in kept if (where := self._where.get(gpu)) and where[0] == kind.pool}
        if last_tried:
            special |= {node for node in pool.gpus if node.node in last_tried}
        best: Rank | None = None
        for node in special:
            used, gpus = self._used_with(kept, pool.gpus[node]), pool.gpus[node]
            look = look_of(kind.pool, gpus, used, self._left.get(node))
            rank = rank_of(look, ask, self.demand, last_tried.get(node.node, 0), gpus[0].is_coming)
            best = _least(best, rank, node)
        for (comes, look), nodes in pool.alike.items():
            if len(look.free) < count or look.free[-count] < ask.share:
                continue
            rank = rank_of(look, ask, self.demand, 0, comes)
            if rank is None or (best is not None and rank > best):
                continue
            if (first := next((node for node in nodes if node not in special), None)) is not None:
                best = _least(best, rank, first)
        if best is None:
            return None
        gpus = pool.gpus[best.node]
        return tuple(Slot(gpu.id, kind.share) for gpu in devices(gpus, self._used_with(kept, gpus), best.taken))

    def _used_with(self, kept: Mapping[str, Fraction], gpus: Iterable[Gpu]) -> dict[str, Fraction]:
        found: dict[str, Fraction] = {}
        for gpu in gpus:
            used, more = self.used.get(gpu.id), kept.get(gpu.id)
            if used is not None:
                found[gpu.id] = used if more is None else used + more  # few are both: fractions are slow
            elif more is not None:
                found[gpu.id] = more
        return found


def _least(best: Rank | None, rank: Rank | None, node: NodeName) -> Rank | None:
    if rank is None:
        return best
    rank = rank._replace(node=node)
    return rank if best is None else min(best, rank)
