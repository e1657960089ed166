"""How long a grant decision, and telling everybody their place, takes as fleet and queue grow. In milliseconds.

A full fleet of nodes with 8 GPUs, whose workspaces have 1, 2, 4 or 8 of them and end within eight hours, and people of
ten teams, with quotas, who wait for as many. In each round one workspace ends, its GPUs are granted, and what was
granted runs from then on; a sixth of those who wait for one GPU ask for less than an hour, and may pass.

A decision is what follows an end, as the service asks for it: the scheduler's ``sync`` with a snapshot, the grants and
which requests are held back. After a look all GPUs are new, equal objects. Positions are recomputed for all who
wait at once. NODES and WAITING bound the sizes, ROUNDS the number of decisions; with BESIDE the nodes' CPU and memory
are known.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from gpuspawner.backends.fake import FakeBackend
from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, HostResources, NodeName, Slot
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.snapshot import LiveLeases, Snapshot
from gpuspawner.core.quotas.ledger import rate_of
from gpuspawner.core.rules import Limit, LimitedResource, Quota, QuotaScope, Rules, Team
from gpuspawner.schedulers.own_queue import InMemoryScheduler
from gpuspawner.service.engine.allocation.scheduler_sync import run_without_waiting
from gpuspawner.service.process.start_up import collect_garbage_seldom

KINDS = {"a100": GpuKind("a100", "A100", 80 * 2**30)}
NODES = [n for n in (100, 1_000, 10_000) if n <= int(os.environ.get("NODES", "10000"))]
WAITING = [n for n in (10, 100, 1_000) if n <= int(os.environ.get("WAITING", "1000"))]
ROUNDS, PLACES = int(os.environ.get("ROUNDS", "200")), 10
BESIDE = bool(os.environ.get("BESIDE"))
LOOK_EVERY = 5
TEAMS = [f"team{number}" for number in range(10)]


class Cluster(FakeBackend):
    """A backend whose nodes' CPU and memory are known too."""

    host_resources: Mapping[NodeName, HostResources] = {}

    async def fleet(self) -> Fleet:
        return replace(await super().fleet(), host_resources=self.host_resources)


class World:
    """A full fleet, those who wait, and the scheduler that serves them. Each user has 16 GPUs in the mean."""

    def __init__(self, nodes: int, waiting: int) -> None:
        self.random, self.now, self.made = random.Random(1), 0.0, 0
        self.users = max(50, nodes // 2)
        share, most = Fraction(8 * nodes // 20), Fraction(64)
        self.rules = Rules(
            teams={name: Team(name) for name in TEAMS},
            quotas=(
                Quota("each", QuotaScope.EACH_USER, limits=(Limit(LimitedResource.GPUS, soft=Fraction(8), hard=most),)),
                *(Quota(name, QuotaScope.TEAM, name, (Limit(LimitedResource.GPUS, soft=share),)) for name in TEAMS),
            ),
        )
        self.gpus = [Gpu(f"gpu{i}", "a100", f"node{i // 8:05}", i % 8, "A100", 0) for i in range(8 * nodes)]
        self.backend = Cluster(self.gpus)
        if BESIDE:
            self.backend.host_resources = {gpu.on: HostResources(96_000, 2**40) for gpu in self.gpus}
        self.scheduler = InMemoryScheduler(self.backend, KINDS)
        self.look()
        self.leases = LiveLeases()
        for node in range(nodes):
            at = 0
            while at < 8:
                count = min(self.random.choice((1, 1, 2, 4, 8)), 8 - at)
                slots = tuple(Slot(f"gpu{8 * node + at + i}") for i in range(count))
                lease = runs(self._new(count), slots, 0.0, self.random.uniform(600, 8 * 3600))
                self.leases.put(lease)
                at += count
        for _ in range(waiting):
            self.asks()

    def look(self) -> None:
        """Read the GPUs again. The result has new objects, as from a backend that reads them."""
        self.backend.gpus = [replace(gpu) for gpu in self.gpus]
        asyncio.run(self.scheduler.observe(self.now))

    def _new(self, count: int) -> Lease:
        self.made += 1
        number, short = self.made, count == 1 and self.random.random() < 1 / 6
        user, team = f"user{number % self.users}", TEAMS[number % self.users % 10]
        request = Request(
            user, "lab", "default", "a100", count, 4.0 * count, 2**35, 1800 if short else 8 * 3600, team=team
        )
        return Lease(f"{number:07}", Key("hub", user, str(number)), user, request, {}, asked_at=float(number))

    def asks(self) -> None:
        lease = self._new(self.random.choice((1, 1, 1, 2, 4, 8)))
        self.leases.put(lease)

    def seen(self) -> Snapshot:
        return Snapshot(self.now, KINDS, self.leases.seen(), self.scheduler.fleet, rules=self.rules)

    def round(self) -> float:
        """Let one workspace end, and return what the decision took, in milliseconds."""
        self.now += 1.0
        leases = list(self.leases)
        while (lease := self.random.choice(leases)).phase is not Phase.RUNNING:
            pass
        begin = time.process_time()
        self.leases.remove(lease.id)
        answer = run_without_waiting(self.scheduler.sync(self.seen()))
        grants, _ = answer.grants(), answer.wait_reasons()
        taken = time.process_time() - begin
        for one in grants:
            lease = self.leases.get(one.claim.id)
            self.leases.put(runs(lease, one.slots, self.now, self.now + lease.request.lifetime_seconds))
            self.asks()
        return 1000 * taken

    def places(self) -> float:
        """Return how many milliseconds it takes to report all queue positions."""
        begin = time.process_time()
        run_without_waiting(self.scheduler.sync(self.seen())).places()
        return 1000 * (time.process_time() - begin)


def runs(lease: Lease, slots: tuple[Slot, ...], now: float, until: float) -> Lease:
    rate = rate_of(KINDS["a100"], lease.request.count)
    return replace(
        lease, phase=Phase.RUNNING, slots=slots, granted_at=now, running_at=now, deadline_at=until, rate=rate
    )


def row(values: list[float]) -> str:
    ranks = statistics.quantiles(values, n=100, method="inclusive")
    return f"{ranks[49]:>9.2f} {ranks[98]:>9.2f}"


def main() -> None:
    collect_garbage_seldom()  # as the service does
    print(f"{'':>16} {'a decision, ms':>20} {'after a look, ms':>20} {'all places, ms':>20}")
    print(f"{'nodes':>7} {'waiting':>8}" + f" {'p50':>10} {'p99':>9}" * 3)
    for nodes in NODES:
        for waiting in WAITING:
            world = World(nodes, waiting)
            for _ in range(5):
                world.round()
            decisions = [world.round() for _ in range(ROUNDS)]
            after_looks, places = [], []
            for _ in range(PLACES):
                world.look()
                after_looks.append(world.round())
                places.append(world.places())
            print(f"{nodes:>7} {waiting:>8} {row(decisions)}  {row(after_looks)}  {row(places)}", flush=True)


if __name__ == "__main__":
    main()
