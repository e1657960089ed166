"""Estimates of starts go by the ended workspaces in the store, and no grant waits for them."""

import sys
from dataclasses import replace

from service_world import World

from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.core.leases.steps import NEAR_START_SECONDS
from gpuspawner.core.queue.calibration import Form
from gpuspawner.core.queue.run_times import LEAST_RUNS
from gpuspawner.core.rules import WaitReason
from gpuspawner.service.engine.allocation import estimates
from gpuspawner.service.engine.allocation.estimates import EVERY_SECONDS
from gpuspawner.service.process.start_up import take_short_turns
from gpuspawner.service.waiting.presenter import ESTIMATED_SOON, FAR_BACK, FEW_PAST, present_waiting


async def a_world(path, runs=LEAST_RUNS, seconds=1200.0):
    """Return a world with one GPU, a workspace on it, a history of past workspaces, and the running workspace."""
    world = World(path / "s.sqlite", gpus=1)
    await world.round()
    up = await world.up("anna")
    past = [
        replace(
            up, id=f"past{number}", key=Key(up.key.hub, "other", f"{number}"), phase=Phase.ENDED, slots=(),
            running_at=up.asked_at - 90000, ended_at=up.asked_at - 90000 + seconds, reason=ExitReason.STOPPED,
        )
        for number in range(runs)
    ]  # fmt: skip
    world.parts.store.save(past)
    world.boot()
    await world.round()
    return world, world.now_of(up)


def test_a_thread_that_computes_lets_a_grant_go_on_after_a_short_turn():
    usual = sys.getswitchinterval()
    try:
        take_short_turns()
        assert 20 * sys.getswitchinterval() <= usual, "a grant waits for several turns"
    finally:
        sys.setswitchinterval(usual)


async def test_a_start_is_estimated_by_the_workspaces_that_ended_before_the_service_started(tmp_path):
    world, up = await a_world(tmp_path)
    waits = await world.ask("bert", lifetime="1h")
    await world.round()
    world.clock.advance(60)
    shown = world.allocator.estimator.shown(waits.id)
    assert shown.from_seconds == shown.to_seconds == up.running_at + 1200 - world.clock.now()
    assert (shown.form, shown.seconds) == (Form.HOUR, None), "no outcome is known by which a time could be shown"
    place = world.parts.queue.place(waits)
    assert place.unchanged_seconds == up.deadline_at - world.clock.now(), "it goes by the deadline"
    world.crash()


async def test_with_too_few_ended_workspaces_nothing_is_estimated(tmp_path):
    world, up = await a_world(tmp_path, runs=LEAST_RUNS - 1)
    waits = await world.ask("bert", lifetime="1h")
    await world.round()
    assert world.allocator.estimator.shown(waits.id) is None
    assert FEW_PAST in present_waiting(world.parts, world.now_of(waits)).sentence
    await world.hub_stops(up)
    await world.round()
    assert world.now_of(waits).phase is Phase.RESERVED
    await world.ask("carl", lifetime="1h")
    world.clock.advance(EVERY_SECONDS)
    await world.round()
    assert world.allocator.estimator._run_times.is_known, "it learns from the workspace that has ended since"
    world.crash()


async def test_estimates_are_made_every_two_minutes_and_at_once_for_a_new_request(tmp_path):
    world, _ = await a_world(tmp_path)
    estimator, waits = world.allocator.estimator, await world.ask("bert", lifetime="1h")
    await world.round()
    made = estimator._made_at
    await world.round()
    assert estimator._made_at == made
    late = await world.ask("carl", lifetime="1h")
    world.clock.advance(estimator._took_seconds * 10)
    await world.round()
    assert estimator._made_at > made
    assert estimator.shown(waits.id).to_seconds < estimator.shown(late.id).to_seconds
    made = estimator._made_at
    world.clock.advance(EVERY_SECONDS)
    await world.round()
    assert estimator._made_at > made
    assert estimator.shown("nobody") is None
    world.crash()


async def test_a_request_far_back_in_line_says_so_and_causes_no_more_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "MOST_ESTIMATED", 1)
    world, _ = await a_world(tmp_path)
    estimator, first = world.allocator.estimator, await world.ask("bert", lifetime="1h")
    await world.round()
    far = await world.ask("carl", lifetime="1h")
    assert ESTIMATED_SOON in present_waiting(world.parts, world.now_of(far)).sentence
    world.clock.advance(estimator._took_seconds * 10)
    await world.round()
    made = estimator._made_at
    assert estimator.shown(first.id) is not None
    assert FAR_BACK in present_waiting(world.parts, world.now_of(far)).sentence
    world.clock.advance(EVERY_SECONDS - 1)
    await world.round()
    assert estimator._made_at == made
    world.crash()


async def test_a_request_that_a_rule_holds_back_gets_no_estimate(tmp_path):
    world, _ = await a_world(tmp_path)
    waits = await world.ask("bert", lifetime="1h")
    held = world.now_of(waits)
    assert world.allocator.estimator._is_estimated(held)
    paused = WaitReason("paused", "Starts are paused.", world.clock.now())
    assert not world.allocator.estimator._is_estimated(replace(held, wait_reason=paused))
    world.crash()


async def test_a_user_is_told_once_when_the_start_is_about_10_minutes_away(tmp_path):
    world, up = await a_world(tmp_path, seconds=2400.0)
    world.shows(up, 80)
    waits = await world.ask("bert", lifetime="1h")
    for _ in range(34):
        await world.go_on(60)
        near = [line for line in world.parts.store.audit_log.latest(waits.id) if line.event.action == "start near"]
        left_seconds = up.running_at + 2400 - world.clock.now()
        assert not near or left_seconds <= NEAR_START_SECONDS + 120
    assert world.now_of(waits).phase is Phase.PARKED
    assert left_seconds > 0
    assert len(near) == 1, "it waits still, and is not told again"
    assert near[0].event.describe(near[0].at) in {"probably in about 9 min", "probably in about 10 min"}
    world.boot()
    await world.go_on(180)
    lines = world.parts.store.audit_log.latest(waits.id)
    assert sum(line.event.action == "start near" for line in lines) == 1, "also after a restart"
    world.crash()


async def test_the_history_says_why_an_estimate_moved(tmp_path):
    world, up = await a_world(tmp_path, seconds=8 * 3600.0)
    world.shows(up, 80)
    await world.registry.save(replace(up, deadline_at=world.clock.now() + 3600))
    waits = await world.ask("bert", lifetime="1h")
    await world.go_on(180)

    def told():
        lines = world.parts.store.audit_log.latest(waits.id)
        return [line.event.describe(line.at) for line in lines if line.event.action == "estimate moved"]

    first = world.allocator.estimator._estimates[waits.id].point_seconds
    assert told() == []
    extended = replace(world.now_of(up), deadline_at=world.now_of(up).deadline_at + 3000)
    await world.registry.save(extended)
    world.clock.advance(EVERY_SECONDS)
    await world.round()
    assert world.allocator.estimator._estimates[waits.id].point_seconds > first
    assert told() == ["1 workspace was extended: about 50 min later"]
    await world.go_on(2 * EVERY_SECONDS)
    assert len(told()) == 1, "it did not move again"
    world.crash()
