"""What SQLite and PostgreSQL do differently, and nothing else: connections, transactions, types, troubles in words.

Belongs here: each difference once. Never here: a query of a table, which is the same for both.
"""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path
from urllib.parse import quote, urlsplit

import sqlalchemy as sa

from gpuspawner.service.store.databases.base import PATIENCE_SECONDS, Database
from gpuspawner.service.store.databases.sqlite import Sqlite

__all__ = ["PATIENCE_SECONDS", "Database", "database_of", "engine_to_read"]

POSTGRESQL = ("postgresql", "postgres")
IN_ADDRESS = (
    "It has a password in it, which lists of processes and logs would show. Write it into a file that only the service "
    "may read, and name that as the store's password file."
)
SHARED = (
    "Others may read {file}, which holds its password. Run chmod 600 {file}; in a pod, mount the Secret with "
    "defaultMode: 0440."
)
EXTRA = "This installation has no PostgreSQL client: pip install 'gpuspawner[postgresql]'."


def database_of(url: str, password_file: Path | None = None) -> Database:
    """Return the database at an address, nothing opened yet.

    Args:
        url: ``sqlite:///FILE``, or an address as PostgreSQL's own programs take it: ``postgresql://USER@HOST/DATABASE``.
        password_file: PostgreSQL's password is read from it at each connection.

    Raises:
        ValueError: no such address can be used; the message says why, and holds no password.
    """
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        return Sqlite(url)
    if scheme not in POSTGRESQL:
        raise ValueError("It is no address of a database. Write it like postgresql://USER@HOST/DATABASE.")
    _refuse_password(url)
    if password_file is not None:
        _refuse_shared(password_file)
    try:
        from gpuspawner.service.store.databases.postgresql import Postgresql  # noqa: PLC0415 - its driver is an extra
    except ImportError as error:
        raise ValueError(EXTRA) from error
    found = Postgresql(url, password_file)
    if found.has_password:  # its client reads addresses in ways of its own
        raise ValueError(IN_ADDRESS)
    return found


def engine_to_read(url: str, password_file: Path | None = None) -> sa.Engine:
    """Return what only reads the database at an address, and makes none. Raises what :func:`database_of` does."""
    path = url.removeprefix("sqlite:///")
    if path == url:
        return database_of(url, password_file).engine
    where = sa.URL.create("sqlite", database=f"file:{quote(path)}", query={"mode": "ro", "uri": "true"})
    return sa.create_engine(where)


def _refuse_shared(password_file: Path) -> None:
    """Refuse a file that every user of the machine may read; one that is not there is told at the connection."""
    with contextlib.suppress(OSError):
        if password_file.stat().st_mode & stat.S_IRWXO:
            raise ValueError(SHARED.format(file=password_file))


def _refuse_password(url: str) -> None:
    try:
        parts = urlsplit(url)
        cut_short = "@" in parts.path + parts.fragment  # by a letter of a password, before its @
        has_password = parts.password is not None or "password=" in parts.query.lower() or cut_short
    except ValueError:
        raise ValueError("It is no address that can be read. Write it like postgresql://USER@HOST/DATABASE.") from None
    if has_password:
        raise ValueError(IN_ADDRESS)
