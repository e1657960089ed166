"""Liveness of custom resources: it fails where they are not worked on, and not where a restart would be no help."""

import asyncio

import pytest
from resource_world import Cluster, OperatorProcess

from gpuspawner.cli.kube.operate import Rounds
from gpuspawner.core.errors import Unavailable
from gpuspawner.service.loops import HANGS_SECONDS, Health


@pytest.fixture
def operator(world):
    world.hub.add("ada")
    return OperatorProcess(world, Cluster())


async def rounds_for(operator, seconds):
    """Run rounds for the given seconds, as the service's loop does, whatever exception each raises."""
    for _ in range(int(seconds / 2) + 1):
        await asyncio.gather(operator.operator.round(), return_exceptions=True)
        await asyncio.sleep(0)
        operator.world.clock.advance(2.0)


def hanging(operator):
    health = Health(lambda: "")
    health.watch("the operator", operator.operator.stuck_seconds)
    return health.find_hanging()


async def test_a_hanging_step_makes_the_operator_unhealthy(operator, monkeypatch):
    async def hangs(*_):
        await asyncio.Event().wait()

    operator.cluster.apply("train")
    await operator.rounds()
    await rounds_for(operator, 3 * HANGS_SECONDS)
    assert hanging(operator) == [], "there is nothing to do"
    monkeypatch.setattr(operator.cluster, "hold", hangs)
    operator.cluster.apply("second", server="second")
    await rounds_for(operator, HANGS_SECONDS - 4)
    assert hanging(operator) == []
    await rounds_for(operator, 4)
    assert hanging(operator) == ["the operator"]
    await operator.operator.close()
    assert hanging(operator) == []


async def test_failing_rounds_make_the_operator_unhealthy_and_outages_do_not(operator, monkeypatch):
    def fail(error):
        async def fails():
            raise error

        monkeypatch.setattr(operator.cluster, "refuses", fails)

    await operator.rounds()
    fail(Unavailable("The cluster does not answer."))
    await rounds_for(operator, 3 * HANGS_SECONDS)
    assert hanging(operator) == []
    fail(KeyError("spec"))
    await rounds_for(operator, HANGS_SECONDS + 4)
    assert hanging(operator) == ["the operator"]
    monkeypatch.undo()
    await rounds_for(operator, 0)
    assert hanging(operator) == []


async def test_each_round_of_a_separate_process_reports_whether_it_failed():
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
