"""Fragmentation: how much free GPU a placement makes useless for later requests.

Three amounts of GPU are added up over the demand, which weights each request by how often it comes.

1. *Fragments*: the free part of a node that the next request could not use. The rest of a shared GPU is too small, the
   node has too few free GPUs, or too little CPU or memory. (Fragmentation gradient descent, "Beware of Fragmentation",
   USENIX ATC'23.)
2. *Stranded*: the GPUs that would stay free once such requests have taken all CPU or all memory of the node. This shows
   long before the last core is taken, so CPU is kept where GPUs are free.
3. *Wanted by name*: GPUs of pools that other requests need. A request that accepts several pools takes another one.

CPU and memory count only if they are known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple, TypeVar

STRANDED_WEIGHT = 0.35
"""The weight of stranded GPUs. Values from 0.25 to 1 were alike on a public trace (docs/explanation/placement.md)."""
WANTED_WEIGHT = 0.17
"""The weight of GPUs that are wanted by name. Half of the weight above did best on that trace."""


REMEMBERED = 100_000
"""The most remembered node states, about 50 MiB."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class ResourceRequest(NamedTuple):
    """A share of each of some GPUs of one node, with CPU and memory. ``pools`` are the accepted pools.

    Shares are floats, because they are only used for scores. ``gpus`` may be 0. ``topology`` is "" unless it applies.
    """

    pools: frozenset[str]
    share: float
    gpus: int
    cpu: int = 0
    memory: int = 0
    topology: str = ""


class NodeState(NamedTuple):
    """The free share of each GPU of a pool on a node, sorted, and the free CPU and memory.

    ``cpu`` (in thousandths of a core) and ``memory`` (in bytes) are None if they are not known. ``in_one_domain`` is
    the most GPUs of one NVLink or NUMA domain that are completely free.
    """

    pool: str
    free: tuple[float, ...]
    cpu: int | None = None
    memory: int | None = None
    in_one_domain: int = 0

    def holds(self, ask: ResourceRequest) -> bool:
        """Return whether CPU and memory are sufficient, as far as they are known."""
        return (self.cpu is None or self.cpu >= ask.cpu) and (self.memory is None or self.memory >= ask.memory)

    def fits(self, ask: ResourceRequest) -> bool:
        """Return whether GPUs, CPU and memory are sufficient, as far as they are known."""
        if not self.holds(ask):
            return False
        return ask.gpus == 0 or (self.pool in ask.pools and self.room(ask.share) >= ask.gpus)

    def room(self, share: float) -> int:
        """Return the number of GPUs with at least this share free."""
        return sum(one >= share for one in self.free)

    def without(self, ask: ResourceRequest, taken: Sequence[float]) -> NodeState:
        """Return the state after a request is placed on GPUs with these free shares."""
        free = list(self.free)
        for one in taken:
            free.remove(one)
            free.append(round(one - ask.share, 9))
        cpu = None if self.cpu is None else max(0, self.cpu - ask.cpu)
        memory = None if self.memory is None else max(0, self.memory - ask.memory)
        return NodeState(self.pool, tuple(sorted(free)), cpu, memory)


class PlacementCost(NamedTuple):
    """The cost of a placement as an amount of GPU, and the free shares of the GPUs that it takes."""

    cost: float
    taken: tuple[float, ...]


class Demand:
    """The expected requests with their frequency. Results are remembered, because states repeat."""

    def __init__(
        self,
        asks: Mapping[ResourceRequest, float],
        gpus: Mapping[str, int],
        *,
        stranded: float = STRANDED_WEIGHT,
        wanted: float = WANTED_WEIGHT,
    ) -> None:
        """``asks`` has the frequency of each request, ``gpus`` the number of GPUs of each pool."""
        of_gpus = {ask: often for ask, often in asks.items() if ask.gpus and often > 0}
        self._all, self._gpus, self._stranded = sum(of_gpus.values()), gpus, stranded
        self._by_pool = {
            pool: _OfPool([(ask, often) for ask, often in of_gpus.items() if pool in ask.pools]) for pool in gpus
        }
        self._price = {pool: wanted * self._wanted(pool, of_gpus) for pool in gpus}
        self._waste: dict[NodeState, float] = {}
        self._growth: dict[tuple[NodeState, ResourceRequest], PlacementCost] = {}

    def growth(self, look: NodeState, ask: ResourceRequest) -> PlacementCost:
        """Return the cost of the cheapest placement of a request on a node that fits.

        Of GPUs with the same cost, those with the largest share in use are taken, so that shares stay together.
        """
        found = self._growth.get((look, ask))
        if found is None:
            found = self._least(look, ask)
            _remember(self._growth, (look, ask), found)
        return found

    def waste(self, look: NodeState) -> float:
        """Return the weighted amount of free GPU on a node that is fragmented or stranded."""
        found = self._waste.get(look)
        if found is None:
            of_pool = self._by_pool.get(look.pool)
            found = 0.0 if of_pool is None or not self._all else self._waste_of(look, of_pool)
            _remember(self._waste, look, found)
        return found

    def _least(self, look: NodeState, ask: ResourceRequest) -> PlacementCost:
        fitting = [one for one in look.free if one >= ask.share] if ask.gpus else []
        options = sorted({(one,) for one in fitting}) if ask.gpus == 1 else [tuple(fitting[: ask.gpus])]
        before, price = self.waste(look), self._price.get(look.pool, 0.0) * ask.share * ask.gpus
        if not self._all:
            return PlacementCost(0.0, options[0])
        costs = ((self.waste(look.without(ask, taken)) - before + price, taken) for taken in options)
        return min(
            (PlacementCost(round(cost, 9), taken) for cost, taken in costs), key=lambda one: (one.cost, one.taken)
        )

    def _waste_of(self, look: NodeState, of_pool: _OfPool) -> float:
        fragments = sum(look.free) - of_pool.usable(look) / self._all
        return fragments + self._stranded * of_pool.stranded(look)

    def _wanted(self, pool: str, asks: Mapping[ResourceRequest, float]) -> float:
        all_asked = sum(often * ask.share * ask.gpus for ask, often in asks.items())
        found = 0.0
        for ask, often in asks.items():
            could = sum(self._gpus.get(name, 0) for name in ask.pools)
            if pool in ask.pools and could < (total := sum(self._gpus.values())):
                found += often * ask.share * ask.gpus / all_asked * total / could
        return found


class _OfPool:
    """The asks that one pool can serve, in tables."""

    def __init__(self, asks: Sequence[tuple[ResourceRequest, float]]) -> None:
        self._single = [(ask, often) for ask, often in asks if ask.gpus == 1]
        self._several = [(ask, often) for ask, often in asks if ask.gpus > 1]
        self._shares = sorted({ask.share for ask, _ in self._single})
        self._cpus = sorted({ask.cpu for ask, _ in self._single})
        self._memories = sorted({ask.memory for ask, _ in self._single})
        self._often: dict[tuple[int, int, int], float] = {}
        self._for_one = _for_one_gpu(asks)

    def usable(self, look: NodeState) -> float:
        """Return the free GPU that each ask could use, times how often it comes, summed up."""
        found = sum(one * self._often_at(one, look) for one in look.free if one)
        for ask, often in self._several:
            if look.holds(ask) and look.room(ask.share) >= ask.gpus:
                found += often * sum(one for one in look.free if one >= ask.share)
        return found

    def stranded(self, look: NodeState) -> float:
        """Return how much of the free GPU would be left, were each ask alone to take all CPU or memory."""
        free = sum(look.free)
        if not free or (look.cpu is None and look.memory is None):
            return 0.0
        cpu, memory = (inf if one is None else one for one in (look.cpu, look.memory))
        found = 0.0
        for cpu_for_one, memory_for_one, weight in self._for_one:
            by_cpu = cpu / cpu_for_one if cpu_for_one else inf
            left = free - min(by_cpu, memory / memory_for_one if memory_for_one else inf)
            if left > 0:
                found += weight * left
        return found

    def _often_at(self, free: float, look: NodeState) -> float:
        at = (
            bisect_right(self._shares, free),
            -1 if look.cpu is None else bisect_right(self._cpus, look.cpu),
            -1 if look.memory is None else bisect_right(self._memories, look.memory),
        )
        if at not in self._often:
            self._often[at] = sum(often for ask, often in self._single if ask.share <= free and look.holds(ask))
        return self._often[at]


def _for_one_gpu(asks: Iterable[tuple[ResourceRequest, float]]) -> list[tuple[float, float, float]]:
    found: dict[tuple[float, float], float] = {}
    for ask, often in asks:
        gpu = ask.share * ask.gpus
        each = ask.cpu / gpu, ask.memory / gpu
        found[each] = found.get(each, 0.0) + often * gpu
    total = sum(found.values())
    return [(cpu, memory, weight / total) for (cpu, memory), weight in found.items()]


def _remember(found: dict[_K, _V], key: _K, value: _V) -> None:
    if len(found) >= REMEMBERED:
        found.clear()
    found[key] = value
