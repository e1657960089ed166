"""Changes of size: a workspace runs on until its new size is free, and neither it nor its GPUs are ever lost."""

import pytest
from service_world import Killed, Life

from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import UP, Phase
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces.actions import act
from gpuspawner.service.workspaces.presenter import present_workspace
from gpuspawner.service.workspaces.sizes import SizeInput, SizeQuery, change_size, preview_size, withdraw_size


async def change(world, lease, **size):
    await change_size(world.parts, lease.user, lease, SizeInput(**size), "its page")


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
    assert present_workspace(world.parts, ended).end.sentence.startswith("You restarted it in another size")


async def test_it_runs_on_until_the_new_size_is_free_and_then_goes_before_later_requests(make_world):
    world = make_world(gpus=2)
    lease, other = await world.up("alice"), await world.up("bob")
    await change(world, lease, count=2)
    later = await world.start("carol")
    for _ in range(3):
        await world.round()
    shown = present_workspace(world.parts, world.now_of(lease)).size_change
    assert shown.size.startswith("2 A100")
    assert "You are 1st in line" in shown.sentence
    assert world.phase(lease) is Phase.RUNNING
    await world.hub_stops(world.registry.get(other.id))
    up = await goes_up(world, lease)
    assert len(up.slots) == 2
    assert world.phase(later) in {Phase.QUEUED, Phase.PARKED}


async def test_requests_that_came_before_go_first(make_world):
    world = make_world(gpus=2)
    lease, other = await world.up("alice"), await world.up("bob")
    before = await world.start("carol")
    world.clock.advance(1)  # at the same time, their ids would decide
    await change(world, lease, count=2)
    await world.hub_stops(world.registry.get(other.id))
    for _ in range(3):
        await world.round()
    assert world.phase(before) is Phase.RESERVED
    assert world.phase(lease) is Phase.RUNNING


async def test_less_of_what_it_has_waits_for_nobody(make_world):
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
    for _ in range(3):
        await world.round()
    assert world.registry.of_key(lease.key) is None
    with pytest.raises(Conflict, match="has ended"):
        await change(world, world.now_of(lease), cpu=4)


async def test_at_once_it_stops_first_and_waits_in_the_queue(make_world):
    world = make_world(gpus=2)
    lease, _ = await world.up("alice"), await world.up("bob")
    await change(world, lease, count=2, at_once=True)
    for _ in range(4):
        await world.round()
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
        for _ in range(4):
            await world.round()
    except BaseException as error:
        if not isinstance(error, (Killed, Conflict)) and "Unavailable" not in type(error).__name__:
            raise
    world.boot()
    for _ in range(3):
        await world.round()
    current = world.registry.of_key(lease.key)
    if current.id == lease.id and current.size_change is None and current.phase in UP:
        await change(world, current, count=2)  # it was not stored, and its user asks again
    if rival is None:
        await world.start("bob")
    after = await goes_up(world, lease)
    assert (after.id != lease.id, len(after.slots)) == (True, 2)
    assert not world.overused()
