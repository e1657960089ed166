"""The announcements of the last month, kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuspawner.core.administration import NOTICE_KEPT_SECONDS, Announcement
from gpuspawner.core.errors import Conflict
from gpuspawner.service.clock import Clock
from gpuspawner.service.store import AuditLine, Store
from gpuspawner.service.store.outbox import OutboxRow


class Announcements:
    """The announcements. Raises Unavailable if a change can't be stored. Then nothing has changed."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Start empty; :meth:`load` reads the store."""
        self._store, self._clock = store, clock
        self._messages: list[Announcement] = []
        self.changes = 0
        """The number of changes since this service started."""

    async def load(self) -> None:
        """Read them from the store."""
        self._messages = await self._store.read(
            self._store.announcements.made_since, self._clock.now() - NOTICE_KEPT_SECONDS
        )
        self.changes += 1

    def all(self) -> list[Announcement]:
        """Return the announcements of a month, the newest first."""
        since = self._clock.now() - NOTICE_KEPT_SECONDS
        return [one for one in self._messages if one.made_at >= since or one.is_shown(self._clock.now())]

    def told_to(self, user_created: str) -> list[Announcement]:
        """Return the announcements in the inbox of a user, the newest first."""
        return [one for one in self.all() if one.withdrawn_at is None and one.is_for(user_created)]

    def shown_to(self, user_created: str) -> list[Announcement]:
        """Return the announcements that pages show a user now, the newest first."""
        now = self._clock.now()
        return [one for one in self.told_to(user_created) if one.is_shown(now)]

    def get(self, name: str) -> Announcement | None:
        """Return an announcement by its id, None without one."""
        return next((one for one in self._messages if one.id == name), None)

    async def add(self, one: Announcement, audit: Sequence[AuditLine], outbox: Sequence[OutboxRow] = ()) -> None:
        """Store a new announcement with its mails. Pages show it from then on."""
        await self._store.write(self._store.announcements.save, one, audit, outbox)
        self._messages = [one, *self._messages]
        self.changes += 1

    async def withdraw(self, one: Announcement, by: str, audit: Sequence[AuditLine]) -> Announcement:
        """Store that an announcement is withdrawn, and return it. Raises Conflict if no page shows it now."""
        now = self._clock.now()
        if not one.is_shown(now):
            raise Conflict(f"This message is {one.state(now)} already: no page shows it.")
        gone = replace(one, withdrawn_at=now, withdrawn_by=by)
        await self._store.write(self._store.announcements.save, gone, audit)
        self._messages = [gone if each.id == one.id else each for each in self._messages]
        self.changes += 1
        return gone
