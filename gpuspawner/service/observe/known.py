"""Whether the hub still has who acts by a page's ticket: it was signed before, and a user may be deleted meanwhile."""

from __future__ import annotations

import asyncio

from gpuspawner.core.errors import Unavailable
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.hub import HubClient

STANDS_SECONDS = 10.0
"""How long the hub's answer stands: several clicks ask once."""
ANSWER_SECONDS = 2.0


class KnownUsers:
    """Asks the hub, and remembers for a moment whom it has."""

    def __init__(self, hub: HubClient, clock: Clock) -> None:
        """Know nobody yet."""
        self._hub, self._clock = hub, clock
        self._until: dict[tuple[str, str], float] = {}

    async def has(self, user: str, created: str) -> bool:
        """Whether the hub has the user of this name, created then.

        True while it does not answer: a ticket is good for a minute only, and people must be able to press Keep.
        """
        if self._is_known(user, created):
            return True
        try:
            found = await asyncio.wait_for(self._hub.created(user), ANSWER_SECONDS)
        except (Unavailable, TimeoutError, asyncio.TimeoutError):
            return True
        if found == created:
            self._note(user, created)
        return found == created

    async def name_of(self, user: str, created: str) -> str | None:
        """Return what the user is called now who was created then and called ``user``; None for nobody any more.

        Raises:
            Unavailable: the hub does not answer.
        """
        if self._is_known(user, created):
            return user
        name = await self._hub.name_of(created, user)
        if name is not None:
            self._note(name, created)
        return name

    def _is_known(self, user: str, created: str) -> bool:
        return self._until.get((user, created), 0.0) > self._clock.now()

    def _note(self, user: str, created: str) -> None:
        now = self._clock.now()
        fresh = {who: until for who, until in self._until.items() if until > now}
        self._until = {**fresh, (user, created): now + STANDS_SECONDS}
