"""The hub's signed calls: each is served once, and only within a time of its signing."""

import asyncio
import json

import pytest
import requests
from page_world import PREFIX, spawner

from gpuspawner.catalog.resources.merging import Added
from gpuspawner.core.authentication import (
    NONCE_HEADER,
    TIME_HEADER,
    WINDOW_SECONDS,
    RequestTarget,
    new_nonce,
    request_headers,
)
from gpuspawner.core.errors import Unavailable
from gpuspawner.service.api.signed import REPLAYED, SignedRequests
from gpuspawner.spawner.client import LeaseClient


@pytest.fixture
def web_world(make_web_world):
    return make_web_world()


TARGET, BODY = f"{PREFIX}/internal/added", b'{"known": ""}'


def send(world, headers):
    response = requests.post(world.url + TARGET, headers=headers, data=BODY, timeout=20)
    return response.status_code, response.json().get("error", {}).get("message", "")


def signed(world, ahead_seconds=0.0):
    at = world.clock.wall() + ahead_seconds
    return request_headers(world.parts.secret, new_nonce(), at, RequestTarget("POST", TARGET), BODY)


def test_a_signed_request_is_served_once(web_world):
    headers = signed(web_world)
    assert send(web_world, headers)[0] == 200
    assert send(web_world, headers) == (403, REPLAYED)
    assert spawner(web_world, "added", json.loads(BODY)).status_code == 200


def test_a_recorded_request_is_too_old_once_its_nonce_is_forgotten(web_world):
    headers, kept = signed(web_world), []
    assert send(web_world, headers)[0] == 200
    for _ in range(4):
        web_world.clock.at += WINDOW_SECONDS / 2
        kept.append(send(web_world, headers)[0])
        assert send(web_world, signed(web_world))[0] == 200
    assert kept == [403] * 4
    assert len(web_world.parts.signed_requests._expires_at) < 5


@pytest.mark.parametrize("name", [NONCE_HEADER, TIME_HEADER])
def test_neither_nonce_nor_time_of_a_recorded_call_can_be_changed(web_world, name):
    other = signed(web_world, 5)[name]
    assert send(web_world, {**signed(web_world), name: other})[0] == 403


@pytest.mark.parametrize("ahead_seconds", [-200, 200])
async def test_different_clocks_are_reported_by_hub_and_service(web_world, caplog, ahead_seconds):
    client = LeaseClient(web_world.url + PREFIX, web_world.parts.secret, lambda: web_world.clock.wall() + ahead_seconds)
    for _ in range(2):
        with pytest.raises(
            Unavailable, match="clocks of the hub and of the GPU service differ by 3 min 20 s, and at most"
        ):
            await client.added("")
    told = [record for record in caplog.records if "clocks of the hub" in record.getMessage()]
    assert len(told) == 1, "the log is not filled by it"


@pytest.mark.parametrize("ahead_seconds", [-55, 55])
async def test_slightly_different_clocks_are_accepted(web_world, ahead_seconds):
    client = LeaseClient(web_world.url + PREFIX, web_world.parts.secret, lambda: web_world.clock.wall() + ahead_seconds)
    await client.added("")


def test_a_call_without_a_time_is_refused():
    assert "does not say when" in SignedRequests().refuse({NONCE_HEADER: "x", TIME_HEADER: ""}, 0.0)


BIG = Added("u-1", "templates", "big", {"extends": "pytorch"}, "2026-11-26T08:00:00Z", {"title": "the one before"})


def test_promise_9_only_the_spawner_gets_added_entries_and_only_once(make_web_world):
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
