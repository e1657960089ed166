"""What is known of the hub: its list of servers, and answers about single ones. Who is away is asked once."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any

from gpuspawner.backends.base import OutageLog
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.observations import HubServer
from gpuspawner.core.outages import HUB
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocator import Allocator
from gpuspawner.service.engine.executor import KeyedExecutor
from gpuspawner.service.engine.hub import HubClient, seconds_of
from gpuspawner.service.settings import Settings

QUESTIONS_AT_ONCE = 8
"""Questions about single servers that the hub is sent at the same time. Arbitrary: it is one process, and a hub that
hangs is asked for so many before it is known to."""
HUB_AWAY_SECONDS = 2.0
"""A hub that does not answer is asked for its list again after this. Arbitrary: what may wait for it once it is back,
and seldom enough for one that boots."""


class HubView:
    """The hub's servers as last listed. ``servers``, by (the user's ``created``, name), is None while it is away.

    ``in_doubt`` is true from the first question that it does not answer until its list tells.
    """

    def __init__(self, hub: HubClient, allocator: Allocator, clock: Clock, settings: Settings) -> None:
        """Know nothing yet; ``allocator`` is told whether the hub answers."""
        self._hub, self._allocator, self._clock, self._settings = hub, allocator, clock, settings
        self._questions = KeyedExecutor(QUESTIONS_AT_ONCE, clock.now)
        self._listed_at = -math.inf
        self._outages = OutageLog()
        self._answered_at: float | None = None
        self.servers: dict[tuple[str, str], HubServer] | None = None
        self.in_doubt = False

    def is_due(self) -> bool:
        """Whether the list is to be asked for."""
        due_seconds = self._settings.hub_seconds if self._allocator.observed.hub_answers else HUB_AWAY_SECONDS
        return self._clock.now() - self._listed_at >= due_seconds

    async def look(self) -> bool:
        """Ask for the list; whether the hub answered."""
        self._listed_at = self._clock.now()
        try:
            servers = await self._hub.servers()
        except Unavailable as error:
            self._outages.begin(HUB, str(error), self._clock.now(), self._answered_at)
            self._allocator.observed.hub_outage = self._outages.outage
            self._allocator.observed.hub_answers, self.in_doubt = False, True
            self.servers = None
            return False
        self._answered_at = self._clock.now()
        self._outages.end(self._answered_at)
        self._allocator.observed.hub_outage = None
        self._allocator.observed.hub_answers, self.in_doubt = True, False
        self.servers = {(s.user_created, s.name): s for s in servers}
        return True

    def server(self, lease: Lease) -> HubServer | None:
        """Return the server of a lease's key as last listed."""
        return (self.servers or {}).get((lease.key.user_created, lease.key.server))

    def ask(self, lease: Lease, step: Callable[[Lease], Coroutine[Any, Any, None]]) -> None:
        """Have a step taken that asks the hub about one server."""
        if self._allocator.observed.hub_answers and not self.in_doubt:
            self._questions.offer(as_it_stands(lease), partial(self._asked, lease, step))

    async def _asked(self, lease: Lease, step: Callable[[Lease], Coroutine[Any, Any, None]]) -> None:
        if self.in_doubt:
            return  # it began to fail while this waited for its turn
        try:
            await step(lease)
        except Unavailable:
            self.in_doubt = True
            self._listed_at = -math.inf
            raise

    async def close(self) -> None:
        """Cancel the questions under way."""
        await self._questions.close()


def as_it_stands(lease: Lease) -> Hashable:
    """Return the key of what is done about a lease until it changes."""
    return lease.id, lease.phase, lease.attempt, lease.granted_at, lease.hub_gone


def answers(server: HubServer | None, lease: Lease) -> bool:
    """Whether a server answers that is this user's."""
    return server is not None and server.ready and server.user_created == lease.key.user_created


def ended_wrongly(lease: Lease, server: HubServer) -> bool:
    """Whether a lease ended because no server of it was seen, and yet this one had been started by then."""
    started_at = seconds_of(server.started)
    in_time = started_at is not None and lease.ended_at is not None and started_at <= lease.ended_at
    return transitions.ended_by_dropped_starts(lease) and in_time


def is_its(server: HubServer | None, lease: Lease) -> bool:
    """Whether a server is the lease's own: a newer one may have its name, started while gpuspawner was not there."""
    return (
        server is not None
        and server.user_created == lease.key.user_created
        and lease.server_started in {"", server.started}
    )
