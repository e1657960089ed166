"""One task of a key at a time, few at once, and a pause after a failure."""

import asyncio
import itertools

import pytest

from gpuspawner.core.errors import Unavailable
from gpuspawner.service.engine.effects import MOST_PAUSE_SECONDS, KeyedExecutor
from gpuspawner.service.fake import HandClock


class Steps:
    """Steps that end when they are told, and what was seen of them."""

    def __init__(self):
        self.begun, self.ends = [], {}

    def of(self, key, name=None):
        async def step():
            self.begun.append(name or key)
            self.ends[key] = asyncio.get_running_loop().create_future()
            await self.ends[key]

        return step


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def steps():
    return Steps()


async def test_one_task_per_key_and_a_limited_number_run_at_once_in_offered_order(clock, steps):
    queue = KeyedExecutor(2, clock.now)
    for _ in range(3):
        for key in "abc":
            queue.offer(key, steps.of(key))
    await settle()
    assert steps.begun == ["a", "b"]
    queue.offer("c", steps.of("c", "c, anew"))
    queue.offer("d", steps.of("d"))
    steps.ends["a"].set_result(None)
    queue.offer("a", steps.of("a", "a again"))  # while it is under way: not kept
    await settle()
    assert steps.begun == ["a", "b", "c, anew"], "the newest step, at the key's place"
    steps.ends["b"].set_result(None)
    await settle()
    assert steps.begun == ["a", "b", "c, anew", "d"]
    await queue.close()


async def test_a_failing_key_is_retried_after_doubled_pauses_and_blocks_no_other(clock, caplog):
    queue, tried = KeyedExecutor(1, clock.now), []

    async def fails():
        tried.append(clock.now())
        raise Unavailable("It does not answer.") if len(tried) % 2 else RuntimeError("broken")

    others = 0

    async def fine():
        nonlocal others
        others += 1

    for _ in range(100):
        queue.offer("bad", fails)
        queue.offer("good", fine)
        await settle()
        clock.advance(1)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert pauses == [1, 2, 4, 8, 16, MOST_PAUSE_SECONDS, MOST_PAUSE_SECONDS]
    assert others == 100
    assert "It does not answer." in caplog.text
    assert "RuntimeError: broken" in caplog.text


async def test_a_successful_key_has_no_pause(clock):
    queue, outcomes, tried = KeyedExecutor(1, clock.now), [True, False, True], []

    async def step():
        tried.append(clock.now())
        if outcomes.pop(0):
            raise Unavailable("no")

    while outcomes:
        queue.offer("key", step)
        await settle()
        clock.advance(1)
    assert [at - tried[0] for at in tried] == [0, 1, 2]


async def test_close_cancels_what_is_under_way_and_begins_nothing_more(clock, steps):
    queue = KeyedExecutor(1, clock.now)
    queue.offer("a", steps.of("a"))
    queue.offer("b", steps.of("b"))
    await settle()
    await queue.close()
    assert steps.begun == ["a"]
    assert steps.ends["a"].cancelled()
