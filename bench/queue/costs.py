"""What estimates cost: the CPU time of a round, and by how much the thread that computes them delays a grant.

The service's own parts grant GPUs in real time, on a real SQLite, while the thread computes without a pause. So each
grant meets it. In the service a round takes place every two minutes.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

from disciplines import OURS
from people import DAY, HOUR, generated
from served import Cluster

from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.catalog import load_catalog, resolve
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.core.queue.calibration import MOST_OUTCOMES, Calibration, EstimateOutcome
from gpuspawner.core.queue.run_times import TRACE_SECONDS, PastRun
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.service.app import Options, wire
from gpuspawner.service.clock import SteadyClock
from gpuspawner.service.engine.allocation.estimates import compute_estimates
from gpuspawner.service.engine.allocation.start_attempts import StartRequest
from gpuspawner.service.fake import FakeHub, HandClock
from gpuspawner.service.parts import Parts
from gpuspawner.service.process.start_up import take_short_turns
from gpuspawner.service.settings import Settings

SIZES = ((145, 4), (990, 28))
"""Numbers of waiting requests, and of nodes with 8 GPUs."""
PEOPLE_EACH = 2.5
"""People for each waiting request."""
DAYS, AT_HOUR = 10, 13
GRANTS = 100
CATALOG = load_catalog(
    {
        "version": 1,
        "gpus": {"a100": {"title": "A100", "match": "*A100*", "memory": "80GiB"}},
        "templates": {
            "lab": {
                "title": "Lab",
                "gpus": {"a100": 1},
                "default": {"gpu": "a100", "count": 1, "cpu": 1, "memory": "1GiB", "lifetime": "8h"},
            }
        },
    }
)


class Round:
    """A round of estimates of a full cluster, on a work day with a history of nine days before it."""

    def __init__(self, waiting: int, nodes: int) -> None:
        work = generated(DAYS, int(PEOPLE_EACH * waiting), nodes=nodes)
        now = max(one.asked_at for one in work.sessions) // DAY * DAY + AT_HOUR * HOUR
        cluster = Cluster(work, now)
        today = [one for one in work.sessions if now - AT_HOUR * HOUR <= one.asked_at < now]
        self.past = [
            Claim(x.id, x.request.user, x.request, x.asked_at, user=x.request.user)
            for x in work.sessions
            if x.asked_at < now
        ]
        for one in work.sessions:
            if one.asked_at + one.seconds < now:
                idle = tuple(one.idle_seconds(n * TRACE_SECONDS) for n in range(1 + int(one.seconds // TRACE_SECONDS)))
                lifetime_seconds = float(one.request.lifetime_seconds)
                cluster.run_times.add(PastRun(one.request.user, one.seconds, lifetime_seconds, one.asked_at, idle))
        for one in today:
            cluster.ask(one)
        for name, slots, latest in OURS.starts(cluster.snapshot()):
            cluster.start(name, slots, latest)
        for name, lease in cluster.running.items():
            cluster.running[name] = replace(lease, running_at=lease.asked_at, granted_at=lease.asked_at)
        for name in [*cluster.waiting][waiting:]:
            del cluster.waiting[name]
        self.seen: Snapshot = cluster.snapshot()
        self.run_times = cluster.run_times
        times = (60.0 * number for number in range(MOST_OUTCOMES))
        self.outcomes = [EstimateOutcome(x, 0.5, x, 2 * x, x, 2 * x, is_shown=True, actual_seconds=x) for x in times]

    def compute(self) -> float:
        """Compute the estimates. Return the CPU seconds that it took."""
        *_, cpu_seconds = compute_estimates(
            self.seen, self.seen.claims, self.run_times, self.past, Calibration(self.outcomes)
        )
        return cpu_seconds


async def grant_seconds(parts: Parts, hub: FakeHub, name: str, count: int) -> list[float]:
    """Return how long each of some grants took."""
    found = list[float]()
    for number in range(count):
        user = f"{name} {number}"
        hub.put(user)
        request = StartRequest(Key("hub", hub.add(user), ""), user, resolve(CATALOG, {}, user), {}, user, "boot")
        began = time.perf_counter()
        lease = await parts.attempts.acquire(request)
        found.append(time.perf_counter() - began)
        assert lease.phase is Phase.RESERVED, "a GPU is free for each"
    return found


async def grants_beside(one: Round, folder: Path, grants: int) -> Iterator[str]:
    """Return lines on grants while nothing is computed, and while estimates are."""
    hub, url = FakeHub(HandClock()), "http://127.0.0.1:9"
    options = Options(f"sqlite:///{folder / 'bench.sqlite'}", b"s" * 32, "hub", url, "t", url, "/gpu/", None)
    backend, settings = FakeBackend(fake_gpus("a100", 3 * grants)), Settings(concurrent_starts=10_000)
    parts = wire(options, CATALOG, backend, settings, SteadyClock(), hub)
    parts.store.open()
    parts.allocator.observed.processes_known = parts.allocator.observed.hub_answers = True
    await parts.scheduler.observe(parts.clock.now())
    await grant_seconds(parts, hub, "first", grants)
    alone = await grant_seconds(parts, hub, "alone", grants)
    over = threading.Event()
    thread = threading.Thread(target=_compute_until, args=(over, one))
    thread.start()
    beside = await grant_seconds(parts, hub, "beside", grants)
    over.set()
    await asyncio.to_thread(thread.join)
    await parts.registry.settled()
    parts.store.close()
    return (f"a grant {title}: {_times(some)}" for title, some in (("alone", alone), ("beside estimates", beside)))


def _compute_until(over: threading.Event, one: Round) -> None:
    while not over.is_set():
        one.compute()


def _times(seconds: list[float]) -> str:
    return f"{1000 * median(seconds):.1f} ms, 90 % within {1000 * quantiles(seconds, n=10)[-1]:.1f} ms"


def costs(sizes: Sequence[tuple[int, int]] = SIZES, grants: int = GRANTS) -> Iterator[str]:
    """Yield a line for each size, and the times of grants beside the estimates of the first size."""
    rounds = [Round(*size) for size in sizes]
    for one in rounds:
        waiting, running = len(one.seen.claims), len(one.seen.leases) - len(one.seen.claims)
        yield f"{waiting} waiting, {running} running: {one.compute():.2f} s of CPU for a round of estimates"
    take_short_turns()
    with tempfile.TemporaryDirectory() as folder:
        yield from asyncio.run(grants_beside(rounds[0], Path(folder), grants))
