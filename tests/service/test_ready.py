"""Scheduled workspaces: requested by every way, waited for by their claim, and paused after unused days."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from test_arrivals import MINUTE, reads

from gpuspawner.core.calendar import Window
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Key, Owner, Phase
from gpuspawner.core.rules import Hours
from gpuspawner.core.schedules import FIRST_START_SECONDS, QUICKER_SHARE, Schedule, parse_time_of_day, parse_weekdays
from gpuspawner.service.forgetting import forget
from gpuspawner.service.notifications.messages import message_of
from gpuspawner.service.start import schedules
from gpuspawner.service.start.schedule_rounds import ready_round
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces.presenter import present_workspace

DAY = 24 * 60 * MINUTE
"""Seconds. The fake clock begins at 8:00 UTC of a Friday."""


@pytest.fixture
def world(make_world):
    made = make_world(policy={"claim": "30m"})
    made.hub.add("bob")
    return made


def owner(world, user="bob"):
    return Owner(world.hub_id, world.hub.add(user))


async def wish(world, at="8:30", on="daily", user="bob", **options):
    key = Key(*owner(world, user), "")
    time = parse_time_of_day(at), parse_weekdays(on)
    return await schedules.add_schedule(world.parts, key, user, options, time, "the API")


async def change(world, user, name, **values):
    actor = Actor(world.parts, Person(user, owner(world, user)), "the API")
    return await schedules.change_schedule.act(actor, name, values=values)


async def listed(world, user="bob"):
    found = await schedules.present_schedules_of(world.parts, owner(world, user))
    return [one.as_json() for one in found]


async def rounds(world, minutes, *, until_asked=False):
    """Let time pass as the service does, with its rounds."""
    for _ in range(minutes):
        await world.round()
        await ready_round(world.parts)
        if until_asked and lease_of(world) is not None:
            return
        await world.round()
        await world.go_on(MINUTE)


def lease_of(world, user="bob"):
    return next((lease for lease in world.registry if lease.user == user), None)


async def comes_up(world):
    """Let the hub's server of bob's come up, whose start the service has asked for."""
    await world.rounds(4)
    lease = lease_of(world)
    assert lease.phase is Phase.RESERVED, lease.phase
    await world.create(await world.ask("bob"))
    world.hub.answer("bob")
    await world.round()
    reads(world, lease)
    return world.now_of(lease)


async def test_a_scheduled_workspace_is_requested_in_time_without_a_visit(world):
    made = await wish(world, count=1)
    await rounds(world, 14)
    assert lease_of(world) is None, "nothing runs that nobody needs yet"
    await rounds(world, 3, until_asked=True)
    lease = lease_of(world)
    assert (lease.key, lease.unattended, lease.request.count) == (Key(*owner(world), ""), True, 1)
    lines = await world.parts.store.read(world.parts.store.audit_log.latest, lease.id)
    assert (lines[-1].event.name, lines[-1].where) == ("asked", "a schedule")
    up = await comes_up(world)
    ready_at = up.ready_at
    assert world.clock.now() < ready_at
    assert present_workspace(world.parts, up).arrival.ends_at == ready_at + 30 * MINUTE
    (told,) = await listed(world)
    assert (told["id"], told["lease"], told["next_at"]) == (made.id, up.id, ready_at + DAY)
    await rounds(world, 4)
    assert world.now_of(up).arrival.passed_seconds <= MINUTE, "no time to come in passes before it is wished for"


async def missed(world, is_over):
    """Let three unused days pass; ``is_over`` judges each day's lease. Return the last lease and the schedule."""
    await wish(world)
    began = world.clock.now()
    for day in range(3):
        await rounds(world, 27, until_asked=True)
        up = await comes_up(world)
        await rounds(world, 50)
        assert is_over(world.now_of(up))
        (told,) = await listed(world)
        assert told["missed_days"] == day + 1
        await world.hub_stops(up)
        world.clock.advance(DAY - (world.clock.now() - began) % DAY)
    assert told["paused"]
    assert told["sentence"].startswith("Paused, because you missed it on 3 days in a row.")
    return up, told


async def test_an_unvisited_schedule_is_given_back_and_pauses_after_three_days(world):
    up, told = await missed(world, lambda lease: lease.reason is ExitReason.NOBODY_CAME)
    (line,) = [
        x for x in await world.parts.store.read(world.parts.store.audit_log.latest) if x.event.name == "ready paused"
    ]
    message = message_of(world.parts, world.now_of(up), line)
    assert message.user == "bob"
    assert "daily 8:30: on 3 days in a row you did not open it" in message.text
    await rounds(world, 40)
    assert lease_of(world) is None
    resumed = await change(world, "bob", told["id"], paused=False)
    assert resumed.missed_days == 0
    await rounds(world, 2)
    assert lease_of(world) is not None, "so soon after its time it is still asked for"


@pytest.mark.parametrize("mode", ["observe", "warn"])
async def test_a_schedule_pauses_also_under_policies_that_stop_nothing(make_world, mode):
    world = make_world(policy={"claim": "30m", "mode": mode})
    world.hub.add("bob")
    await missed(world, lambda lease: lease.phase is Phase.RUNNING)


async def test_a_used_day_restarts_the_count_and_slow_starts_are_requested_earlier(world):
    holder = await world.up("holder", count=2, lifetime="1h")
    reads(world, holder, percent=90)
    await wish(world, at="9:03", count=1)
    await rounds(world, 2)
    assert lease_of(world).phase is Phase.PARKED, "an hour before its time: so long nobody else ends"
    (told,) = await listed(world)
    await world.hub_stops(holder)
    up = await comes_up(world)
    reads(world, up, opened=True)
    await rounds(world, 3)
    assert world.now_of(up).claimed_at is not None
    (told,) = await listed(world)
    assert (told["lease"], told["missed_days"]) == (None, 0)
    ((_, stored),) = await world.parts.store.read(world.parts.store.schedules.of_hub, world.hub_id)
    took_seconds = world.now_of(up).running_at - up.granted_at
    assert 0 < took_seconds < stored.start_seconds == QUICKER_SHARE * FIRST_START_SECONDS


def away(*_arguments):
    raise Unavailable("The database does not answer.")


async def test_a_killed_service_starts_a_scheduled_workspace_once(world):
    await wish(world)
    change = world.parts.store.schedules.change
    world.parts.store.schedules.change = away
    with pytest.raises(Unavailable):
        await rounds(world, 30, until_asked=True)
    lease = lease_of(world)
    world.parts.store.schedules.change = change
    world.boot()
    await world.round()
    await ready_round(world.parts)
    assert [one.id for one in world.registry if one.user == "bob"] == [lease.id]
    assert [one["lease"] for one in await listed(world)] == [lease.id]
    other = await wish(world, at="8:35")
    await comes_up(world)
    await rounds(world, 6)
    told = {one["id"]: one for one in await listed(world)}
    assert "You had a workspace of this name already." in told[other.id]["sentence"]


async def test_a_schedule_changed_during_a_round_is_kept_and_not_requested(world, monkeypatch):
    one, other = [await wish(world, user=user) for user in ("bob", "carol")]
    name_of, asked = world.parts.hub.name_of, []

    async def changed_meanwhile(created, user):
        if not asked:
            asked.append(user)
            for who, mine, said in (("bob", one, {"at": "9:45"}), ("carol", other, {"paused": True})):
                await change(world, who, mine.id, **said)
        return await name_of(created, user)

    monkeypatch.setattr(world.parts.hub, "name_of", changed_meanwhile, raising=False)
    await rounds(world, 20)
    assert len(asked) == 1
    told = {user: (await listed(world, user))[0] for user in ("bob", "carol")}
    assert (told["bob"]["at"], told["carol"]["paused"]) == ("09:45", True)
    first = next(user for user in told if lease_of(world, user) is not None)
    assert [lease_of(world, user) is not None for user in told] == [user == first for user in told]


async def test_schedules_of_deleted_users_are_deleted(world):
    await wish(world)
    await wish(world, user="carol")
    before = owner(world)
    world.hub.users["bob"] = "bob again"
    await rounds(world, 30)
    assert lease_of(world) is None
    await forget(world.parts)
    store = world.parts.store
    assert await store.read(store.schedules.of, before) == []
    ((_, left),) = await store.read(store.schedules.of_hub, world.hub_id)
    assert isinstance(left, Schedule)
    assert left.user == "carol"


async def test_on_a_closed_day_no_schedule_starts(make_world):
    world = make_world(policy={"claim": "30m"})
    world.hub.add("bob")
    today = datetime.fromtimestamp(world.clock.now(), timezone.utc).date()
    rules = replace(world.catalog.rules, closed=frozenset({today}))
    world.parts.in_force.catalog = replace(world.catalog, rules=rules)
    await wish(world)
    await rounds(world, 40)
    assert lease_of(world) is None
    assert "that day is closed" in (await listed(world))[0]["sentence"]


async def test_a_holiday_of_the_policy_starts_no_schedule(make_world):
    world = make_world(policy={"claim": "30m"})
    world.hub.add("bob")
    today = datetime.fromtimestamp(world.clock.now(), timezone.utc).date()
    holiday = Hours(Window(frozenset(), 0, 0, frozenset({today})), "holiday", "default")
    policies = {**world.catalog.policies, "holiday": LifecyclePolicy("holiday", ready_at=False)}

    def of(policy):
        templates = {name: replace(one, policy=policy) for name, one in world.catalog.templates.items()}
        rules = replace(world.catalog.rules, hours=(holiday,))
        return replace(world.catalog, policies=policies, templates=templates, rules=rules)

    world.parts.in_force.catalog = of("default")
    made = await wish(world)
    await rounds(world, 27)
    assert lease_of(world) is None
    (told,) = await listed(world)
    assert told["next_at"] == world.clock.now() + DAY + (30 - 27) * MINUTE
    assert "because that day is closed." in told["sentence"]
    policies["other"] = LifecyclePolicy("other")
    world.parts.in_force.catalog = of("other")
    assert (await listed(world))[0]["next_at"] == told["next_at"] - DAY
    await rounds(world, 3, until_asked=True)
    assert lease_of(world) is not None, made
