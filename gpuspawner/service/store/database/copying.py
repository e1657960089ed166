"""Copies a store from SQLite into an empty database elsewhere: all of it unchanged, or nothing."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.service.store import tables
from gpuspawner.service.store.database import schema
from gpuspawner.service.store.database.backup import DATABASE, check_there, copy_database
from gpuspawner.service.store.database.dialects import Database, database_of

ROWS_AT_ONCE = 2000
NUL, INSTEAD = "\\u0000", "\\ufffd"
"""The character that PostgreSQL cannot store, and its replacement, as JSON writes both."""


def copy_store(
    data: Path,
    url: str,
    password_file: Path | None,
    is_used: Callable[[], str],
    show_progress: Callable[[str, int, int], None],
) -> dict[str, int]:
    """Copy the store of a folder whose service has ended, and compare every row. Return the number of rows by table.

    Args:
        data: the folder.
        url: the address of the empty database.
        password_file: the password for it.
        is_used: returns the user of the folder in a sentence, "" if it is not used.
        show_progress: is called with the table, the number of copied rows, and the number of all rows.

    Raises:
        Unavailable: there is no store, it is damaged, or the other database does not answer.
        Conflict: the folder is in use, the database is not empty, or the copy differs. Nothing of it stays.
        ValueError: ``url`` is not an address.
    """
    target = database_of(url, password_file)
    check_there(data / DATABASE)
    if used := is_used():
        raise Conflict(used)
    with tempfile.TemporaryDirectory(dir=data, prefix=".copy-") as scratch:
        path = Path(scratch) / DATABASE
        copy_database(data / DATABASE, path)
        source = database_of(f"sqlite:///{path}")
        try:
            with source.engine.connect().execution_options(writes=True) as one, one.begin():
                schema.upgrade(one)
            with (
                source.engine.connect() as one,
                target.engine.connect().execution_options(writes=True) as other,
                one.begin(),
                other.begin(),
            ):
                _refuse_full(other)
                schema.upgrade(other)
                return {
                    table.name: _copy_table(one, other, table, show_progress) for table in tables.metadata.sorted_tables
                }
        except sa.exc.DBAPIError as error:
            raise Unavailable(f"The store cannot be copied ({_words(target, error)}). Nothing was copied.") from error
        finally:
            source.engine.dispose()
            target.engine.dispose()


def _words(target: Database, error: sa.exc.DBAPIError) -> str:
    return target.trouble(error) or str(error.orig)


def _refuse_full(connection: sa.Connection) -> None:
    found = sa.inspect(connection).get_table_names()
    if found:
        raise Conflict(
            f"The database is not empty: it has {', '.join(sorted(found)[:3])}. Nothing was changed. Make a new one: "
            "createdb --encoding=UTF8 --owner=ROLE NAME."
        )


def _copy_table(
    source: sa.Connection, target: sa.Connection, table: sa.Table, show_progress: Callable[[str, int, int], None]
) -> int:
    of, done = source.scalar(sa.select(sa.func.count()).select_from(table)) or 0, 0
    sent = hashlib.sha256()
    for rows in _rows(source, table):
        _count_in(sent, rows)
        target.execute(table.insert(), rows)
        done += len(rows)
        show_progress(table.name, done, of)
    arrived = hashlib.sha256()
    for rows in _rows(target, table):
        _count_in(arrived, rows)
    if (sent.digest(), done) != (arrived.digest(), of):
        raise Conflict(f"What arrived of {table.name} is not what was sent. Nothing was changed: tell who wrote this.")
    if target.dialect.name == "postgresql" and "number" in table.primary_key.columns:
        last = sa.func.coalesce(sa.select(sa.func.max(table.c.number)).scalar_subquery(), 0) + 1
        target.execute(sa.select(sa.func.setval(sa.func.pg_get_serial_sequence(table.name, "number"), last, False)))  # noqa: FBT003
    return done


def _rows(connection: sa.Connection, table: sa.Table) -> Iterator[list[dict[str, Any]]]:
    query = sa.select(table).order_by(*table.primary_key.columns).execution_options(yield_per=ROWS_AT_ONCE)
    found = connection.execute(query).mappings()
    for part in found.partitions():
        yield [dict(row) for row in part]


def _count_in(digest: Any, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True).replace(NUL, INSTEAD).encode())
