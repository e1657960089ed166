"""What the store asks of a database beside SQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

PATIENCE_SECONDS = 1.0
"""How long a write waits for another process that writes: a second service's takes milliseconds, and while one waits,
nothing else is written."""


class Database(ABC):
    """One database. ``engine`` makes its connections; each transaction is begun here."""

    engine: sa.Engine

    def __init__(self, engine: sa.Engine) -> None:
        """Begin what ``engine`` begins: with the option ``writes``, as the only writer."""
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
        """Whoever fails now has waited for those that come next."""
        seconds, self._patience_seconds = self._patience_seconds, 0.0
        yield seconds
        self._patience_seconds = PATIENCE_SECONDS

    @abstractmethod
    def begin_to_read(self, connection: sa.Connection) -> None:
        """Begin to read without waiting for who writes: what is read stays as it was at the beginning."""

    @abstractmethod
    def begin_to_write(self, connection: sa.Connection, patience_seconds: float) -> None:
        """Begin as the only one that writes, or fail after that time."""

    @abstractmethod
    def trouble(self, error: sa.exc.DBAPIError) -> str | None:
        """Return in words what keeps the database from answering, None for a fault of ours, which would come again."""

    def lose(self) -> None:
        """Take it that what answers is not what should: connect anew, of several servers to another one."""
        self._generation += 1

    def close(self) -> None:
        """Close every connection; those that a thread still uses once it has its answer."""
        self._closed = True
        self.engine.dispose()

    def _connected(self, _connection: object, record: Any) -> None:
        record.info["generation"] = self._generation

    def _checked_out(self, _connection: object, record: Any, _proxy: object) -> None:
        if record.info["generation"] != self._generation:
            raise sa.exc.DisconnectionError("it leads to what was lost")  # SQLAlchemy makes another

    def _checked_in(self, connection: object, record: Any) -> None:
        if self._closed and connection is not None:
            record.invalidate()


def is_ours(error: sa.exc.DBAPIError) -> bool:
    """Whether an error is a fault of ours, which trying again would not mend."""
    return isinstance(error, (sa.exc.IntegrityError, sa.exc.ProgrammingError, sa.exc.DataError)) or not isinstance(
        error, sa.exc.DatabaseError
    )
