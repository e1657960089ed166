"""The sampler under load: a round of 10,000 workspaces, hanging probes, and memory with a day of readings.

The real Sampler, store and judgement over the fake backend. Lateness is measured in virtual time: waiting costs none,
so it shows what slots and time-outs do, not how fast this machine is. Settings are those for a cluster.
"""

from __future__ import annotations

import asyncio
import os
import resource
import selectors
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.fake import FakeBackend, probe_text
from gpuspawner.catalog import load_text
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.service.app import Options, wire
from gpuspawner.service.fake import FakeHub, HandClock
from gpuspawner.service.parts import Parts
from gpuspawner.service.process.backend_choice import CLUSTER_TIMES
from gpuspawner.service.settings import Settings

ROUND = int(os.environ.get("ROUND", "10000"))
MANY, HANGING, PROBE_SECONDS, PERIODS = 1000, 0.05, 2.3, 5
"""Workspaces; those of them whose probes hang; how long a probe takes (three readings a second apart); minutes."""
DAY_MINUTES, PERIOD_SECONDS = 1440, 60.0
CATALOG = (
    "version: 1\ngpus:\n  a100: {title: A100, match: '*A100*', memory: 80GiB}\ntemplates:\n  lab: {gpus: {a100: 1}}\n"
)


def lease(number: int, at: float) -> Lease:
    user = f"user{number}"
    request = Request(user, "lab", "default", "a100", 1, 4.0, 2**33, 8 * 3600)
    key = Key("hub", f"born {number}", "")
    waiting = Lease(f"{number:06}", key, user, request, {}, asked_at=at)
    slots = (Slot(f"GPU-00000000-0000-0000-0000-{number:012x}"),)
    return replace(waiting, phase=Phase.RUNNING, slots=slots, running_at=at - 7200.0, deadline_at=at + 1e6)


class Workspaces(FakeBackend):
    """Every workspace reads as idle; some hang until the deadline."""

    def __init__(self, hanging: int = 0, probe_seconds: float = 0.0) -> None:
        super().__init__()
        self.hanging, self.takes, self.asked = hanging, probe_seconds, 0
        self.seen: set[str] = set()

    async def probe(self, lease_id: str, attempt: int, leased: tuple[str, ...], deadline_seconds: float) -> ProbeResult:
        assert attempt == 1
        self.asked += 1
        self.seen.add(lease_id)
        hangs = int(lease_id) < self.hanging
        seconds = deadline_seconds if hangs else self.takes
        await asyncio.sleep(seconds)
        if hangs:
            return ProbeResult(problem=f"the probe did not end within {deadline_seconds:g} s")
        return ProbeResult(probe_text(dict.fromkeys(leased, 0), clock_seconds=100.0 + self.asked))


def parts(folder: str, backend: FakeBackend, clock: Any) -> Parts:
    url = f"sqlite:///{Path(folder) / 'gpuspawner.sqlite'}"
    options = Options(url, b"s" * 32, "hub", "http://127.0.0.1:9", "t", "http://127.0.0.1:9", "/services/gpu/", None)
    wired = wire(options, load_text(CATALOG), backend, Settings(**CLUSTER_TIMES), clock, FakeHub(HandClock()))
    wired.store.open()
    return wired


async def drained() -> None:
    """Wait for every probe under way."""
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


def one_round(count: int) -> tuple[float, float]:
    """Return the seconds of one round in which every probe answers at once, and of one write to the store."""
    with tempfile.TemporaryDirectory() as folder:
        clock, backend = HandClock(), Workspaces()
        wired = parts(folder, backend, clock)
        for begin in range(0, count, 1000):
            wired.store.save([lease(number, clock.now()) for number in range(begin, min(count, begin + 1000))])
        asyncio.run(wired.registry.load())
        begun = time.perf_counter()
        for _ in range(50):
            wired.store.save([lease(0, clock.now())])
        write_seconds = (time.perf_counter() - begun) / 50

        async def run() -> float:
            begun = time.perf_counter()
            for _ in range(int(PERIOD_SECONDS) + 1):  # each has its own moment within the period
                wired.sampler.start_due()
                await drained()
                clock.advance(1.0)
            return time.perf_counter() - begun

        taken = asyncio.run(run())
        wired.store.close()
        assert len(backend.seen) == count, f"{len(backend.seen)} of {count} workspaces were sampled"
        return taken * count / backend.asked, write_seconds


class VirtualTime(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next thing that is due, instead of waiting for it."""

    def __init__(self) -> None:
        self.at = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.at


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTime) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> Any:
        self.loop.at += timeout or 0.0
        return super().select(0)


def run_virtually(steps: Coroutine[Any, Any, None], loop: VirtualTime) -> None:
    try:
        loop.run_until_complete(steps)
    finally:
        loop.close()


def latest() -> tuple[int, float, float]:
    """Return the samples taken, the longest time between two of one workspace, and the mean one, in seconds."""
    loop = VirtualTime()

    class LoopClock:
        def now(self) -> float:
            return 1e9 + loop.at

        def awake_since(self) -> float:
            return 1e9

        wall = now

    intervals: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        wired = parts(folder, Workspaces(int(MANY * HANGING), PROBE_SECONDS), LoopClock())
        wired.store.save([lease(number, 1e9) for number in range(MANY)])
        asyncio.run(wired.registry.load())
        save = wired.store.save
        sampled_at: dict[str, float] = {}

        def noted(leases: Iterable[Lease], *more: Any) -> None:
            for one in leases:
                if one.id in sampled_at:
                    intervals.append(loop.at - sampled_at[one.id])
                sampled_at[one.id] = loop.at
            save(leases, *more)

        async def at_once(step: Callable[..., Any], *arguments: Any) -> Any:
            """Write in the loop: a thread takes real time."""
            return step(*arguments)

        wired.store.save = noted  # type: ignore[method-assign]
        wired.store.write = at_once  # type: ignore[method-assign,assignment]

        async def run() -> None:
            while loop.at < PERIODS * PERIOD_SECONDS:
                wired.sampler.start_due()
                await asyncio.sleep(wired.settings.tick_seconds)
            await wired.sampler.close()

        run_virtually(run(), loop)
        wired.store.close()
    return len(intervals), max(intervals), sum(intervals) / len(intervals)


def memory() -> None:
    """Print the megabytes of a process like the service's with a day of readings, and how long thinning takes."""
    with tempfile.TemporaryDirectory() as folder:
        clock = HandClock()
        wired = parts(folder, Workspaces(), clock)
        leases = [lease(number, clock.now()) for number in range(MANY)]
        wired.store.save(leases)
        fill(Path(folder) / "gpuspawner.sqlite", leases, clock.now())
        asyncio.run(wired.registry.load())
        before = megabytes()

        async def run() -> None:
            for _ in range(3):
                wired.sampler.start_due()
                await drained()
                clock.advance(PERIOD_SECONDS)

        asyncio.run(run())
        for one in leases[:50]:
            wired.store.readings.of_lease(one.id, clock.now() - 86400.0)
        begun = time.perf_counter()
        wired.store.readings.thin(clock.now())
        first = time.perf_counter() - begun
        begun = time.perf_counter()
        wired.store.readings.thin(clock.now() + 600.0)
        later = time.perf_counter() - begun
        size = (Path(folder) / "gpuspawner.sqlite").stat().st_size / 1e6
        print(f"{before:.0f} {megabytes():.0f} {size:.0f} {first:.2f} {later:.2f}")
        wired.store.close()


def fill(path: Path, leases: list[Lease], now: float) -> None:
    """Write a day of readings past the store: through it, that would take minutes."""

    def rows() -> Any:
        for one in leases:
            gpu = one.slots[0].gpu
            for number in range(DAY_MINUTES):
                at = now - 60.0 * (DAY_MINUTES - number)
                yield one.id, at, 60.0, gpu, 0.0, 0, 2**33, "idle", "GPU 0 at 0 %", False, False, 1, 0.0, 0.0

    names = "lease at seconds gpu utilization_percent memory_used_bytes memory_total_bytes kind because kept shared"
    names += " holders holders_cpu_cores cpu_cores"
    columns = names.split()
    with sqlite3.connect(path) as connection:
        places = ", ".join("?" for _ in columns)
        connection.executemany(f"INSERT INTO readings ({', '.join(columns)}) VALUES ({places})", rows())
    connection.close()


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    if sys.argv[1:] == ["memory"]:
        memory()
        return
    taken, write = one_round(ROUND)
    print(f"one round of {ROUND:,} workspaces: {taken:.1f} s, {100 * taken / PERIOD_SECONDS:.0f} % of its period;")
    print(f"  {1e3 * taken / ROUND:.2f} ms a workspace, {taken / ROUND / write:.1f} times one write of a lease")
    count, longest, mean = latest()
    late = "none" if longest <= 2 * PERIOD_SECONDS else "some"
    print(
        f"{MANY:,} workspaces, {100 * HANGING:.0f} % of probes hang, {count:,} samples: {late} late by over a period;"
    )
    print(f"  between two samples of one workspace: {longest:.0f} s at most, {mean:.0f} s in the mean")
    told = subprocess.run([sys.executable, __file__, "memory"], capture_output=True, text=True, check=True).stdout
    before, after, size, first, later = told.split()
    print(f"memory with a day of readings of {MANY:,} workspaces: {after} MB ({before} MB before three rounds);")
    print(f"  database {size} MB; thinning takes {first} s, ten minutes later {later} s")


if __name__ == "__main__":
    main()
