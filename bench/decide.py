"""How long a grant decision, and telling everybody their place, takes as fleet and queue grow. In milliseconds.

A full fleet of nodes with 8 GPUs, whose workspaces have 1, 2, 4 or 8 of them and end within eight hours, and people of
ten teams, with quotas, who wait for as many. In each round one workspace ends, its GPUs are granted, and what was
granted runs from then on; a sixth of those who wait for one GPU ask for less than an hour, and may pass.

A decision is what follows an end: the change of what is kept between decisions, and the pass. Places are computed anew,
for all who wait at once. NODES and WAITING bound the sizes, ROUNDS the number of decisions.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from dataclasses import replace
from fractions import Fraction

from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Slot
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.estimates import queue_places
from gpuspawner.core.queue.grants import decide
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.core.quotas.charges import rate_of
from gpuspawner.core.rules import Limit, Quota, Rules, Team, What, Whom

KINDS = {"a100": GpuKind("a100", "A100", 80 * 2**30)}
NODES = [n for n in (100, 1_000, 10_000) if n <= int(os.environ.get("NODES", "10000"))]
WAITING = [n for n in (10, 100, 1_000) if n <= int(os.environ.get("WAITING", "1000"))]
ROUNDS, PLACES = int(os.environ.get("ROUNDS", "200")), 10
TEAMS = [f"team{number}" for number in range(10)]
RULES = Rules(
    teams={name: Team(name) for name in TEAMS},
    quotas=(
        Quota("each", Whom.EACH_USER, limits=(Limit(What.GPUS, soft=Fraction(8), hard=Fraction(64)),)),
        *(Quota(name, Whom.TEAM, name, (Limit(What.GPUS, soft=Fraction(100)),)) for name in TEAMS),
    ),
)


def a_lease(number: int, count: int, lifetime_seconds: int = 8 * 3600) -> Lease:
    user = f"user{number % 500}"
    team = TEAMS[number % 500 % 10]
    request = Request(user, "lab", "default", "a100", count, 4.0, 2**33, lifetime_seconds, team=team)
    return Lease(f"{number:07}", Key("hub", user, str(number)), user, request, {}, asked_at=float(number))


def runs(lease: Lease, slots: tuple[Slot, ...], now: float, until: float) -> Lease:
    rate = rate_of(KINDS["a100"], lease.request.count)
    return replace(
        lease, phase=Phase.RUNNING, slots=slots, granted_at=now, running_at=now, deadline_at=until, rate=rate
    )


class World:
    """A full fleet, and those who wait."""

    def __init__(self, nodes: int, waiting: int) -> None:
        self.random, self.now, self.made = random.Random(1), 0.0, 0
        gpus = [Gpu(f"gpu{i}", "a100", f"node{i // 8:05}", i % 8, "A100", 0) for i in range(8 * nodes)]
        self.fleet = Fleet(tuple(gpus), complete=True)
        self.leases: dict[str, Lease] = {}
        for node in range(nodes):
            at = 0
            while at < 8:
                count = min(self.random.choice((1, 1, 2, 4, 8)), 8 - at)
                slots = tuple(Slot(f"gpu{8 * node + at + i}") for i in range(count))
                lease = runs(self._new(count), slots, 0.0, self.random.uniform(600, 8 * 3600))
                self.leases[lease.id] = lease
                at += count
        for _ in range(waiting):
            self.asks()

    def _new(self, count: int) -> Lease:
        self.made += 1
        short = count == 1 and self.random.random() < 1 / 6
        return replace(a_lease(self.made, count, 1800 if short else 8 * 3600), asked_at=float(self.made))

    def asks(self) -> None:
        lease = self._new(self.random.choice((1, 1, 1, 2, 4, 8)))
        self.change(None, lease)

    def change(self, before: Lease | None, after: Lease | None) -> None:
        if before is not None and (after is None or after.id != before.id):
            del self.leases[before.id]
        if after is not None:
            self.leases[after.id] = after

    def seen(self) -> Snapshot:
        return Snapshot(self.now, KINDS, tuple(self.leases.values()), self.fleet, rules=RULES)

    def round(self) -> float:
        """Let one workspace end, and return what the decision took, in milliseconds."""
        self.now += 1.0
        ends = self.random.choice([x for x in self.leases.values() if x.phase is Phase.RUNNING])
        begin = time.process_time()
        self.change(ends, None)
        decision = decide(self.seen())
        taken = time.process_time() - begin
        for one in decision.grants:
            lease = self.leases[one.claim.id]
            self.change(lease, runs(lease, one.slots, self.now, self.now + lease.request.lifetime_seconds))
            self.asks()
        return 1000 * taken


def row(values: list[float]) -> str:
    ranks = statistics.quantiles(values, n=100)
    return f"{ranks[49]:>9.2f} {ranks[98]:>9.2f}"


def main() -> None:
    print(f"{'':>16} {'a decision, ms':>20} {'all places, ms':>20}")
    print(f"{'nodes':>7} {'waiting':>8} {'p50':>9} {'p99':>9} {'p50':>10} {'p99':>9}")
    for nodes in NODES:
        for waiting in WAITING:
            world = World(nodes, waiting)
            for _ in range(5):
                world.round()
            decisions = [world.round() for _ in range(ROUNDS)]
            places = []
            for _ in range(PLACES):
                begin = time.process_time()
                queue_places(world.seen())
                places.append(1000 * (time.process_time() - begin))
            print(f"{nodes:>7} {waiting:>8} {row(decisions)}  {row(places)}", flush=True)


if __name__ == "__main__":
    main()
