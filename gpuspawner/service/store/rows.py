"""The base of all readers and writers of a table: transactions, rows of one owner, damaged JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol, TypeAlias, TypeVar

import sqlalchemy as sa

from gpuspawner.core.leases.lease import Lease, Owner
from gpuspawner.service.store.database.dialects import Upsert

log = logging.getLogger("gpuspawner.store")

T = TypeVar("T")
Row: TypeAlias = Mapping[Any, Any]
"""The values of a row by column."""
Whose: TypeAlias = Owner | frozenset[str] | None
"""Selects the rows of an owner, the rows that are charged to teams, or all rows."""
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

    def read(self, table: sa.Table, rows: Iterable[Row], parse: Callable[[Row], T], key: str = "id") -> list[T]:
        """Return the parsed rows of a table that ``parse`` can read. ``key`` is their column of ids."""
        found = list[T]()
        for row in rows:
            name = f"{table.name} {row[key]}"
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

    def _scalar(self, query: sa.Select[Any]) -> Any:
        """Return the first value that a query finds, None without one."""
        with self._transaction() as connection:
            return connection.scalar(query)

    def _read(self, query: sa.Select[Any], *json_columns: sa.Column[Any]) -> Sequence[Row]:
        with self._transaction() as connection:
            return read_with_damaged_json(connection, query, *json_columns)

    def _read_each(
        self,
        table: sa.Table,
        query: sa.Select[Any],
        parse: Callable[[Row], T],
        *json_columns: sa.Column[Any],
        key: str = "id",
    ) -> list[T]:
        """Return the parsed rows of a table, without those that cannot be read. ``key`` is a column of the query."""
        return self._damaged.read(table, self._read(query, *json_columns), parse, key)

    def _save(self, table: sa.Table, rows: list[dict[str, Any]], *others: RowWrite) -> None:
        """Write rows in place of those with their keys, then what ``others`` write, in one transaction."""
        with self._transaction(writes=True) as connection:
            save_rows(connection, table, rows)
            for write in others:
                write(connection)

    def _delete(self, table: sa.Table, where: sa.ColumnElement[bool], *others: RowWrite) -> int:
        """Delete rows, write what ``others`` write if there were any, and return how many there were."""
        with self._transaction(writes=True) as connection:
            count = connection.execute(table.delete().where(where)).rowcount
            for write in others if count else ():
                write(connection)
        return count


@cache
def _upsert_of(table: sa.Table) -> Upsert:
    return Upsert(table, lambda new: {one.name: new[one.name] for one in table.c if not one.primary_key})


def save_rows(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    """Write rows in place of those with their keys. Each has all columns."""
    _upsert_of(table).execute(connection, rows)


@cache
def _types_of(table: sa.Table) -> Sequence[tuple[str, tuple[type, ...]]]:
    """Return the names of a table's columns with the types of their values. JSON has any."""
    found = [(one.name, one.type) for one in table.c if not isinstance(one.type, sa.JSON)]
    return [(name, (float, int) if isinstance(kind, sa.Float) else (kind.python_type,)) for name, kind in found]


def _check_types(table: sa.Table, row: Row) -> None:
    """Raise ValueError if a value is not of its column's type. SQLite stores any value in any column."""
    for name, types in _types_of(table):
        value = row.get(name)
        if value is not None and not isinstance(value, types):
            raise ValueError(f"{name} is {value!r}")
        if isinstance(value, float) and not abs(value) <= MAX_NUMBER:
            raise ValueError(f"{name} is {value!r}")


def owned_by(table: sa.Table, owner: Owner) -> sa.ColumnElement[bool]:
    """Return the condition that selects an owner's rows."""
    return (table.c.hub == owner.hub) & (table.c.user_created == owner.user_created)


def rows_whose(table: sa.Table, whose: Whose) -> sa.ColumnElement[bool]:
    """Return the condition that selects the rows of an owner, of teams, or of all."""
    if whose is None:
        return sa.true()
    return table.c.team.in_(whose) if isinstance(whose, frozenset) else owned_by(table, whose)


def is_of(lease: Lease, whose: Whose) -> bool:
    """Return whether a lease is an owner's or charged to one of the teams."""
    if isinstance(whose, frozenset):
        return lease.request.team in whose
    return whose is None or lease.key.owner == whose


def owner_columns(owner: Owner) -> Mapping[str, str]:
    """Return the columns that say whose a row is."""
    return {"hub": owner.hub, "user_created": owner.user_created}


def read_with_damaged_json(connection: sa.Connection, query: sa.Select[Any], *columns: sa.Column[Any]) -> Sequence[Row]:
    """Return the rows of a query. A row has None for each of the JSON ``columns`` that cannot be parsed."""
    try:
        return connection.execute(query).mappings().all()
    except (ValueError, RecursionError):  # SQLite stores JSON as text: one damaged row fails the whole query
        pass
    as_text = [
        sa.type_coerce(one, sa.Text).label(one.key) if any(one is column for column in columns) else one
        for one in query.selected_columns
    ]
    rows = connection.execute(query.with_only_columns(*as_text)).mappings().all()
    return [{**row, **{one.name: _parse(row[one.name]) for one in columns}} for row in rows]


def _parse(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
