"""Workspaces that the hub forgot: ended after two looks, or an alert where they are many at once."""

import collections
import logging

import pytest
from service_world import SECRET

from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.lease_documents import lease_variables
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces.actions import act


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
    assert (ended.phase, ended.reason, ended.ended_by) == (Phase.ENDED, ExitReason.ORPHANED, "gpuspawner")
    assert not world.backend.running
    assert world.did(lease)[-1] == "stop"
    assert world.hub.calls == []


async def test_a_server_that_returns_meanwhile_restarts_the_five_minutes(world):
    (lease,) = await orphans(world, 1)
    world.shows(lease, 50)
    await world.go_on(200, step=5)
    world.hub.put("alice", "0", ready=True)
    await world.go_on(20, step=5)
    world.hub.forget("alice", "0")
    await world.go_on(200, step=5)
    assert world.now_of(lease).phase is Phase.RUNNING


@pytest.mark.parametrize("how", ["another process asks", "it was away"])
async def test_a_restarted_hub_restarts_the_five_minutes(world, how):
    (lease,) = await orphans(world, 1)
    world.shows(lease, 50)
    await world.go_on(200, step=5)
    if how == "it was away":
        world.hub.unreachable = "it boots"
        await world.go_on(20, step=5)
        world.hub.unreachable = ""
    else:
        await world.start("bob", boot_id="boot after that")
    await world.go_on(200, step=5)
    assert world.now_of(lease).phase is Phase.RUNNING, "each of two processes missed it for less than that"
    await world.go_on(120, step=5)
    assert world.now_of(lease).reason is ExitReason.ORPHANED


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


async def test_promise_3_a_stop_during_the_last_check_of_an_orphan_counts(world):
    """A start that its hub forgot goes back to its place, but not one that its user has stopped meanwhile."""
    lease = await world.start("alice")
    await world.round()
    await world.create(world.now_of(lease))
    world.hub.forget("alice")
    await world.go_on(290, step=5)
    looks, due = collections.Counter(), world.clock.now() + 12

    async def slow(*_):
        looks[world.clock.now()] += 1
        if world.clock.now() >= due:  # one question serves the start and the orphan
            await act(world.parts, Person("alice", lease.key.owner), world.registry.get(lease.id), "stop", "its page")

    world.hub.server = slow
    await world.go_on(120, step=5)
    assert max(looks.values()) > 1
    assert (world.now_of(lease).phase, world.now_of(lease).reason) == (Phase.ENDED, ExitReason.STOPPED)


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
    assert sum(world.now_of(lease).reason is ExitReason.ORPHANED for lease in leases) == ended
    assert bool(world.parts.engine.observer.orphans.alert) == (ended == 0)


async def test_leftovers_of_an_ended_lease_are_ended_and_recorded(world):
    lease = await world.up("alice")
    variables = lease_variables(lease, SECRET)
    await world.hub_stops(lease)
    await world.go_on(5, step=1)
    newer = await world.up("alice")  # its server is the newer lease's
    world.shows(newer, 50)
    world.backend.run(lease.id, 1, variables)
    await world.go_on(320, step=5)
    assert set(world.backend.running) == {(newer.id, 1)}
    assert world.audit(lease)[-1] == (
        "gpuspawner",
        "stop",
        "The hub no longer knew its server. Your files are untouched.",
    )
