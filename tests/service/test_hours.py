"""Hours that switch the policy under a running workspace: told, and never sooner than a full idle period from then."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from service_world import GRACE, IDLE_FOR

from gpuspawner.core.calendar import Window
from gpuspawner.core.idle.policies import ExtendPolicy, KeepPolicy, Mode
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.rules import Hours, Rules
from gpuspawner.service.workspaces.presenter import present_workspace

EVERY_DAY = frozenset(range(7))


def minute_of(at):
    now = datetime.fromtimestamp(at, timezone.utc)
    return now.hour * 60 + now.minute


@pytest.fixture
def switching(make_world):
    """A world whose policy of the night, idle after one minute, holds from the tenth to the thirtieth minute."""

    def make(**changes):
        world = make_world()
        begin = minute_of(world.clock.now()) + 10
        default = world.catalog.policies["default"]
        night = replace(
            default, name="night", idle=replace(default.idle, for_seconds=60.0), keep=KeepPolicy(1, 60.0), **changes
        )
        hours = (Hours(Window(EVERY_DAY, begin % 1440, (begin + 20) % 1440), "night", "default"),)
        policies = {"default": default, "night": night}
        world.catalog = replace(world.catalog, policies=policies, rules=Rules(hours=hours, timezone="UTC"))
        world.boot()
        return world

    return make


async def until_minute(world, minutes):
    """Continue, with a sample a minute, until ``minutes`` have passed since the world began."""
    await world.go_on(1_800_000_000 + 60 * minutes - world.clock.now())


async def test_the_page_names_the_policy_in_force_and_its_end(switching):
    world = switching()
    alice = await world.up("alice")
    world.shows(alice, 80)
    begin = 1_800_000_000 - 1_800_000_000 % 60 + 600
    told = world.view(alice)
    assert (told.policy.name, told.policy.instead_of, told.policy.until) == ("default", None, begin)
    assert told.explained[-1].startswith("By the hours of the catalog, the policy default applies until ")
    await until_minute(world, 11)
    told = world.view(alice)
    assert (told.policy.name, told.policy.instead_of, told.policy.until) == (
        *("night", "default"),
        begin + 1200,
    )
    assert told.explained[-1].endswith("instead of default.")
    assert told.idle.for_seconds == 60


async def test_idle_time_restarts_under_the_policy_of_the_hour(switching):
    world = switching()
    alice = await world.up("alice")
    world.shows(alice, 80)
    await until_minute(world, 7)
    world.shows(alice, 0)
    await until_minute(world, 10.5)
    assert world.phase(alice) is Phase.RUNNING, "idle for three minutes, and not a whole one of the night"
    await until_minute(world, 12)
    assert world.phase(alice) is Phase.RECLAIMING
    await until_minute(world, 12 + GRACE / 60 + 1)
    assert world.now_of(alice).reason is ExitReason.IDLE


async def test_a_grace_ends_with_the_hours_that_it_began_in(switching):
    world = switching(mode=Mode.OBSERVE)
    alice = await world.up("alice")
    await until_minute(world, 9)
    assert world.phase(alice) is Phase.RECLAIMING
    await until_minute(world, 12)
    assert world.phase(alice) is Phase.RUNNING
    assert ("gpuspawner", "grace ended", "its policy has changed") in world.audit(alice)
    await until_minute(world, 29)
    assert world.phase(alice) is Phase.RUNNING, "the night only records"
    await until_minute(world, 30 + IDLE_FOR / 60 - 1)
    assert world.phase(alice) is Phase.RUNNING
    await until_minute(world, 30 + IDLE_FOR / 60 + 2)
    assert world.phase(alice) is Phase.RECLAIMING


async def test_a_restart_between_two_samples_hides_no_change(switching):
    world = switching()
    alice = await world.up("alice")
    world.shows(alice, 80)
    await until_minute(world, 7)
    world.shows(alice, 0)
    await until_minute(world, 9.9)
    world.boot()
    await until_minute(world, 10.8)
    assert world.phase(alice) is Phase.RUNNING
    assert world.streak(alice).idle_seconds <= 60


async def test_keeps_and_extensions_stay_as_they_were_granted(switching):
    world = switching(extend=ExtendPolicy(60.0, 60.0, (10.0,)))
    alice = await world.up("alice")
    world.shows(alice, 80)
    await until_minute(world, 11)
    told = world.view(alice)
    assert (told.keep.left, told.keep.each_seconds) == (2, 3600)
    assert told.extend.each_seconds == 3600
    bob = await world.up("bob")
    told = present_workspace(world.parts, bob)
    assert (told.keep.left, told.extend.each_seconds) == (1, 60)
    await until_minute(world, 31)
    world.shows(bob, 80)
    assert world.view(bob).keep.each_seconds == 60
