"""Upgrades of the store: nothing that runs or waits is lost, and an older version refuses a newer schema in words."""

import json
import shutil
import sqlite3
import threading

import pytest
import sqlalchemy as sa
from databases import Database
from harness.waiting import eventually
from lease_builders import a_lease
from manifests import opened
from store_builders import FULL_LEASE, line, reading

from gpuspawner import __version__
from gpuspawner.cli import main
from gpuspawner.core.errors import Superseded, Unavailable
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.service.store.database import schema
from gpuspawner.service.store.database.backup import DATABASE

DONE, INVALID = 0, 1
LATER = '''"""Workspaces have a colour."""

import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{newest}"


def upgrade() -> None:
    """Add the colour."""
    op.create_table("colours", sa.Column("name", sa.String(64), primary_key=True))
    op.add_column("readings", sa.Column("colour", sa.String(64)))
'''
"""A migration of a version to come."""


@pytest.fixture
def later_version(tmp_path, monkeypatch):
    """Return a function after which this package is a later version with one more migration."""
    newest = schema.newest_revision()

    def forget():
        schema.known_migrations.cache_clear()
        schema.newest_revision.cache_clear()

    def become():
        folder = tmp_path / "migrations"
        shutil.copytree(schema._MIGRATIONS, folder)
        (folder / "versions" / "v9999_colour.py").write_text(LATER.format(newest=newest))
        monkeypatch.setattr(schema, "_MIGRATIONS", folder)
        forget()

    yield become
    monkeypatch.undo()
    forget()


def numbered(name):
    return a_lease(name, key=Key("hub", "alice born", name))


def revision_of(database):
    return database.run("SELECT version_num FROM alembic_version")[0][0]


class BusyService:
    """A service that writes and reads without a pause until it ends or is superseded."""

    def __init__(self, store):
        self.store, self.stored, self.errors, self.superseded = store, [], set(), False
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
                self.errors.add(str(error))
            except Superseded:
                self.superseded = True
                return

    def _read(self):
        while not self._ends.is_set():
            try:
                self.store.leases.live()
                self.store.readings.of_lease("one")
            except Unavailable as error:
                self.errors.add(str(error))
            except Superseded:
                return

    def goes_on(self):
        before = len(self.stored)
        eventually(lambda: len(self.stored) >= before + 10 or not self._threads[0].is_alive(), 60)
        assert self._threads[0].is_alive(), "it writes"

    def end(self):
        self._ends.set()
        for one in self._threads:
            one.join()


@pytest.fixture
def service(database):
    found = BusyService(database.opened())
    yield found
    found.end()


@pytest.mark.postgresql
def test_a_later_version_migrates_under_load_and_takes_over_and_nothing_is_lost(database, service, later_version):
    later_version()
    newer = database.opened()
    service.end()
    assert (revision_of(database), service.superseded) == ("9999", True)
    assert {x.id for x in newer.leases.live()} == set(service.stored), "all that was acknowledged, and nothing else"
    assert len(newer.audit_log.latest(limit=100_000)) == len(service.stored)
    newer.save([numbered("new")], [line()])
    assert not [words for words in service.errors if "is writing" not in words and "locked" not in words]


@pytest.mark.postgresql
def test_a_migration_that_fails_in_the_middle_leaves_the_older_version_at_work(database, service, later_version):
    before = schema.newest_revision()
    later_version()
    newer = database.store()

    @sa.event.listens_for(newer._engine, "before_cursor_execute")
    def _fail(_connection, _cursor, statement, *_more):
        if "ALTER TABLE readings" in statement:
            raise sa.exc.OperationalError(statement, (), Exception("disk I/O error"))

    with pytest.raises(Unavailable, match="disk I/O error"):
        newer.open()
    assert revision_of(database) == before
    service.goes_on()
    service.end()
    assert not service.superseded
    with database.connected() as connection:
        assert not sa.inspect(connection).has_table("colours"), "what the migration had made is gone with it"
    sa.event.remove(newer._engine, "before_cursor_execute", _fail)
    newer.open()
    assert {x.id for x in newer.leases.live()} == set(service.stored)


@pytest.fixture
def data(tmp_path):
    """A folder with a store in which one workspace runs, one waits and one has ended."""
    folder = tmp_path / "data"
    folder.mkdir()
    store = opened(folder)
    waits, ended = a_lease("waits", key=Key("hub", "bob born", "")), a_lease("ended", Phase.ENDED, ended_at=1.0)
    store.save([FULL_LEASE, waits, ended], [line()], [reading(1.0, 90.0)])
    store.close()
    return folder


def contents(folder):
    store = opened(folder)
    try:
        found = store.leases.live(), store.leases.ended(None), store.audit_log.latest(), store.readings.of_lease("one")
    finally:
        store.close()
    return found


def execute(folder, statement):
    with sqlite3.connect(folder / DATABASE) as raw:
        raw.executescript(statement)
    raw.close()


def check(capsys, folder, code=DONE, *more):
    assert main(["server", "store", "check", "--data", str(folder), *more]) == code
    return "".join(capsys.readouterr())


def test_promise_2_what_runs_waits_and_ended_is_there_after_an_upgrade_that_check_announced(
    data, later_version, capsys
):
    before = contents(data)
    assert "changes nothing in it" in check(capsys, data)
    assert [len(part) for part in before] == [2, 1, 1, 1]
    later_version()
    words = check(capsys, data)
    assert "whole, schema 0001 (2 live workspaces, 1 that ended" in words
    assert "\n  9999  Workspaces have a colour." in words
    assert "gpuspawner server store backup FILE --data" in words
    assert json.loads(check(capsys, data, DONE, "--json"))["migrations"] == [
        {"revision": "9999", "what": "Workspaces have a colour."}
    ]
    assert contents(data) == before
    assert "changes nothing in it" in check(capsys, data)


def test_a_store_of_a_later_version_is_refused_in_words_that_name_it_and_stays_as_it_is(data, capsys):
    later = schema.number_of("1.12.3rc1")
    execute(
        data,
        f"UPDATE alembic_version SET version_num = '9999'; UPDATE meta SET number = {later} WHERE name = 'opened by'",
    )
    before = (data / DATABASE).read_bytes()
    with pytest.raises(Unavailable) as refused:
        contents(data)
    for words in (str(refused.value), check(capsys, data, INVALID)):
        assert (
            f"It has schema 9999, and gpuspawner {__version__} knows 0001 at most. The service does not start" in words
        )
        assert "Install gpuspawner 1.12.3 or a later one." in words
        assert "To stay with this version, restore the backup from before the upgrade." in words
    assert (data / DATABASE).read_bytes() == before


def test_the_way_back_is_the_backup_from_before_the_upgrade(data, later_version, tmp_path, capsys):
    before = contents(data)
    backup, newer = str(tmp_path / "gpu.tar"), tmp_path / "newer"
    assert main(["server", "store", "backup", backup, "--data", str(data)]) == DONE
    shutil.copytree(data, newer)
    execute(newer, "UPDATE alembic_version SET version_num = '9999'")
    assert main(["server", "store", "restore", backup, "--data", str(newer)]) == DONE
    assert contents(newer) == before


def test_a_newer_lease_is_read_by_a_version_that_does_not_know_its_new_fields(data):
    """Versions of one schema share a store."""
    execute(data, "UPDATE leases SET document = json_set(document, '$.of_a_later_version', 1) WHERE id = 'full'")
    live, *_ = contents(data)
    assert FULL_LEASE in live


@pytest.mark.parametrize("version", ["0.1.0", "1.12.3", "999.0.999"])
def test_a_version_is_kept_as_a_number(version):
    assert schema.version_of(schema.number_of(version)) == version
    assert schema.version_of(0) == ""


def test_check_on_postgresql_is_as_on_a_file_and_says_what_cannot_be_looked_at(capsys):
    elsewhere = Database.postgresql()
    store = elsewhere.opened()
    store.save([numbered("one"), numbered("two")], [line()])
    store.close()

    def run(url=elsewhere.url, *more):
        where = ["--store", url, "--store-password-file", str(elsewhere.password_file)]
        code = main(["server", "store", "check", *where, *more])
        return code, "".join(capsys.readouterr())

    code, words = run()
    assert code == DONE
    assert f"{elsewhere.url}: schema 0001 (2 live workspaces, 0 that ended, " in words
    assert "changes nothing in it" in words
    code, words = run(elsewhere.url, "--json")
    assert json.loads(words)["store"] == elsewhere.url
    elsewhere.run("UPDATE alembic_version SET version_num = '9999'")
    code, words = run()
    assert (code, "It has schema 9999" in words) == (INVALID, True)
    code, words = run("sqlite:///x")
    assert (code, "Name the folder of a file by --data" in words) == (INVALID, True)
    code, words = run("postgresql://u@127.0.0.1:9/none")
    assert (code, "The database cannot be used (" in words) == (INVALID, True)
    elsewhere.close()
