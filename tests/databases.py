"""The databases that a store is tried on: each test's own, on SQLite and on a real PostgreSQL."""

import itertools
import tempfile
from functools import cache
from pathlib import Path

import psycopg
import sqlalchemy as sa
from harness.programs import require

from gpuspawner.service.store import Store
from gpuspawner.service.store.databases import database_of
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
    """Return what is in the file of such a store: making its tables takes longer than many a test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        make_unused(f"sqlite:///{path}")
        return path.read_bytes()


class Postgres:
    """A server for all tests of a process. A database of a test is a copy of one that has its tables."""

    def __init__(self):
        require("pg_ctlcluster")
        self.server = Server(*FAST)
        self.server.sql(f"CREATE DATABASE {TEMPLATE}")
        make_unused(self.server.url(TEMPLATE), self.server.password_file)
        self._numbers = itertools.count()

    def run(self, statement, database="postgres"):
        """Run a statement outside of a transaction; return its rows, if there are."""
        url = self.server.url(database)
        with psycopg.connect(url, password=PASSWORD, autocommit=True) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def database(self):
        """Make one more; return its name."""
        name = f"test_{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
        return name


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

    @classmethod
    def of_world(cls, path: Path):
        return cls.sqlite(path) if cls.of_worlds == "sqlite" else cls.postgresql()

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
        """Return what makes connections of which the service knows nothing."""
        password = {"password": PASSWORD} if self.password_file else {}
        return sa.create_engine(self.url.replace("postgresql:", "postgresql+psycopg:"), connect_args=password)

    def connected(self):
        """Begin a transaction of another program's."""
        engine = database_of(self.url, self.password_file).engine
        return _Begun(engine)

    def close(self):
        for store in self._made:
            store.close()


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
