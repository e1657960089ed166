"""Requests that are to be ready at a time: each is a schedule of its user, whose workspace is the request's."""

import pytest
from resource_world import Cluster, Door

from gpuspawner.core.leases.lease import Owner, Phase
from gpuspawner.service.start import schedules
from gpuspawner.service.start.schedule_rounds import ready_round

READY = {"time": "8:30", "days": "daily"}
"""The fake clock begins at 8:00 UTC."""


@pytest.fixture
def door(world):
    world.hub.add("ada")
    found = Door(world, Cluster())
    found.cluster.apply("morning", ready_at=READY)
    return found


async def wishes(door):
    owner = Owner(door.world.hub_id, door.world.hub.add("ada"))
    return [one.as_json() for one in await schedules.present_schedules_of(door.world.parts, owner)]


async def minutes(door, count):
    for _ in range(count):
        await door.rounds(2)
        await ready_round(door.world.parts)
        await door.world.go_on(56.0)


def leases(door):
    return [lease for lease in door.world.registry if lease.user == "ada"]


async def test_it_is_scheduled_then_asked_for_in_time_and_told_and_scheduled_again(door):
    await door.rounds()
    assert (door.status("morning")["phase"], door.status("morning")["readyAt"][11:]) == ("Scheduled", "08:30:00Z")
    assert door.status("morning")["message"].startswith("Next ready")
    (wish,) = await wishes(door)
    assert (wish["id"], wish["words"], wish["options"]) == (
        "uidmorning",
        "daily 8:30",
        {"template": "pytorch", "lifetime": "8h"},
    )
    await minutes(door, 18)
    (lease,) = leases(door)
    assert list(door.cluster.there) == ["morning"], "its workspace is its own"
    assert door.status("morning")["lease"] == lease.id
    await door.world.hub_stops(lease) if lease.phase is Phase.RUNNING else await door.world.parts.attempts.forget(
        lease.key
    )
    await door.rounds(10)
    assert leases(door) == []
    assert door.status("morning")["phase"] == "Scheduled"
    assert len(await wishes(door)) == 1


async def test_deleted_it_is_asked_for_no_more_but_not_where_all_are(door):
    await door.rounds()
    door.cluster.is_going = True
    door.cluster.change(door.cluster.there["morning"], deleting=True)
    await door.rounds()
    assert door.cluster.there == {}
    assert len(await wishes(door)) == 1, "nothing stops for a definition that goes"
    door.cluster.is_going = False
    door.cluster.apply("morning", ready_at=READY)
    await door.rounds()
    assert len(await wishes(door)) == 1
    door.cluster.change(door.cluster.there["morning"], deleting=True)
    await door.rounds()
    assert (door.cluster.there, await wishes(door)) == ({}, [])


async def test_a_schedule_removed_elsewhere_is_reported_and_not_made_again(door):
    await door.rounds()
    owner = Owner(door.world.hub_id, door.world.hub.add("ada"))
    await schedules.delete_schedule(door.world.parts, owner, "ada", "uidmorning", "its page")
    door.world.clock.advance(61.0)
    await door.rounds()
    assert door.status("morning")["phase"] == "Ended"
    assert "removed on a page" in door.status("morning")["message"]
    assert await wishes(door) == []


async def test_an_invalid_time_is_refused_in_words_and_a_lifetime_can_be_edited(door):
    door.cluster.apply("odd", ready_at={"time": "25:00"}, server="odd")
    door.cluster.apply("morning", lifetime="4h")
    await door.rounds()
    assert door.status("odd")["phase"] == "Refused"
    assert "25:00" in door.status("odd")["message"]
    door.cluster.apply("morning", lifetime="2h")
    await door.rounds()
    (wish,) = await wishes(door)
    assert wish["options"]["lifetime"] == "2h"
