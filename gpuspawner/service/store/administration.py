"""Decisions of administrators: restrictions, preemptions, announcements, quota requests and catalog versions.

Most are stored whole, as JSON documents, with the few columns that they are searched by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import sqlalchemy as sa
from pydantic import TypeAdapter

from gpuspawner.core.administration import Announcement, AnnouncementAudience, Restriction
from gpuspawner.core.errors import Conflict
from gpuspawner.core.queue.preemption import Preemption
from gpuspawner.core.quotas.quota_requests import QuotaRequest, RequestOutcome
from gpuspawner.core.rules import QuotaGrant
from gpuspawner.service.store import tables
from gpuspawner.service.store.audit_log import AuditLine, write_audit
from gpuspawner.service.store.ledger import row_of_grant
from gpuspawner.service.store.outbox import OutboxRow, write_outbox
from gpuspawner.service.store.rows import Row, StoredRows, save_rows

T = TypeVar("T")


class StoredDocuments(StoredRows, Generic[T]):
    """Reads and writes one table of documents.

    A subclass names the table and the adapter that reads and writes a document. Beside ``document``, the table has
    columns with the names of the object's attributes, one of them ``id``.
    """

    table: ClassVar[sa.Table]
    adapter: ClassVar[TypeAdapter[Any]]

    def save(self, objects: Iterable[T], audit: Iterable[AuditLine] = ()) -> None:
        """Write objects, in place of their stored documents, with audit entries."""
        with self._transaction(writes=True) as connection:
            self.write(connection, objects)
            write_audit(connection, audit)

    def write(self, connection: sa.Connection, objects: Iterable[T]) -> None:
        """Write objects in a transaction, in place of their stored documents."""
        names = [column.name for column in self.table.c if column.name != "document"]
        rows = [
            {**{name: getattr(one, name) for name in names}, "document": self.adapter.dump_python(one, mode="json")}
            for one in objects
        ]
        save_rows(connection, self.table, rows)

    def get(self, name: str) -> T | None:
        """Return an object by its id, None without one."""
        return next(iter(self._find(self.table.c.id == name)), None)

    def _find(self, where: sa.ColumnElement[bool], *order: sa.ColumnElement[Any]) -> list[T]:
        """Return objects. Raises Unavailable if one can't be read, because its restriction would not be enforced."""
        t = self.table.c
        with self._transaction() as connection:
            documents = connection.scalars(sa.select(t.document).where(where).order_by(*order, t.id))
            return [self.adapter.validate_python(document) for document in documents]

    def _latest(self, order: sa.ColumnElement[Any], limit: int) -> list[T]:
        """Return the first objects of an order, without those that can't be read."""
        t = self.table.c
        query = sa.select(t.id, t.document).order_by(order, t.id).limit(limit)
        return self._read_each(self.table, query, lambda row: self.adapter.validate_python(row["document"]), t.document)


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


class Announcements(StoredRows):
    """Messages of administrators to users."""

    def save(self, one: Announcement, audit: Iterable[AuditLine], outbox: Iterable[OutboxRow] = ()) -> None:
        """Write an announcement, in place of its stored row, with audit entries and its mails."""
        row = {**asdict(one), "whom": one.whom.value, "recipients": sorted(one.recipients)}
        others = partial(write_audit, lines=audit), partial(write_outbox, rows=outbox)
        self._save(tables.announcements, [row], *others)

    def made_since(self, at: float) -> list[Announcement]:
        """Return the announcements that were made since, newest first."""
        t = tables.announcements
        query = sa.select(t).where(t.c.made_at >= at).order_by(t.c.made_at.desc(), t.c.id)
        return self._read_each(t, query, _announcement_of, t.c.recipients)


def _announcement_of(row: Row) -> Announcement:
    whom, recipients = AnnouncementAudience(row["whom"]), frozenset(row["recipients"])
    return Announcement(**{**row, "whom": whom, "recipients": recipients})


MOST_READ = 10_000
"""The most requests that are kept in memory. Arbitrary: far more than people answer while they are stored."""


class QuotaRequests(StoredDocuments[QuotaRequest]):
    """Reads and writes requests for extra quota."""

    table = tables.quota_requests
    adapter = TypeAdapter(QuotaRequest)

    def latest(self) -> list[QuotaRequest]:
        """Return the requests that were made last, newest first."""
        return self._latest(self.table.c.made_at.desc(), MOST_READ)

    def change(
        self,
        one: QuotaRequest,
        audit: Iterable[AuditLine],
        outbox: Iterable[OutboxRow] = (),
        grant: QuotaGrant | None = None,
    ) -> None:
        """Write a new or closed request, with the extra quota that it gives, audit entries and messages.

        Raises:
            Conflict: it was closed meanwhile.
        """
        before = self.get(one.id)
        with self._transaction(writes=True) as connection:
            if before is not None and before.outcome is not RequestOutcome.OPEN:
                raise Conflict(closed_words(before))
            self.write(connection, [one])
            if grant is not None:
                connection.execute(tables.quota_grants.insert(), row_of_grant(grant))
            write_audit(connection, audit)
            write_outbox(connection, outbox)


def closed_words(one: QuotaRequest) -> str:
    """Return in a sentence that a request is closed already."""
    by = f" by {one.answered_by}" if one.answered_by else ""
    return f"This request is {one.outcome.value} already{by}."


MAX_VERSIONS = 500
"""The newest versions are kept. Arbitrary: at most 128 MB, and years of changes."""


@dataclass(frozen=True)
class CatalogVersion:
    """One version of the catalog's file, or of an entry that is a custom resource.

    Args:
        number: 1 for the first. Each version has the next number.
        at: when it was saved or first seen, in seconds since the epoch.
        author: the person who saved it, or "" if it was changed outside of the console.
        reason: the author's reason.
        changes: the entries that differ from the version before, in words.
        fingerprint: see ``watched_file.fingerprint_of``.
        text: the whole file, or the spec of the resource, which is "" once it is deleted. Lists leave it out.
        entry: "" for the file, or the section and name of the resource: ``templates.big``.
    """

    number: int
    at: float
    author: str
    reason: str
    changes: str
    fingerprint: str
    text: str = ""
    entry: str = ""


class CatalogVersions(StoredRows):
    """Reads and writes versions of the catalog's file, and of its entries that are custom resources."""

    def newest(self, entry: str | None = "") -> CatalogVersion | None:
        """Return the newest version of an entry that can be read, None before the first.

        The entry "" is the file. None means any entry.
        """
        found = self.below(None, MAX_VERSIONS, entry)
        return next((whole for one in found if (whole := self.get(one.number))), None)

    def newest_numbers(self) -> dict[str, int]:
        """Return the number of the newest version of each entry. The entry "" is the file."""
        t = tables.catalog_versions
        query = sa.select(t.c.entry, sa.func.max(t.c.number).label("number")).group_by(t.c.entry)
        with self._transaction() as connection:
            return {row.entry: row.number for row in connection.execute(query)}

    def get(self, number: int) -> CatalogVersion | None:
        """Return a version by its number, None if it is not kept."""
        return next(iter(self._find(tables.catalog_versions.c.number == number, 1, with_text=True)), None)

    def below(self, number: int | None, limit: int, entry: str | None = None) -> list[CatalogVersion]:
        """Return versions without their texts, the newest first.

        ``number`` is the first that is left out. ``entry`` is their entry, None for all.
        """
        t = tables.catalog_versions.c
        where = sa.true() if number is None else t.number < number
        return self._find(where if entry is None else where & (t.entry == entry), limit, with_text=False)

    def add(
        self, version: CatalogVersion, audit: Iterable[AuditLine], write_file: Callable[[], None] = lambda: None
    ) -> None:
        """Store a version with audit entries, in place of later ones that can't be read.

        ``write_file`` is called last, and nothing is stored if it fails.

        Raises:
            Conflict: another version was stored meanwhile.
        """
        t, newest = tables.catalog_versions, self.newest(None)
        number = 0 if newest is None else newest.number
        if number != version.number - 1:
            raise Conflict(f"Version {number} was saved meanwhile. Compare it with your change, and save again.")
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(t.c.number >= version.number))
            connection.execute(t.insert(), asdict(version))
            kept = sa.select(sa.func.max(t.c.number)).group_by(t.c.entry)
            is_old = t.c.number <= version.number - MAX_VERSIONS
            connection.execute(t.delete().where(is_old & t.c.number.not_in(kept)))
            write_audit(connection, audit)
            write_file()

    def _find(self, where: sa.ColumnElement[bool], limit: int, *, with_text: bool) -> list[CatalogVersion]:
        t = tables.catalog_versions
        columns = [one for one in t.c if with_text or one is not t.c.text]
        query = sa.select(*columns).where(where).order_by(t.c.number.desc()).limit(limit)
        return self._read_each(t, query, lambda row: CatalogVersion(**row), key="number")
