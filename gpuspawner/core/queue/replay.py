"""What is left of the GPUs of one pool while coming ends are replayed: exact for shares, quick for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm

from gpuspawner.core.gpus.fleet import Gpu

Parts = Sequence[tuple[str, int]]
"""GPUs, and how much of each: in whole parts, as fractions are slow where thousands are added."""


class Whole:
    """Into how many parts each GPU is divided, so that every share that may come is whole."""

    def __init__(self, shares: set[Fraction]) -> None:
        """Divide by the least number that fits all shares."""
        self.parts = lcm(*(share.denominator for share in shares)) if shares else 1

    def of(self, share: Fraction) -> int:
        """Return a share in parts."""
        return share.numerator * (self.parts // share.denominator)


class Room:
    """The GPUs of one pool, and how many parts are left of each."""

    def __init__(self, gpus: Sequence[Gpu], left: Mapping[str, int]) -> None:
        """Begin with what is left of these GPUs."""
        self._left = dict(left)
        self._node = {gpu.id: gpu.node for gpu in gpus}
        self._rank = {gpu.id: rank for rank, gpu in enumerate(gpus)}
        self._fits: dict[int, dict[str, list[str]]] = {}
        """Of each share that was asked for, the GPUs with so much left, by node; nodes without such are left out."""
        self.largest = max(Counter(self._node.values()).values(), default=0)

    def take(self, share: int, count: int) -> Parts | None:
        """Take ``count`` shares of distinct GPUs of one node, the fullest node and the most used GPUs first."""
        by_node = self._with_room(share)
        fitting = [(len(ids), node) for node, ids in by_node.items() if len(ids) >= count]
        if not fitting:
            return None
        _, node = min(fitting)
        ids = sorted(by_node[node], key=lambda gpu: (self._left[gpu], self._rank[gpu]))[:count]
        for gpu in ids:
            self._change(gpu, -share)
        return [(gpu, share) for gpu in ids]

    def give(self, parts: Parts) -> None:
        """Take back what a lease held; GPUs that may not be given meanwhile stay away."""
        for gpu, share in parts:
            if gpu in self._left:
                self._change(gpu, share)

    def _with_room(self, share: int) -> dict[str, list[str]]:
        if share not in self._fits:
            by_node = self._fits[share] = {}
            for gpu, left in self._left.items():
                if left >= share:
                    by_node.setdefault(self._node[gpu], []).append(gpu)
        return self._fits[share]

    def _change(self, gpu: str, by: int) -> None:
        before, node = self._left[gpu], self._node[gpu]
        self._left[gpu] = left = before + by
        for share, by_node in self._fits.items():
            if before < share <= left:
                by_node.setdefault(node, []).append(gpu)
            elif left < share <= before:
                by_node[node].remove(gpu)
                if not by_node[node]:
                    del by_node[node]
