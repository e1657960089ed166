"""Liveness of custom resources: it fails where they are not worked on, and not where a restart would be no help."""

import asyncio

import pytest
from resource_world import Cluster, Door

from gpuspawner.cli.kube.operate import Rounds
from gpuspawner.core.errors import Unavailable
from gpuspawner.service.health import HANGS_SECONDS, Health


@pytest.fixture
def door(world):
    world.hub.add("ada")
    return Door(world, Cluster())


async def rounds_for(door, seconds):
    """Run rounds for the given seconds, as the service's loop does, whatever exception each raises."""
    for _ in range(int(seconds / 2) + 1):
        await asyncio.gather(door.operator.round(), return_exceptions=True)
        await asyncio.sleep(0)
        door.world.clock.advance(2.0)


def hanging(door):
    health = Health(lambda: "")
    health.watch("the operator", door.operator.stuck_seconds)
    return health.hanging()


async def test_a_step_that_hangs_fails_it_though_rounds_go_on(door, monkeypatch):
    async def hangs(*_):
        await asyncio.Event().wait()

    door.cluster.apply("train")
    await door.rounds()
    await rounds_for(door, 3 * HANGS_SECONDS)
    assert hanging(door) == [], "there is nothing to do"
    monkeypatch.setattr(door.cluster, "hold", hangs)
    door.cluster.apply("second", server="second")
    await rounds_for(door, HANGS_SECONDS - 4)
    assert hanging(door) == []
    await rounds_for(door, 4)
    assert hanging(door) == ["the operator"]
    await door.operator.close()
    assert hanging(door) == []


async def test_rounds_that_break_fail_it_and_what_does_not_answer_is_waited_for(door, monkeypatch):
    def fail(error):
        async def fails():
            raise error

        monkeypatch.setattr(door.cluster, "refuses", fails)

    await door.rounds()
    fail(Unavailable("The cluster does not answer."))
    await rounds_for(door, 3 * HANGS_SECONDS)
    assert hanging(door) == []
    fail(KeyError("spec"))
    await rounds_for(door, HANGS_SECONDS + 4)
    assert hanging(door) == ["the operator"]
    monkeypatch.undo()
    await rounds_for(door, 0)
    assert hanging(door) == []


async def test_a_process_of_its_own_says_of_each_round_whether_it_broke():
    class Service:
        def __init__(self, error):
            self.error = error

        async def operate(self, _seen):
            raise self.error

    waits, breaks = (
        Rounds(Cluster(), Service(Unavailable("It is away."))),
        Rounds(Cluster(), Service(KeyError("writes"))),
    )
    assert waits.waits_for == "its first round", "the pod is not ready before"
    assert await waits.round()
    assert not await breaks.round()
    assert (waits.waits_for, breaks.waits_for) == ("It is away.", "a round that works")
