"""What pages show of the queue is computed once for all who look, and anew when something changes."""

from collections import Counter
from dataclasses import replace

import pytest
from service_world import World


@pytest.fixture
async def world(tmp_path, monkeypatch):
    world = World(tmp_path / "s.sqlite", gpus=1)
    await world.round()
    scheduler, world.computed = world.parts.scheduler, Counter()
    sync = scheduler.sync

    async def counting(seen):
        answer = await sync(seen)
        places, held = (counted(getattr(answer, name), name, world.computed) for name in ("places", "held_back"))
        return replace(answer, places=places, held_back=held)

    monkeypatch.setattr(scheduler, "sync", counting)
    monkeypatch.setattr(scheduler, "stock", counted(scheduler.stock, "stock", world.computed))
    yield world
    world.crash()


def counted(compute, name, computed):
    def count(*arguments):
        computed[name] += 1
        return compute(*arguments)

    return count


async def test_everybody_who_looks_is_answered_by_one_computation_until_something_changes(world):
    up = await world.up("anna")
    line = [await world.ask(f"user{index}", lifetime="1h") for index in range(5)]
    queue, version = world.parts.queue, world.parts.queue.version
    world.computed.clear()
    first = queue.place(line[-1])
    for lease in (*line, *line):
        queue.place(lease)
        queue.held_back(lease)
        queue.offer("a100")
    assert world.computed == {"places": 1, "held_back": 1}
    assert [queue.place(lease).number for lease in line] == [1, 2, 3, 4, 5]

    world.clock.advance(3)
    assert queue.place(line[-1]).at_most_seconds == first.at_most_seconds - 3, "the time that passes is no change"
    assert (world.computed["places"], queue.version) == (1, version)
    await world.allocator.hear(line[-1].id, line[-1].attempt)
    assert (world.computed["places"], queue.version) == (1, version), "nor is who is heard"

    await world.allocator.forget(line[0].key)
    assert queue.version > version
    assert [queue.place(lease).number for lease in line[1:]] == [1, 2, 3, 4]
    version, before = queue.version, queue.place(line[-1])
    await world.parts.lifecycle.extend(up, "anna")
    assert queue.version > version
    assert queue.place(line[-1]).at_most_seconds == before.at_most_seconds + 3600
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
