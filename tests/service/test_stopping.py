"""Promise 3: only the engine stops workspaces, by what is true then, and a killed service carries a stop on."""

import asyncio

import pytest
from service_world import GRACE, IDLE_FOR, Killed, Life

from gpuspawner.core.errors import Conflict, Superseded
from gpuspawner.core.leases.exits import Exit, ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.engine import LeaseEngine


async def in_grace(world, left_seconds=0.0):
    """A workspace whose next idle sample ends its grace."""
    lease = await world.up("alice")
    await world.go_on(IDLE_FOR + 60 + GRACE - 60)
    lease = world.registry.get(lease.id)
    assert (lease.phase, lease.streak.grace_left_seconds) == (Phase.RECLAIMING, 60.0)
    return lease


async def reclaim(world):
    """Take the sample that ends the grace, and act on it."""
    world.clock.advance(60)
    await world.sample()
    await world.round()


async def test_promise_3_a_workspace_idle_to_its_last_sample_is_stopped(world):
    lease = await in_grace(world)
    await reclaim(world)
    assert world.hub.calls == [("stop", "alice", lease.server_started)]
    assert world.now_of(lease).reason is ExitReason.IDLE


async def test_promise_3_a_new_busy_sample_saves_it(world):
    lease = await in_grace(world)
    world.shows(lease, 50)
    await reclaim(world)
    assert (world.now_of(lease).phase, world.hub.calls) == (Phase.RUNNING, [])
    assert world.did(lease)[-1] == "grace ended"


@pytest.mark.parametrize("what", ["keep", "newer sample", "another server"])
async def test_promise_3_a_change_between_verdict_and_stop_saves_a_workspace(world, monkeypatch, what):
    lease = await in_grace(world)
    judge_now = LeaseEngine.judge_sample

    async def meanwhile(engine, *sampled):
        current = world.registry.get(lease.id)
        if what == "keep":
            await world.parts.actions.keep(current, "alice")
        elif what == "newer sample":
            await world.registry.save(type(current)(**{**vars(current), "sampled_at": world.clock.now() + 1}))
        else:
            await world.registry.save(type(current)(**{**vars(current), "server_started": "later"}))
        return await judge_now(engine, *sampled)

    monkeypatch.setattr(LeaseEngine, "judge_sample", meanwhile)
    await reclaim(world)
    assert world.now_of(lease).phase in {Phase.RUNNING, Phase.RECLAIMING}
    assert world.hub.calls == []
    assert "stop" not in world.did(lease)


async def test_promise_3_an_extension_saves_it_from_expiry(world):
    lease = await world.up("alice", lifetime="2h")
    world.shows(lease, 50)
    await world.go_on(7200 - 60)
    await world.parts.actions.extend(world.registry.get(lease.id), "alice")
    await world.go_on(120)
    assert (world.now_of(lease).phase, world.hub.calls) == (Phase.RUNNING, [])


async def test_promise_3_a_stop_needs_a_live_lease_and_its_condition(world):
    lease = await world.up("alice")
    mark = world.parts.engine.begin_stop
    with pytest.raises(Conflict):
        mark(lease.id, Exit(ExitReason.IDLE, "gpuspawner", "why"), lambda _: False)
    await mark(lease.id, Exit(ExitReason.STOPPED, "alice", "enough"))
    with pytest.raises(Conflict):
        mark(lease.id, Exit(ExitReason.IDLE, "gpuspawner", "why"))
    with pytest.raises(Conflict):
        mark("unknown", Exit(ExitReason.IDLE, "gpuspawner", "why"))
    assert world.now_of(lease).reason is ExitReason.STOPPED


async def test_promise_3_never_another_server_of_the_same_name(world):
    """The hub stopped and restarted it while the stop was on its way. The new server belongs to a user's work."""
    lease = await world.up("alice")
    await world.parts.engine.begin_stop(lease.id, Exit(ExitReason.IDLE, "gpuspawner", "why"))
    world.clock.advance(5)
    world.hub.put("alice")
    await world.round()
    assert world.hub.calls == []
    assert world.now_of(lease).phase is Phase.ENDED


async def test_promise_3_never_the_server_of_another_user_of_the_same_name(world):
    lease = await world.up("alice")
    await world.parts.engine.begin_stop(lease.id, Exit(ExitReason.IDLE, "gpuspawner", "why"))
    server = world.hub.listed["alice", ""]
    world.hub.listed["alice", ""] = type(server)(**{**vars(server), "user_created": "alice born again"})
    await world.round()
    assert world.hub.calls == []


async def test_promise_3_a_cancelled_start_s_stop_is_not_repeated_on_the_next_start(world):
    await world.round()
    lease = await world.acknowledge(await world.start("alice"))
    world.hub.stops_slowly = True
    await world.parts.engine.begin_stop(lease.id, Exit(ExitReason.CANCELLED, "alice", "not now"))
    await world.round()
    assert len(world.hub.calls) == 1
    world.clock.advance(60)
    world.hub.put("alice")  # the first is gone, and its user has pressed Start again
    await world.go_on(30, step=5)
    assert len(world.hub.calls) == 1
    assert world.now_of(lease).phase is Phase.ENDED


async def test_promise_3_a_stop_is_sent_again_only_after_a_while(world):
    lease = await world.up("alice")
    stop = world.hub.stop

    async def ignored(user, name):
        await stop(user, name)
        world.hub.listed[user, name] = server

    server = world.hub.listed["alice", ""]
    world.hub.stop = ignored
    await world.parts.engine.begin_stop(lease.id, Exit(ExitReason.IDLE, "gpuspawner", "why"))
    await world.go_on(9, step=1)
    assert len(world.hub.calls) == 1
    await world.go_on(3, step=1)
    assert len(world.hub.calls) == 2


async def test_promise_3_a_service_that_was_replaced_stops_nothing(world):
    lease = await world.up("alice")
    old = world.parts
    await old.engine.begin_stop(lease.id, Exit(ExitReason.IDLE, "gpuspawner", "why"))
    world.parts = None
    world.boot()  # raises the epoch; the old service does not know it yet
    with pytest.raises(Superseded):
        await old.engine.drive(lease.id)
    with pytest.raises(Superseded):
        await old.engine.end_unknown("leftover", "alice", "why")
    assert world.hub.calls == []
    assert ("end", "leftover") not in world.backend.calls
    old.store.close()
    await world.go_on(2, step=1)  # what the hub has, then the stop
    assert world.hub.calls == [("stop", "alice", lease.server_started)]


async def test_nothing_ends_while_the_hub_does_not_answer(world):
    lease = await world.up("alice")
    await world.stop(lease)
    world.hub.unreachable = "The hub does not answer."
    await world.go_on(60, step=5)
    assert world.now_of(lease).phase is Phase.STOPPING
    assert (lease.id, 1) in world.backend.running
    world.hub.unreachable = ""
    await world.go_on(4, step=1)
    assert world.now_of(lease).phase is Phase.ENDED
    assert (lease.id, 1) not in world.backend.running


async def test_a_waiting_lease_is_withdrawn_at_once(make_world):
    world = make_world(gpus=1)
    await world.up("alice")
    waiting = await world.start("bob")
    await world.parts.engine.begin_stop(waiting.id, Exit(ExitReason.CANCELLED, "bob", "The request was withdrawn."))
    assert world.now_of(waiting).phase is Phase.ENDED
    assert not await world.speaks(waiting)


async def test_two_steps_of_one_stop_never_run_at_once(world):
    lease = await world.up("alice")
    await world.stop(lease)
    await asyncio.gather(*(world.parts.engine.drive(lease.id) for _ in range(3)))
    assert len(world.hub.calls) == 1


# Sample, mark with its evidence, note of the stop, the stop, note that it is gone, the end of processes, the end.
@pytest.mark.parametrize("half", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("effects", range(6))
async def test_promise_3_a_service_killed_at_any_step_of_a_reclaim_has_it_carried_on(world, effects, half):
    lease = await in_grace(world)
    evidence = len(world.parts.store.readings.of_lease(lease.id))
    # A restart in the grace leaves time to object: the kill comes at the sample after that.
    world.boot(life := Life())
    await world.round()
    while world.registry.get(lease.id).streak.grace_left_seconds > 60:
        await world.go_on(61)
    world.clock.advance(61)
    life.left, life.half = effects, half
    await world.sample()
    await world.rounds(2)
    assert life.over
    world.boot()
    await world.round()
    if world.registry.get(lease.id) is not None:
        await world.go_on(GRACE + 120)
    ended = world.now_of(lease)
    assert (ended.phase, ended.reason, ended.ended_by) == (Phase.ENDED, ExitReason.IDLE, "gpuspawner")
    assert ("alice", "") not in world.hub.listed
    assert not world.backend.running
    assert set(world.hub.calls) == {("stop", "alice", lease.server_started)}
    assert world.did(lease).count("stop") == 1
    kept = [row for row in world.parts.store.readings.of_lease(lease.id) if row.kept]
    assert len(kept) >= evidence


async def test_a_killed_service_does_nothing_more(world):
    lease = await world.up("alice")
    world.life.left = 0
    with pytest.raises(Killed):
        await world.stop(lease)
    world.boot()
    assert world.registry.get(lease.id).phase is Phase.RUNNING
