"""What both databases can do, and SQLAlchemy has no one word for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles


class Whole(sa.sql.functions.GenericFunction[int]):
    """The whole part of a number that is not negative: SQLite's cast cuts, PostgreSQL's rounds."""

    inherit_cache = True
    type = sa.BigInteger()


@compiles(Whole, "sqlite")
def _cut(element: Whole, compiler: Any, **how: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **how)} AS INTEGER)"


@compiles(Whole, "postgresql")
def _floor(element: Whole, compiler: Any, **how: Any) -> str:
    return f"CAST(floor({compiler.process(element.clauses, **how)}) AS BIGINT)"


class IsJson(sa.sql.functions.GenericFunction[bool]):
    """Whether a stored document is JSON: SQLite's is text, and its functions fail on a damaged one."""

    inherit_cache = True
    type = sa.Boolean()


@compiles(IsJson, "sqlite")
def _validated(element: IsJson, compiler: Any, **how: Any) -> str:
    return f"json_valid({compiler.process(element.clauses, **how)})"


@compiles(IsJson, "postgresql")
def _certain(element: IsJson, compiler: Any, **how: Any) -> str:
    return f"({compiler.process(element.clauses, **how)}) IS NOT NULL"


def take_long(connection: sa.Connection) -> None:
    """Let a transaction live that does much between its statements, as migrations do on a busy machine.

    To change a table it waits for who reads it: a service of before may, for as long as a read may take.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '5min'")
        connection.exec_driver_sql("SET LOCAL lock_timeout = '2min'")


def size_bytes(connection: sa.Connection) -> int:
    """Return what a server says that the whole database takes on its disk."""
    return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())


def others_connected(connection: sa.Connection) -> int:
    """Return how many other connections to a server's database give their name as this one does."""
    named = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND application_name = current_setting('application_name')"
    )
    return int(connection.exec_driver_sql(named).scalar_one())


class Upsert:
    """The statement that writes a row, or changes the one that is there; made once: that takes longer than running it.

    ``changed`` returns the columns to set, given the new row's.
    """

    def __init__(self, table: sa.Table, changed: Callable[[Any], Mapping[str, Any]]) -> None:
        """Make it for both."""
        key = [column.name for column in table.primary_key]
        self._of: dict[str, sa.Insert] = {}
        for name, insert in (("sqlite", sqlite.insert(table)), ("postgresql", postgresql.insert(table))):
            self._of[name] = insert.on_conflict_do_update(index_elements=key, set_=changed(insert.excluded))

    def execute(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
        """Write rows, one after the other: however many there are, each binds its own values alone."""
        if rows:
            connection.execute(self._of[connection.dialect.name], rows)
