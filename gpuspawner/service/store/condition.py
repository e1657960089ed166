"""The condition of a store in either database: its schema, the migrations to this version's, and how much it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from gpuspawner.core.errors import Unavailable, quoted
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.store.databases import database_of, size_bytes
from gpuspawner.service.store.schema import OPENED_BY, Migration, check_ours, known_migrations, version_of


@dataclass(frozen=True)
class Condition:
    """The condition of a store.

    Args:
        revision: its schema, "" if no service has opened it yet.
        newest: the newest schema that this version knows.
        migrations: what this version would change in it.
        is_newer: whether this version does not know its schema.
        live: workspaces that have not ended.
        ended: workspaces that have ended.
        size_bytes: its size.
        opened_by: the version of gpuspawner that opened it last, "" if it is not known.
    """

    revision: str
    newest: str
    migrations: tuple[Migration, ...]
    is_newer: bool
    live: int
    ended: int
    size_bytes: int
    opened_by: str


def condition_of_file(path: Path) -> Condition:
    """Return the condition of a database in SQLite, without changing it. Raises Unavailable if it can't be used."""
    engine = sa.create_engine(f"sqlite:///{path}")
    try:
        with engine.connect() as connection:
            return _condition_of(connection, path.stat().st_size)
    except sa.exc.DBAPIError as error:
        raise Unavailable(f"{path} cannot be used ({error.orig}).") from error
    finally:
        engine.dispose()


def condition_of_server(url: str, password_file: Path | None) -> Condition:
    """Return the condition of a store in PostgreSQL, also while its service works, without changing it.

    Raises:
        Unavailable: the database does not answer.
        ValueError: ``url`` is not the address of a server.
    """
    if url.startswith("sqlite:"):
        raise ValueError("--store is for a database elsewhere. Name the folder of a file by --data, without --store.")
    database = database_of(url, password_file)
    try:
        with database.engine.connect().execution_options(writes=False) as connection, connection.begin():
            return _condition_of(connection, size_bytes(connection))
    except sa.exc.DBAPIError as error:
        words = database.trouble(error) or str(error.orig)
        raise Unavailable(f"The database cannot be used ({words}). Nothing was changed.") from error
    finally:
        database.engine.dispose()


def _condition_of(connection: sa.Connection, size_bytes: int) -> Condition:
    check_ours(connection)
    known = known_migrations()
    revision = str(_scalar(connection, "alembic_version", "SELECT version_num FROM alembic_version") or "")
    revisions = [one.revision for one in known]
    is_newer = bool(revision) and revision not in revisions
    after = revisions.index(revision) + 1 if revision in revisions else 0
    every = _number(connection, "leases", "SELECT count(*) FROM leases")
    ended = _number(connection, "leases", "SELECT count(*) FROM leases WHERE phase = :phase", phase=Phase.ENDED.value)
    migrations = () if is_newer else known[after:]
    opened_by = version_of(_number(connection, "meta", "SELECT number FROM meta WHERE name = :name", name=OPENED_BY))
    return Condition(revision, revisions[-1], migrations, is_newer, every - ended, ended, size_bytes, opened_by)


def _scalar(connection: sa.Connection, table: str, query: str, **values: object) -> object:
    """Return the first value that a query finds, None without one or without the table."""
    return connection.scalar(sa.text(query), values) if sa.inspect(connection).has_table(table) else None


def _number(connection: sa.Connection, table: str, query: str, **values: object) -> int:
    value = _scalar(connection, table, query, **values) or 0
    if not isinstance(value, int):
        raise Unavailable(f"The store holds what can't be read: {quoted(value)} is not a number.")
    return value
