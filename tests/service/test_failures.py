"""A fault of ours in one step, for one lease or in one listener, holds up nothing else, and is shown."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from lease_builders import a_lease
from store_builders import FULL_LEASE

from gpuspawner.core import events
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases import lifetimes
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.administration.problems import find_problems
from gpuspawner.service.engine.engine import STEP
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.failures import LONGEST_PAUSE_SECONDS, Failures
from gpuspawner.service.loops import HANGS_SECONDS, Health, LivenessProbe, Loops, ReadinessProbe, cancel_all
from gpuspawner.service.metrics.collector import ServiceCollector
from gpuspawner.service.rules import policies

BUDGET = 5.0


class PlantedFault(Exception):
    """An exception that no code expects."""


FAULTS = [PlantedFault, Unavailable]
"""A listener may fail by an error that others expect, too."""


def failing_once(call, error=PlantedFault):
    """Return a function that fails once, and then is the call."""
    left = [1]

    def fail(*arguments, **named):
        if left:
            left.pop()
            raise error("planted")
        return call(*arguments, **named)

    return fail


def fail_always(*_arguments, **_named):
    raise PlantedFault


@pytest.mark.parametrize("error", FAULTS)
@pytest.mark.parametrize("listener", ["start_times.note", "on_stored", "charging.keep_stored", "messages_of"])
async def test_a_fault_of_a_listener_of_a_commit_fails_no_write(world, listener, error):
    registry = world.registry
    owner, name = (registry, listener) if "." not in listener else (getattr(registry, listener.split(".")[0]), "note")
    name = listener.rpartition(".")[2] or name
    setattr(owner, name, failing_once(getattr(owner, name), error))
    line = world.allocator.commits.line(FULL_LEASE, "root", events.Answered("Yes."))
    saves = [registry.save(FULL_LEASE, audit=[line]), registry.save(a_lease())]
    await asyncio.wait_for(asyncio.gather(*saves), BUDGET)
    await asyncio.wait_for(registry.stored(FULL_LEASE.id), BUDGET)
    await asyncio.wait_for(registry.save(replace(FULL_LEASE, sampled_at=9.0)), BUDGET)
    assert world.now_of(FULL_LEASE).sampled_at == 9.0
    assert sum(registry.failures.counts.values()) == 1


async def test_gpus_are_granted_after_a_fault_of_a_listener(world):
    await world.round()
    world.registry.start_times.note = failing_once(world.registry.start_times.note)
    first = await asyncio.wait_for(world.start("alice"), BUDGET)
    second = await asyncio.wait_for(world.start("bob"), BUDGET)
    assert (world.phase(first), world.phase(second)) == (Phase.RESERVED, Phase.RESERVED)


async def test_a_fault_while_a_failed_write_is_undone_leaves_no_save_waiting(store, monkeypatch):
    registry = LeaseRegistry(store)
    monkeypatch.setattr(registry, "_go_back", fail_always)
    monkeypatch.setattr(store, "save", lambda *_: (_ for _ in ()).throw(Unavailable("away")))
    with pytest.raises((Unavailable, PlantedFault)):
        await asyncio.wait_for(registry.save(FULL_LEASE), BUDGET)


async def two_at_their_end(world, monkeypatch):
    """Return two running workspaces at the end of their lifetime; judging the first one fails."""
    bad, good = await world.up("alice"), await world.up("bob")
    judge = lifetimes.due_warnings

    def due_warnings(deadline_at, *arguments):
        if deadline_at == bad.deadline_at:
            raise PlantedFault
        return judge(deadline_at, *arguments)

    monkeypatch.setattr(lifetimes, "due_warnings", due_warnings)
    return bad, good


async def test_a_lease_whose_judgement_fails_keeps_no_other_from_its_deadline(world, monkeypatch, caplog):
    bad, good = await two_at_their_end(world, monkeypatch)
    await world.go_on(good.deadline_at - world.clock.now() + 3600, step=600)
    assert world.phase(bad) is Phase.RUNNING
    assert world.phase(good) in {Phase.STOPPING, Phase.ENDED}
    assert "warned-of-end" in world.did(good) or any("warn" in action for action in world.did(good))
    tracebacks = [x for x in caplog.records if x.name == "gpuspawner.failures" and x.exc_info]
    assert [x.args[0] for x in tracebacks] == [STEP]
    assert world.registry.failures.counts[STEP] >= 1


async def test_a_failing_step_is_shown_to_administrators_and_counted(world, monkeypatch):
    bad, _ = await two_at_their_end(world, monkeypatch)
    await world.sample()
    found = [one for one in find_problems(world.parts, [], []) if STEP in one.what]
    assert [(one.grave, one.pages[0][0].partition(":")[0]) for one in found] == [
        (False, f"{bad.user} / default workspace")
    ]
    metrics = {metric.name: metric for metric in ServiceCollector(world.parts).collect()}
    (sample,) = metrics["gpuspawner_step_failures"].samples
    assert (sample.labels, sample.value) == ({"step": STEP}, 1)


async def test_a_lease_that_works_again_is_judged_again(world, monkeypatch):
    bad, _ = await two_at_their_end(world, monkeypatch)
    world.registry.failures._clock = world.clock.now
    await world.go_on(120)
    monkeypatch.undo()
    world.clock.advance(LONGEST_PAUSE_SECONDS)
    await world.go_on(bad.deadline_at - world.clock.now() + 3600, step=600)
    assert world.phase(bad) in {Phase.STOPPING, Phase.ENDED}
    assert world.registry.failures.now() == []


@pytest.mark.parametrize("part", ["engine._move", "allocator._end_if_not_offered", "sampler"])
async def test_a_lease_that_fails_in_a_round_holds_up_no_other(world, monkeypatch, part):
    bad = await world.start("alice", gpu="a100", count=2)
    name = part.rpartition(".")[2]
    owner = {"_move": world.parts.engine, "_end_if_not_offered": world.allocator}.get(name)
    if owner is None:
        policy_of = policies.idle_policy_of
        planted = "gpuspawner.service.engine.sampling.sampler.idle_policy_of"
        monkeypatch.setattr(planted, lambda c, x, now: fail_always() if x.id == bad.id else policy_of(c, x, now))
    else:
        step = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda x: fail_always() if x.id == bad.id else step(x))
    good = await world.start("bob")
    await world.hub_stops(bad) if name == "sampler" else None
    await world.go_on(600)
    assert world.registry.get(good.id) is not None or world.phase(good) is Phase.ENDED


async def test_a_failing_step_is_retried_with_a_growing_pause():
    now = [0.0]
    failures, tries = Failures(lambda: now[0]), []
    for now[0] in range(600):
        if failures.may_try("step", "x"):
            tries.append(now[0])
            failures.note("step", "x", PlantedFault())
    pauses = [b - a for a, b in pairwise(tries)]
    assert pauses[:4] == [1, 2, 4, 8]
    assert max(pauses) == LONGEST_PAUSE_SECONDS
    failures.clear("step", "x")
    assert failures.may_try("step", "x")
    assert failures.counts["step"] == len(tries)


def test_both_health_probes_report_a_loop_whose_rounds_fail():
    now = [0.0]
    health = Health(lambda: "", lambda: now[0])
    health.note_round("round", 0.3)
    while now[0] <= HANGS_SECONDS:
        now[0] += 0.3
        health.note_failed_round("round", PlantedFault())
    for probe in (LivenessProbe, ReadinessProbe):
        asked = probe.__new__(probe)
        asked.health = health
        assert "round (401 rounds failed, the last by PlantedFault)" in asked.problem()
    health.note_round("round", 0.3)
    assert health.find_hanging() == []


async def test_a_failing_loop_is_unhealthy_and_a_waiting_one_is_not():
    now = [0.0]
    health, failures = Health(lambda: "", lambda: now[0]), Failures(lambda: now[0])
    loops = Loops(health, failures, lambda _why: None)

    async def wait():
        raise Unavailable("away")

    tasks = [asyncio.create_task(loops.every(0.001, step)) for step in (wait, _fail)]
    await asyncio.sleep(0.02)
    now[0] = HANGS_SECONDS + 1
    await asyncio.sleep(0.02)
    await cancel_all(tasks)
    assert [one.partition(" ")[0] for one in health.find_hanging()] == ["_fail"]
    assert failures.counts["_fail"] > 1


async def _fail():
    raise PlantedFault
