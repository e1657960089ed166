"""The databases that a store is tried on: each test's own, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from functools import cache
from pathlib import Path
from typing import ClassVar

import psycopg
import sqlalchemy as sa
from harness.programs import require

from gpuspawner.service.store import Store
from gpuspawner.service.store.database.dialects import database_of
from tools.postgres import FAST, PASSWORD, Server

TEMPLATE = "new_store"


def make_unused(url, password_file=None):
    """Make the tables of a store that no service has opened."""
    store = Store(url, password_file)
    store.open()
    store.close()
    with Database(url, password_file).connected() as connection:
        connection.execute(sa.text("UPDATE meta SET number = 0 WHERE name = 'epoch'"))


@cache
def new_store():
    """Return the bytes of a new store's file. The copy saves the creation of the tables, which is slow."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        make_unused(f"sqlite:///{path}")
        return path.read_bytes()


TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
SCHEMA = """
SELECT relname, attname, atttypid, (SELECT version_num FROM alembic_version)
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE relnamespace = 'public'::regnamespace AND attnum > 0 ORDER BY relname, attnum
"""
"""Each column of each table, index and sequence."""
DISCONNECT_OTHERS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class Postgres:
    """A server for all tests of a process. A database of a test is a copy of one that has its tables."""

    def __init__(self):
        require("pg_ctlcluster")
        self.server = Server(*FAST)
        self.server.sql(f"CREATE DATABASE {TEMPLATE}")
        make_unused(self.server.url(TEMPLATE), self.server.password_file)
        self._numbers = itertools.count()
        self._unused: list[str] = []
        self._schema = self.run(SCHEMA, TEMPLATE)
        self._empty = self._statements_that_empty()

    def run(self, statement, database="postgres"):
        """Run a statement outside of a transaction; return its rows, if there are."""
        url = self.server.url(database)
        with psycopg.connect(url, password=PASSWORD, autocommit=True) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def database(self):
        """Return the name of one with nothing in it."""
        if self._unused:
            return self._unused.pop()
        name = f"test_{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
        return name

    def give_back(self, name):
        """Empty a database for the next test, unless this one changed its tables.

        A copy costs 0.2 CPU seconds. To empty one costs 0.01.
        """
        with contextlib.suppress(psycopg.Error):
            self.run(DISCONNECT_OTHERS, name)
            if self.run(SCHEMA, name) == self._schema:
                self.run(self._empty, name)
                self._unused = sorted({*self._unused, name})

    def _statements_that_empty(self):
        names = [name for (name,) in self.run(TABLES, TEMPLATE)]
        numbers = self.run("SELECT name, number FROM meta", TEMPLATE)
        statements = [f"DELETE FROM {name}" for name in names if name != "alembic_version"]
        statements += [f"INSERT INTO meta (name, number) VALUES ('{name}', {number})" for name, number in numbers]
        sequences = self.run("SELECT sequencename FROM pg_sequences", TEMPLATE)
        return "; ".join([*statements, *(f"ALTER SEQUENCE {name} RESTART" for (name,) in sequences)])


@cache
def postgres():
    """Return the server of this process, started by the first test that asks."""
    return Postgres()


class Database:
    """One test's own: its address, stores on it, and a look into it from outside."""

    def __init__(self, url, password_file=None):
        self.url, self.password_file = url, password_file
        self._made = []

    @classmethod
    def sqlite(cls, path: Path):
        if not path.exists():
            path.write_bytes(new_store())
        return cls(f"sqlite:///{path}")

    @classmethod
    def postgresql(cls):
        one = postgres()
        return cls(one.server.url(one.database()), one.server.password_file)

    of_worlds = "sqlite"
    """Which kind a test's service keeps what it stores in, where the test does not say: its fixture ``kept_in``."""

    made_for_worlds: ClassVar[list[Database]] = []
    """Databases of the current test. They are closed after it."""

    @classmethod
    def of_world(cls, path: Path):
        cls.made_for_worlds.append(cls.sqlite(path) if cls.of_worlds == "sqlite" else cls.postgresql())
        return cls.made_for_worlds[-1]

    @property
    def name(self):
        return self.url.partition(":")[0]

    def store(self):
        """Make one more store on it, not opened."""
        self._made.append(Store(self.url, self.password_file))
        self._made[-1].at = self
        return self._made[-1]

    def opened(self):
        store = self.store()
        store.open()
        return store

    def run(self, statement, **values):
        """Run a statement as another program does; return its rows."""
        with self.connected() as connection:
            found = connection.execute(sa.text(statement), values)
            return [tuple(row) for row in found] if found.returns_rows else []

    def plain_engine(self):
        """Return an engine for connections that do not go through the service."""
        password = {"password": PASSWORD} if self.password_file else {}
        return sa.create_engine(self.url.replace("postgresql:", "postgresql+psycopg:"), connect_args=password)

    def connected(self):
        """Begin a transaction of another program's."""
        engine = database_of(self.url, self.password_file).engine
        return _Begun(engine)

    def close(self):
        for store in self._made:
            store.close()
        if self.name == "postgresql" and self.url == postgres().server.url(name := self.url.rpartition("/")[2]):
            postgres().give_back(name)


class _Begun:
    def __init__(self, engine):
        self._engine = engine

    def __enter__(self):
        self._transaction = self._engine.connect().execution_options(writes=True)
        self._transaction.begin()
        return self._transaction

    def __exit__(self, kind, *_):
        (self._transaction.rollback if kind else self._transaction.commit)()
        self._transaction.close()
        self._engine.dispose()
