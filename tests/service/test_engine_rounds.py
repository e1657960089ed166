"""Bringing leases in line with what hub and backend show."""

import asyncio
from dataclasses import replace

import pytest
from service_world import SECRET

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.exits import ExitReason, vanished
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.engine import QUESTIONS_AT_ONCE
from gpuspawner.service.engine.hub_state import HUB_AWAY_SECONDS
from gpuspawner.service.engine.lease_documents import lease_variables


async def starting(world, user="alice", server=""):
    """A start whose grant was taken, without a process yet."""
    if not world.allocator.observed.hub_answers:
        await world.round()
    return await world.acknowledge(await world.start(user, server))


async def test_a_start_with_a_heartbeat_or_a_process_is_not_dropped(world):
    beating, created = await starting(world), await starting(world, "bob")
    world.backend.run(created.id, 1, lease_variables(created, SECRET))
    for _ in range(60):
        await world.parts.attempts.hear(beating.id, 1)
        await world.go_on(60)
    assert [world.now_of(x).phase for x in (beating, created)] == [Phase.STARTING] * 2


async def test_a_missing_heartbeat_counts_from_the_start_of_the_service(world):
    lease = await starting(world)
    world.clock.advance(3600)
    world.boot()
    await world.go_on(60, step=10)
    assert world.now_of(lease).phase is Phase.STARTING
    await world.go_on(10, step=5)
    assert world.now_of(lease).phase is Phase.PARKED


async def test_a_start_that_appears_while_a_round_waits_for_the_hub_is_not_dropped(world):
    """The look at processes is a minute old by the time of the step: it says nothing about the silence since."""
    lease = await starting(world)
    servers = world.hub.servers

    async def hangs():
        world.backend.run(lease.id, 1, lease_variables(lease, SECRET))
        world.clock.advance(61)
        return await servers()

    world.hub.servers = hangs
    world.clock.advance(11)
    await world.round()
    assert world.now_of(lease).phase is Phase.STARTING


async def test_an_unused_reservation_expires(world):
    await world.round()
    lease = await world.start("alice")
    await world.go_on(30, step=5)
    assert world.now_of(lease).phase is Phase.RESERVED
    await world.go_on(5, step=5)
    parked = world.now_of(lease)
    assert (parked.phase, parked.attempt, parked.not_before) == (Phase.PARKED, 1, world.clock.now() + 60)
    bob = await world.start("bob", count=2)
    assert bob.phase is Phase.RESERVED, "others pass meanwhile"


async def test_a_dropped_attempt_that_comes_up_late_is_ended_and_the_start_made_again(world):
    lease = await starting(world)
    await world.go_on(65, step=5)
    world.backend.run(lease.id, 1, lease_variables(lease, SECRET))
    assert not await world.speaks(lease)
    await world.go_on(10, step=5)
    assert not world.backend.running
    assert world.now_of(lease).phase is Phase.PARKED


async def test_leftovers_of_an_earlier_start_do_not_block_their_own_lease(make_world):
    world = make_world(gpus=1)
    await world.round()
    lease = await world.create(await world.start("alice"))
    await world.round()
    changed = await world.start("alice", memory="1GiB")
    assert world.registry.get(changed.id).phase is Phase.QUEUED
    await world.go_on(2, step=1)
    assert not world.backend.running
    assert world.registry.get(lease.id).phase is Phase.RESERVED


async def test_a_workspace_runs_once_the_server_of_its_own_attempt_answers(world):
    lease = await starting(world)
    world.hub.answer("alice")
    await world.round()
    assert world.now_of(lease).phase is Phase.STARTING, "nothing runs"
    world.backend.run(lease.id, 7, lease_variables(lease, SECRET))
    await world.round()
    assert world.now_of(lease).phase is Phase.STARTING, "another attempt runs"
    world.backend.vanish(lease.id)
    world.backend.run(lease.id, 1, lease_variables(lease, SECRET))
    world.hub.put("alice")
    await world.round()
    assert world.now_of(lease).phase is Phase.STARTING, "it does not answer"
    world.hub.answer("alice")
    await world.round()
    assert world.now_of(lease).phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("hub", "process", "ends"), [(False, False, True), (True, False, False), (False, True, False), (None, False, False)]
)
async def test_a_workspace_has_ended_only_when_hub_and_backend_both_say_so(world, hub, process, ends):
    lease = await world.up("alice")
    if hub is False:
        world.hub.forget("alice")
    elif hub is None:
        world.hub.unreachable = "The hub does not answer."
    if not process:
        world.backend.vanish(lease.id)
    await world.go_on(60, step=2)
    assert (world.now_of(lease).phase is Phase.ENDED) == ends


async def test_a_lease_does_not_take_a_newer_server_for_its_own_that_was_started_without_gpuspawner(world):
    lease = await world.up("alice")
    world.crash()
    world.backend.vanish(lease.id)
    world.clock.advance(60)
    world.hub.put("alice", ready=True)
    world.boot()
    await world.go_on(30, step=2)
    ended = world.now_of(lease)
    assert (ended.phase, ended.reason, ended.message) == (
        Phase.ENDED,
        ExitReason.ORPHANED,
        vanished(disruption="", newer_server=True, adopted=False).message,
    )
    assert world.hub.calls == [], "the newer server is left alone"
    adopted = world.registry.of_key(lease.key)
    assert (adopted.phase, adopted.adopted, adopted.deadline_at, adopted.slots) == (Phase.RUNNING, True, None, ())


async def test_a_lease_whose_process_still_runs_is_not_ended_for_a_newer_server(world):
    lease = await world.up("alice")
    world.clock.advance(60)
    world.hub.put("alice", ready=True)
    world.shows(lease, 50)
    await world.go_on(400, step=5)
    assert world.now_of(lease).phase is Phase.RUNNING


async def test_nothing_changes_while_the_backend_can_t_be_seen(world):
    lease = await world.up("alice")
    world.backend.unreachable = "The machine does not answer."
    world.hub.forget("alice")
    await world.parts.engine.round()
    world.clock.advance(3600)
    await world.parts.engine.round()
    assert world.now_of(lease).phase is Phase.RUNNING


async def test_a_request_without_a_heartbeat_is_parked(make_world):
    world = make_world(gpus=1)
    await world.up("alice")
    silent, heard = await world.start("bob"), await world.start("carol")
    for _ in range(7):
        await world.parts.attempts.hear(heard.id, 1)
        await world.go_on(5, step=5)
    assert [world.registry.get(x.id).phase for x in (silent, heard)] == [Phase.PARKED, Phase.QUEUED]


async def test_an_error_of_one_lease_does_not_block_others(world):
    stuck, fine = await world.up("alice"), await world.up("bob")
    for lease in (stuck, fine):
        world.hub.forget(lease.user)
        world.backend.vanish(lease.id)
    server = world.hub.server

    async def troubled(user, name):
        if user == "alice":
            world.hub.unreachable = "The hub answered 500."
        try:
            return await server(user, name)
        finally:
            world.hub.unreachable = ""

    world.hub.server = troubled
    await world.go_on(20, step=2)
    assert world.now_of(fine).phase is Phase.ENDED
    assert world.now_of(stuck).phase is Phase.RUNNING


async def test_a_step_that_fails_is_logged_and_taken_again(world, caplog):
    lease = await world.up("alice")
    await world.stop(lease)
    stop, tries = world.hub.stop, []

    async def fails_once(user, name):
        tries.append(name)
        if len(tries) == 1:
            raise RuntimeError("broken")
        await stop(user, name)

    world.hub.stop = fails_once
    await world.go_on(30, step=5)
    assert world.now_of(lease).phase is Phase.ENDED
    assert "broken" in caplog.text


async def test_promise_1_a_workspace_whose_processes_are_not_seen_keeps_its_gpus(world):
    """The hub has it ready: a spawner whose processes the service may not read still uses its GPUs."""
    lease = await starting(world)
    world.hub.put("alice", ready=True)
    await world.go_on(200, step=5)
    assert world.now_of(lease).phase is Phase.RUNNING
    assert world.now_of(lease).slots == lease.slots


async def test_no_round_waits_for_the_hub_and_an_unreachable_hub_gets_few_requests(make_world):
    world = make_world(gpus=30, concurrent_starts=100)
    await world.round()
    ends = await world.up("zoe")
    warned = await world.up("walt")
    for i in range(27):
        await world.create(await world.start(f"user{i}"))
    waits = await world.start("last", count=2)
    never, asked = asyncio.Event(), []

    async def hangs(*who):
        asked.append(who)
        await never.wait()
        raise Unavailable("The hub does not answer.")

    world.hub.server = world.hub.servers = hangs
    world.clock.advance(1)
    world.backend.running[warned.id, 1] = replace(world.backend.running[warned.id, 1], disruption="Its node goes.")
    await world.hub_stops(ends)
    await asyncio.wait_for(world.parts.engine.round(), 5)
    assert world.registry.get(warned.id).disruption, "its user is warned"
    for _ in range(5):
        await asyncio.sleep(0)
        await world.registry.settled()
    assert world.now_of(waits).phase is Phase.RESERVED, "the next in line has its GPUs"
    assert len(asked) == QUESTIONS_AT_ONCE
    never.set()
    await world.settle()
    assert len(asked) == QUESTIONS_AT_ONCE, "those in flight were the last"
    before = len(asked)
    await world.go_on(30, step=1)
    assert set(asked[before:]) == {()}, "its list of servers alone is asked for"
    assert len(asked) - before <= 30 / HUB_AWAY_SECONDS + 1


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.RESERVED, Phase.STARTING, Phase.RUNNING])
async def test_an_outage_of_the_service_counts_as_no_silence_of_the_spawner(make_world, phase):
    world = make_world(gpus=1)
    await world.round()
    if phase is Phase.QUEUED:
        await world.up("bob")
    lease = await world.start("alice")
    if phase is Phase.STARTING:
        await world.acknowledge(lease)
    elif phase is Phase.RUNNING:
        await world.create(lease)
        world.hub.answer("alice")
        await world.round()
        world.hub.forget("alice")
        world.backend.vanish(lease.id)
        await world.round()  # what is gone from here may be told in a moment
    assert world.phase(lease) is phase
    world.clock.stop_for(3600)
    await world.go_on(2, step=1)
    assert world.phase(lease) is phase, "what was said meanwhile is heard first"
    await world.go_on(80, step=5)
    assert world.phase(lease) is not phase, "then silence counts again"


async def test_a_start_that_went_on_without_the_service_runs_with_its_own_request_and_did_not_fail(world):
    """The service was stopped meanwhile. After its restart, the spawner of the old request sends no heartbeats."""
    await world.round()
    lease = await world.start("alice", gpu="none", lifetime="2h")
    world.hub.answer("alice")
    await world.go_on(60, step=1)
    now = world.now_of(lease)
    assert (now.phase, now.request, now.failed_starts) == (Phase.RUNNING, lease.request, 0)
    assert now.deadline_at == now.running_at + 7200


async def test_a_workspace_that_runs_after_its_failed_end_is_restored(world):
    lease = await starting(world)
    for _ in range(4):
        await world.go_on(400, step=5)
    assert "3 tries" in world.now_of(lease).message
    world.hub.answer("alice")
    world.backend.run(lease.id, 3, lease_variables(lease, SECRET))
    await world.go_on(15, step=5)
    now = world.now_of(lease)
    assert (now.phase, now.request, now.attempt, now.slots) == (Phase.RUNNING, lease.request, 3, lease.slots)
    assert (now.reason, now.message, now.ended_at) == (None, "", None)
    assert [x.id for x in world.registry] == [lease.id], "nothing is adopted as unknown"


async def test_a_server_started_after_a_failed_end_is_not_taken_for_its_start(world):
    lease = await starting(world)
    for _ in range(4):
        await world.go_on(400, step=5)
    assert "3 tries" in world.now_of(lease).message
    world.hub.put("alice", ready=True)
    await world.go_on(15, step=5)
    assert world.phase(lease) is Phase.ENDED
    assert [x.adopted and not x.request.template for x in world.registry] == [True]


async def test_a_process_of_an_abandoned_start_is_not_ended_once_its_server_answers(world):
    lease = await starting(world)
    await world.go_on(65, step=5)
    assert world.phase(lease) is Phase.PARKED
    world.hub.answer("alice")
    await world.go_on(10, step=1)
    world.backend.run(lease.id, 1, lease_variables(lease, SECRET))
    await world.go_on(10, step=1)
    now = world.now_of(lease)
    assert (now.phase, now.attempt, now.slots) == (Phase.RUNNING, 1, lease.slots)
    assert world.backend.running


@pytest.mark.parametrize("list_is", ["older", "not there after a restart", "not there as the hub is away"])
async def test_a_process_of_an_abandoned_start_is_not_ended_by_an_old_list(world, list_is):
    lease = await starting(world)
    await world.go_on(65, step=5)
    assert world.phase(lease) is Phase.PARKED
    world.hub.answer("alice")
    world.backend.run(lease.id, 1, lease_variables(lease, SECRET))
    if "restart" in list_is:
        world.boot()
    world.hub.unreachable = "busy" if "away" in list_is else ""
    await world.go_on(3, step=1)
    assert world.backend.running
    world.hub.unreachable = ""
    await world.go_on(15, step=1)
    assert world.phase(lease) is Phase.RUNNING


async def test_promise_1_a_late_start_gets_no_gpu_that_another_lease_has(make_world):
    world = make_world(gpus=1)
    lease = await starting(world)
    for _ in range(4):
        await world.go_on(400, step=5)
    assert "3 tries" in world.now_of(lease).message
    holder = await world.up("bob")
    world.hub.answer("alice")
    await world.go_on(15, step=5)
    assert world.now_of(lease).phase is Phase.RUNNING
    assert (world.now_of(lease).slots, world.now_of(holder).slots) == ((), holder.slots)
