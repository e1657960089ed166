"""Versions of the catalog's file: author, reason and text of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from gpuspawner.core.errors import Conflict
from gpuspawner.service.store import tables
from gpuspawner.service.store.audit_log import AuditLine, write_audit
from gpuspawner.service.store.rows import StoredRows

MAX_VERSIONS = 500
"""The versions that are kept, the newest. Arbitrary: at most 128 MB, and years of changes."""


@dataclass(frozen=True)
class CatalogVersion:
    """One version of the catalog's file.

    Args:
        number: 1 for the first. Each version has the next number.
        at: when it was saved or first seen, in seconds since the epoch.
        author: the person who saved it, or "" if the file was changed outside of the console.
        reason: the author's reason.
        changes: the entries that differ from the version before, in words.
        fingerprint: see ``watched_file.fingerprint_of``.
        text: the whole file. Lists leave it out.
    """

    number: int
    at: float
    author: str
    reason: str
    changes: str
    fingerprint: str
    text: str = ""


class CatalogVersions(StoredRows):
    """Reads and writes versions of the catalog's file."""

    def newest(self) -> CatalogVersion | None:
        """Return the newest version, None before the first."""
        return next(iter(self._find(sa.true(), 1, with_text=True)), None)

    def get(self, number: int) -> CatalogVersion | None:
        """Return a version by its number, None if it is not kept."""
        return next(iter(self._find(tables.catalog_versions.c.number == number, 1, with_text=True)), None)

    def below(self, number: int | None, limit: int) -> list[CatalogVersion]:
        """Return versions without their texts, the newest first. ``number`` is the first that is left out."""
        where = sa.true() if number is None else tables.catalog_versions.c.number < number
        return self._find(where, limit, with_text=False)

    def add(
        self, version: CatalogVersion, audit: Iterable[AuditLine], write_file: Callable[[], None] = lambda: None
    ) -> None:
        """Store a version with audit entries. ``write_file`` is called last, and nothing is stored if it fails.

        Raises:
            Conflict: another version was stored meanwhile.
        """
        t = tables.catalog_versions
        with self._transaction(writes=True) as connection:
            newest = connection.scalar(sa.select(sa.func.max(t.c.number))) or 0
            if newest != version.number - 1:
                raise Conflict(f"Version {newest} was saved meanwhile. Compare it with your change, and save again.")
            connection.execute(t.insert(), asdict(version))
            connection.execute(t.delete().where(t.c.number <= version.number - MAX_VERSIONS))
            write_audit(connection, audit)
            write_file()

    def _find(self, where: sa.ColumnElement[bool], limit: int, *, with_text: bool) -> list[CatalogVersion]:
        t = tables.catalog_versions
        columns = [one for one in t.c if with_text or one is not t.c.text]
        query = sa.select(*columns).where(where).order_by(t.c.number.desc()).limit(limit)
        return self._read_each(t, query, lambda row: CatalogVersion(**row), key="number")
