"""Objects that are stored whole, as JSON documents, with the few columns that they are searched by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar

import sqlalchemy as sa
from pydantic import TypeAdapter

from gpuspawner.service.store.audit_log import AuditLine, write_audit
from gpuspawner.service.store.rows import StoredRows, read_with_damaged_json

T = TypeVar("T")


class StoredDocuments(StoredRows, Generic[T]):
    """Reads and writes one table of documents.

    A subclass names the table and the adapter that reads and writes a document. Beside ``document``, the table has
    columns with the names of the object's attributes, one of them ``id``.
    """

    table: ClassVar[sa.Table]
    adapter: ClassVar[TypeAdapter[Any]]

    def save(self, objects: Iterable[T], audit: Iterable[AuditLine] = ()) -> None:
        """Write objects, in place of what was stored under their ids, with audit entries."""
        with self._transaction(writes=True) as connection:
            self.write(connection, objects)
            write_audit(connection, audit)

    def write(self, connection: sa.Connection, objects: Iterable[T]) -> None:
        """Write objects in a transaction, in place of what was stored under their ids."""
        names = [column.name for column in self.table.c if column.name != "document"]
        rows = [
            {**{name: getattr(one, name) for name in names}, "document": self.adapter.dump_python(one, mode="json")}
            for one in objects
        ]
        connection.execute(self.table.delete().where(self.table.c.id.in_([row["id"] for row in rows])))
        connection.execute(self.table.insert(), rows)

    def get(self, name: str) -> T | None:
        """Return an object by its id, None without one."""
        return next(iter(self._find(self.table.c.id == name)), None)

    def _find(self, where: sa.ColumnElement[bool], *order: sa.ColumnElement[Any]) -> list[T]:
        """Return objects. Raises Unavailable if one can't be read: what it forbids would happen."""
        t = self.table.c
        with self._transaction() as connection:
            documents = connection.scalars(sa.select(t.document).where(where).order_by(*order, t.id))
            return [self.adapter.validate_python(document) for document in documents]

    def _latest(self, order: sa.ColumnElement[Any], limit: int) -> list[T]:
        """Return the first objects of an order, without those that can't be read."""
        t = self.table.c
        with self._transaction() as connection:
            query = sa.select(t.id, t.document).order_by(order, t.id).limit(limit)
            rows = read_with_damaged_json(connection, query, t.document)
        return self._damaged.read(self.table, rows, lambda row: self.adapter.validate_python(row.document))
