"""The basis of all readers and writers of a table: transactions, rows of one owner, damaged JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, Protocol

import sqlalchemy as sa

from gpuspawner.core.leases.lease import Owner


class Transactions(Protocol):
    """Begins a transaction that checks the epoch."""

    def __call__(self, *, writes: bool = False) -> AbstractContextManager[sa.Connection]:
        """Return the transaction."""


class StoredRows:
    """Base of the readers and writers of a table.

    Each public method is one transaction, unless it takes a connection. It raises what ``store.Store`` raises.
    """

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    def _read(self, query: sa.Select[Any]) -> Sequence[sa.RowMapping]:
        with self._transaction() as connection:
            return connection.execute(query).mappings().all()

    def _delete(self, table: sa.Table, where: sa.ColumnElement[bool]) -> int:
        """Delete rows and return how many there were."""
        with self._transaction(writes=True) as connection:
            return connection.execute(table.delete().where(where)).rowcount


def owned_by(table: sa.Table, owner: Owner) -> sa.ColumnElement[bool]:
    """Return the condition that selects an owner's rows."""
    return (table.c.hub == owner.hub) & (table.c.user_created == owner.user_created)


def owner_columns(owner: Owner) -> Mapping[str, str]:
    """Return the columns that say whose a row is."""
    return {"hub": owner.hub, "user_created": owner.user_created}


def read_with_damaged_json(connection: sa.Connection, query: sa.Select[Any], column: sa.Column[Any]) -> Sequence[Any]:
    """Return the rows of a query. A row whose JSON ``column`` cannot be parsed has None for it."""
    try:
        return connection.execute(query).all()
    except ValueError:  # SQLite stores JSON as text: one damaged row fails the whole query
        pass
    as_text = [
        sa.type_coerce(one, sa.Text).label(column.name) if one is column else one for one in query.selected_columns
    ]
    rows = connection.execute(query.with_only_columns(*as_text)).mappings().all()
    return [SimpleNamespace(**{**row, column.name: _parse(row[column.name])}) for row in rows]


def _parse(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None
