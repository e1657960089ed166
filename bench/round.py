"""How long a grant, a warning and a parking wait for a hub that is slow, or away, while 100 workspaces start.

The service's own parts, in real time and with a real SQLite, over a fake backend and a hub that takes its time. Each
event is what the service's round has to carry on: a workspace ended and the next in line gets its GPU (grant), the
cluster is about to end a workspace and its user is told (warning), a waiter left without a word (parking). Aim: never
over 1 s and a tick of 1 s. ``questions`` is how many requests the hub was sent in the run's last 20 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.catalog import load_catalog, resolve
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.leases.observations import HubServer
from gpuspawner.service.app import Options, wire
from gpuspawner.service.clock import SteadyClock
from gpuspawner.service.engine.allocation.start_attempts import StartRequest
from gpuspawner.service.fake import FakeHub, HandClock
from gpuspawner.service.parts import Parts
from gpuspawner.service.settings import Settings

STARTING, EVENTS = 100, 4
LONGEST_SECONDS = 30.0
"""Timeout in seconds. An event that takes longer counts as this long."""
TIME_OUT_SECONDS = 10.0
"""Timeout of the service's own hub client."""
TICK_SECONDS = 1.0
HUBS = (("in 10 ms", 0.01), ("in 0.5 s", 0.5), ("in 9 s", 9.0), ("not at all", None))

CATALOG = load_catalog(
    {
        "version": 1,
        "gpus": {"a100": {"title": "A100", "match": "*A100*", "memory": "80GiB"}},
        "templates": {
            "lab": {
                "title": "Lab",
                "gpus": {"a100": "1-8"},
                "bounds": {"cpu": "1-4", "memory": "1GiB-8GiB", "lifetime": "1h-8h"},
                "default": {"gpu": "a100", "count": 1, "cpu": 1, "memory": "1GiB", "lifetime": "8h"},
            }
        },
    }
)


@dataclass
class SlowHub(FakeHub):
    """Answers after ``seconds``, or (None) not before the client gives up. Slow from ``slow`` on."""

    seconds: float | None = None
    slow: bool = False
    asked_at: list[float] = field(default_factory=list)

    async def _wait(self) -> None:
        self.asked_at.append(time.monotonic())
        if not self.slow:
            return
        await asyncio.sleep(TIME_OUT_SECONDS if self.seconds is None else self.seconds)
        if self.seconds is None:
            raise Unavailable("The hub does not answer.")

    async def servers(self) -> tuple[HubServer, ...]:
        await self._wait()
        return await super().servers()

    async def server(self, user: str, name: str) -> HubServer | None:
        await self._wait()
        return await super().server(user, name)

    async def start(self, user: str, name: str, options: Mapping[str, Any]) -> None:
        with contextlib.suppress(Unavailable):
            await self._wait()
            await super().start(user, name, options)


class World:
    """One service with 100 starts under way, and workspaces whose ends, warnings and leaving are to be seen."""

    def __init__(self, folder: Path, seconds: float | None) -> None:
        self.clock = SteadyClock()
        self.hub = SlowHub(HandClock(), seconds=seconds)
        self.backend = FakeBackend(fake_gpus("a100", STARTING + 2 * EVENTS))
        options = Options(
            f"sqlite:///{folder / 'bench.sqlite'}", b"s" * 32, "hub", "http://127.0.0.1:9", "t", "http://127.0.0.1:9",
            "/gpu/", None,
        )  # fmt: skip
        settings = Settings(concurrent_starts=10_000, listen_seconds=5.0)
        self.parts: Parts = wire(options, CATALOG, self.backend, settings, self.clock, self.hub)
        self.parts.store.open()

    async def ask(self, user: str, count: int = 1) -> Lease:
        self.hub.put(user)
        request = resolve(CATALOG, {"count": count}, user)
        ask = StartRequest(Key("hub", self.hub.add(user), ""), user, request, {}, f"start of {user}", "boot")
        return await self.parts.attempts.acquire(ask)

    async def create(self, lease: Lease) -> Lease:
        starting, _ = await self.parts.attempts.acknowledge(lease.id, lease.attempt)
        self.backend.run(lease.id, lease.attempt)
        return starting

    def phase(self, lease: Lease) -> Phase:
        found = self.parts.registry.get(lease.id)
        return found.phase if found is not None else Phase.ENDED

    async def rounds(self) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                await self.parts.engine.round()
            await asyncio.sleep(TICK_SECONDS)

    async def until(self, so: Callable[[], bool]) -> float:
        begun = time.monotonic()
        while not so() and time.monotonic() - begun < LONGEST_SECONDS:  # noqa: ASYNC110 - what a user would see
            await asyncio.sleep(0.005)
        return time.monotonic() - begun


async def measure(seconds: float | None) -> tuple[dict[str, float], int]:
    """Return the longest delay of each kind of event, and how many questions the hub was sent in the last 20 s."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), seconds)
        await world.parts.scheduler.observe(world.clock.now())
        rounds = asyncio.create_task(world.rounds())
        await world.until(
            lambda: world.parts.allocator.observed.hub_answers and world.parts.allocator.observed.processes_known
        )
        up = [await world.create(await world.ask(f"up{i}")) for i in range(2 * EVENTS)]
        for lease in up:
            world.hub.answer(lease.user)
        await world.until(lambda: all(world.phase(x) is Phase.RUNNING for x in up))
        starting = [await world.create(await world.ask(f"user{i}")) for i in range(STARTING)]
        world.hub.slow = True
        longest = {"grant": 0.0, "warning": 0.0, "parking": 0.0}
        for ends, warned in zip(up[::2], up[1::2], strict=True):
            found = await asyncio.gather(_grant(world, ends), _warning(world, warned), _parking(world, ends.user))
            for name, delay in zip(longest, found, strict=True):
                longest[name] = max(longest[name], delay)
        questions = sum(at > time.monotonic() - 20 for at in world.hub.asked_at)
        assert all(world.phase(x) is Phase.STARTING for x in starting), "starts are under way all the time"
        rounds.cancel()
        await asyncio.gather(rounds, return_exceptions=True)
        await world.parts.engine.close()
        world.parts.store.close()
    return longest, questions


async def _grant(world: World, ends: Lease) -> float:
    """A workspace ends while another waits for its GPU. The waiting spawner sends heartbeats all the time."""
    waits = await world.ask(f"next to {ends.user}")
    world.backend.vanish(ends.id)
    world.hub.forget(ends.user)
    await world.parts.attempts.release(ends.id, ends.attempt, "stopped", "")

    def granted() -> bool:
        world.parts.registry.note_heard(waits.id, world.clock.now())
        return world.phase(waits) is not Phase.QUEUED

    delay = await world.until(granted)
    if world.phase(waits) is Phase.RESERVED:
        await world.create(waits)  # the next event finds no GPU free
    return delay


async def _warning(world: World, lease: Lease) -> float:
    """The cluster says that it is about to end a workspace."""
    found = world.backend.running[lease.id, lease.attempt]
    world.backend.running[lease.id, lease.attempt] = replace(found, disruption="Its node is drained.")
    delay = await world.until(lambda: bool((x := world.parts.registry.get(lease.id)) and x.disruption))
    world.backend.running[lease.id, lease.attempt] = found
    return delay


async def _parking(world: World, name: str) -> float:
    """The heartbeats of a waiting request stop. The delay counts from the time when the request should be parked."""
    waits = await world.ask(f"{name} leaves", count=8)
    since = world.clock.now()
    await world.until(lambda: world.phase(waits) is not Phase.QUEUED)
    delay = world.clock.now() - since - world.parts.settings.listen_seconds
    if world.parts.registry.get(waits.id) is not None:
        await world.parts.attempts.forget(waits.key)
    world.hub.forget(waits.user)
    return max(0.0, delay)


def main() -> None:
    print(f"longest delay in seconds of {EVENTS} each, {STARTING} workspaces starting; tick {TICK_SECONDS:g} s")
    print(f"{'the hub answers':>16} {'grant':>8} {'warning':>8} {'parking':>8} {'questions':>10}")
    for name, seconds in HUBS:
        found, questions = asyncio.run(measure(seconds))
        print(f"{name:>16} " + " ".join(f"{x:>8.2f}" for x in found.values()) + f" {questions:>10}")


if __name__ == "__main__":
    main()
