"""A store on a database elsewhere: looked at, and its schema taken back. Its copies are made by its own programs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.service.store import schema
from gpuspawner.service.store.copies.condition import Condition, condition_of, steps_back
from gpuspawner.service.store.databases import database_of
from gpuspawner.service.store.databases.statements import others_connected, size_bytes, take_long

SUPERSEDES = "UPDATE meta SET number = number + 1 WHERE name = 'epoch'"


def condition_elsewhere(url: str, password_file: Path | None) -> Condition:
    """Return what a store is, also while its service works. Nothing of it is changed.

    Raises:
        Unavailable: the database does not answer.
        ValueError: ``url`` is no address of a server.
    """
    with _opened(url, password_file, writes=False) as connection:
        return condition_of(connection, size_bytes(connection))


def go_back_elsewhere(url: str, password_file: Path | None, revision: str) -> None:
    """Take a store back to an earlier schema in one transaction: whole or not at all. Whoever worked on it ends.

    Raises:
        Unavailable: the database does not answer.
        Conflict: as :func:`steps_back`, or a service is connected.
        ValueError: ``url`` is no address of a server.
    """
    with _opened(url, password_file, writes=True) as connection:
        take_long(connection)
        steps_back(condition_of(connection, 0), revision)
        if number := others_connected(connection):
            raise Conflict(
                f"A service is connected to the database ({number} connections of gpuspawner). End hub and service "
                "first: they would bring it to the newer schema again."
            )
        schema.downgrade(connection, revision)
        connection.execute(sa.text(SUPERSEDES))


@contextlib.contextmanager
def _opened(url: str, password_file: Path | None, *, writes: bool) -> Iterator[sa.Connection]:
    if url.startswith("sqlite:"):
        raise ValueError("--store is for a database elsewhere. Name the folder of a file by --data, without --store.")
    database = database_of(url, password_file)
    try:
        with database.engine.connect().execution_options(writes=writes) as connection, connection.begin():
            yield connection
    except sa.exc.DBAPIError as error:
        words = database.trouble(error) or str(error.orig)
        raise Unavailable(f"The database cannot be used ({words}). Nothing was changed.") from error
    finally:
        database.engine.dispose()
