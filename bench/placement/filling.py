"""A cluster that tasks are placed on one by one, by a policy; and what it could not use of its GPUs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from openb import Task, Trace
from rivals import Policy, pick

from gpuspawner.core.gpus.fragmentation import NodeState, PlacementCost, ResourceRequest


@dataclass(frozen=True)
class Placed:
    """Where a task is: ``taken`` is what was free of its GPUs."""

    node: int
    taken: tuple[float, ...]


NO_ROOM = PlacementCost(float("inf"), ())


class Cluster:
    """Nodes, grouped by their looks: a policy is asked once for those that are alike."""

    def __init__(self, nodes: Iterable[NodeState], seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._numbers: dict[NodeState, int] = {}
        self._looks: list[NodeState] = []
        self._alike: dict[int, set[int]] = {}
        """The nodes of each look, by its number: a look is hashed as often as it is made, a number is quick."""
        self._look_of: list[int] = []
        for node, look in enumerate(nodes):
            number = self._number(look)
            self._look_of.append(number)
            self._alike.setdefault(number, set()).add(node)
        self.policy: Policy | None = None
        self._known: dict[ResourceRequest, dict[int, PlacementCost]] = {}

    def follow(self, policy: Policy) -> None:
        """Place by this policy from now on."""
        self.policy, self._known = policy, {}

    def place(self, task: Task) -> Placed | None:
        """Place a task, None where no node has room: of the kinds named, else of those taken instead."""
        asks = [task.ask, task.ask._replace(pools=task.instead)] if task.instead else [task.ask]
        return next((found for ask in asks if (found := self._place(ask)) is not None), None)

    def look(self, node: int) -> NodeState:
        """Return how a node looks now."""
        return self._looks[self._look_of[node]]

    def change(self, node: int, look: NodeState) -> None:
        """Let a node look so from now on."""
        before, after = self._look_of[node], self._number(look)
        self._alike[before].discard(node)
        if not self._alike[before]:
            del self._alike[before]
        self._look_of[node] = after
        self._alike.setdefault(after, set()).add(node)

    def _place(self, ask: ResourceRequest) -> Placed | None:
        best = self._best(ask)
        if not best:
            return None
        assert self.policy is not None, "one is followed"
        if self.policy.by_chance:
            (number,) = self._rng.choices(best, [len(self._alike[one]) for one in best])
            node = self._rng.choice(sorted(self._alike[number]))
        else:
            node, number = min((min(self._alike[one]), one) for one in best)
        look = self._looks[number]
        taken = pick(self._known[ask][number], look, ask, self.policy, self._rng)
        self.change(node, look.without(ask, taken))
        return Placed(node, taken)

    def _best(self, ask: ResourceRequest) -> list[int]:
        """Return the looks of the nodes that cost the least, none where nothing fits."""
        known = self._known.setdefault(ask, {})
        least, best = NO_ROOM.cost, []
        for number in self._alike:
            growth = known.get(number)
            if growth is None:
                growth = known[number] = self._cost(self._looks[number], ask)
            if growth.cost < least:
                least, best = growth.cost, [number]
            elif growth.cost == least and growth is not NO_ROOM:
                best.append(number)
        return best

    def _cost(self, look: NodeState, ask: ResourceRequest) -> PlacementCost:
        assert self.policy is not None, "one is followed"
        return self.policy.cost(look, ask) if look.fits(ask) else NO_ROOM

    def _number(self, look: NodeState) -> int:
        if look not in self._numbers:
            self._numbers[look] = len(self._looks)
            self._looks.append(look)
        return self._numbers[look]


LEARNS_AT = tuple(64 * 2**n for n in range(12))
"""Number of tasks after which a learning policy updates its request frequencies."""


def unallocated(trace: Trace, policy: Policy, seed: int, at: tuple[float, ...] = (1.0, 1.3)) -> list[float]:
    """Return the per cent of GPUs that is not allocated once tasks that ask for these parts of the capacity came."""
    cluster = Cluster(trace.nodes, seed)
    cluster.follow(policy)
    asked, given, came = 0.0, 0.0, Counter[ResourceRequest]()
    found: list[float] = []
    for number, task in enumerate(trace.arrivals(seed, max(at)), 1):
        while len(found) < len(at) and asked >= at[len(found)] * trace.capacity:
            found.append(100 * (1 - given / trace.capacity))
        if len(found) == len(at):
            break
        if policy.learns is not None:
            came[task.ask] += 1
            if number in LEARNS_AT:
                cluster.follow(policy.learns(came))
        asked += task.gpus
        if cluster.place(task) is not None:
            given += task.gpus
    return found
