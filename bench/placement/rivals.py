"""The policies that are compared: each says what a placement on a node costs, and which of equal nodes is taken."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuspawner.core.gpus.fragmentation import Demand, NodeState, PlacementCost, ResourceRequest

MOST_CPU, MOST_GPUS = 128_000, 8
"""Of any node of the trace: best fit adds up CPU and GPUs as parts of these."""


@dataclass(frozen=True)
class Policy:
    """``cost`` ranks the nodes that fit. ``by_chance``: of equal ones any, else the first by name."""

    name: str
    cost: Callable[[NodeState, ResourceRequest], PlacementCost]
    by_chance: bool = False
    any_gpu: bool = False
    learns: Callable[[Mapping[ResourceRequest, int]], Policy] | None = field(default=None, repr=False)
    """Where it learns, the policy for what came so far."""


def anywhere(look: NodeState, ask: ResourceRequest) -> PlacementCost:
    """Random: nothing costs anything."""
    return PlacementCost(0.0, _tightest(look, ask))


def best_fit(look: NodeState, ask: ResourceRequest) -> PlacementCost:
    """BestFit: the least CPU and GPU left on the node."""
    left = sum(look.free) - ask.share * ask.gpus
    return PlacementCost(((look.cpu or 0) - ask.cpu) / MOST_CPU + left / MOST_GPUS, _tightest(look, ask))


def packing(look: NodeState, ask: ResourceRequest) -> PlacementCost:
    """Packing: a GPU in part use, then a node in part use, the fewest GPUs free, then a new one."""
    taken, whole = _tightest(look, ask), look.room(1.0)
    if ask.gpus == 0:
        return PlacementCost(float(bool(look.free)), taken)
    if taken[0] < 1:
        return PlacementCost(taken[0], taken)
    return PlacementCost(whole + (1 if whole < len(look.free) else 100), taken)


def _tightest(look: NodeState, ask: ResourceRequest) -> tuple[float, ...]:
    return tuple([one for one in look.free if one >= ask.share][: ask.gpus])


def fgd(asks: Mapping[ResourceRequest, int], gpus: Mapping[str, int]) -> Policy:
    """Fragmentation gradient descent, as its authors' simulator has it.

    Tasks without a GPU count as asks that leave all GPUs unused. The score is a whole number up to 100, as
    kube-scheduler's are, and of nodes with an equal one any is taken.
    """
    demand = Demand(asks, gpus, stranded=0, wanted=0)
    without = sum(often for ask, often in asks.items() if not ask.gpus) / sum(asks.values())

    def cost(look: NodeState, ask: ResourceRequest) -> PlacementCost:
        found = demand.growth(look, ask)
        growth = (1 - without) * found.cost - without * ask.share * ask.gpus
        return PlacementCost(-math.floor(100 / (1 + math.exp(growth))), found.taken)

    return Policy("FGD", cost, by_chance=True)


def ours(asks: Mapping[ResourceRequest, int], gpus: Mapping[str, int], **weights: float) -> Policy:
    """The product's own."""
    return Policy("gpuspawner", Demand(asks, gpus, **weights).growth)


def learning(gpus: Mapping[str, int]) -> Policy:
    """The product's own, which knows of the demand what came so far."""
    return Policy("gpuspawner, learning", Demand({}, gpus).growth, learns=lambda asks: ours(asks, gpus))


RANDOM = Policy("Random", anywhere, by_chance=True, any_gpu=True)
BEST_FIT = Policy("BestFit", best_fit)
PACKING = Policy("Packing", packing)


def pick(
    growth: PlacementCost, look: NodeState, ask: ResourceRequest, policy: Policy, rng: random.Random
) -> tuple[float, ...]:
    """Return the free part of the GPUs that are in use."""
    if policy.any_gpu and ask.gpus:
        return tuple(rng.sample([one for one in look.free if one >= ask.share], ask.gpus))
    return growth.taken
