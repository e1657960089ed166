"""The basis of all readers and writers of a table: transactions, rows of one owner, damaged JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from gpuspawner.core.leases.lease import Owner

log = logging.getLogger("gpuspawner.store")

T = TypeVar("T")
RowWrite = Callable[[sa.Connection], None]
"""Writes rows in a transaction that the caller began."""
MAX_NUMBER = 253_402_300_799.0
"""The last second of the year 9999. No stored time or amount with a fraction is larger."""


class Transactions(Protocol):
    """Begins a transaction that checks the epoch."""

    def __call__(self, *, writes: bool = False) -> AbstractContextManager[sa.Connection]:
        """Return the transaction."""


class DamagedRows:
    """Rows that cannot be read, with the reason. Lists leave them out, and each is logged once."""

    def __init__(self) -> None:
        """Start with no damaged rows."""
        self.found: dict[str, str] = {}
        """The reason by table and id, as "leases 123"."""

    def read(self, table: sa.Table, rows: Sequence[Any], parse: Callable[[Any], T], key: str = "id") -> list[T]:
        """Return the parsed rows of a table that ``parse`` can read. ``key`` is their column of ids."""
        found = list[T]()
        for row in rows:
            name = f"{table.name} {getattr(row, key)}"
            try:
                _check_types(table, row)
                found.append(parse(row))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one row, the others are read
                if name not in self.found:
                    log.error("the row %s can't be read from the store; lists leave it out: %s", name, error)  # noqa: TRY400 - the data is at fault, not the code
                self.found[name] = f"{type(error).__name__}: {error}"
            else:
                self.found.pop(name, None)
        return found


class StoredRows:
    """Base of the readers and writers of a table.

    Each public method is one transaction, unless it takes a connection. It raises what ``store.Store`` raises.
    """

    def __init__(self, transaction: Transactions, damaged: DamagedRows) -> None:
        """Read and write by the store's transactions. Rows that cannot be read are noted in ``damaged``."""
        self._transaction, self._damaged = transaction, damaged

    def _read(self, query: sa.Select[Any]) -> Sequence[sa.RowMapping]:
        with self._transaction() as connection:
            return connection.execute(query).mappings().all()

    def _read_each(
        self, table: sa.Table, query: sa.Select[Any], parse: Callable[[sa.RowMapping], T], key: str = "id"
    ) -> list[T]:
        """Return the parsed rows of a table, without those that cannot be read. ``key`` is a column of the query."""
        return self._damaged.read(table, self._read(query), parse, key)

    def _delete(self, table: sa.Table, where: sa.ColumnElement[bool]) -> int:
        """Delete rows and return how many there were."""
        with self._transaction(writes=True) as connection:
            return connection.execute(table.delete().where(where)).rowcount


@cache
def _types_of(table: sa.Table) -> Sequence[tuple[str, tuple[type, ...]]]:
    """Return the names of a table's columns with the types of their values. JSON has any."""
    found = [(one.name, one.type) for one in table.c if not isinstance(one.type, sa.JSON)]
    return [(name, (float, int) if isinstance(kind, sa.Float) else (kind.python_type,)) for name, kind in found]


def _check_types(table: sa.Table, row: Any) -> None:
    """Raise ValueError if a value is not of its column's type. SQLite stores any value in any column."""
    for name, types in _types_of(table):
        value = getattr(row, name, None)
        if value is not None and not isinstance(value, types):
            raise ValueError(f"{name} is {value!r}")
        if isinstance(value, float) and not abs(value) <= MAX_NUMBER:
            raise ValueError(f"{name} is {value!r}")


def owned_by(table: sa.Table, owner: Owner) -> sa.ColumnElement[bool]:
    """Return the condition that selects an owner's rows."""
    return (table.c.hub == owner.hub) & (table.c.user_created == owner.user_created)


def owner_columns(owner: Owner) -> Mapping[str, str]:
    """Return the columns that say whose a row is."""
    return {"hub": owner.hub, "user_created": owner.user_created}


def read_with_damaged_json(connection: sa.Connection, query: sa.Select[Any], *columns: sa.Column[Any]) -> Sequence[Any]:
    """Return the rows of a query. A row has None for each of the JSON ``columns`` that cannot be parsed."""
    try:
        return connection.execute(query).all()
    except (ValueError, RecursionError):  # SQLite stores JSON as text: one damaged row fails the whole query
        pass
    as_text = [
        sa.type_coerce(one, sa.Text).label(one.key) if any(one is column for column in columns) else one
        for one in query.selected_columns
    ]
    rows = connection.execute(query.with_only_columns(*as_text)).mappings().all()
    return [SimpleNamespace(**{**row, **{one.name: _parse(row[one.name]) for one in columns}}) for row in rows]


def _parse(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
