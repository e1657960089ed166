"""`gpuspawner server store copy`: copies all of an SQLite store to PostgreSQL, or nothing."""

import sqlite3
from dataclasses import replace

import pytest
from databases import Database
from lease_builders import a_lease
from store_builders import FULL_LEASE, NOW, line, reading

from gpuspawner.cli import main
from gpuspawner.cli.server import store as command
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.store import Store
from gpuspawner.service.store.database import copying


@pytest.fixture
def data(tmp_path):
    """A folder with a store that has rows in each table, and whose service has ended."""
    store = Store(f"sqlite:///{tmp_path / 'gpuspawner.sqlite'}")
    store.open()
    ended = [a_lease(f"{n:05}", Phase.ENDED, user="Zo\u00eb", ended_at=NOW + n) for n in range(2500)]
    store.save([FULL_LEASE, *ended], [line(), replace(line(), user="NUL \0")], [reading(NOW, 1.5)])
    store.beat()
    store.leave()
    store.close()
    return tmp_path


@pytest.fixture
def target(postgres):
    """An empty database."""
    name = f"{postgres.database()}_empty"
    postgres.run(f"CREATE DATABASE {name}")
    found = Database(postgres.server.url(name), postgres.server.password_file)
    yield found
    found.close()


def run(data, target):
    return main(["server", "store", "copy", "--data", str(data), "--store", target.url,
                 "--store-password-file", str(target.password_file)])  # fmt: skip


def test_all_of_it_arrives_is_compared_and_goes_on_from_there(data, target, capsys, monkeypatch):
    monkeypatch.setattr(command, "PROGRESS_SECONDS", 0.0)
    assert run(data, target) == 0
    told = capsys.readouterr()
    assert "leases: 2000 of 2501\nleases: 2501 of 2501" in told.err
    assert "Copied and compared: 2 audit, 2501 leases, 1 readings." in told.out
    store = target.opened()
    assert store.epoch == 2, "an older service does not take it for its own"
    assert (store.leases.live(), len(store.leases.ended(None, 5000))) == ([FULL_LEASE], 2500)
    store.save([a_lease("new")], [line()], [reading(NOW + 1, 2.0)])
    assert [x.user for x in store.audit_log.latest()] == ["alice", "NUL \ufffd", "alice"]
    assert run(data, target) == 2
    assert "The database is not empty: it has alembic_version, announcements, audit." in capsys.readouterr().err
    assert len(store.leases.live()) == 2


def test_where_it_is_broken_off_nothing_arrives_and_it_can_be_done_again(data, target, capsys, monkeypatch):
    monkeypatch.setattr(copying, "_count_in", lambda digest, rows: digest.update(str(id(rows)).encode()))
    assert run(data, target) == 2
    assert "is not what was sent. Nothing was changed" in capsys.readouterr().err
    monkeypatch.undo()
    assert run(data, target) == 0


def test_a_store_in_use_is_refused_and_so_is_a_damaged_one(data, target, capsys):
    store = Store(f"sqlite:///{data / 'gpuspawner.sqlite'}")
    store.open()
    with sqlite3.connect(data / "gpuspawner.sqlite") as other:
        other.execute("UPDATE meta SET number = 7 WHERE name = 'beat'")
    store.close()
    (data / "gpuspawner.sqlite").write_bytes(b"SQLite format 3\0" + bytes(9000))
    assert run(data, target) == 1
    assert "cannot be used" in capsys.readouterr().err
    assert target.run("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
