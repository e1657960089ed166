"""Holds for a class on what runs: told before Start and in time, not extended into, and nothing ended for them."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from gpuspawner.core.calendar import Window
from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.lease import UP, Phase
from gpuspawner.core.queue.snapshot import claim_of
from gpuspawner.core.rules import ClassHold, Rules
from gpuspawner.service.notifications.messages import message_of
from gpuspawner.service.start.check import starts_now
from gpuspawner.service.workspaces.presenter import present_workspace

EVERY_DAY = frozenset(range(7))
HOUR = 3600.0


@pytest.fixture
def with_class(make_world):
    """A world of two GPUs, both reserved for cs231 each day for two hours, starting in ``hours`` hours."""

    def make(hours, **settings):
        world = make_world(**settings)
        begins = world.clock.now() + hours * HOUR
        local = datetime.fromtimestamp(begins, timezone.utc)
        minute = local.hour * 60 + local.minute
        hold = ClassHold("cs231", "a100", 2, Window(EVERY_DAY, minute, (minute + 120) % 1440))
        world.catalog = replace(world.catalog, rules=Rules(holds=(hold,), timezone="UTC"))
        world.boot()
        return world, begins

    return make


async def test_a_lifetime_is_shortened_before_start_and_ends_at_the_hold(with_class):
    world, begins = with_class(6)
    await world.round()
    bob = await world.start("bob")
    would = await world.parts.queue.offers_for(claim_of(bob))
    assert would.latest_end.at == begins
    sentence = starts_now(bob.request, world.catalog, None, world.clock.now(), None, would.latest_end)
    assert "Ends at " in sentence
    assert sentence.endswith(", when 2 A100 80 GB are reserved for cs231.")
    alice = await world.up("alice")
    assert (alice.deadline_at, alice.latest_end.rule) == (begins, "hold")
    world.shows(alice, 80)
    with pytest.raises(Conflict, match="when 2 A100 80 GB are reserved for cs231"):
        await world.parts.actions.extend(alice, "alice")
    assert any(why.endswith("are reserved for cs231.") for _, did, why in world.audit(alice) if did == "bounded")


async def test_a_request_with_less_than_the_minimum_time_waits_and_is_told_until_when(with_class):
    world, _ = with_class(0.25)
    await world.round()
    alice = await world.start("alice")
    assert alice.phase is Phase.QUEUED
    await world.round()
    told = world.view(alice).queue.sentence
    assert told.startswith("2 A100 80 GB are reserved for cs231 from ")
    world.clock.advance(2.5 * HOUR)
    await world.parts.attempts.hear(alice.id, alice.attempt)
    await world.round()
    assert world.phase(alice) is Phase.RESERVED


async def test_members_of_a_class_get_its_reserved_gpus(with_class):
    world, _ = with_class(0.25)
    world.hub.members["alice"] = {"cs231"}
    await world.round()
    alice = await world.start("alice")
    assert (alice.phase, alice.request.classes) == (Phase.RESERVED, ("cs231",))


async def test_a_workspace_that_runs_into_a_reservation_is_notified_once(with_class):
    world, begins = with_class(4, notify_users="json://127.0.0.1/{user}")
    rules = world.catalog.rules
    world.change_catalog(replace(world.catalog, rules=Rules()))
    alice = await world.up("alice")
    world.shows(alice, 80)
    world.change_catalog(replace(world.catalog, rules=rules))  # the class is added while it runs
    told = []
    world.registry.on_stored = lambda lease, line: told.append(message_of(world.parts, lease, line))
    await world.go_on(3.4 * HOUR, step=300)
    assert world.now_of(alice).reaches_into is None, "it is told 30 minutes before, as of a deadline"
    await world.go_on(0.3 * HOUR, step=60)
    warned = world.now_of(alice)
    assert (warned.reaches_into.at, warned.reaches_into.name) == (begins, "cs231")
    warning = present_workspace(world.parts, warned).warning
    assert (warning.kind, warning.ends_at, warning.actions) == ("hold", None, [])
    assert "Nothing ends it for that, and it can't be extended." in warning.text
    with pytest.raises(
        Conflict, match=r"can't run beyond .* by an extension, when 2 A100 80 GB are reserved for cs231"
    ):
        await world.parts.actions.extend(warned, "alice")
    await world.go_on(2.4 * HOUR, step=120)
    after = world.now_of(alice)
    assert after.phase in UP
    assert after.reaches_into is None, "it is over"
    assert [x.title for x in told if x] == ["Your workspace runs into the time of a class"]
