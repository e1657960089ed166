"""The database is slow or fails: reads, samples and warnings continue, and no unsaved change is reported as saved.

In all tests here the fixture ``transactions_in_the_loop`` checks that the loop never calls the database.
"""

import asyncio
import threading
import time
from dataclasses import replace

import pytest
import sqlalchemy as sa
from harness.waiting import until
from lease_builders import a_lease

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.exits import Exit, ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.loops import cancel_all

pytestmark = pytest.mark.postgresql

SLOW_SECONDS = [0.05, pytest.param(2.0, marks=pytest.mark.slow)]
LONGEST_GAP_SECONDS = 0.5
"""For how long the loop may not come round. Generous: this machine does other things too."""


def slow_down(store, seconds):
    """Delay each transaction of a store by ``seconds`` before it is durable."""

    def wait(connection):
        if connection.get_execution_options().get("writes"):
            time.sleep(seconds)

    sa.event.listen(store._engine, "commit", wait)


class Gaps:
    """The longest time in which the loop did not come round, while it is entered."""

    async def __aenter__(self):
        self.longest_seconds, self._task = 0.0, asyncio.create_task(self._watch())
        return self

    async def _watch(self):
        at = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            self.longest_seconds, at = max(self.longest_seconds, time.monotonic() - at), time.monotonic()

    async def __aexit__(self, *_error):
        await cancel_all([self._task])


def test_store_access_in_the_loop_is_detected(store, transactions_in_the_loop):
    async def run():
        registry = LeaseRegistry(store)
        registry.store.leases.live()  # a test may
        registry._write_together([])  # the registry may not

    asyncio.run(run())
    assert len(transactions_in_the_loop) == 1
    assert "engine/registry.py" in transactions_in_the_loop.pop()


@pytest.mark.parametrize("seconds", SLOW_SECONDS)
async def test_a_slow_database_holds_up_only_what_writes(world, seconds):
    runs, others = await world.up("alice"), world.registry
    slow_down(world.parts.store, seconds)
    async with Gaps() as gaps:
        asks = asyncio.create_task(world.start("bob"))
        await asyncio.sleep(0)
        begun, looked = time.monotonic(), 0
        while not asks.done():
            lease = others.get(runs.id)  # what pages show
            assert lease.phase is Phase.RUNNING
            assert world.parts.queue.offers
            await world.parts.scheduler.observe(world.clock.now())
            await world.parts.engine.round()
            looked += 1
            await asyncio.sleep(0.01)
        took = time.monotonic() - begun
    assert (await asks).phase is Phase.RESERVED
    assert took >= seconds
    assert took < 2 * seconds + 3, "what is asked and granted at once is one transaction"
    assert looked >= 2
    assert gaps.longest_seconds < LONGEST_GAP_SECONDS


async def test_many_that_ask_at_once_are_written_together(make_world, monkeypatch):
    world = make_world(gpus=40, concurrent_starts=100)
    await world.round()
    saved, save = [], world.parts.store.save
    monkeypatch.setattr(world.parts.store, "save", lambda some, *more: saved.append(len(some)) or save(some, *more))
    found = await asyncio.gather(*(world.start(f"user{n}") for n in range(30)))
    assert {lease.phase for lease in found} == {Phase.RESERVED}
    assert sum(saved) < 60, "asked and granted are one write"
    assert len(saved) <= 6


async def test_no_user_is_notified_or_answered_before_the_write(world, monkeypatch):
    lease = await world.up("alice")
    told = []
    world.registry.on_stored = lambda lease, line: told.append(
        (line.event.action, world.parts.store.leases.get(lease.id).phase)
    )
    gate, save = threading.Event(), world.parts.store.save
    monkeypatch.setattr(world.parts.store, "save", lambda *some: gate.wait(20) and save(*some))
    stops = asyncio.ensure_future(world.parts.engine.begin_stop(lease.id, Exit(ExitReason.STOPPED, "alice", "enough")))
    driven = asyncio.create_task(world.parts.engine.drive(lease.id))
    heard = asyncio.create_task(world.speaks(lease))
    late = asyncio.create_task(world.parts.attempts.release(lease.id, lease.attempt, "stopped", ""))
    await asyncio.sleep(0.1)
    assert world.registry.get(lease.id).phase is Phase.STOPPING, "it counts for decisions"
    assert world.parts.store.leases.get(lease.id).phase is Phase.RUNNING
    assert (told, world.hub.calls) == ([], [])
    assert [x.done() for x in (stops, driven, heard, late)] == [False] * 4
    gate.set()
    await asyncio.gather(stops, driven, late)
    assert not await heard, "its start is over"
    assert told[0] == ("stop", Phase.STOPPING)


async def test_a_grant_is_not_given_to_a_spawner_before_it_is_stored(world, monkeypatch):
    """The waiter's question writes nothing, and finds in memory what a crash would take back."""
    lease = await world.start("alice")  # nothing is granted before the first look
    assert lease.phase is Phase.QUEUED
    gate, save = threading.Event(), world.parts.store.save
    monkeypatch.setattr(world.parts.store, "save", lambda *some: gate.wait(20) and save(*some))
    rounds = asyncio.create_task(world.round())
    await until(lambda: world.registry.get(lease.id).phase is not Phase.QUEUED)
    asked = asyncio.create_task(world.parts.attempts.hear(lease.id, lease.attempt))
    await asyncio.sleep(0.1)
    assert not asked.done()
    gate.set()
    assert (await asked).phase is Phase.RESERVED
    await rounds
    assert world.now_of(lease).phase is Phase.RESERVED


async def test_a_failure_in_the_middle_takes_back_all_that_came_after_it(store, monkeypatch):
    registry = LeaseRegistry(store)
    one, two = a_lease("one"), replace(a_lease("two"), key=replace(a_lease().key, server="two"))
    await registry.save(one)
    gate, calls, save = threading.Event(), [], store.save

    def second_fails(*some):
        calls.append(some)
        gate.wait(20)
        if len(calls) == 2:
            raise Unavailable("The disk is full.")
        save(*some)

    monkeypatch.setattr(store, "save", second_fails)
    first = registry.save(replace(one, user="first"))
    await until(lambda: calls)  # it is on its way alone
    second, third = registry.save(replace(one, user="second")), registry.save(two)
    gate.set()
    found = await asyncio.gather(first, second, third, return_exceptions=True)
    assert [type(x) for x in found] == [type(None), Unavailable, Unavailable]
    assert [x.user for x in registry] == ["first"]
    assert registry.of_key(two.key) is None
    assert list(registry) == store.leases.live()
    assert registry.failed_to_write
    await registry.save(two)
    assert {x.id for x in store.leases.live()} == {"one", "two"}


async def test_a_fault_of_ours_fails_its_own_change_and_what_came_after_it_alone(store):
    registry = LeaseRegistry(store)
    keys = [replace(a_lease().key, server=f"s{n}") for n in range(3)]
    leases = [replace(a_lease(f"l{n}"), key=key) for n, key in enumerate(keys)]
    leases[1] = replace(leases[1], message=object())  # no JSON can hold it
    found = await asyncio.gather(*(registry.save(x) for x in leases), return_exceptions=True)
    assert found[0] is None
    assert not isinstance(found[1], (type(None), Unavailable))
    assert isinstance(found[2], Unavailable)
    assert [x.id for x in registry] == [x.id for x in store.leases.live()] == ["l0"]


async def test_a_cancelled_save_is_completed(store):
    registry = LeaseRegistry(store)
    asks = asyncio.ensure_future(registry.save(a_lease()))
    asks.cancel()
    await asyncio.gather(asks, return_exceptions=True)
    await registry.settled()
    assert list(registry) == store.leases.live() == [a_lease()]
