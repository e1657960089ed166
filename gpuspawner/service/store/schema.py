"""The schema of a store: created at once when it is new, migrated when an older version made it.

Each change is a migration of Alembic, whose docstring says what it is for. There is no way back: a backup is restored.
Alembic takes a quarter of a start to import, so only a migration imports it.
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
from gpuspawner.core.errors import Unavailable
from gpuspawner.service.store import tables
from gpuspawner.service.store.databases import allow_long_transaction

if TYPE_CHECKING:
    from alembic.config import Config

OPENED_BY = "opened by"
"""The name in ``meta`` of the version of the package that opened the store last, as a number."""
_PARTS, _PER_PART = 3, 1000
_MIGRATIONS = Path(__file__).parent / "migrations"
_REVISION = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Where Alembic keeps the revision of a schema, as Alembic creates it."""


@dataclass(frozen=True)
class Migration:
    """One change of the schema, with what it is for."""

    revision: str
    what: str


@cache
def known_migrations() -> tuple[Migration, ...]:
    """Return every migration that this version knows, the first one first."""
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
    """Return the version that :func:`number_of` was given, "" for 0."""
    parts = [number // _PER_PART**place % _PER_PART for place in reversed(range(_PARTS))]
    return ".".join(map(str, parts)) if number else ""


def _opened_by(connection: sa.Connection) -> str:
    number = connection.scalar(sa.text("SELECT number FROM meta WHERE name = :name"), {"name": OPENED_BY})
    return version_of(int(number or 0))


def _config(connection: sa.Connection | None = None) -> Config:
    from alembic.config import Config  # noqa: PLC0415 - a start needs no Alembic

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    return config
