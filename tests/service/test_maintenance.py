"""Maintenance of a node: starts end before it, and the users of its workspaces are told in time, once each."""

from dataclasses import replace

import pytest

from gpuspawner.core.administration import Restriction, RestrictionKind
from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.lease import UP, Phase

HOUR, DAY = 3600.0, 86400.0


async def plan(world, begins, until, **changes):
    """Plan the maintenance of the only node."""
    node, now = world.parts.scheduler.fleet.gpus[0].node, world.clock.now()
    values = {"begins_at": now + begins, **changes}
    one = Restriction("m-1", RestrictionKind.DRAIN, node, "firmware", "root", now, now + until, **values)

    def save(write):
        return world.registry.save(others=[write])

    await world.parts.restrictions.add([one], save)
    return one


def mails(world):
    rows = world.parts.store.outbox.due(world.clock.now(), 99)
    return [row.document["title"] for row in rows]


def told(world, lease):
    return [words for _, did, words in world.audit(lease) if did == "maintenance near"]


async def test_users_on_the_node_are_told_days_and_hours_before_once_also_after_restarts(make_world):
    world = make_world(notify_users="json://127.0.0.1/{user}", policy={"mode": "observe"})
    await world.round()
    lease = await world.up("alice")
    world.shows(lease, 80)
    await world.registry.save(replace(world.now_of(lease), deadline_at=None))
    one = await plan(world, 4 * DAY, 5 * DAY)
    begins = one.begins_at
    await world.go_on(HOUR, step=600)
    assert told(world, lease) == []
    for before in (3 * DAY, 3 * DAY - HOUR, DAY, DAY / 2, HOUR, HOUR / 2):
        world.clock.advance(begins - before - world.clock.now())
        world.boot()  # as after a restart
        await world.parts.restrictions.load()
        world.shows(world.now_of(lease), 80)
        await world.go_on(180, step=60)
    assert len(told(world, lease)) == 3
    assert mails(world).count("The node of your workspace has maintenance") == 1, "a newer mail replaces one that waits"
    warning = world.view(lease).warning
    assert "has maintenance from " in warning.text
    assert world.now_of(lease).phase in UP, "nothing ends it"


async def test_a_start_ends_before_the_maintenance_and_is_not_extended_into_it(make_world):
    world = make_world()
    await world.round()
    one = await plan(world, 2 * HOUR, 4 * HOUR)
    drained = [world.parts.restrictions.drained_nodes(one.begins_at + x) for x in (0, 1)]
    assert drained == [frozenset(), {one.target}], "the cluster keeps off the node who would still run then"
    alice = await world.up("alice")
    assert (alice.deadline_at, alice.latest_end.words[-16:]) == (one.begins_at, " has maintenance")
    world.shows(alice, 80)
    with pytest.raises(Conflict, match="has maintenance"):
        await world.parts.actions.extend(alice, "alice")
    world.clock.advance(1.6 * HOUR)
    await world.round()
    late = await world.start("bob")
    assert late.phase is Phase.QUEUED, "it would have less than its least lifetime"
    assert "has maintenance from " in world.view(late).queue.sentence
    world.clock.advance(3 * HOUR)
    await world.parts.attempts.hear(late.id, late.attempt)
    await world.round()
    assert world.phase(late) is Phase.RESERVED


async def test_restrictions_that_were_made_while_the_clock_was_ahead_hold_from_the_next_start_on(make_world):
    world = make_world()
    await world.round()
    right, ahead = world.clock.now(), 90 * DAY
    world.clock.advance(ahead)
    await plan(world, 0, 2 * DAY)
    world.clock.at = right
    world.boot()
    (one,) = world.parts.restrictions.in_force()
    assert (one.since, one.begins_at, one.until) == (right, right, right + 2 * DAY)
    await world.round()
    lease = await world.start("alice")
    assert world.phase(lease) in {Phase.QUEUED, Phase.PARKED}, "the drained node takes no workspace"
    world.clock.advance(2 * DAY)
    assert world.parts.restrictions.in_force() == ()
