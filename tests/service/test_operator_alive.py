"""Liveness of custom resources: it fails where they are not worked on, and not where a restart would be no help."""

import asyncio

import pytest
from resource_world import Cluster, OperatorRun

from gpuspawner.cli.kube.operate import Rounds
from gpuspawner.core.errors import Unavailable
from gpuspawner.service.health import HANGS_SECONDS, Health


@pytest.fixture
def gate(world):
    world.hub.add("ada")
    return OperatorRun(world, Cluster())


async def rounds_for(gate, seconds):
    """Run rounds for the given seconds, as the service's loop does, whatever exception each raises."""
    for _ in range(int(seconds / 2) + 1):
        await asyncio.gather(gate.operator.round(), return_exceptions=True)
        await asyncio.sleep(0)
        gate.world.clock.advance(2.0)


def hanging(gate):
    health = Health(lambda: "")
    health.watch("the operator", gate.operator.stuck_seconds)
    return health.hanging()


async def test_a_step_that_hangs_fails_it_though_rounds_go_on(gate, monkeypatch):
    async def hangs(*_):
        await asyncio.Event().wait()

    gate.cluster.apply("train")
    await gate.rounds()
    await rounds_for(gate, 3 * HANGS_SECONDS)
    assert hanging(gate) == [], "there is nothing to do"
    monkeypatch.setattr(gate.cluster, "hold", hangs)
    gate.cluster.apply("second", server="second")
    await rounds_for(gate, HANGS_SECONDS - 4)
    assert hanging(gate) == []
    await rounds_for(gate, 4)
    assert hanging(gate) == ["the operator"]
    await gate.operator.close()
    assert hanging(gate) == []


async def test_rounds_that_break_fail_it_and_what_does_not_answer_is_waited_for(gate, monkeypatch):
    def fail(error):
        async def fails():
            raise error

        monkeypatch.setattr(gate.cluster, "refuses", fails)

    await gate.rounds()
    fail(Unavailable("The cluster does not answer."))
    await rounds_for(gate, 3 * HANGS_SECONDS)
    assert hanging(gate) == []
    fail(KeyError("spec"))
    await rounds_for(gate, HANGS_SECONDS + 4)
    assert hanging(gate) == ["the operator"]
    monkeypatch.undo()
    await rounds_for(gate, 0)
    assert hanging(gate) == []


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
