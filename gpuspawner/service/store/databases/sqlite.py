"""A file of this machine."""

from __future__ import annotations

import sqlalchemy as sa

from gpuspawner.service.store.databases.base import PATIENCE_SECONDS, Database, is_ours


class Sqlite(Database):
    """SQLite, which locks the whole file for who writes."""

    def __init__(self, url: str) -> None:
        """Make no file yet."""
        super().__init__(sa.create_engine(url, pool_pre_ping=True))
        sa.event.listen(self.engine, "connect", _set)

    def begin_to_read(self, connection: sa.Connection) -> None:
        """Take no lock."""
        connection.exec_driver_sql("BEGIN")

    def begin_to_write(self, connection: sa.Connection, patience_seconds: float) -> None:
        """Take the one lock."""
        connection.exec_driver_sql(f"PRAGMA busy_timeout={patience_seconds * 1000:.0f}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def trouble(self, error: sa.exc.DBAPIError) -> str | None:
        """Return SQLite's own words."""
        return None if is_ours(error) else str(error.orig)


def _set(connection: object, _record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]  # SQLAlchemy's own advice: we send BEGIN
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute(f"PRAGMA busy_timeout={PATIENCE_SECONDS * 1000:.0f}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()
