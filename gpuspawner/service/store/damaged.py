"""Rows of which one column can't be read: lists go on without them, and administrators are told."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.store import tables
from gpuspawner.service.store.rows import lease_of

log = logging.getLogger("gpuspawner.store")


class DamagedLeases:
    """Ended leases that can't be read, by id, with the reason. Each is logged once."""

    def __init__(self) -> None:
        """Start with none."""
        self.found: dict[str, str] = {}

    def readable(self, connection: sa.Connection, query: sa.Select[Any]) -> list[Lease]:
        """Return the leases of a query for documents, without those that can't be read."""
        ids = query.with_only_columns(tables.leases.c.id, tables.leases.c.document)
        leases = []
        for row in rows_of(connection, ids, tables.leases.c.document):
            try:
                leases.append(lease_of(row.document))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is told of
                self._note(row.id, error)
            else:
                self.found.pop(row.id, None)
        return leases

    def _note(self, lease_id: str, error: Exception) -> None:
        if lease_id not in self.found:
            log.error("the lease %s can't be read from the store; lists leave it out: %s", lease_id, error)
        self.found[lease_id] = f"{type(error).__name__}: {error}"


def rows_of(connection: sa.Connection, query: sa.Select[Any], column: sa.Column[Any]) -> Sequence[Any]:
    """Return the rows of a query. Where a row's JSON ``column`` is no JSON, that row has None for it."""
    try:
        return connection.execute(query).all()
    except ValueError:  # SQLite's JSON is text: one damaged row fails the whole query
        pass
    as_text = [
        sa.type_coerce(one, sa.Text).label(column.name) if one is column else one for one in query.selected_columns
    ]
    rows = connection.execute(query.with_only_columns(*as_text)).mappings().all()
    return [SimpleNamespace(**{**row, column.name: _parsed(row[column.name])}) for row in rows]


def _parsed(text: str | None, parse: Callable[[str], Any] = json.loads) -> Any:
    try:
        return None if text is None else parse(text)
    except ValueError:
        return None
