"""The schema of a store: its steps, up when a service first opens it, and back by an administrator's command.

Each step is a migration of Alembic, whose own text says what it is for, and that of its ``downgrade`` what is lost.
An empty database needs no step: its tables are created as ``tables.py`` has them. Alembic takes a quarter of a start
to import, so only a step and a question about steps import it.
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
from gpuspawner.service.store.databases.statements import take_long

if TYPE_CHECKING:
    from alembic.config import Config

OPENED_BY = "opened by"
"""Under this name ``meta`` has the version of the package that opened the store last, as a number."""
_PLACES, _OF_EACH = 3, 1000
_MIGRATIONS = Path(__file__).parent / "migrations"
_VERSION = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Where Alembic keeps the revision of a schema, as Alembic creates it."""


@dataclass(frozen=True)
class Step:
    """One change of the schema that an upgrade makes: what it is for, and what a way back does to it."""

    revision: str
    what: str
    back: str


@cache
def known_steps() -> tuple[Step, ...]:
    """Return every step that this version knows, the first one first."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - a start needs no Alembic

    scripts = ScriptDirectory.from_config(_config()).walk_revisions()
    return tuple(Step(one.revision, _line(one.doc), _line(one.module.downgrade.__doc__)) for one in scripts)[::-1]


@cache
def newest_revision() -> str:
    """Return the revision of the newest schema, which the name of its migration's file begins with."""
    return max(path.stem for path in (_MIGRATIONS / "versions").glob("v*.py"))[1:].partition("_")[0]


def upgrade(connection: sa.Connection) -> None:
    """Bring a store to the newest schema that this version knows.

    Raises:
        Unavailable: it has a schema that this version does not know, or is something else's.
    """
    take_long(connection)
    found = check_ours(connection)
    revision = connection.scalar(sa.select(_VERSION.c.version_num)) if _VERSION.name in found else None
    if revision == newest_revision():
        return
    if not found - {_VERSION.name}:
        _create(connection)
    else:
        _migrate(connection, revision)


def _create(connection: sa.Connection) -> None:
    tables.metadata.create_all(connection)
    _VERSION.create(connection, checkfirst=True)
    connection.execute(_VERSION.insert().values(version_num=newest_revision()))


def _migrate(connection: sa.Connection, revision: str | None) -> None:
    from alembic import command  # noqa: PLC0415 - a start needs no Alembic

    known = known_steps()
    if revision and revision not in [step.revision for step in known]:
        raise Unavailable(
            f"The store is of another version. {newer_words(revision, known[-1].revision, _opened_by(connection))}"
        )
    command.upgrade(_config(connection), "head")


def check_ours(connection: sa.Connection) -> set[str]:
    """Return the names of the store's tables, an empty set for a new database.

    Raises:
        Unavailable: another program keeps its tables in this database, such as the hub.
    """
    found = set(sa.inspect(connection).get_table_names())
    others = sorted(found - {_VERSION.name})
    if others and "leases" not in others:
        raise Unavailable(
            f"The database is not gpuspawner's: it has the tables {', '.join(others[:3])}. Nothing was changed. Give "
            "gpuspawner an empty database of its own."
        )
    return found


def downgrade(connection: sa.Connection, revision: str) -> None:
    """Take a store back to a schema that this version knows."""
    from alembic import command  # noqa: PLC0415 - a start needs no Alembic

    command.downgrade(_config(connection), revision)


def newer_words(revision: str, newest: str, opened_by: str) -> str:
    """Return what is told of a store whose schema this version does not know: which is needed, and the ways back.

    ``newest`` is the last schema that it knows, ``opened_by`` the version that opened the store last, "" where that was
    not noted.
    """
    needed = f"gpuspawner {opened_by}" if opened_by else "the version that opened it last"
    return (
        f"It has schema {revision}, and gpuspawner {__version__} knows {newest} at most: nothing of it is served or "
        f"changed. Install {needed} or a later one. To stay with this version, run `gpuspawner server store downgrade "
        f"{newest}` with that one, or restore the backup from before the upgrade."
    )


def number_of(version: str) -> int:
    """Return a version as a number: 1.2.3 is 1002003. What is before a release counts as that release."""
    number = 0
    for part in re.findall("[0-9]+", version)[:_PLACES]:
        number = number * _OF_EACH + min(int(part), _OF_EACH - 1)
    return number


def version_of(number: int) -> str:
    """Return the version that :func:`number_of` was given, "" for 0."""
    parts = [number // _OF_EACH**place % _OF_EACH for place in reversed(range(_PLACES))]
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


def _line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]
