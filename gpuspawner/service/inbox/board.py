"""The messages of administrators that somebody may still read, in memory as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuspawner.core.errors import Conflict
from gpuspawner.core.inbox.messages import Message
from gpuspawner.core.inbox.notices import KEPT_SECONDS
from gpuspawner.service.clock import Clock
from gpuspawner.service.store import AuditLine, Store
from gpuspawner.service.store.outbox import OutboxRow


class Board:
    """Keeps them. Raises Unavailable where a change cannot be stored: then nothing has changed."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Start empty; :meth:`load` reads what the store holds."""
        self._store, self._clock = store, clock
        self._messages: list[Message] = []
        self.changes = 0
        """How many times they changed, since this service started."""

    async def load(self) -> None:
        """Read them from the store."""
        self._messages = await self._store.read(self._store.announcements.made_since, self._clock.now() - KEPT_SECONDS)
        self.changes += 1

    def all(self) -> list[Message]:
        """Return those of a month, the newest first."""
        since = self._clock.now() - KEPT_SECONDS
        return [one for one in self._messages if one.made_at >= since or one.is_shown(self._clock.now())]

    def told_to(self, user_created: str) -> list[Message]:
        """Return those that somebody may read in their inbox, the newest first."""
        return [one for one in self.all() if one.withdrawn_at is None and one.is_for(user_created)]

    def shown_to(self, user_created: str) -> list[Message]:
        """Return those that pages show somebody now, the newest first."""
        now = self._clock.now()
        return [one for one in self.told_to(user_created) if one.is_shown(now)]

    def of(self, name: str) -> Message | None:
        """Return one by its id."""
        return next((one for one in self._messages if one.id == name), None)

    async def add(self, one: Message, audit: Sequence[AuditLine], outbox: Sequence[OutboxRow] = ()) -> None:
        """Store a new one, which is shown from then on, with what is sent of it."""
        await self._store.write(self._store.announcements.save, one, audit, outbox)
        self._messages = [one, *self._messages]
        self.changes += 1

    async def withdraw(self, one: Message, by: str, audit: Sequence[AuditLine]) -> Message:
        """Store that one is shown no more.

        Raises:
            Conflict: it is not shown now.
        """
        now = self._clock.now()
        if not one.is_shown(now):
            raise Conflict(f"This message is {one.state(now)} already: no page shows it.")
        gone = replace(one, withdrawn_at=now, withdrawn_by=by)
        await self._store.write(self._store.announcements.save, gone, audit)
        self._messages = [gone if each.id == one.id else each for each in self._messages]
        self.changes += 1
        return gone
