"""Bringing leases in line with what hub and backend show."""

import asyncio
import json
import logging
from dataclasses import replace

import pytest
from service_world import SECRET

from gpuspawner.core.lease import Phase, Reason
from gpuspawner.service.adoption import lease_variables
from gpuspawner.service.reconciler import NEWER_SERVER


async def starting(world, user="alice", server=""):
    """A start whose grant was taken, without a process yet."""
    if not world.allocator.hub_answers:
        await world.round()
    return await world.acknowledge(world.start(user, server))


async def test_a_start_without_heartbeat_and_process_parks_backs_off_and_the_third_ends(world):
    lease = await starting(world)
    await world.go_on(60, step=5)
    assert world.now_of(lease).phase is Phase.STARTING
    waits = []
    for _ in range(2):
        await world.go_on(5, step=5)
        parked = world.now_of(lease)
        assert (parked.phase, parked.asked_at, parked.slots) == (Phase.PARKED, lease.asked_at, ())
        waits.append(parked.not_before - world.clock.now())
        world.hub.forget("alice")
        await world.go_on(waits[-1] + 1, step=5)
        again = world.ask("alice")  # the service had the hub start it
        assert world.hub.calls[-1][:2] == ("start", "alice")
        await world.acknowledge(again)
        await world.go_on(60, step=5)
    await world.go_on(5, step=5)
    assert waits == [60.0, 120.0]
    ended = world.now_of(lease)
    assert (ended.phase, ended.reason) == (Phase.ENDED, Reason.FAILED)
    assert "3 tries" in ended.message


async def test_a_start_lives_as_long_as_its_heartbeat_or_its_process(world):
    beating, created = await starting(world), await starting(world, "bob")
    world.backend.run(created.id, 1, lease_variables(created, SECRET))
    for _ in range(60):
        world.allocator.hear(beating.id, 1)
        await world.go_on(60)
    assert [world.now_of(x).phase for x in (beating, created)] == [Phase.STARTING] * 2


async def test_the_silence_of_a_heartbeat_counts_from_the_service_s_own_start(world):
    lease = await starting(world)
    world.clock.advance(3600)
    world.boot()
    await world.go_on(60, step=10)
    assert world.now_of(lease).phase is Phase.STARTING
    await world.go_on(10, step=5)
    assert world.now_of(lease).phase is Phase.PARKED


async def test_what_came_up_while_a_round_waited_for_the_hub_is_not_dropped(world):
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


async def test_a_reservation_that_nobody_takes_up_lapses(world):
    await world.round()
    lease = world.start("alice")
    await world.go_on(30, step=5)
    assert world.now_of(lease).phase is Phase.RESERVED
    await world.go_on(5, step=5)
    parked = world.now_of(lease)
    assert (parked.phase, parked.attempt, parked.not_before) == (Phase.PARKED, 1, world.clock.now() + 60)
    bob = world.start("bob", count=2)
    assert bob.phase is Phase.RESERVED, "others pass meanwhile"


async def test_a_dropped_attempt_that_comes_up_late_is_ended_and_the_start_made_again(world):
    lease = await starting(world)
    await world.go_on(65, step=5)
    world.backend.run(lease.id, 1, lease_variables(lease, SECRET))
    assert not world.speaks(lease)
    await world.go_on(10, step=5)
    assert not world.backend.running
    assert world.now_of(lease).phase is Phase.PARKED


async def test_what_an_earlier_start_left_does_not_keep_its_own_lease_waiting(make_world):
    world = make_world(gpus=1)
    await world.round()
    lease = await world.create(world.start("alice"))
    await world.round()
    changed = world.start("alice", memory="1GiB")
    assert world.book.get(changed.id).phase is Phase.QUEUED
    await world.go_on(2, step=1)
    assert not world.backend.running
    assert world.book.get(lease.id).phase is Phase.RESERVED


async def test_running_is_the_server_s_own_attempt_answering(world):
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
    assert (ended.phase, ended.reason, ended.message) == (Phase.ENDED, Reason.ORPHANED, NEWER_SERVER)
    assert world.hub.calls == [], "the newer server is left alone"
    adopted = world.book.of_key(lease.key)
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
    await world.parts.reconciler.round()
    world.clock.advance(3600)
    await world.parts.reconciler.round()
    assert world.now_of(lease).phase is Phase.RUNNING


async def test_a_waiter_that_is_not_heard_parks_and_one_that_is_stays(make_world):
    world = make_world(gpus=1)
    await world.up("alice")
    silent, heard = world.start("bob"), world.start("carol")
    for _ in range(7):
        world.allocator.hear(heard.id, 1)
        await world.go_on(5, step=5)
    assert [world.book.get(x.id).phase for x in (silent, heard)] == [Phase.PARKED, Phase.QUEUED]


# Parked leases and the hub


async def test_a_parked_lease_is_granted_only_while_its_hub_answers_and_started_once(world):
    world.backend.complete = False
    await world.round()
    lease = world.start("alice", lifetime="2h")
    world.allocator.park(lease.id, 1)
    world.hub.forget("alice")
    world.backend.complete = True
    world.hub.unreachable = "The hub does not answer."
    await world.go_on(60, step=10)
    assert world.now_of(lease).phase is Phase.PARKED
    world.hub.unreachable = ""
    await world.go_on(20, step=5)
    assert world.now_of(lease).phase is Phase.RESERVED
    assert [call[:2] for call in world.hub.calls] == [("start", "alice")]
    await world.go_on(10, step=2)
    assert len(world.hub.calls) == 1


async def test_a_parked_lease_is_started_for_whoever_asked_whatever_the_name(world):
    world.backend.complete = False
    await world.round()
    leases = {name: world.start(name) for name in ("alice", "bob")}
    for name, lease in leases.items():
        world.allocator.park(lease.id, 1)
        world.hub.forget(name)
    world.hub.rename("alice", "alicia")
    world.hub.users["alice"] = world.hub.users["bob"] = "somebody else born"
    world.backend.complete = True
    await world.go_on(5, step=1)
    assert {world.now_of(lease).phase for lease in leases.values()} == {Phase.RESERVED}
    assert [call[:2] for call in world.hub.calls] == [("start", "alicia")], "nobody else's server starts"


async def test_a_parked_lease_granted_when_its_hub_dies_keeps_its_place(world):
    """Parked lease granted, start answered 202, hub dies: nobody takes the grant up."""
    world.backend.complete = False
    await world.round()
    lease = world.start("alice")
    world.allocator.park(lease.id, 1)
    world.hub.forget("alice")
    world.backend.complete = True
    await world.go_on(2, step=1)
    assert world.now_of(lease).phase is Phase.RESERVED
    world.hub.unreachable = "The hub does not answer."
    world.hub.forget("alice")
    await world.go_on(60, step=5)
    parked = world.now_of(lease)
    assert (parked.phase, parked.asked_at) == (Phase.PARKED, lease.asked_at)
    world.hub.unreachable = ""
    await world.go_on(120, step=5)
    assert [call[:2] for call in world.hub.calls] == [("start", "alice")] * 2


async def test_a_grant_s_start_does_not_wait_for_the_start_before_it(world):
    world.backend.complete = False
    await world.round()
    lease = world.start("alice")
    world.allocator.park(lease.id, 1)
    world.hub.forget("alice")
    started, never = [], asyncio.Event()

    async def slow(*_):
        started.append(world.clock.now())
        await never.wait()

    world.hub.start = slow
    world.backend.complete = True
    for _ in range(100):
        world.clock.advance(1)
        await world.parts.scheduler.observe(world.clock.now())
        await world.parts.reconciler.round()
        await asyncio.sleep(0)
    assert len(started) == 2  # the second after the lapse and its back-off
    await world.parts.reconciler.close()


# Adoption


async def test_a_pending_server_is_not_adopted_and_a_lease_follows_its_user_s_new_name(world):
    lease = await world.up("alice")
    world.hub.put("bob")
    world.hub.rename("alice", "alicia")
    await world.go_on(20, step=5)
    assert world.book.of_key(world.key("bob")) is None
    assert world.now_of(lease).user == "alicia"
    assert world.now_of(lease).phase is Phase.RUNNING


async def test_a_lease_ends_with_its_user_although_another_of_that_name_has_a_server(world):
    lease = await world.up("alice")
    world.backend.vanish(lease.id)
    world.hub.users["alice"] = "another alice born"
    world.hub.put("alice", ready=True)
    await world.go_on(60, step=5)
    assert world.now_of(lease).phase is Phase.ENDED


async def test_what_ended_while_the_hub_s_list_was_on_its_way_is_not_adopted(world):
    lease = await world.up("alice")
    server = world.hub.listed["alice", ""]

    async def late():
        world.hub_stops(lease)
        await world.parts.reclaimer.drive(lease.id)
        return (server,)

    world.hub.servers = late
    world.clock.advance(11)
    await world.round()
    assert list(world.book) == []


async def test_a_server_whose_process_carries_an_ended_lease_is_adopted_not_ended(world):
    lease = await world.up("alice")
    variables = lease_variables(lease, SECRET)
    world.hub_stops(lease)
    await world.go_on(5, step=1)
    world.backend.run(lease.id, 1, variables)  # a start that was given up on came up after all
    world.hub.put("alice", ready=True)
    await world.go_on(900, step=20)
    assert world.book.of_key(world.key("alice")).adopted
    assert (lease.id, 1) in world.backend.running
    assert world.allocator.others == lease.slots


@pytest.mark.parametrize(
    "document", ["", "{", "[]", '{"user": 1}', '{"user": "a", "slots": 3}', '{"slots": [["x"]]}', '{"slots": {"a": 1}}']
)
async def test_variables_that_say_nothing_believable_rebuild_nothing_and_are_left_alone(world, document):
    world.backend.run("odd", 1, {"GPUSPAWNER_HUB_ID": "hub-1", "GPUSPAWNER_LEASE": document})
    await world.go_on(900, step=30)
    assert list(world.book) == []
    assert ("odd", 1) in world.backend.running
    assert world.allocator.others == ()


async def test_another_hub_s_workspaces_are_neither_rebuilt_nor_ended(world):
    lease = await world.up("alice")
    world.backend.run("theirs", 1, {**lease_variables(lease, SECRET), "GPUSPAWNER_HUB_ID": "hub-2"})
    await world.go_on(900, step=30)
    assert ("theirs", 1) in world.backend.running
    assert world.book.get("theirs") is None


async def test_a_lease_is_rebuilt_from_its_newest_attempt(make_world):
    old = make_world()
    lease = await old.up("alice")
    new = make_world()
    new.hub = old.hub
    new.boot()
    for attempt in (1, 2):
        new.backend.run(lease.id, attempt, {**lease_variables(lease, SECRET)})
    await new.round()
    assert new.book.get(lease.id).attempt == 2


# Orphans


async def orphans(world, count):
    leases = [await world.up("alice", str(number)) for number in range(count)]
    for lease in leases:
        world.hub.forget("alice", lease.key.server)
    return leases


async def test_a_workspace_that_the_hub_forgot_is_ended_after_two_looks_five_minutes_apart(world):
    (lease,) = await orphans(world, 1)
    world.shows(lease, 50)
    await world.go_on(300, step=5)
    assert world.now_of(lease).phase is Phase.RUNNING
    await world.go_on(20, step=5)
    ended = world.now_of(lease)
    assert (ended.phase, ended.reason, ended.ended_by) == (Phase.ENDED, Reason.ORPHANED, "gpuspawner")
    assert not world.backend.running
    assert world.did(lease)[-1] == "stop"
    assert world.hub.calls == []


async def test_a_server_that_is_back_in_between_begins_the_five_minutes_anew(world):
    (lease,) = await orphans(world, 1)
    world.shows(lease, 50)
    await world.go_on(200, step=5)
    world.hub.put("alice", "0", ready=True)
    await world.go_on(20, step=5)
    world.hub.forget("alice", "0")
    await world.go_on(200, step=5)
    assert world.now_of(lease).phase is Phase.RUNNING


async def test_an_orphan_is_looked_up_once_more_before_it_is_ended(world):
    (lease,) = await orphans(world, 1)
    server = world.hub.put("alice", "0", ready=True)
    world.hub.forget("alice", "0")

    async def knows_it_when_asked(_user, _name):
        return server

    world.hub.server = knows_it_when_asked
    world.shows(lease, 50)
    await world.go_on(900, step=10)
    assert world.now_of(lease).phase is Phase.RUNNING


@pytest.mark.parametrize("what", ["the service restarts", "the hub does not answer", "the list is not complete"])
async def test_absence_counts_only_while_one_service_sees_it(world, what):
    (lease,) = await orphans(world, 1)
    world.shows(lease, 50)
    await world.go_on(290, step=5)
    if what == "the service restarts":
        world.boot()
        await world.go_on(200, step=5)
    else:
        world.hub.unreachable = what
        await world.go_on(3600, step=60)
    assert world.now_of(lease).phase is Phase.RUNNING


@pytest.mark.parametrize(("count", "running", "ended"), [(4, 4, 0), (4, 20, 4), (4, 19, 0), (3, 3, 3), (5, 25, 5)])
async def test_many_orphans_at_once_are_an_alert_and_nothing_is_ended(make_world, caplog, count, running, ended):
    world = make_world(gpus=32, concurrent_starts=50)
    for number in range(running - count):
        world.shows(await world.up("bob", str(number)), 50)
    leases = await orphans(world, count)
    for lease in leases:
        world.shows(lease, 50)
    caplog.set_level(logging.CRITICAL)
    await world.go_on(400, step=20)
    assert sum(world.now_of(lease).reason is Reason.ORPHANED for lease in leases) == ended
    assert bool(world.parts.reconciler.orphans.alert) == (ended == 0)


async def test_what_is_left_of_an_ended_lease_is_ended_and_recorded(world):
    lease = await world.up("alice")
    variables = lease_variables(lease, SECRET)
    world.hub_stops(lease)
    await world.go_on(5, step=1)
    newer = await world.up("alice")  # its server is the newer lease's
    world.shows(newer, 50)
    world.backend.run(lease.id, 1, variables)
    await world.go_on(320, step=5)
    assert set(world.backend.running) == {(newer.id, 1)}
    assert world.audit(lease)[-1] == (
        "gpuspawner",
        "stop",
        "orphaned: The hub no longer knew its server. Your files are untouched.",
    )


async def test_one_lease_s_trouble_does_not_hold_up_the_others(world):
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
    world.parts.reclaimer.mark(lease.id, Reason.STOPPED, "alice", "enough")
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


@pytest.mark.parametrize(
    "share",
    ["-1", "0", "2", "1/0", "-1/2", "1e9999999", "Infinity", "1/99999", "", "½"],
    ids=lambda share: share or "empty",
)
async def test_promise_1_a_share_that_is_none_neither_frees_a_gpu_nor_ends_the_round(world, share):
    taken = await world.up("alice")
    document = json.dumps({"slots": [[taken.slots[0].gpu, share]]})
    world.backend.run("odd", 1, {"GPUSPAWNER_HUB_ID": "hub-2", "GPUSPAWNER_LEASE": document})
    await world.round()
    assert world.allocator.others == ()


async def test_a_document_nested_without_end_is_left_alone(world):
    world.backend.run("odd", 1, {"GPUSPAWNER_LEASE": "[" * 60000})
    await world.round()
    assert world.allocator.others == ()


async def test_promise_9_what_the_service_did_not_sign_acts_for_nobody(world):
    """A forged lease of another user, or of one's own with an older place, rebuilds nothing."""
    alice = world.start("alice")
    vic = replace(alice.key, user_created="the day vic was born")
    forged = replace(alice, id="forged", key=vic, user="vic", granted_at=1.0, asked_at=1.0)
    world.backend.run("forged", 1, lease_variables(forged, b"guessed" * 5))
    await world.round()
    assert world.book.of_key(vic) is None
    world.backend.run("forged", 1, lease_variables(forged, SECRET))
    await world.round()
    assert world.book.of_key(vic) is not None, "signed, it would have been rebuilt"


async def test_promise_1_a_workspace_whose_processes_are_not_seen_keeps_its_gpus(world):
    """The hub has it ready: a spawner whose processes the service may not read still uses its GPUs."""
    lease = await starting(world)
    world.hub.put("alice", ready=True)
    await world.go_on(200, step=5)
    assert world.now_of(lease).phase is Phase.RUNNING
    assert world.now_of(lease).slots == lease.slots
