"""PostgreSQL: one server, or several with one that takes writes.

Its tables are like SQLite's: texts of any length, ordered by code points; whole numbers of 64 bits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.string import StrDumper
from sqlalchemy.dialects.postgresql.base import PGDDLCompiler, PGTypeCompiler

from gpuspawner.service.store.database.dialects import Database, is_ours

CONNECTIONS = 10
"""The largest number of connections: readers, the writer, and one that checks whether a write is stored."""
DEAD_SECONDS = 5
"""After this time, the server rolls back the transaction of a service that does nothing more, and its lock is free
before another service takes over. A server that does not answer at all counts as gone after the same time."""
READ_SECONDS = 60
"""After this time, the server ends a read: another program holds a table, or the read is too large."""
LOCK = int.from_bytes(b"gpuspawn", "big")
"""The advisory lock of the writer: one in a database."""
FROM_SOCKET = {
    "connect_timeout": DEAD_SECONDS,
    "keepalives_idle": DEAD_SECONDS,
    "keepalives_interval": 1,
    "keepalives_count": DEAD_SECONDS,
    "tcp_user_timeout": 2 * DEAD_SECONDS * 1000,
    "application_name": "gpuspawner",
}
"""Connection options, unless the address sets them."""
NUL, INSTEAD = "\0", "\N{REPLACEMENT CHARACTER}"
ADVICE = {
    "25006": "This server takes no writes, as a standby until it is promoted. Name all servers in the address, and the "
    "one that takes writes is found: postgresql://USER@ONE,TWO/DATABASE.",
    "42501": "Let the role make and change tables: ALTER DATABASE ... OWNER TO it, or GRANT ALL ON SCHEMA public.",
    "42P01": "The tables of the database are gone: it was emptied, or another one answers. Restore it, "
    "or start the service again to begin with an empty one. Running workspaces are then taken over.",
    "53100": "Its disk is full.",
    "55P03": "Another service is writing, or another program holds its tables.",
    "57014": f"It took longer than {READ_SECONDS} s: another program may hold its tables. pg_stat_activity shows it.",
}
"""Advice by SQLSTATE."""
NO_CONNECTION = f"The service uses up to {CONNECTIONS}: raise the server's max_connections, or end other programs'."
OF_OURS = {"42501", "42P01"}
"""States that SQLAlchemy counts as wrong statements, but that depend on rights and on existing tables."""


class Postgresql(Database):
    """PostgreSQL through libpq. Addresses may have everything that libpq understands."""

    def __init__(self, url: str, password_file: Path | None = None) -> None:
        """Connect nowhere yet.

        Raises:
            ValueError: ``url`` is not an address.
        """
        self._url, self._password_file = url, password_file
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise ValueError(f"It is no address of PostgreSQL ({_flat(error)}).") from error
        self.has_password = "password" in given
        """Whether the address has one in it."""
        self._options: dict[str, Any] = {name: value for name, value in FROM_SOCKET.items() if name not in given}
        if "," in str(given.get("host", "")) and "target_session_attrs" not in given:
            self._options["target_session_attrs"] = "read-write"
        engine = sa.create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            pool_pre_ping=True,
            pool_size=CONNECTIONS,
            max_overflow=0,
            json_serializer=_as_json,
            use_native_hstore=False,
        )
        engine.dialect.ddl_compiler = _Tables
        engine.dialect.type_compiler_instance = _Types(engine.dialect)
        super().__init__(engine)

    def _connect(self) -> psycopg.Connection[Any]:
        options = dict(self._options)
        if self._password_file is not None:
            try:
                options["password"] = self._password_file.read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise psycopg.OperationalError(f"{self._password_file} cannot be read: {error}") from error
        connection = psycopg.connect(self._url, autocommit=True, **options)  # we send BEGIN
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            connection.close()
            raise psycopg.OperationalError(f"Its encoding is {encoding}: make it with ENCODING 'UTF8'")
        connection.adapters.register_dumper(str, _Text)
        return connection

    def begin_to_read(self, connection: sa.Connection) -> None:
        """Begin to read, also on a server that takes no writes."""
        connection.exec_driver_sql(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; "
            f"SET LOCAL statement_timeout = {round(READ_SECONDS * 1000)}"
        )

    def begin_to_write(self, connection: sa.Connection, patience_seconds: float) -> None:
        """Take the advisory lock until the end of the transaction, so that reads see all earlier writes."""
        wait_ms = max(1, round(patience_seconds * 1000))
        connection.exec_driver_sql(
            "BEGIN ISOLATION LEVEL READ COMMITTED; "
            f"SET LOCAL lock_timeout = {wait_ms}; "
            f"SET LOCAL idle_in_transaction_session_timeout = {DEAD_SECONDS * 1000}; "
            f"SELECT pg_advisory_xact_lock({LOCK})"
        )

    def trouble(self, error: sa.exc.DBAPIError) -> str | None:
        """Return the server's message, and advice."""
        state = getattr(error.orig, "sqlstate", None) or ""
        if is_ours(error) and state not in OF_OURS:
            return None
        words = _flat(error.orig)
        no_connection = state == "53300" or "connection slots" in words or "too many c" in words
        advice = NO_CONNECTION if no_connection else ADVICE.get(state, "")
        if state == "25006":
            self.lose()  # the pool's connections all lead to this server
        return f"{words.rstrip('.')}. {advice}".rstrip(". ")


class _Types(PGTypeCompiler):
    """Column types as in SQLite."""

    def visit_VARCHAR(self, *_type: Any, **_how: Any) -> str:  # noqa: N802 - SQLAlchemy's name
        return "TEXT"

    def visit_INTEGER(self, *_type: Any, **_how: Any) -> str:  # noqa: N802 - SQLAlchemy's name
        return "BIGINT"


class _Tables(PGDDLCompiler):
    """Tables as in SQLite: texts are ordered by code points, in no language."""

    def get_column_specification(self, column: sa.Column[Any], **how: Any) -> str:
        written: str = super().get_column_specification(column, **how)  # type: ignore[no-untyped-call]
        if isinstance(column.type, sa.String):
            return written.replace(" TEXT", ' TEXT COLLATE "C"', 1)
        return written.replace(" SERIAL", " BIGSERIAL", 1)


class _Text(StrDumper):
    """Replaces the characters in a text that PostgreSQL cannot store."""

    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace(NUL, INSTEAD))


def _as_json(value: object) -> str:
    """Return JSON that PostgreSQL can read: without NUL and unpaired surrogates."""
    text = json.dumps(value)
    return json.dumps(_readable(value)) if "\\u0000" in text or "\\ud" in text else text


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(NUL, INSTEAD).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_readable(name): _readable(one) for name, one in value.items()}
    return [_readable(one) for one in value] if isinstance(value, (list, tuple)) else value


def _flat(error: object) -> str:
    return " ".join(str(error).split())
