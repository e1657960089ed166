"""Server-sent events that tell an open page of changes, so that it does not ask every 5 seconds."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import Owner
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.api.rest.document import read_arguments, route
from gpuspawner.service.api.rest.models import Query
from gpuspawner.service.parts import Parts
from gpuspawner.service.web.permissions import Permission, Person

STEP_SECONDS = 1.0
"""The interval in which a stream looks for changes. Changes of the user's own data are sent within it."""
SPREAD_SECONDS = 5.0
"""Each stream reports changes of shared data once in this time, each at its own moment. Otherwise one change would
reload all open pages at once."""
HEARTBEAT_SECONDS = 15.0
"""A stream without a change sends a comment after this time, so that no proxy closes it. Its user is checked, too."""
STREAMS_EACH = 4
"""The streams of one user. A browser opens at most 6 connections to one hub by HTTP/1.1. Two are left for pages."""
STREAMS = 1000
"""The streams of all users. Arbitrary: far under the limit of the process. Other pages ask twice a minute."""


def version_of(parts: Parts, person: Person) -> tuple[str, str]:
    """Return the versions of the data that a person's pages show: their own data, and shared data.

    For people who see the workspaces of others, every change counts as shared.
    """
    others = f"{parts.quota_requests.changes}-{parts.team_alerts.changes}"
    saves, shared = parts.registry.saves, f"{parts.queue.version}-{others}"
    if person.sees_more(Permission.SEE_WORKSPACES):
        shared = f"{shared}-{saves.total()}"
    return f"{parts.store.epoch}-{saves[person.owner]}", shared


class EventsQuery(Query):
    """The version that a page shows."""

    since: str = ""
    """The version that the page shows. Changes before the stream was open are sent at once."""


class Events(ApiHandler):
    """GET [?since=]: ``event: changed`` with the new version whenever the data on the user's pages has changed."""

    _who: tuple[str, Owner] | None = None
    """The user of the stream, as long as it is open."""

    def on_connection_close(self) -> None:
        """End the stream at once, so that its place is free for the user's next page."""
        self._over = True
        self._leave()

    def _leave(self) -> None:
        who, self._who = self._who, None
        if who is not None:
            streams = self.parts.streams
            streams[who] -= 1
            if not streams[who]:
                del streams[who]

    @route(answer="text/event-stream", query=EventsQuery, refuses=(429,))
    async def get(self) -> None:
        """Stream events until the client disconnects or loses its rights. 429 if too many streams are open."""
        person, streams, since = self.must(), self.parts.streams, read_arguments(self, EventsQuery).get("since", "")
        who = (person.name, person.owner)
        if streams[who] >= STREAMS_EACH or streams.total() >= STREAMS:
            raise HTTPError(429, reason="Too many pages listen already: ask again every half minute instead.")
        self._over, self._who = False, who
        streams[who] += 1
        try:
            await self._tell(person, since)
        except StreamClosedError:
            pass  # the page was closed
        finally:
            self._leave()

    async def _tell(self, person: Person, since: str) -> None:
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")  # nginx would keep the events until it has a page full of them
        time = asyncio.get_running_loop().time
        own, _, shared = since.partition(".")
        shared_at, heartbeat_at = time() + SPREAD_SECONDS * random.random(), time()  # noqa: S311 - it spreads
        check_at = time()
        while not self._over:
            if time() >= check_at:  # at its own interval, because changes must not delay it
                if not await self._still(person):
                    return
                check_at = time() + HEARTBEAT_SECONDS
            now_own, now_shared = version_of(self.parts, person)
            if now_own != own or (now_shared != shared and time() >= shared_at):
                own, shared = now_own, now_shared
                shared_at, heartbeat_at = time() + SPREAD_SECONDS, time() + HEARTBEAT_SECONDS
                await self._send(f"event: changed\ndata: {own}.{shared}\n\n")
            elif time() >= heartbeat_at:
                heartbeat_at = time() + HEARTBEAT_SECONDS
                await self._send(": nothing new\n\n")
            await asyncio.sleep(STEP_SECONDS)

    async def _still(self, person: Person) -> bool:
        """Return whether the user of the stream may still listen. If not, the page asks again and gets the reason."""
        self.__dict__.pop("_cached_hub_user", None)  # JupyterHub keeps its answer as long as a request lasts
        try:
            return await self.find_person() == person
        except (HTTPError, Unavailable):
            return False

    async def _send(self, text: str) -> None:
        self.write(text)
        await self.flush()


ROUTES: list[Any] = [(r"/api/v1/events", Events)]
