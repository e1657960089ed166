"""Decisions of administrators: restrictions, preemptions and announcements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from gpuspawner.core.administration import Announcement, AnnouncementAudience, Restriction
from gpuspawner.core.queue.preemption import Preemption
from gpuspawner.service.store import tables
from gpuspawner.service.store.audit_log import AuditLine, write_audit
from gpuspawner.service.store.documents import StoredDocuments
from gpuspawner.service.store.outbox import OutboxRow, write_outbox
from gpuspawner.service.store.rows import StoredRows, read_with_damaged_json


class Restrictions(StoredDocuments[Restriction]):
    """Restrictions: drained nodes, quarantined GPUs, pauses, exemptions, reservations."""

    table = tables.restrictions
    adapter = TypeAdapter(Restriction)

    def in_force(self, now: float) -> list[Restriction]:
        """Return the restrictions that hold, oldest first."""
        t = self.table.c
        return self._find(t.lifted_at.is_(None) & (t.until.is_(None) | (t.until > now)), t.since)

    def latest(self, limit: int) -> list[Restriction]:
        """Return the restrictions that were made last, newest first."""
        return self._latest(self.table.c.since.desc(), limit)

    def delete_over(self, before: float) -> None:
        """Delete restrictions that ended before."""
        self._delete(self.table, (self.table.c.lifted_at < before) | (self.table.c.until < before))


class Preemptions(StoredDocuments[Preemption]):
    """Requests with priority that preempt workspaces."""

    table = tables.preemptions
    adapter = TypeAdapter(Preemption)

    def live(self) -> list[Preemption]:
        """Return the preemptions that are not over, oldest first."""
        return self._find(self.table.c.live, self.table.c.made_at)

    def latest(self, limit: int) -> list[Preemption]:
        """Return the preemptions that were made last, newest first."""
        return self._latest(self.table.c.made_at.desc(), limit)

    def find_by_key(self, by: str, key: str) -> Preemption | None:
        """Return the preemption that a person made with a key."""
        return next(iter(self._find((self.table.c.by == by) & (self.table.c.key == key))), None)

    def delete_over(self, before: float) -> None:
        """Delete preemptions that were made before and are over."""
        self._delete(self.table, (self.table.c.made_at < before) & ~self.table.c.live)


class Announcements(StoredRows):
    """Messages of administrators to users."""

    def save(self, one: Announcement, audit: Iterable[AuditLine], outbox: Iterable[OutboxRow] = ()) -> None:
        """Write an announcement, in place of what was stored of it, with audit entries and the mails that it sends."""
        t = tables.announcements
        row = {**asdict(one), "whom": one.whom.value, "recipients": sorted(one.recipients)}
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(t.c.id == one.id))
            connection.execute(t.insert(), row)
            write_audit(connection, audit)
            write_outbox(connection, outbox)

    def made_since(self, at: float) -> list[Announcement]:
        """Return the announcements that were made since, newest first."""
        t = tables.announcements
        query = sa.select(t).where(t.c.made_at >= at).order_by(t.c.made_at.desc(), t.c.id)
        with self._transaction() as connection:
            rows = read_with_damaged_json(connection, query, t.c.recipients)
        return self._damaged.read(t, rows, _announcement_of)

    def delete_over(self, before: float) -> None:
        """Delete announcements that were made and ended before."""
        t = tables.announcements
        self._delete(t, (t.c.made_at < before) & (t.c.until < before))


def _announcement_of(row: Any) -> Announcement:
    values = {column.name: getattr(row, column.name) for column in tables.announcements.c}
    return Announcement(**{**values, "whom": AnnouncementAudience(row.whom), "recipients": frozenset(row.recipients)})
