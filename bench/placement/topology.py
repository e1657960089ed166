"""The cost of a topology: GPUs that a request does not get at once, because the free ones are in different domains.

Nodes have 8 GPUs on two NUMA nodes. Workspaces of 1, 2 and 4 GPUs start one by one, and random ones end, so that LOADS
of the GPUs are in use. Figures do not depend on the machine: means of SEEDS orders (5) of STARTS starts (4000).
"""

from __future__ import annotations

import os
import random
import statistics
import sys
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Slot
from gpuspawner.core.gpus.fragmentation import Demand
from gpuspawner.core.gpus.placement import resource_request
from gpuspawner.core.gpus.pools import Pools
from gpuspawner.core.gpus.topology import PREFER, REQUIRE, shared_domain

NODES, LOADS = 25, (0.8, 0.9, 0.95)
WEIGHTS = {1: 50, 2: 30, 4: 20}
"""How often a number of GPUs is requested. Arbitrary."""
KIND = GpuKind("a100", "A100", 80 * 2**30)


class Result(NamedTuple):
    """Percent of the requested GPUs that were not granted at once, and of the granted ones that share a domain."""

    refused: float
    together: float


def machines() -> Fleet:
    """Return empty nodes."""
    gpus = (
        Gpu(f"node-{node}/{index}", KIND.name, f"node-{node}", index, "", 0, domains=(f"NUMA {index // 4}",))
        for node in range(NODES)
        for index in range(8)
    )
    return Fleet(tuple(gpus), complete=True)


def play(topology: str, load: float, seed: int, starts: int) -> Result:
    """Return the result of one order of starts and ends, counted once the load was reached."""
    rng, fleet = random.Random(seed), machines()
    demand = Demand({resource_request(KIND, count): often for count, often in WEIGHTS.items()}, {KIND.name: 1})
    pools, running, in_use = Pools(fleet, {}, demand=demand), list[tuple[Slot, ...]](), 0
    requested, refused, several, together = 0, 0, 0, 0
    for number, count in enumerate(rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=starts)):
        while in_use + count > load * len(fleet.gpus):
            ended = running.pop(rng.randrange(len(running)))
            pools.give(ended)
            in_use -= len(ended)
        slots = pools.find(KIND, count, topology=topology)
        if number >= starts // 4:
            requested, refused = requested + count, refused + count * (slots is None)
        if slots is None:
            continue
        pools.take(slots)
        running.append(slots)
        in_use += count
        if count > 1 and number >= starts // 4:
            several, together = several + 1, together + bool(shared_domain([fleet.by_id[x.gpu] for x in slots]))
    return Result(100 * refused / requested, 100 * together / several)


def main() -> int:
    seeds, starts = int(os.environ.get("SEEDS", "5")), int(os.environ.get("STARTS", "4000"))
    print(f"{'topology':<10} {'load':>5} {'% not granted at once':>22} {'% in one domain':>16}")
    for load in LOADS:
        for topology in ("", PREFER, REQUIRE):
            found = [play(topology, load, seed, starts) for seed in range(seeds)]
            refused, together = (statistics.mean(values) for values in zip(*found, strict=True))
            print(f"{topology or 'none':<10} {load:>5.0%} {refused:>22.2f} {together:>16.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
