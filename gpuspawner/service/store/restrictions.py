"""What administrators keep from being given or judged: each with the audit line of its making, and of its lifting."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from pydantic import TypeAdapter

from gpuspawner.core.administering.restrictions import Restriction
from gpuspawner.service.store import tables
from gpuspawner.service.store.outputs import Transactions
from gpuspawner.service.store.rows import AuditLine, row_of_line

_json: TypeAdapter[Restriction] = TypeAdapter(Restriction)


class RestrictionRows:
    """Their table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    def save(self, some: Iterable[Restriction], audit: Iterable[AuditLine]) -> None:
        """Write some, in place of what was stored of them, with their audit."""
        t = tables.restrictions
        rows = [
            {
                "id": one.id,
                "since": one.since,
                "until": one.until,
                "lifted_at": one.lifted_at,
                "document": _json.dump_python(one, mode="json"),
            }
            for one in some
        ]
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(t.c.id.in_([row["id"] for row in rows])))
            connection.execute(t.insert(), rows)
            connection.execute(tables.audit.insert(), [row_of_line(line) for line in audit])

    def in_force(self, now: float) -> list[Restriction]:
        """Return those that hold, the oldest first."""
        columns = tables.restrictions.c
        lasts = columns.until.is_(None) | (columns.until > now)
        return self._where(columns.lifted_at.is_(None) & lasts, columns.since)

    def last(self, limit: int) -> list[Restriction]:
        """Return the last that were made, the newest first."""
        return self._where(sa.true(), tables.restrictions.c.since.desc(), limit)

    def of(self, name: str) -> Restriction | None:
        """Return one by its id."""
        return next(iter(self._where(tables.restrictions.c.id == name, tables.restrictions.c.since)), None)

    def forget(self, before: float) -> None:
        """Delete what was over before."""
        t = tables.restrictions
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where((t.c.lifted_at < before) | (t.c.until < before)))

    def _where(
        self, where: sa.ColumnElement[bool], order: sa.ColumnElement[object], limit: int | None = None
    ) -> list[Restriction]:
        query = sa.select(tables.restrictions.c.document).where(where).order_by(order, tables.restrictions.c.id)
        with self._transaction() as connection:
            return [_json.validate_python(document) for document in connection.scalars(query.limit(limit))]
