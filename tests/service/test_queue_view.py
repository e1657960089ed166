"""The queue on pages is computed once for all readers, and again after a change."""

import asyncio
import math
from collections import Counter
from dataclasses import replace

import pytest
from service_world import World

from gpuspawner.service.waiting import queue_snapshot as queue_view
from gpuspawner.service.waiting import shared_results


@pytest.fixture
async def world(tmp_path, monkeypatch):
    world = World(tmp_path / "s.sqlite", gpus=1)
    await world.round()
    scheduler, world.computed = world.parts.scheduler, Counter()
    sync = scheduler.sync

    async def counting(seen):
        answer = await sync(seen)
        places, held = (counted(getattr(answer, name), name, world.computed) for name in ("places", "wait_reasons"))
        return replace(answer, places=places, wait_reasons=held)

    monkeypatch.setattr(scheduler, "sync", counting)
    monkeypatch.setattr(scheduler, "stock", counted(scheduler.stock, "stock", world.computed))
    yield world
    world.crash()


def counted(compute, name, computed):
    def count(*arguments):
        computed[name] += 1
        return compute(*arguments)

    return count


async def test_one_computation_of_positions_serves_all_readers_until_a_change(world):
    up = await world.up("anna")
    line = [await world.ask(f"user{index}", lifetime="1h") for index in range(5)]
    queue, version = world.parts.queue, world.parts.queue.version
    world.computed.clear()
    first = queue.place(line[-1])
    for lease in (*line, *line):
        queue.place(lease)
        queue.wait_reason(lease)
        queue.offer("a100")
    assert world.computed == {"places": 1, "wait_reasons": 1}
    assert [queue.place(lease).number for lease in line] == [1, 2, 3, 4, 5]

    world.clock.advance(3)
    assert queue.place(line[-1]).unchanged_seconds == first.unchanged_seconds - 3, "the time that passes is no change"
    assert (world.computed["places"], queue.version) == (1, version)
    await world.parts.attempts.hear(line[-1].id, line[-1].attempt)
    assert (world.computed["places"], queue.version) == (1, version), "nor is who is heard"

    await world.parts.attempts.forget(line[0].key)
    assert queue.version > version
    assert [queue.place(lease).number for lease in line[1:]] == [1, 2, 3, 4]
    version, before = queue.version, queue.place(line[-1])
    await world.parts.actions.extend(up, "anna")
    assert queue.version > version
    assert queue.place(line[-1]).unchanged_seconds == before.unchanged_seconds + 3600
    assert world.computed["places"] == 3


async def test_a_gpu_that_fails_is_seen_at_the_next_look(world):
    version = world.parts.queue.version
    assert world.parts.queue.offer("a100").free == 1
    await world.parts.scheduler.observe(world.clock.now())
    assert world.parts.queue.version == version, "the same GPUs, seen again"
    world.backend.change_gpu(world.backend.gpus[0].id, healthy=False)
    await world.parts.scheduler.observe(world.clock.now())
    assert world.parts.queue.version > version
    assert world.parts.queue.offer("a100").free == 0


class Times:
    """Each pass takes a second of CPU; what time it is is set by hand."""

    now, used = 0.0, 0.0

    def monotonic(self):
        return self.now

    def thread_time(self):
        self.used += 1.0
        return self.used


@pytest.fixture
def times(monkeypatch):
    made = Times()
    for module in (queue_view, shared_results):
        monkeypatch.setattr(module, "time", made)
    return made


async def test_slow_positions_are_recomputed_rarely(world, times):
    await world.up("anna")
    line = [await world.ask(f"user{index}", lifetime="1h") for index in range(3)]
    queue = world.parts.queue
    assert [queue.place(lease).number for lease in line] == [1, 2, 3]
    assert queue.due_seconds(line[1]) == math.inf, "they are of now"
    as_of, version = queue.as_of, queue.version

    world.clock.advance(queue_view.OLD_SECONDS + 1)
    times.now = 4.9  # of a fifth of the time a second is used
    await world.parts.attempts.forget(line[0].key)
    last = await world.ask("mine", lifetime="1h")
    world.computed.clear()
    assert [queue.place(lease).number for lease in line[1:]] == [2, 3], "as of before"
    assert queue.place(last).number == 3, "behind all others, of whom three wait"
    assert queue.places().keys() == {lease.id for lease in line}
    assert (queue.as_of, queue.old_since) == (as_of, as_of), "and it is said of when"
    assert (world.computed["places"], queue.version) == (0, version + 1)
    assert [queue.due_seconds(lease) for lease in (line[1], last)] == [pytest.approx(15.1), pytest.approx(0.1)]

    times.now = 5.1
    assert queue.place(line[1]).number == 2, "others' changes wait"
    assert queue.version == version + 1
    assert queue.place(last).number == 3, "one's own are known"
    assert [queue.place(lease).number for lease in line[1:]] == [1, 2]
    assert (world.computed["places"], queue.old_since) == (1, None)
    assert queue.version > version + 1, "who was shown those of before looks again"


async def test_a_slow_view_is_computed_rarely_for_all_readers(world, times, monkeypatch):
    await world.up("anna")
    waits, queue = await world.ask("bob", lifetime="1h"), world.parts.queue
    made = iter(range(9))
    monkeypatch.setattr(queue, "_decided", counted(queue._decided, "decided", world.computed))
    queue.wait_reason(waits)
    assert queue.compute_seldom("number", lambda: next(made)) == 0
    world.computed.clear()
    await world.ask("carla", lifetime="1h")
    times.now = 19.9  # a second was used of it
    queue.wait_reason(waits)
    assert (queue.compute_seldom("number", lambda: next(made)), world.computed["decided"]) == (0, 0)
    times.now = 20.1
    queue.wait_reason(waits)
    assert (queue.compute_seldom("number", lambda: next(made)), world.computed["decided"]) == (0, 1), "one at a time"
    times.now += shared_results.BETWEEN_SECONDS
    queue.wait_reason(waits)
    assert (queue.compute_seldom("number", lambda: next(made)), world.computed["decided"]) == (1, 1)
    times.now = 99
    assert queue.compute_seldom("number", lambda: next(made)) == 1, "where nothing changed"


async def test_a_view_slower_than_a_page_is_shown_old_while_it_is_computed(world, times, caplog):
    queue, gates, made = world.parts.queue, [asyncio.Event() for _ in range(4)], iter(range(4))

    async def make():
        number = next(made)
        await gates[number].wait()
        if number == 3:
            raise ValueError("it breaks")
        return number

    def look():
        return queue.compute_in_background("number", make)

    async def looked_at():
        return await asyncio.wait_for(look(), 1)

    first, second = asyncio.create_task(look()), asyncio.create_task(look())
    await asyncio.sleep(0)
    assert not first.done(), "who looks first waits"
    gates[0].set()
    assert (await first, await second) == (0, 0), "it is made once for both"
    await world.ask("carla", lifetime="1h")
    times.now = 20.1
    assert await looked_at() == 0, "it is being made"
    gates[1].set()
    await asyncio.gather(*queue._shared._tasks.values(), return_exceptions=True)
    assert await looked_at() == 1
    await world.ask("dora", lifetime="1h")
    times.now += shared_results.LONGEST_SECONDS + 1
    late = asyncio.create_task(look())
    await asyncio.sleep(0)
    assert not late.done(), "what is that old is not shown"
    gates[2].set()
    assert await late == 2
    await world.ask("ella", lifetime="1h")
    times.now += 21
    gates[3].set()
    assert await looked_at() == 2
    await asyncio.gather(*queue._shared._tasks.values(), return_exceptions=True)
    assert "number could not be made" in caplog.text
    assert await looked_at() == 2


async def test_a_quickly_computed_view_is_waited_for_and_shown_current(world, caplog):
    queue, made = world.parts.queue, iter([0, 1, None])

    async def make():
        await asyncio.sleep(0)
        if (number := next(made)) is None:
            raise ValueError("it breaks")
        return number

    assert await queue.compute_in_background("number", make) == 0
    for user in ("carla", "dora"):
        await world.ask(user, lifetime="1h")
        assert await queue.compute_in_background("number", make) == 1, "and that of before where it breaks"
    assert "number could not be made" in caplog.text


async def test_old_queue_positions_are_replaced_once_there_is_time(world, times):
    await world.up("anna")
    line = [await world.ask(f"user{index}", lifetime="1h") for index in range(2)]
    queue = world.parts.queue
    queue.place(line[1])
    await world.parts.attempts.forget(line[0].key)
    assert queue.place(line[1]).number == 2
    version = queue.version
    times.now = 20.1
    assert queue.version == version + 1, "though nobody looked"
    assert queue.place(line[1]).number == 1
    assert queue.version == version + 1
