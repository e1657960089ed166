"""The differences between SQLite and PostgreSQL: connections, transactions, functions, errors in words.

Each difference is written once, here or in ``postgresql``. Queries of tables are the same for both.
"""

from __future__ import annotations

import contextlib
import sqlite3
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles

POSTGRESQL_SCHEMES = ("postgresql", "postgres")
PATIENCE_SECONDS = 1.0
"""How long a write waits for another process that writes. A write of a second service takes milliseconds. A waiting
write blocks all others."""
NOT_IN_ADDRESS = (
    "The address has a password in it, which lists of processes and logs would show. Write it into a file that only "
    "the service may read, and name that as the store's password file."
)
READABLE_BY_OTHERS = (
    "Others may read {file}, which holds its password. Run chmod 600 {file}; in a pod, mount the Secret with "
    "defaultMode: 0440."
)
NO_CLIENT = "This installation has no PostgreSQL client: pip install '.[postgresql]' in a checkout."


class Database(ABC):
    """One database. ``engine`` makes its connections. Each transaction begins here."""

    engine: sa.Engine

    def __init__(self, engine: sa.Engine) -> None:
        """Begin the transactions of an engine. Those with the option ``writes`` are the only writer."""
        self.engine = engine
        self._patience_seconds = PATIENCE_SECONDS
        self._generation = 0
        self._closed = False
        sa.event.listen(engine, "begin", self._begin)
        sa.event.listen(engine, "connect", self._connected)
        sa.event.listen(engine, "checkout", self._checked_out)
        sa.event.listen(engine, "checkin", self._checked_in)

    def _begin(self, connection: sa.Connection) -> None:
        if not connection.get_execution_options().get("writes"):
            self.begin_to_read(connection)
            return
        with self._patience() as seconds:
            self.begin_to_write(connection, seconds)

    @contextmanager
    def _patience(self) -> Iterator[float]:
        """Let the first blocked write wait, and the writes behind it fail at once until one succeeds."""
        seconds, self._patience_seconds = self._patience_seconds, 0.0
        yield seconds
        self._patience_seconds = PATIENCE_SECONDS

    @abstractmethod
    def begin_to_read(self, connection: sa.Connection) -> None:
        """Begin to read one state of the database, without waiting for a writer."""

    @abstractmethod
    def begin_to_write(self, connection: sa.Connection, patience_seconds: float) -> None:
        """Begin as the only writer, or fail after ``patience_seconds``."""

    @abstractmethod
    def trouble(self, error: sa.exc.DBAPIError) -> str | None:
        """Return the reason why the database does not answer, None for a defect of the service."""

    def lose(self) -> None:
        """Close the present connections, because they lead to the wrong one of several servers."""
        self._generation += 1

    def close(self) -> None:
        """Close every connection. A connection that a thread still uses is closed after its answer."""
        self._closed = True
        self.engine.dispose()

    def _connected(self, _connection: object, record: Any) -> None:
        record.info["generation"] = self._generation

    def _checked_out(self, _connection: object, record: Any, _proxy: object) -> None:
        if record.info["generation"] != self._generation:
            raise sa.exc.DisconnectionError("it leads to a lost server")  # SQLAlchemy makes another

    def _checked_in(self, connection: object, record: Any) -> None:
        if self._closed and connection is not None:
            record.invalidate()


def is_ours(error: sa.exc.DBAPIError) -> bool:
    """Return whether an error is a defect of the service, so that another try would fail too."""
    return isinstance(error, (sa.exc.IntegrityError, sa.exc.ProgrammingError, sa.exc.DataError)) or not isinstance(
        error, sa.exc.DatabaseError
    )


class Sqlite(Database):
    """A file of this machine. SQLite locks all of it for a writer."""

    def __init__(self, url: str) -> None:
        """Make no file yet."""
        super().__init__(sa.create_engine(url, pool_pre_ping=True))
        self._path = self.engine.url.database or ""
        self._inode: tuple[int, int] | None = None
        sa.event.listen(self.engine, "connect", _set_up_sqlite)

    def begin_to_read(self, connection: sa.Connection) -> None:
        """Take no lock."""
        self._check_file()
        connection.exec_driver_sql("BEGIN")

    def begin_to_write(self, connection: sa.Connection, patience_seconds: float) -> None:
        """Take the one lock."""
        self._check_file()
        connection.exec_driver_sql(f"PRAGMA busy_timeout={patience_seconds * 1000:.0f}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _check_file(self) -> None:
        """Fail if the file was removed or replaced. SQLite would use the removed file until the restart."""
        try:
            found = Path(self._path).stat()
        except OSError as error:
            raise _lost(f"its file {self._path} is gone: {error.strerror}") from error
        inode = (found.st_dev, found.st_ino)
        known, self._inode = self._inode, inode
        if known not in {None, inode}:
            self.lose()
            raise _lost(f"its file {self._path} was replaced by another one")

    def trouble(self, error: sa.exc.DBAPIError) -> str | None:
        """Return SQLite's own words."""
        return None if is_ours(error) else str(error.orig)


def _lost(why: str) -> sa.exc.OperationalError:
    return sa.exc.OperationalError("BEGIN", None, sqlite3.OperationalError(why))


def _set_up_sqlite(connection: object, _record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]  # SQLAlchemy's own advice: we send BEGIN
    # One damaged byte of a text must not fail the query of all rows.
    connection.text_factory = lambda data: data.decode(errors="replace")  # type: ignore[attr-defined]
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute(f"PRAGMA busy_timeout={PATIENCE_SECONDS * 1000:.0f}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def database_of(url: str, password_file: Path | None = None) -> Database:
    """Return the database at an address, without opening it.

    Args:
        url: ``sqlite:///FILE``, or an address as PostgreSQL's own programs take it: ``postgresql://USER@HOST/DATABASE``.
        password_file: PostgreSQL's password is read from it at each connection.

    Raises:
        ValueError: the address can't be used. The message says why and holds no password.
    """
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        return Sqlite(url)
    if scheme not in POSTGRESQL_SCHEMES:
        raise ValueError("This is not the address of a database. Write it like postgresql://USER@HOST/DATABASE.")
    _refuse_password(url)
    if password_file is not None:
        _refuse_shared(password_file)
    try:
        from gpuspawner.service.store.database.postgresql import Postgresql  # noqa: PLC0415 - its driver is an extra
    except ImportError as error:
        raise ValueError(NO_CLIENT) from error
    found = Postgresql(url, password_file)
    if found.has_password:  # its client reads addresses in ways of its own
        raise ValueError(NOT_IN_ADDRESS)
    return found


def engine_to_read(url: str, password_file: Path | None = None) -> sa.Engine:
    """Return an engine that only reads a database, and makes none. Raises what :func:`database_of` does."""
    path = url.removeprefix("sqlite:///")
    if path == url:
        return database_of(url, password_file).engine
    where = sa.URL.create("sqlite", database=f"file:{quote(path)}", query={"mode": "ro", "uri": "true"})
    return sa.create_engine(where)


def _refuse_shared(password_file: Path) -> None:
    """Refuse a file that every user of the machine may read. A missing file is an error of the connection."""
    with contextlib.suppress(OSError):
        if password_file.stat().st_mode & stat.S_IRWXO:
            raise ValueError(READABLE_BY_OTHERS.format(file=password_file))


def _refuse_password(url: str) -> None:
    try:
        parts = urlsplit(url)
        cut_short = "@" in parts.path + parts.fragment  # by a letter of a password, before its @
        has_password = parts.password is not None or "password=" in parts.query.lower() or cut_short
    except ValueError:
        raise ValueError("This address can't be read. Write it like postgresql://USER@HOST/DATABASE.") from None
    if has_password:
        raise ValueError(NOT_IN_ADDRESS)


class WholePart(sa.sql.functions.GenericFunction[int]):
    """The whole part of a number that is not negative. SQLite's cast truncates, PostgreSQL's rounds."""

    inherit_cache = True
    type = sa.BigInteger()


@compiles(WholePart, "sqlite")
def _cut(element: WholePart, compiler: Any, **how: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **how)} AS INTEGER)"


@compiles(WholePart, "postgresql")
def _floor(element: WholePart, compiler: Any, **how: Any) -> str:
    return f"CAST(floor({compiler.process(element.clauses, **how)}) AS BIGINT)"


class IsJson(sa.sql.functions.GenericFunction[bool]):
    """Whether a stored document is JSON. In SQLite it is text, and its functions fail on a damaged one."""

    inherit_cache = True
    type = sa.Boolean()


@compiles(IsJson, "sqlite")
def _is_valid(element: IsJson, compiler: Any, **how: Any) -> str:
    return f"json_valid({compiler.process(element.clauses, **how)})"


@compiles(IsJson, "postgresql")
def _is_there(element: IsJson, compiler: Any, **how: Any) -> str:
    return f"({compiler.process(element.clauses, **how)}) IS NOT NULL"


class Upsert:
    """The statement that writes a row, or changes the row with its key. It is slow to build, so it is built once.

    ``changed`` returns the columns to set, given the new row's.
    """

    def __init__(self, table: sa.Table, changed: Callable[[Any], Mapping[str, Any]]) -> None:
        """Build it for both databases."""
        key = [column.name for column in table.primary_key]
        self._of: dict[str, sa.Insert] = {}
        for name, insert in (("sqlite", sqlite.insert(table)), ("postgresql", postgresql.insert(table))):
            self._of[name] = insert.on_conflict_do_update(index_elements=key, set_=changed(insert.excluded))

    def execute(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
        """Write rows one by one, so that a statement binds the values of one row only."""
        if rows:
            connection.execute(self._of[connection.dialect.name], rows)


def allow_long_transaction(connection: sa.Connection) -> None:
    """Give a migration more time. It waits for readers of its tables, and computes between its statements."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '5min'")
        connection.exec_driver_sql("SET LOCAL lock_timeout = '2min'")


def size_bytes(connection: sa.Connection) -> int:
    """Return the size of a PostgreSQL database on its disk."""
    return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
