"""The adapter with a scheduler that gives unusual answers: it sends no flood of requests and loses no claim."""

import asyncio
from collections import Counter

import pytest
from lease_builders import KINDS, NOW, a_lease
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.catalog import HttpSchedulerAddress
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.schedulers.http.client import MAX_CONCURRENT, SchedulerClient
from gpuspawner.schedulers.http.scheduler import HttpScheduler
from gpuspawner.schedulers.own_queue import InMemoryScheduler

ABLE = {
    "contract": "1.0",
    "name": "Odd",
    "version": "3",
    "hold_seconds": 60,
    "preemption_notice_seconds": None,
    **dict.fromkeys(("positions", "estimates", "substitutes", "callbacks"), True),
}


class Odd(RequestHandler):
    """A scheduler without long polls. Its cursor changes, as by another hub's claims, and our claims do not."""

    def initialize(self, asked, failing):
        self.asked, self.failing = asked, failing

    def _note(self):
        what = f"{self.request.method} {self.request.path.rpartition('/')[2]}"
        self.asked[what] += 1
        return what

    def get(self):
        what = self._note()
        claims = {"cursor": str(self.asked[what]), "complete": not self.get_argument("cursor", ""), "claims": []}
        self.finish({"GET capabilities": ABLE, "GET stock": {"stock": []}}.get(what, claims))

    def put(self):
        what = self._note()
        if "/claims/" in self.request.path and "PUT claims" in self.failing:
            self.set_status(500)
        elif what != "PUT callback":
            self.set_status(422)
            self.finish({"error": "unknown_kind", "words": "It has no such GPU."})
        else:
            self.set_status(500 if what in self.failing else 204)


@pytest.fixture
async def odd():
    asked, failing = Counter(), set()
    socket, port = bind_unused_port()
    server = HTTPServer(Application([(".*", Odd, {"asked": asked, "failing": failing})]))
    server.add_sockets([socket])
    address = HttpSchedulerAddress(f"http://127.0.0.1:{port}", "", timeout_seconds=30)
    scheduler = HttpScheduler(
        SchedulerClient(address, "hub"), InMemoryScheduler(FakeBackend(fake_gpus("a100", 1)), KINDS)
    )
    await scheduler.observe(NOW)
    yield scheduler, asked, failing
    await scheduler.close()
    server.stop()
    await server.close_all_connections()


async def sync(scheduler, *leases):
    return await scheduler.sync(Snapshot(NOW, scheduler.kinds, leases, scheduler.fleet))


async def test_a_server_without_long_polls_is_not_flooded(odd):
    scheduler, asked, _ = odd
    await sync(scheduler)
    await asyncio.sleep(1)
    assert asked["GET claims"] < 5


async def test_where_callbacks_go_is_told_again_until_it_was_taken(odd):
    scheduler, asked, failing = odd
    scheduler.callback_url = "http://hub.example/scheduler/changed"
    failing.add("PUT callback")
    for _ in range(2):
        await sync(scheduler)
    failing.clear()
    for _ in range(2):
        await sync(scheduler)
    assert asked["PUT callback"] == 3


async def test_a_rejected_claim_leaves_no_state_once_it_is_gone(odd):
    scheduler, asked, _ = odd
    await sync(scheduler, a_lease())
    assert asked["PUT one"] == 1
    await sync(scheduler)
    kept = scheduler._claims
    assert (kept._sent, kept._rejections, kept.states._revisions) == ({}, {}, {})


async def test_where_it_stops_answering_the_first_that_fail_end_the_look(odd):
    scheduler, asked, failing = odd
    failing.add("PUT claims")
    line = [a_lease(f"lease-{n}") for n in range(5 * MAX_CONCURRENT)]
    with pytest.raises(Unavailable, match="answered 500"):
        await sync(scheduler, *line)
    assert sum(asked[f"PUT {lease.id}"] for lease in line) <= MAX_CONCURRENT
