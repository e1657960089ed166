"""Pages are told of changes by a stream: what is theirs at once, what all share in turn, and only while they may."""

import itertools
import re
import time
from dataclasses import replace

import page_world
import pytest
import requests
from jupyterhub.services.auth import HubOAuth
from page_world import Browser

from gpuspawner.service.api import events


@pytest.fixture
def world(make_web_world, monkeypatch):
    monkeypatch.setattr(events, "STEP_SECONDS", 0.01)
    monkeypatch.setattr(events, "SPREAD_SECONDS", 0.02)
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.1)
    world = make_web_world()
    world.observe()
    return world


class Stream:
    """One page's stream; ``since`` is the version that the page shows."""

    def __init__(self, world, name, since=""):
        self.response = requests.get(
            f"{world.home}api/v1/events?since={since}",
            headers={"Authorization": f"token {world.token(name)}"},
            stream=True,
            timeout=10,
        )
        self.lines = self.response.iter_lines(chunk_size=1, decode_unicode=True)

    def next(self):
        """The next event's new version, or a comment as it is."""
        for line in self.lines:
            if line.startswith((":", "data: ")):
                return line.removeprefix("data: ")
        return "over"

    def changes(self):
        """The version of the next change; comments go by."""
        return next(x for x in iter(self.next, "over") if not x.startswith(":"))


def version(world, name):
    return re.search(r'data-version="([^"]*)"', Browser(world, name).home.text)[1]


def test_a_stream_reports_only_changes_that_the_page_shows(world):
    mine, other = (
        world.save(page_world.running(user="alice")),
        world.save(page_world.running("bobs", user="bob", gpus=(1,))),
    )
    since = version(world, "alice")
    stream = Stream(world, "alice", since)
    assert stream.response.headers["Content-Type"] == "text/event-stream"
    assert stream.next() == ": nothing new"
    world.save(replace(other, sampled_at=page_world.NOW))
    assert stream.next() == ": nothing new", "what was measured of another's"
    world.save(replace(mine, sampled_at=page_world.NOW))
    told = stream.changes()
    assert told == version(world, "alice") != since
    world.save(page_world.waiting(user="carol"))
    assert stream.changes() == version(world, "alice") != told, "who waits is everybody's to see"
    assert Stream(world, "alice", since).next() == version(world, "alice"), "a page that missed both is told at once"


def test_an_administrator_s_page_shows_everybody_s_and_is_told_of_it(world):
    other = world.save(page_world.running("bobs", user="bob", gpus=(1,)))
    stream = Stream(world, "admin", version(world, "admin"))
    world.save(replace(other, sampled_at=page_world.NOW))
    assert stream.changes() == version(world, "admin")


def test_event_streams_need_rights_and_are_limited_per_browser(world, monkeypatch):
    monkeypatch.setattr(events, "STEP_SECONDS", 30.0)  # the place of a page that was left is free before its next look
    assert Stream(world, "mallory").response.status_code == 403
    streams = [Stream(world, "alice") for _ in range(events.STREAMS_EACH)]
    assert {stream.response.status_code for stream in streams} == {200}
    refused = Stream(world, "alice").response
    assert refused.status_code == 429
    assert "half minute" in refused.json()["error"]["message"]
    assert Stream(world, "bob").response.status_code == 200
    streams[0].response.close()
    assert any(Stream(world, "alice").response.status_code == 200 for _ in range(100)), "its place is free again"


def test_a_stream_ends_when_its_user_may_no_longer_look(world, monkeypatch):
    stream = Stream(world, "alice", version(world, "alice"))
    assert stream.next() == ": nothing new"
    monkeypatch.delitem(page_world.PEOPLE, "alice")
    world.call(HubOAuth.instance().cache.clear)
    assert list(itertools.islice(iter(stream.next, "over"), 3)) in ([], [": nothing new"])


def test_a_stream_full_of_changes_ends_with_its_user_too(world, monkeypatch):
    lease = world.save(page_world.running(user="alice"))
    stream = Stream(world, "alice", version(world, "alice"))
    assert stream.next() == ": nothing new"
    monkeypatch.delitem(page_world.PEOPLE, "alice")
    world.call(HubOAuth.instance().cache.clear)
    until, told = time.monotonic() + 10, []
    for number in itertools.count():  # each change comes sooner than a heartbeat
        world.save(replace(lease, sampled_at=page_world.NOW + number))
        told.append(stream.next())
        if told[-1] == "over" or time.monotonic() > until:
            break
    assert told[-1] == "over"
