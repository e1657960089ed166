"""Requests that are to be ready at a time: each is a schedule of its user, whose workspace is the request's."""

import pytest
from resource_world import Cluster, OperatorRun

from gpuspawner.core.leases.lease import Owner, Phase
from gpuspawner.service.start import schedules
from gpuspawner.service.start.schedule_rounds import ready_round

READY = {"time": "8:30", "days": "daily"}
"""The fake clock begins at 8:00 UTC."""


@pytest.fixture
def gate(world):
    world.hub.add("ada")
    found = OperatorRun(world, Cluster())
    found.cluster.apply("morning", ready_at=READY)
    return found


async def wishes(gate):
    owner = Owner(gate.world.hub_id, gate.world.hub.add("ada"))
    return [one.as_json() for one in await schedules.present_schedules_of(gate.world.parts, owner)]


async def minutes(gate, count):
    for _ in range(count):
        await gate.rounds(2)
        await ready_round(gate.world.parts)
        await gate.world.go_on(56.0)


def leases(gate):
    return [lease for lease in gate.world.registry if lease.user == "ada"]


async def test_it_is_scheduled_then_asked_for_in_time_and_told_and_scheduled_again(gate):
    await gate.rounds()
    assert (gate.status("morning")["phase"], gate.status("morning")["readyAt"][11:]) == ("Scheduled", "08:30:00Z")
    assert gate.status("morning")["message"].startswith("Next ready")
    (wish,) = await wishes(gate)
    assert (wish["id"], wish["words"], wish["options"]) == (
        "uidmorning",
        "daily 8:30",
        {"template": "pytorch", "lifetime": "8h"},
    )
    await minutes(gate, 18)
    (lease,) = leases(gate)
    assert list(gate.cluster.there) == ["morning"], "its workspace is its own"
    assert gate.status("morning")["lease"] == lease.id
    await gate.world.hub_stops(lease) if lease.phase is Phase.RUNNING else await gate.world.parts.attempts.forget(
        lease.key
    )
    await gate.rounds(10)
    assert leases(gate) == []
    assert gate.status("morning")["phase"] == "Scheduled"
    assert len(await wishes(gate)) == 1


async def test_deleted_it_is_asked_for_no_more_but_not_where_all_are(gate):
    await gate.rounds()
    gate.cluster.is_going = True
    gate.cluster.change(gate.cluster.there["morning"], deleting=True)
    await gate.rounds()
    assert gate.cluster.there == {}
    assert len(await wishes(gate)) == 1, "nothing stops for a definition that goes"
    gate.cluster.is_going = False
    gate.cluster.apply("morning", ready_at=READY)
    await gate.rounds()
    assert len(await wishes(gate)) == 1
    gate.cluster.change(gate.cluster.there["morning"], deleting=True)
    await gate.rounds()
    assert (gate.cluster.there, await wishes(gate)) == ({}, [])


async def test_a_schedule_removed_elsewhere_is_reported_and_not_made_again(gate):
    await gate.rounds()
    owner = Owner(gate.world.hub_id, gate.world.hub.add("ada"))
    await schedules.delete_schedule(gate.world.parts, owner, "ada", "uidmorning", "its page")
    gate.world.clock.advance(61.0)
    await gate.rounds()
    assert gate.status("morning")["phase"] == "Ended"
    assert "removed on a page" in gate.status("morning")["message"]
    assert await wishes(gate) == []


async def test_an_invalid_time_is_refused_in_words_and_a_lifetime_can_be_edited(gate):
    gate.cluster.apply("odd", ready_at={"time": "25:00"}, server="odd")
    gate.cluster.apply("morning", lifetime="4h")
    await gate.rounds()
    assert gate.status("odd")["phase"] == "Refused"
    assert "25:00" in gate.status("odd")["message"]
    gate.cluster.apply("morning", lifetime="2h")
    await gate.rounds()
    (wish,) = await wishes(gate)
    assert wish["options"]["lifetime"] == "2h"
