"""The GPUs of a fleet by pool and node, with what is used of each: found quickly, changed as a pass grants.

Nodes of which the same is used are alike: a placement is asked to choose among few of each such, however many nodes
there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heapify, heappop, heappush

from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Slot
from gpuspawner.core.queue.placement import grantable, place

ALIKE = 2
"""So many nodes of those that are alike take part in a placement. Arbitrary: one would do, unless its rules say more
than what is used."""

_Used = tuple[Fraction, ...]
_Look = tuple[bool, int, _Used]
"""Whether a node is coming, how many GPUs it has, and what is used of those of which something is."""


@dataclass
class _Pool:
    """The GPUs of one pool that may be given, by node, and the nodes by what is used of them."""

    gpus: dict[str, list[Gpu]] = field(default_factory=dict)
    look: dict[str, _Look] = field(default_factory=dict)
    alike: dict[_Look, list[str]] = field(default_factory=dict)
    """A heap of nodes; of each node only its present look counts."""
    largest: int = 0


class Pools:
    """What may be given of every pool. ``used`` is the share in use of each GPU, by id."""

    def __init__(self, fleet: Fleet, used: Mapping[str, Fraction]) -> None:
        """Sort the GPUs by pool and node."""
        self.complete = fleet.complete
        self.used = dict(used)
        self._pools: dict[str, _Pool] = {}
        self._where: dict[str, tuple[str, str]] = {}
        for gpu in fleet.gpus:
            if grantable(gpu):
                self._where[gpu.id] = (gpu.pool, gpu.node)
                self._pools.setdefault(gpu.pool, _Pool()).gpus.setdefault(gpu.node, []).append(gpu)
        for pool in self._pools.values():
            pool.largest = max(map(len, pool.gpus.values()))
            for node, gpus in pool.gpus.items():
                pool.look[node] = look = self._look_of(gpus)
                pool.alike.setdefault(look, []).append(node)
            for nodes in pool.alike.values():
                heapify(nodes)

    def largest(self, pool: str) -> int:
        """Return how many GPUs the largest node of a pool has."""
        return self._pools[pool].largest if pool in self._pools else 0

    def nodes(self, pool: str) -> Collection[str]:
        """Return the nodes of a pool that have GPUs which may be given."""
        return self._pools[pool].gpus.keys() if pool in self._pools else ()

    def gpus(self, pool: str, node: str) -> Sequence[Gpu]:
        """Return the GPUs of a pool on a node that may be given."""
        return self._pools[pool].gpus.get(node, ()) if pool in self._pools else ()

    def where(self, gpu: str) -> tuple[str, str] | None:
        """Return the pool and the node of a GPU; None where it may not be given."""
        return self._where.get(gpu)

    def take(self, slots: Iterable[Slot]) -> None:
        """Note that these are in use."""
        self._change(slots, 1)

    def give(self, slots: Iterable[Slot]) -> None:
        """Note that these are in use no more."""
        self._change(slots, -1)

    def find(
        self, kind: GpuKind, count: int, tried: Sequence[str] = (), kept: Mapping[str, Fraction] | None = None
    ) -> tuple[Slot, ...] | None:
        """Return where so many would be placed, as ``placement.place``; ``kept`` is in use beside what is."""
        pool, kept = self._pools.get(kind.pool), kept or {}
        if pool is None or not self.complete:
            return None
        special = {where[1] for gpu in kept if (where := self._where.get(gpu)) and where[0] == kind.pool}
        special |= pool.gpus.keys() & set(tried)
        nodes = [*sorted(special), *self._representatives(pool, kind.share, count, special)]
        gpus = [gpu for node in nodes for gpu in pool.gpus[node]]
        used = {
            gpu.id: self.used.get(gpu.id, Fraction(0)) + kept.get(gpu.id, Fraction(0))
            for gpu in gpus
            if gpu.id in self.used or gpu.id in kept
        }
        return place(kind, count, Fleet(tuple(gpus), complete=True), used, tried)

    def _representatives(self, pool: _Pool, share: Fraction, count: int, without: Collection[str]) -> list[str]:
        """Return of all nodes with enough room the first few by name of each that are alike."""
        chosen: list[str] = []
        for look, nodes in pool.alike.items():
            _, size, used = look
            if size - len(used) + sum(x + share <= 1 for x in used) < count:
                continue
            taken: list[str] = []
            while nodes and sum(node not in without for node in taken) < ALIKE:
                node = heappop(nodes)
                if pool.look[node] == look and (not taken or taken[-1] != node):
                    taken.append(node)
            for node in taken:
                heappush(nodes, node)
            chosen += (node for node in taken if node not in without)
        return chosen

    def _look_of(self, gpus: Sequence[Gpu]) -> _Look:
        return gpus[0].is_coming, len(gpus), tuple(sorted(self.used[gpu.id] for gpu in gpus if gpu.id in self.used))

    def _change(self, slots: Iterable[Slot], sign: int) -> None:
        touched: dict[tuple[str, str], None] = {}
        for slot in slots:
            left = self.used.get(slot.gpu, Fraction(0)) + sign * slot.share
            if left:
                self.used[slot.gpu] = left
            else:
                self.used.pop(slot.gpu, None)
            if (where := self._where.get(slot.gpu)) is not None:
                touched[where] = None
        for name, node in touched:
            pool = self._pools[name]
            look = self._look_of(pool.gpus[node])
            if look != pool.look[node]:
                pool.look[node] = look
                heappush(pool.alike.setdefault(look, []), node)
