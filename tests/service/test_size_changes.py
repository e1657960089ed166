"""Changes of size: a workspace runs on until its new size is free, and neither it nor its GPUs are ever lost."""

from dataclasses import replace

import pytest
from service_world import Killed, Life

from gpuspawner.catalog import load_catalog
from gpuspawner.core.administration import Restriction, RestrictionKind
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import UP, WAITING, Phase
from gpuspawner.core.leases.successors import ASSIGNED_SECONDS
from gpuspawner.service.administration.gpu_map import present_gpu_rows
from gpuspawner.service.engine.allocation.size_changes import NOTICE_SECONDS
from gpuspawner.service.engine.sampling.gpu_states import observe_gpus
from gpuspawner.service.notifications.messages import message_of
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces.actions import act
from gpuspawner.service.workspaces.presenter import history_words, present_workspace
from gpuspawner.service.workspaces.sizes import SizeInput, SizeQuery, change_size, preview_size, withdraw_size


async def change(world, lease, **size):
    await change_size(world.parts, lease.user, lease, SizeInput(**size), "its page")


async def passes(world, seconds):
    """Let time pass, with a look of the service each 10 seconds."""
    for _ in range(int(seconds // 10) + 1):
        world.clock.advance(10)
        await world.round()


async def notice_passes(world, lease):
    """Let the time of a notice pass, until the workspace stops."""
    for _ in range(int(NOTICE_SECONDS // 10) + 6):
        await passes(world, 0)
        if world.phase(lease) not in UP:
            return
    raise AssertionError(f"{lease.id} did not restart")


async def goes_up(world, lease):
    """Let the workspace that continues a lease start, and return it."""
    for _ in range(90):  # a stop that was cut off is sent again after a minute
        world.clock.advance(1)
        await world.round()
        after = world.registry.of_key(lease.key)
        if after.phase is Phase.RESERVED and (lease.user, lease.key.server) in world.hub.listed:
            break
    assert after.phase is Phase.RESERVED
    again = await world.ask(lease.user, lease.key.server, **after.options)
    assert again.id == after.id
    await world.create(again)
    world.hub.answer(lease.user, lease.key.server)
    await world.round()
    return world.registry.get(after.id)


async def test_more_gpus_that_are_free_restart_it_at_once_with_its_own_and_the_same_end(make_world):
    world = make_world(gpus=3)
    lease = await world.up("alice", count=1, lifetime="2h", cpu=3)
    world.clock.advance(1800)
    outlook = await preview_size(world.parts, lease, SizeQuery(count="2"))
    assert (outlook.starts_now, outlook.size) == (True, "2 A100 80 GB, 3 cores, 8 GiB memory")
    await change(world, lease, count=2)
    up = await goes_up(world, lease)
    assert up.slots[0] == lease.slots[0]
    assert (len(up.slots), up.request.cpu_cores) == (2, 3)
    assert abs(up.deadline_at - lease.deadline_at) < 10, "the end stays"
    ended = world.now_of(lease)
    assert (ended.reason, ended.slots) == (ExitReason.CHANGED, lease.slots)
    end = present_workspace(world.parts, ended).end
    assert end.sentence.startswith("You restarted it in another size")
    assert end.details == "It starts again by itself. Your files are untouched."
    words = [history_words(line) for line in world.parts.store.audit_log.latest(up.id)]
    assert "Back in the queue. It was restarted with other resources." in words


async def test_a_workspace_runs_until_its_new_size_is_free(make_world):
    world = make_world(gpus=2)
    lease, other = await world.up("alice"), await world.up("bob")
    await change(world, lease, count=2)
    later = await world.start("carol")
    await world.rounds(3)
    shown = world.view(lease).size_change
    assert shown.size.startswith("2 A100")
    assert "You are 1st in line" in shown.sentence
    assert world.phase(lease) is Phase.RUNNING
    await world.hub_stops(world.registry.get(other.id))
    await notice_passes(world, lease)
    up = await goes_up(world, lease)
    assert len(up.slots) == 2
    assert world.phase(later) in {Phase.QUEUED, Phase.PARKED}


async def announced(world, user="alice"):
    """Return a workspace whose new size became free while it waited for it."""
    lease, other = await world.up(user), await world.up("bob")
    await change(world, lease, count=2)
    await world.hub_stops(world.registry.get(other.id))
    await passes(world, 10)
    assert world.now_of(lease).size_change.restarts_at is not None
    return lease


async def test_gpus_that_are_held_for_a_restart_are_allocated_to_nobody_and_the_map_says_why(make_world):
    world = make_world(gpus=2)
    lease = await announced(world)
    (held,) = world.now_of(lease).assigned
    rows = {row.id: row for row in present_gpu_rows(world.parts, observe_gpus(world.parts))}
    assert (rows[held.gpu].state, rows[held.gpu].user) == ("unmeasured", "")
    assert rows[held.gpu].note.startswith("Held until alice's workspace restarts with its new size.")
    assert world.now_of(lease).slots == lease.slots, "its charges and its usage are those of these GPUs"


async def test_its_user_is_told_before_it_restarts_and_nobody_else_gets_the_gpus_meanwhile(make_world):
    world = make_world(gpus=2)
    lease = await announced(world)
    later = await world.start("carol")
    await passes(world, 300)
    shown = world.view(lease)
    assert (shown.phase, len(shown.gpus), world.phase(later) in WAITING) == ("running", 1, True)
    assert shown.warning.kind == "size"
    assert shown.warning.ends_at == shown.size_change.restarts_at
    assert shown.warning.text.startswith("Your new size is free: 2 A100 80 GB, ")
    assert world.did(lease).count("size change near") == 1
    line = next(one for one in world.parts.store.audit_log.latest(lease.id) if one.event.name == "size change near")
    assert "This workspace restarts at " in message_of(world.parts, world.now_of(lease), line).text
    world.boot()
    await passes(world, 10)
    assert world.phase(lease) is Phase.RUNNING, "a restart of the service does not end the notice"
    await notice_passes(world, lease)
    assert len((await goes_up(world, lease)).slots) == 2


async def test_a_later_request_that_goes_first_does_not_take_back_what_was_announced(make_world):
    world = make_world(gpus=2)
    lease = await announced(world)
    later = await world.start("carol")
    await world.registry.save(replace(world.now_of(later), queue_move=1))
    restarts_at = world.now_of(lease).size_change.restarts_at
    await passes(world, 120)
    assert world.now_of(lease).size_change.restarts_at == restarts_at
    assert world.phase(later) in WAITING
    outlook = await preview_size(world.parts, world.now_of(lease), SizeQuery(count="2"))
    assert (outlook.starts_now, outlook.sentence.startswith("It restarts at ")) == (True, True)
    await change(world, world.now_of(lease), count=2, at_once=True)
    assert len((await goes_up(world, lease)).slots) == 2


async def test_restart_now_does_not_wait_for_the_end_of_the_notice(make_world):
    world = make_world(gpus=2)
    lease = await announced(world)
    await change(world, world.now_of(lease), count=2)  # asks the same again, and says nothing about the notice
    assert world.phase(lease) is Phase.RUNNING
    await change(world, world.now_of(lease), at_once=True)
    assert world.now_of(lease).reason is ExitReason.CHANGED
    assert len((await goes_up(world, lease)).slots) == 2
    assert world.did(lease).count("size change") == 1


async def test_not_now_gives_the_gpus_to_the_next_in_line(make_world):
    world = make_world(gpus=2)
    lease = await announced(world)
    later = await world.start("carol")
    assert world.phase(later) in WAITING
    await withdraw_size(world.parts, "alice", lease, "its page")
    assert world.phase(later) is Phase.RESERVED
    await passes(world, NOTICE_SECONDS)
    assert world.phase(lease) is Phase.RUNNING


async def test_a_stop_within_the_notice_gives_the_gpus_to_the_next_in_line(make_world):
    world = make_world(gpus=2)
    lease = await announced(world)
    later = await world.start("carol")
    await act(world.parts, Person("alice", lease.key.owner), world.now_of(lease), "stop", "its page")
    await passes(world, 10)
    assert world.phase(later) is Phase.RESERVED


async def test_gpus_that_are_closed_within_the_notice_postpone_the_restart_and_its_user_is_told(make_world):
    world = make_world(gpus=2)
    lease = await announced(world)
    gpu = world.now_of(lease).assigned[0].gpu
    world.backend.change_gpu(gpu, healthy=False)
    await passes(world, 20)
    after = world.now_of(lease)
    assert (after.size_change.restarts_at, after.assigned, after.phase) == (None, (), Phase.RUNNING)
    line = world.parts.store.audit_log.latest(lease.id)[0]
    assert line.event.name == "size change postponed"
    assert "does not restart yet" in message_of(world.parts, after, line).text
    world.backend.change_gpu(gpu, healthy=True)
    await notice_passes(world, lease)
    assert len((await goes_up(world, lease)).slots) == 2


async def test_a_quota_that_others_fill_within_the_notice_postpones_the_restart(make_world):
    world = make_world(gpus=6)
    world.change_catalog(replace(world.catalog, rules=limited_to(3)))
    await world.round()
    await world.up("carol")
    lease = await announced(world)
    late = await world.up("dave")
    assert world.phase(late) is Phase.RUNNING
    await passes(world, NOTICE_SECONDS + 60)
    assert world.phase(lease) is Phase.RUNNING, "it would wait for its quota without a workspace"
    assert world.did(lease)[-1] == "size change postponed"
    await world.hub_stops(world.registry.get(late.id))
    await notice_passes(world, lease)
    assert len((await goes_up(world, lease)).slots) == 2


def limited_to(gpus):
    """Return the rules of a catalog that allows all users together this number of GPUs."""
    quotas = {"all": {"everybody": True, "gpus": {"hard": gpus}}}
    return load_catalog({"version": 1, "templates": {"lab": {"title": "Lab"}}, "quotas": quotas}).rules


@pytest.mark.parametrize("paused", ["a100", ""], ids=["its kind", "all kinds"])
async def test_a_pause_within_the_notice_postpones_the_restart(make_world, paused):
    world = make_world(gpus=2)
    lease = await announced(world)
    now = world.clock.now()
    pause = Restriction("p", RestrictionKind.PAUSE, paused, "The driver is changed", "admin", now, None)
    await world.parts.restrictions.add([pause], lambda write: world.registry.save(others=[write]))
    await passes(world, NOTICE_SECONDS + 60)
    assert (world.phase(lease), world.did(lease)[-1]) == (Phase.RUNNING, "size change postponed")


@pytest.mark.parametrize("fault", ["lost", "gone", "foreign"])
async def test_a_held_gpu_that_fails_while_the_workspace_stops_is_not_granted(make_world, fault):
    world = make_world(gpus=3)
    await world.up("carol")
    lease = await announced(world)
    (held,) = world.now_of(lease).assigned
    await change(world, world.now_of(lease), at_once=True)
    assert world.phase(lease) is Phase.STOPPING
    if fault == "gone":
        world.backend.gpus = tuple(gpu for gpu in world.backend.gpus if gpu.id != held.gpu)
    else:
        world.backend.change_gpu(held.gpu, **({"healthy": False} if fault == "lost" else {"foreign": True}))
    await passes(world, ASSIGNED_SECONDS)
    after = world.registry.of_key(lease.key)
    assert (world.phase(lease), after.phase, after.slots) == (Phase.ENDED, Phase.PARKED, ())
    await world.hub_stops(world.registry.of_key(world.key("carol")))
    assert held.gpu not in {slot.gpu for slot in (await goes_up(world, lease)).slots}


async def test_an_outage_of_the_gpus_delays_the_restart_and_takes_no_gpu_back(make_world):
    world = make_world(gpus=2)
    lease = await announced(world)
    await world.hide_gpus()
    for _ in range(int(NOTICE_SECONDS // 10) + 6):
        world.clock.advance(10)
        await world.parts.allocator.grant_waiting()
    after = world.now_of(lease)
    assert (after.phase, len(after.assigned)) == (Phase.RUNNING, 1)
    world.show_gpus()
    await notice_passes(world, lease)
    assert len((await goes_up(world, lease)).slots) == 2


async def test_requests_that_came_before_go_first(make_world):
    world = make_world(gpus=2)
    lease, other = await world.up("alice"), await world.up("bob")
    before = await world.start("carol")
    world.clock.advance(1)  # at the same time, their ids would decide
    await change(world, lease, count=2)
    await world.hub_stops(world.registry.get(other.id))
    await world.rounds(3)
    assert world.phase(before) is Phase.RESERVED
    assert world.phase(lease) is Phase.RUNNING


async def test_a_smaller_size_does_not_wait(make_world):
    world = make_world(gpus=2)
    lease = await world.up("alice", count=2)
    await world.start("bob", count=2)
    await change(world, lease, count=1, cpu=8)
    up = await goes_up(world, lease)
    assert up.slots == lease.slots[:1]
    assert up.request.cpu_cores == 8


async def test_refused_and_withdrawn_changes_leave_it_running(make_world):
    world = make_world(gpus=2, quota=2)
    lease = await world.up("alice")
    await world.up("bob")
    for size, error in (({"count": 3}, RequestRefused), ({"count": 1}, RequestRefused), ({"cpu": 99}, RequestRefused)):
        with pytest.raises(error):
            await change(world, lease, **size)
    await change(world, lease, count=2)
    await change(world, lease, count=2)  # a second click
    assert world.did(lease).count("size change") == 1
    await withdraw_size(world.parts, "alice", lease, "its page")
    await withdraw_size(world.parts, "alice", lease, "its page")
    await world.hub_stops(world.registry.of_key(world.key("bob")))
    for _ in range(3):
        await world.round()
    assert world.phase(lease) is Phase.RUNNING
    assert world.did(lease)[-1] == "size change withdrawn"
    assert world.did(lease).count("size change withdrawn") == 1


async def test_a_workspace_that_ends_takes_its_change_with_it(make_world):
    world = make_world(gpus=1)
    lease = await world.up("alice")
    with pytest.raises(RequestRefused):
        await change(world, lease, count=2)  # no machine is so large
    waiting = await world.start("bob")
    with pytest.raises(Conflict, match="does not run"):
        await change(world, waiting, cpu=4)
    await act(world.parts, Person("alice", lease.key.owner), lease, "stop", "its page")
    await world.rounds(3)
    assert world.registry.of_key(lease.key) is None
    with pytest.raises(Conflict, match="has ended"):
        await change(world, world.now_of(lease), cpu=4)


async def test_a_change_at_once_stops_the_workspace_first(make_world):
    world = make_world(gpus=2)
    lease, _ = await world.up("alice"), await world.up("bob")
    await change(world, lease, count=2, at_once=True)
    await world.rounds(4)
    after = world.registry.of_key(lease.key)
    assert (world.phase(lease), after.phase, after.request.count) == (Phase.ENDED, Phase.PARKED, 2)


@pytest.mark.parametrize("half", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("effects", range(6))
async def test_a_service_that_is_killed_at_any_moment_loses_neither_workspace_nor_gpus(make_world, effects, half):
    world = make_world(gpus=2)
    lease = await world.up("alice")
    rival = None
    world.boot(Life(effects, half=half))
    await world.round()
    try:
        await change(world, lease, count=2)
        rival = await world.start("bob")
        await world.rounds(4)
    except BaseException as error:
        if not isinstance(error, (Killed, Conflict)) and "Unavailable" not in type(error).__name__:
            raise
    world.boot()
    await world.rounds(3)
    current = world.registry.of_key(lease.key)
    if current.id == lease.id and current.size_change is None and current.phase in UP:
        await change(world, current, count=2)  # it was not stored, and its user asks again
    if rival is None:
        await world.start("bob")
    after = await goes_up(world, lease)
    assert (after.id != lease.id, len(after.slots)) == (True, 2)
    assert not world.overused()
