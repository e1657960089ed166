"""The GPUs of a fleet by pool and node, with what is used of each: found quickly, changed as a pass grants.

Nodes that look the same are alike: a placement chooses among looks, however many nodes there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from gpuspawner.core.gpus.fleet import NOTHING, Beside, Fleet, Gpu, GpuKind, NodeName, Slot
from gpuspawner.core.placement.fragmentation import Demand, Look
from gpuspawner.core.placement.placement import UNKNOWN, Rank, ask_of, devices, grantable, look_of, rank_of

_Alike = tuple[bool, Look]
"""Whether a node is coming, and how it looks."""


@dataclass
class _Pool:
    """The GPUs of one pool that may be given, by node, and the nodes by their looks."""

    gpus: dict[NodeName, list[Gpu]] = field(default_factory=dict)
    look: dict[NodeName, _Alike] = field(default_factory=dict)
    alike: dict[_Alike, list[NodeName]] = field(default_factory=dict)
    """A heap of nodes; of each node only its present look counts."""
    largest: int = 0


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
        self.complete = fleet.complete
        self.used = dict(used)
        self._left, self._demand = dict(left), demand
        self._pools: dict[str, _Pool] = {}
        self._where: dict[str, tuple[str, NodeName]] = {}
        self._pools_on: dict[NodeName, set[str]] = {}
        for gpu in fleet.gpus:
            if grantable(gpu):
                node = gpu.on
                self._where[gpu.id] = (gpu.pool, node)
                self._pools.setdefault(gpu.pool, _Pool()).gpus.setdefault(node, []).append(gpu)
                self._pools_on.setdefault(node, set()).add(gpu.pool)
        for name, pool in self._pools.items():
            pool.largest = max(map(len, pool.gpus.values()))
            for node in pool.gpus:
                pool.look[node] = look = self._look_of(name, node)
                pool.alike.setdefault(look, []).append(node)
            for nodes in pool.alike.values():
                heapify(nodes)

    def largest(self, pool: str) -> int:
        """Return how many GPUs the largest node of a pool has."""
        return self._pools[pool].largest if pool in self._pools else 0

    def nodes(self, pool: str) -> Collection[NodeName]:
        """Return the nodes of a pool that have GPUs which may be given."""
        return self._pools[pool].gpus.keys() if pool in self._pools else ()

    def gpus(self, pool: str, node: NodeName) -> Sequence[Gpu]:
        """Return the GPUs of a pool on a node that may be given."""
        return self._pools[pool].gpus.get(node, ()) if pool in self._pools else ()

    def where(self, gpu: str) -> tuple[str, NodeName] | None:
        """Return the pool and the node of a GPU; None where it may not be given."""
        return self._where.get(gpu)

    def take(self, slots: Iterable[Slot], needs: Beside = NOTHING) -> None:
        """Note that these are in use, and what is needed beside them."""
        touched: dict[NodeName, None] = {}
        for slot in slots:
            self.used[slot.gpu] = self.used.get(slot.gpu, Fraction(0)) + slot.share
            if (where := self._where.get(slot.gpu)) is not None:
                touched[where[1]] = None
        for node in touched:
            if (left := self._left.get(node)) is not None:
                self._left[node] = Beside(left.cpu - needs.cpu, left.memory - needs.memory)
            for name in self._pools_on[node]:
                pool, look = self._pools[name], self._look_of(name, node)
                if look != pool.look[node]:
                    pool.look[node] = look
                    heappush(pool.alike.setdefault(look, []), node)

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
            rank = rank_of(look, ask, self._demand, last_tried.get(node.node, 0), gpus[0].is_coming)
            best = _least(best, rank, node)
        for alike in pool.alike:
            comes, look = alike
            rank = rank_of(look, ask, self._demand, 0, comes)
            if rank is None or (best is not None and rank > best):
                continue
            if (first := _first(pool, alike, special)) is not None:
                best = _least(best, rank, first)
        if best is None:
            return None
        gpus = pool.gpus[best.node]
        return tuple(Slot(gpu.id, kind.share) for gpu in devices(gpus, self._used_with(kept, gpus), best.taken))

    def _look_of(self, name: str, node: NodeName) -> _Alike:
        gpus = self._pools[name].gpus[node]
        return gpus[0].is_coming, look_of(name, gpus, self.used, self._left.get(node))

    def _used_with(self, kept: Mapping[str, Fraction], gpus: Iterable[Gpu]) -> dict[str, Fraction]:
        nothing = Fraction(0)
        return {
            gpu.id: self.used.get(gpu.id, nothing) + kept.get(gpu.id, nothing)
            for gpu in gpus
            if gpu.id in self.used or gpu.id in kept
        }


def _least(best: Rank | None, rank: Rank | None, node: NodeName) -> Rank | None:
    if rank is None:
        return best
    rank = rank._replace(node=node)
    return rank if best is None else min(best, rank)


def _first(pool: _Pool, alike: _Alike, without: Collection[NodeName]) -> NodeName | None:
    """Return the first node by name that looks so, None where none does."""
    nodes, found = pool.alike[alike], None
    passed: list[NodeName] = []
    while nodes and found is None:
        node = heappop(nodes)
        if pool.look[node] != alike or (passed and passed[-1] == node):
            continue  # it looks different by now, or stands here twice
        passed.append(node)
        found = None if node in without else node
    for node in passed:
        heappush(nodes, node)
    return found
