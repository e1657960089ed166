"""Entries that custom resources add to the catalog are sent only to the hub's spawner."""

import asyncio

import requests

from gpuspawner.catalog.resources.merging import Added
from gpuspawner.spawner.client import LeaseClient

BIG = Added("u-1", "templates", "big", {"extends": "pytorch"}, "2026-11-26T08:00:00Z", {"title": "the one before"})


def test_promise_9_the_spawner_alone_is_told_what_is_added_and_that_once(make_web_world):
    web_world = make_web_world()
    url = web_world.home.rstrip("/")
    client = LeaseClient(url, web_world.parts.secret, web_world.clock.wall)
    nothing = asyncio.run(client.added(""))
    assert nothing["added"] == []
    web_world.parts.in_force.used = (BIG,)
    told = asyncio.run(client.added(nothing["version"]))
    assert [Added(**one) for one in told["added"]] == [BIG]
    assert asyncio.run(client.added(told["version"])) == {"version": told["version"], "added": None}
    for headers in ({}, {"Authorization": f"token {web_world.token('alice')}"}):
        assert (
            requests.post(f"{url}/internal/added", json={"known": ""}, headers=headers, timeout=20).status_code == 403
        )
