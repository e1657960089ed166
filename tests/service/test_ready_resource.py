"""Requests that are to be ready at a time: each is a schedule of its user, whose workspace is the request's."""

import pytest
from resource_world import Cluster, OperatorProcess

from gpuspawner.core.leases.lease import Owner, Phase
from gpuspawner.service.start import schedules
from gpuspawner.service.start.schedule_rounds import ready_round

READY = {"time": "8:30", "days": "daily"}
"""The fake clock begins at 8:00 UTC."""


@pytest.fixture
def operator(world):
    world.hub.add("ada")
    found = OperatorProcess(world, Cluster())
    found.cluster.apply("morning", ready_at=READY)
    return found


async def wishes(operator):
    owner = Owner(operator.world.hub_id, operator.world.hub.add("ada"))
    return [one.as_json() for one in await schedules.present_schedules_of(operator.world.parts, owner)]


async def minutes(operator, count):
    for _ in range(count):
        await operator.rounds(2)
        await ready_round(operator.world.parts)
        await operator.world.go_on(56.0)


def leases(operator):
    return [lease for lease in operator.world.registry if lease.user == "ada"]


async def test_a_scheduled_resource_starts_in_time_and_is_scheduled_again(operator):
    await operator.rounds()
    assert (operator.status("morning")["phase"], operator.status("morning")["readyAt"][11:]) == (
        "Scheduled",
        "08:30:00Z",
    )
    assert operator.status("morning")["message"].startswith("Next ready")
    (wish,) = await wishes(operator)
    assert (wish["id"], wish["words"], wish["options"]) == (
        "uidmorning",
        "daily 8:30",
        {"template": "pytorch", "lifetime": "8h"},
    )
    await minutes(operator, 18)
    (lease,) = leases(operator)
    assert list(operator.cluster.there) == ["morning"], "its workspace is its own"
    assert operator.status("morning")["lease"] == lease.id
    await operator.world.hub_stops(
        lease
    ) if lease.phase is Phase.RUNNING else await operator.world.parts.attempts.forget(lease.key)
    await operator.rounds(10)
    assert leases(operator) == []
    assert operator.status("morning")["phase"] == "Scheduled"
    assert len(await wishes(operator)) == 1


async def test_a_deleted_resource_deletes_its_schedule_unless_all_resources_vanish(operator):
    await operator.rounds()
    operator.cluster.is_going = True
    operator.cluster.change(operator.cluster.there["morning"], deleting=True)
    await operator.rounds()
    assert operator.cluster.there == {}
    assert len(await wishes(operator)) == 1, "nothing stops for a definition that goes"
    operator.cluster.is_going = False
    operator.cluster.apply("morning", ready_at=READY)
    await operator.rounds()
    assert len(await wishes(operator)) == 1
    operator.cluster.change(operator.cluster.there["morning"], deleting=True)
    await operator.rounds()
    assert (operator.cluster.there, await wishes(operator)) == ({}, [])


async def test_a_schedule_removed_elsewhere_is_reported_and_not_made_again(operator):
    await operator.rounds()
    owner = Owner(operator.world.hub_id, operator.world.hub.add("ada"))
    await schedules.delete_schedule(operator.world.parts, owner, "ada", "uidmorning", "its page")
    operator.world.clock.advance(61.0)
    await operator.rounds()
    assert operator.status("morning")["phase"] == "Ended"
    assert "removed on a page" in operator.status("morning")["message"]
    assert await wishes(operator) == []


async def test_an_invalid_time_is_refused_in_words_and_a_lifetime_can_be_edited(operator):
    operator.cluster.apply("odd", ready_at={"time": "25:00"}, server="odd")
    operator.cluster.apply("morning", lifetime="4h")
    await operator.rounds()
    assert operator.status("odd")["phase"] == "Refused"
    assert "25:00" in operator.status("odd")["message"]
    operator.cluster.apply("morning", lifetime="2h")
    await operator.rounds()
    (wish,) = await wishes(operator)
    assert wish["options"]["lifetime"] == "2h"
