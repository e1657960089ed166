"""Group membership: asked again for decisions, some seconds old on pages, and never guessed."""

import asyncio

import pytest

from gpuspawner.catalog import load_text
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import NOBODY, Owner
from gpuspawner.service.engine import hub_state as hub_module
from gpuspawner.service.engine.hub_state import GROUPS_KNOWN_SECONDS, GroupMembers
from gpuspawner.service.fake import FakeHub, HandClock

WITH_GROUPS = load_text("version: 1\ntemplates: {lab: {}, lead: {groups: [leads]}}\nteams: {vision: {}}")
WITHOUT = load_text("version: 1\ntemplates: {lab: {}}")


@pytest.fixture
def hub():
    clock = HandClock()
    hub = FakeHub(clock, members={"ann": {"leads"}})
    hub.add("ann")
    return hub


def asked_by(hub, catalog=WITH_GROUPS):
    return GroupMembers(hub, hub.clock, InForce(catalog))


ANN = Owner("hub", "ann born")


async def test_group_decisions_are_asked_again_and_pages_are_seconds_old(hub):
    who = asked_by(hub)
    assert await who.fetch("ann", ANN) == await who.fetch_recent("ann", ANN) == {"leads"}
    hub.members["ann"] = {"vision"}
    assert await who.fetch_recent("ann", ANN) == {"leads"}
    assert await who.fetch("ann", ANN) == await who.fetch_recent("ann", ANN) == {"vision"}
    hub.members["ann"] = set()
    hub.clock.advance(GROUPS_KNOWN_SECONDS)
    assert await who.fetch_recent("ann", ANN) == set()


async def test_a_clock_that_went_back_makes_nothing_older_than_it_is(hub):
    who = asked_by(hub)
    await who.fetch("ann", ANN)
    hub.members["ann"] = set()
    hub.clock.advance(-3600.0)
    assert await who.fetch_recent("ann", ANN) == set()


async def test_unknown_users_and_former_owners_of_a_name_are_in_no_group(hub):
    who = asked_by(hub)
    assert await who.fetch("ann", Owner("hub", "another born")) == set()
    assert await who.fetch("ann", NOBODY) == set()
    assert hub.asked_for_groups == ["ann"]


async def test_a_catalog_without_groups_makes_no_group_requests(hub):
    hub.unreachable = "The hub does not answer."
    assert await asked_by(hub, WITHOUT).fetch("ann", ANN) == set()


async def test_a_hub_that_does_not_answer_in_time_is_unavailable(hub, monkeypatch):
    async def hang(*_who):
        await asyncio.sleep(60)

    monkeypatch.setattr(hub_module, "GROUPS_ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(hub, "groups", hang)
    with pytest.raises(Unavailable, match="groups of its users"):
        await asked_by(hub).fetch("ann", ANN)


async def test_groups_missing_in_the_hub_and_unknown_groups_are_reported(hub):
    who = asked_by(hub)
    assert who.find_missing() == ()
    with pytest.raises(Unavailable, match="not read yet"):
        _ = who.names
    await who.read_names()
    assert who.names == {"leads"}
    assert [line.partition(",")[0] for line in who.find_missing()] == ["The hub has no group vision"]
    hub.unreachable = "The hub does not answer."
    await who.read_names()
    assert who.find_missing() == ("Which groups the hub has is not known. The hub does not answer.",)
