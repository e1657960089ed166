"""The schema of a store, its migrations, and the condition of a store.

A new store is created with the newest schema. An older one is migrated with Alembic. The docstring of a migration has
its purpose. There is no way back except a backup. Alembic takes a quarter of a start to import, so only a migration
imports it.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuspawner import __version__
from gpuspawner.core.errors import Unavailable, quoted
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.store import tables
from gpuspawner.service.store.database.dialects import allow_long_transaction, database_of, size_bytes

if TYPE_CHECKING:
    from alembic.config import Config


OPENED_BY = "opened by"
"""The name in ``meta`` of the version of the package that opened the store last, as a number."""
_PARTS, _PER_PART = 3, 1000
_MIGRATIONS = Path(__file__).parents[1] / "migrations"
_REVISION = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Where Alembic keeps the revision of a schema, as Alembic creates it."""


@dataclass(frozen=True)
class Migration:
    """One change of the schema, with its purpose."""

    revision: str
    what: str


@cache
def known_migrations() -> tuple[Migration, ...]:
    """Return every migration that this version knows, oldest first."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - a start needs no Alembic

    scripts = ScriptDirectory.from_config(_config()).walk_revisions()
    return tuple(Migration(one.revision, (one.doc or "").strip().splitlines()[0]) for one in scripts)[::-1]


@cache
def newest_revision() -> str:
    """Return the revision of the newest schema. The file of its migration begins with it."""
    return max(path.stem for path in (_MIGRATIONS / "versions").glob("v*.py"))[1:].partition("_")[0]


def upgrade(connection: sa.Connection) -> None:
    """Bring a store to the newest schema that this version knows.

    Raises:
        Unavailable: this version does not know its schema, or it belongs to another program.
    """
    allow_long_transaction(connection)
    found = check_ours(connection)
    revision = connection.scalar(sa.select(_REVISION.c.version_num)) if _REVISION.name in found else None
    if revision == newest_revision():
        return
    if not found - {_REVISION.name}:
        _create(connection)
    else:
        _migrate(connection, revision)


def _create(connection: sa.Connection) -> None:
    tables.metadata.create_all(connection)
    _REVISION.create(connection, checkfirst=True)
    connection.execute(_REVISION.insert().values(version_num=newest_revision()))


def _migrate(connection: sa.Connection, revision: str | None) -> None:
    from alembic import command  # noqa: PLC0415 - a start needs no Alembic

    known = known_migrations()
    if revision and revision not in [one.revision for one in known]:
        raise Unavailable(
            f"The store is of another version. {newer_words(revision, known[-1].revision, _opened_by(connection))}"
        )
    command.upgrade(_config(connection), "head")


def check_ours(connection: sa.Connection) -> set[str]:
    """Return the names of the store's tables, an empty set for a new database.

    Raises:
        Unavailable: another program, perhaps the hub, keeps its tables in this database.
    """
    found = set(sa.inspect(connection).get_table_names())
    others = sorted(found - {_REVISION.name})
    if others and "leases" not in others:
        raise Unavailable(
            f"The database is not gpuspawner's: it has the tables {', '.join(others[:3])}. Nothing was changed. Give "
            "gpuspawner an empty database of its own."
        )
    return found


def newer_words(revision: str, newest: str, opened_by: str) -> str:
    """Explain that this version does not know the schema of a store, and what to do.

    Args:
        revision: its schema.
        newest: the newest schema that this version knows.
        opened_by: the version that opened the store last, "" if it is not known.
    """
    needed = f"gpuspawner {opened_by}" if opened_by else "the version that opened it last"
    return (
        f"It has schema {revision}, and gpuspawner {__version__} knows {newest} at most. The service does not "
        f"start, and changes nothing. Install {needed} or a later one. To stay with this version, restore the backup "
        "from before the upgrade."
    )


def number_of(version: str) -> int:
    """Return a version as a number: 1.2.3 is 1002003. A pre-release counts as its release."""
    number = 0
    for part in re.findall("[0-9]+", version)[:_PARTS]:
        number = number * _PER_PART + min(int(part), _PER_PART - 1)
    return number


def version_of(number: int) -> str:
    """Return the version of a number from :func:`number_of`, "" for 0."""
    parts = [number // _PER_PART**place % _PER_PART for place in reversed(range(_PARTS))]
    return ".".join(map(str, parts)) if number else ""


def _opened_by(connection: sa.Connection) -> str:
    return version_of(_number(connection, "meta", "SELECT number FROM meta WHERE name = :name", name=OPENED_BY))


def _config(connection: sa.Connection | None = None) -> Config:
    from alembic.config import Config  # noqa: PLC0415 - a start needs no Alembic

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    return config


@dataclass(frozen=True)
class Condition:
    """The condition of a store.

    Args:
        revision: its schema, "" if no service has opened it yet.
        newest: the newest schema that this version knows.
        migrations: the migrations to the schema of this version.
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
    opened_by = _opened_by(connection)
    return Condition(revision, revisions[-1], migrations, is_newer, every - ended, ended, size_bytes, opened_by)


def _scalar(connection: sa.Connection, table: str, query: str, **values: object) -> object:
    """Return the first value that a query finds, None without one or without the table."""
    return connection.scalar(sa.text(query), values) if sa.inspect(connection).has_table(table) else None


def _number(connection: sa.Connection, table: str, query: str, **values: object) -> int:
    value = _scalar(connection, table, query, **values) or 0
    if not isinstance(value, int):
        raise Unavailable(f"The store holds what can't be read: {quoted(value)} is not a number.")
    return value
