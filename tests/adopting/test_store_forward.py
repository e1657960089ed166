"""A newer version takes over a store that an older one writes to: forward, back, and where that fails, on either."""

import json
import threading
import time

import pytest
import sqlalchemy as sa
from databases import Database
from lease_builders import a_lease
from store_builders import line

from gpuspawner.cli import main
from gpuspawner.core.errors import Superseded, Unavailable
from gpuspawner.core.leases.lease import Key
from gpuspawner.service.store import schema

DONE, INVALID, REFUSED = 0, 1, 2
STEPS = [step.revision for step in schema.known_steps()]
OLDER = "0018"
"""Since then no table changed of those that the writers of these tests write, so that today's code writes them."""


def numbered(name):
    return a_lease(name, key=Key("hub", "alice born", name))


class OlderService:
    """Writes and reads by a store of an earlier schema, as fast as it can, until it is told to end or superseded."""

    def __init__(self, database):
        self.store, self.stored, self.told, self.superseded = database.opened(), [], set(), False
        with self.store._begun(writes=True) as connection:
            schema.downgrade(connection, OLDER)
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._write, self._read, self._read)]
        for one in self._threads:
            one.start()
        self.goes_on()

    def _write(self):
        number = 0
        while not self._ends.is_set():
            number += 1
            try:
                self.store.save([numbered(str(number))], [line()])
                self.stored.append(str(number))
            except Unavailable as error:
                self.told.add(str(error))
            except Superseded:
                self.superseded = True
                return

    def _read(self):
        while not self._ends.is_set():
            try:
                self.store.live()
                with self.store._transaction() as connection:  # of a table that the newer one changes
                    connection.execute(sa.text("SELECT count(*) FROM readings"))
            except Unavailable as error:
                self.told.add(str(error))
            except Superseded:
                return

    def goes_on(self, seconds=60.0):
        before, until = len(self.stored), time.monotonic() + seconds
        while len(self.stored) < before + 10:
            assert self._threads[0].is_alive(), "it writes"
            assert time.monotonic() < until
            time.sleep(0.01)

    def end(self):
        self._ends.set()
        for one in self._threads:
            one.join()


@pytest.fixture
def older(database):
    found = OlderService(database)
    yield found
    found.end()


def revision_of(database):
    return database.run("SELECT version_num FROM alembic_version")[0][0]


@pytest.mark.postgresql
def test_a_newer_version_migrates_under_load_and_takes_over_and_nothing_is_lost(database, older):
    assert revision_of(database) == OLDER
    newer = database.opened()
    older.end()
    assert (revision_of(database), older.superseded) == (STEPS[-1], True)
    assert {x.id for x in newer.live()} == set(older.stored), "all that was told to be stored, and nothing else"
    assert len(newer.audit(limit=100_000)) == len(older.stored)
    newer.save([numbered("new")], [line()])
    assert not [words for words in older.told if "is writing" not in words and "locked" not in words]


@pytest.mark.postgresql
def test_a_migration_that_fails_in_the_middle_leaves_the_older_one_at_work(database, older):
    newer = database.store()

    @sa.event.listens_for(newer._engine, "before_cursor_execute")
    def _fail(_connection, _cursor, statement, *_more):
        if "ALTER TABLE readings" in statement:
            raise sa.exc.OperationalError(statement, (), Exception("disk I/O error"))

    with pytest.raises(Unavailable, match="disk I/O error"):
        newer.open()
    assert revision_of(database) == OLDER
    older.goes_on()
    older.end()
    assert not older.superseded
    with database.connected() as connection:
        assert not sa.inspect(connection).has_table("counters"), "the steps before it are taken back with it"
    sa.event.remove(newer._engine, "before_cursor_execute", _fail)
    newer.open()
    assert {x.id for x in newer.live()} == set(older.stored)


@pytest.fixture
def elsewhere():
    """A store on PostgreSQL, whose service has ended."""
    found = Database.postgresql()
    store = found.opened()
    store.save([numbered("one"), numbered("two")], [line()])
    store.close()
    yield found
    found.close()


def run(database, *words):
    return main(
        ["server", "store", *words, "--store", database.url, "--store-password-file", str(database.password_file)]
    )


def test_check_and_downgrade_on_postgresql_are_as_on_a_file(elsewhere, capsys):
    assert run(elsewhere, "check") == DONE
    told = capsys.readouterr().out
    assert f"{elsewhere.url}: schema {STEPS[-1]} (2 live workspaces, 0 that ended, " in told
    assert "changes nothing in it" in told
    assert run(elsewhere, "downgrade", "0001") == DONE
    told = capsys.readouterr().out
    assert "Nothing was changed. To do it: gpuspawner server store downgrade 0001 --yes --store postgresql://" in told
    assert "No copy is kept. Back it up first with pg_dump." in told
    for revision in reversed(STEPS[:-1]):
        assert run(elsewhere, "downgrade", revision, "--yes") == DONE
        assert revision_of(elsewhere) == revision
        if revision in STEPS[::6]:
            store = elsewhere.opened()
            assert {x.id for x in store.live()} == {"one", "two"}, f"from {revision} on"
            assert len(store.audit()) == 1
            store.close()
    assert run(elsewhere, "check", "--json") == DONE
    found = json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))
    assert found["store"] == elsewhere.url


def test_a_way_back_is_refused_while_a_service_is_connected_and_who_was_cut_off_writes_no_more(elsewhere, capsys):
    store = elsewhere.opened()
    assert run(elsewhere, "downgrade", "0020", "--yes") == REFUSED
    assert "A service is connected to the database (1 connections" in capsys.readouterr().err
    assert revision_of(elsewhere) == STEPS[-1]
    store._engine.dispose()
    assert run(elsewhere, "downgrade", "0020", "--yes") == DONE
    with pytest.raises(Superseded):
        store.save([numbered("three")])


def test_what_cannot_be_looked_at_is_said(elsewhere, capsys):
    assert main(["server", "store", "check", "--store", "sqlite:///x"]) == INVALID
    assert "Name the folder of a file by --data" in capsys.readouterr().err
    assert main(["server", "store", "check", "--store", "postgresql://u@127.0.0.1:9/none"]) == INVALID
    assert "The database cannot be used (" in capsys.readouterr().err
    assert run(elsewhere, "downgrade", "9999", "--yes") == REFUSED
    assert "goes back to an earlier one: 0001, 0002" in capsys.readouterr().err
    elsewhere.run("UPDATE alembic_version SET version_num = '9999'")
    assert run(elsewhere, "check") == INVALID
    assert "It has schema 9999" in capsys.readouterr().out
