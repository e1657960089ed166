"""What is left of the GPUs of one pool while coming ends are replayed: exact for shares, quick for all."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from math import lcm

from gpuspawner.core.gpus.fleet import NOTHING, Beside, Gpu, NodeName
from gpuspawner.core.placement.pools import Pools

Parts = Sequence[tuple[str, int]]
"""GPUs, and how much of each: in whole parts, as fractions are slow where thousands are added."""


class Whole:
    """Into how many parts each GPU is divided, so that every share that may come is whole."""

    def __init__(self, denominators: Iterable[int]) -> None:
        """Divide by the least number that fits all shares."""
        self.parts = lcm(*denominators)

    def of(self, share: Fraction) -> int:
        """Return a share in parts."""
        return share.numerator * (self.parts // share.denominator)


class Room:
    """The GPUs of one pool, how many parts are left of each, and the CPU and memory beside them, where it is known.

    It begins with what ``pools`` leave, less what is ``kept`` of GPUs, and changes nothing there.
    """

    def __init__(self, pools: Pools, pool: str, whole: Whole, kept: Mapping[str, Fraction]) -> None:
        """Look at nothing yet: of thousands of nodes few are ever asked for."""
        self._pools, self._pool, self._whole, self._kept = pools, pool, whole, kept
        self._left: dict[NodeName, dict[str, int]] = {}
        """Of the nodes that were looked at, by GPU, in the order of the pool."""
        self._beside: dict[NodeName, Beside] = {}
        self._fits: dict[int, _Fitting] = {}
        self.largest = pools.largest(pool) if pools.complete else 0

    def take(self, share: int, count: int, needs: Beside = NOTHING, without: Collection[str] = ()) -> Parts | None:
        """Take ``count`` shares of distinct GPUs of one node, by the rules of ``placement.place`` but for the demand.

        None of those that it must do ``without``. First of a node that is not known to lack CPU or memory, then where
        the GPUs, once taken, have the least left, then of the fullest node.
        """
        found = None
        for node in self._fitting(share).nodes(count):
            if without and len(self._fitting_on(node, share, without)) < count:
                continue
            if self._holds(node, needs):
                found = node
                break
            found = found or node
        if found is None:
            return None
        left, fitting = self._left_on(found), self._fitting_on(found, share, without)
        fitting.sort(key=lambda gpu: (left[gpu.id], gpu.index, gpu.id))
        parts = [(gpu.id, share) for gpu in fitting[:count]]
        self._change(found, parts, -1)
        self._give_beside(found, Beside(-needs.cpu, -needs.memory))
        return parts

    def give(self, parts: Parts, needs: Beside = NOTHING) -> None:
        """Take back what a lease held of GPUs of the pool; such as may not be given meanwhile stay away."""
        on: dict[NodeName, list[tuple[str, int]]] = {}
        for gpu, share in parts:
            where = self._pools.where(gpu)
            if where is not None:
                on.setdefault(where[1], []).append((gpu, share))
        for number, (node, some) in enumerate(on.items()):
            self._change(node, some, 1)
            if number == 0:
                self._give_beside(node, needs)

    def fits(self, share: int, count: int) -> bool:
        """Whether a node has so many shares of distinct GPUs."""
        return self._fitting(share).has(count)

    def _fitting_on(self, node: NodeName, share: int, without: Collection[str]) -> list[Gpu]:
        left, gpus = self._left_on(node), self._pools.gpus(self._pool, node)
        return [gpu for gpu in gpus if left[gpu.id] >= share and gpu.id not in without]

    def _left_on(self, node: NodeName) -> dict[str, int]:
        left = self._left.get(node)
        if left is None:
            left = self._left[node] = {gpu.id: self._left_of(gpu.id) for gpu in self._pools.gpus(self._pool, node)}
        return left

    def _left_of(self, gpu: str) -> int:
        used, kept = self._pools.used.get(gpu), self._kept.get(gpu)
        return self._whole.parts - sum(self._whole.of(one) for one in (used, kept) if one is not None)

    def _holds(self, node: NodeName, needs: Beside) -> bool:
        left, more = self._pools.left(node), self._beside.get(node, NOTHING)
        return left is None or (left.cpu + more.cpu >= needs.cpu and left.memory + more.memory >= needs.memory)

    def _give_beside(self, node: NodeName, more: Beside) -> None:
        if self._pools.left(node) is not None:
            had = self._beside.get(node, NOTHING)
            self._beside[node] = Beside(had.cpu + more.cpu, had.memory + more.memory)

    def _fitting(self, share: int) -> _Fitting:
        """Return which GPUs have so much left: of nodes that have some free, or of which some came free since."""
        if share not in self._fits:
            some = {node for _, nodes in self._pools.looks(self._pool) for node in nodes}
            self._fits[share] = _Fitting()
            for node in some | self._left.keys():
                self._show(node, share)
        return self._fits[share]

    def _change(self, node: NodeName, parts: Parts, sign: int) -> None:
        left = self._left_on(node)
        for gpu, share in parts:
            left[gpu] += sign * share
        for share in self._fits:
            self._show(node, share)

    def _show(self, node: NodeName, share: int) -> None:
        self._fits[share].put(node, tuple(sorted([one for one in self._left_on(node).values() if one >= share])))


class _Fitting:
    """What is left of the GPUs of each node that have one share left, sorted, and which nodes are alike in it."""

    def __init__(self) -> None:
        self._left: dict[NodeName, tuple[int, ...]] = {}
        self._alike: dict[tuple[int, ...], list[NodeName]] = {}

    def nodes(self, count: int) -> Iterable[NodeName]:
        """Yield the nodes with so many, those first of which the GPUs to be taken have the least left; then by name."""
        enough = (left for left in self._alike if len(left) >= count)
        for left in sorted(enough, key=lambda left: (left[:count], len(left))):
            yield from self._alike[left]

    def has(self, count: int) -> bool:
        """Whether some node has so many."""
        return any(len(left) >= count for left in self._alike)

    def put(self, node: NodeName, left: tuple[int, ...]) -> None:
        """Note what is left on a node by now."""
        before = self._left.get(node, ())
        if before == left:
            return
        if before:
            nodes = self._alike[before]
            del nodes[bisect_left(nodes, node)]
            if not nodes:
                del self._alike[before]
        if left:
            insort(self._alike.setdefault(left, []), node)
        self._left[node] = left
