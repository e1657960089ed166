"""The database: its schema, its epoch, what it keeps, and what becomes of its troubles."""

import asyncio
import contextlib
import resource
import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from lease_builders import a_lease
from store_builders import FULL_LEASE, NOW, line, reading

from gpuspawner.core.errors import Superseded, Unavailable
from gpuspawner.core.leases.events import Stopped, WarnedIdle, WarnedOfEnd
from gpuspawner.core.leases.lease import Owner, Phase
from gpuspawner.service.leases.book import Book
from gpuspawner.service.store import Store, tables
from gpuspawner.service.store import store as stores


def test_the_migrations_make_exactly_the_tables_that_are_used(store, path):
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
        indexes = {row[0]: row[1] for row in connection.exec_driver_sql("select name, sql from sqlite_master")}
    assert "WHERE phase <> 'ended'" in indexes["uq_leases_live_key"]
    engine.dispose()


def test_opening_again_migrates_nothing_and_raises_the_epoch(store, path):
    store.save([a_lease()])
    again = Store(f"sqlite:///{path}")
    again.open()
    assert (store.epoch, again.epoch) == (1, 2)
    assert again.live() == [a_lease()]
    again.close()


CALLS = {
    "save": lambda store: store.save([a_lease("new")]),
    "thin_readings": lambda store: store.ages.thin_readings(NOW),
    "forget_ended": lambda store: store.ages.forget_ended(NOW),
    "check_epoch": Store.check_epoch,
    "live": Store.live,
    "readings": lambda store: store.readings("one"),
    "audit": Store.audit,
    "ended": lambda store: store.ended(None),
    "disputed": lambda store: store.disputed(None),
    "lines of the ledger": lambda store: list(store.ledger.since(0)),
    "sums of the ledger": lambda store: store.ledger.sums("user", "2026-01-01", "2026-12-31", None),
    "forget lines": lambda store: store.ledger.forget(0),
    "grants": lambda store: store.ledger.grants(),
    "alive": lambda store: store.ledger.note_alive(NOW),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_older_service_neither_writes_nor_reads_once_a_newer_one_opened_the_store(store, path, call):
    store.save([a_lease()], readings=[reading(0.0, 5.0)])
    newer = Store(f"sqlite:///{path}")
    newer.open()
    with pytest.raises(Superseded, match="epoch 2; this is 1"):
        CALLS[call](store)
    assert newer.live() == [a_lease()]
    assert newer.readings("one") == [reading(0.0, 5.0)]
    newer.close()


def test_a_lease_comes_back_as_it_was(store):
    store.save([replace(FULL_LEASE, options={"gpu": "half", "deep": [1, {"x": None}]})])
    assert store.lease("full") == replace(FULL_LEASE, options={"gpu": "half", "deep": [1, {"x": None}]})
    assert store.lease("another") is None


def test_the_database_itself_refuses_a_second_live_lease_of_a_key(store):
    store.save([FULL_LEASE])
    with pytest.raises(sa.exc.IntegrityError):
        store.save([replace(FULL_LEASE, id="second")])
    assert store.live() == [FULL_LEASE]


def test_a_key_passes_from_an_ended_lease_to_a_new_one_in_one_write(store):
    store.save([FULL_LEASE])
    second = replace(FULL_LEASE, id="second")
    store.save([second, replace(FULL_LEASE, phase=Phase.ENDED, ended_at=NOW)])
    assert store.live() == [second]


def test_what_ended_is_listed_by_owner_the_newest_first(store):
    ended = [a_lease(name, Phase.ENDED, user=user, ended_at=at) for name, user, at in
             [("a", "alice", 1.0), ("b", "bob", 2.0), ("c", "alice", 3.0), ("d", "alice", 3.0)]]  # fmt: skip
    store.save([*ended, a_lease("live")])
    assert [x.id for x in store.ended(Owner("hub", "alice born"))] == ["c", "d", "a"]
    assert [x.id for x in store.ended(None, 2)] == ["c", "d"]


def test_audit_lines_come_newest_first(store):
    store.save([], audit=[line("asked"), line("granted"), replace(line("running"), lease="two")])
    assert [x.event.action for x in store.audit("one")] == ["granted", "asked"]
    assert [x.event.action for x in store.audit(limit=2)] == ["running", "granted"]


def test_all_of_a_write_happens_or_nothing(store):
    with pytest.raises(sa.exc.IntegrityError):
        store.save([a_lease("new")], audit=[line()], readings=[replace(reading(0.0, 1.0), gpu=None)])
    assert (store.live(), store.audit(), store.readings("one")) == ([], [], [])


# Troubles


def block(path):
    """Another process holds the database."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    return other


async def test_a_locked_database_is_unavailable_and_nothing_is_remembered(store, path):
    book = Book(store)
    await book.save(a_lease())
    store._engine.dispose()
    sa.event.listen(store._engine, "connect", lambda c, _: c.execute("PRAGMA busy_timeout=50").close())
    other = block(path)
    with pytest.raises(Unavailable, match="locked"):
        await book.save(replace(a_lease(), phase=Phase.PARKED), audit=[line()])
    other.execute("ROLLBACK")
    other.close()
    assert book.get("one") == a_lease()
    assert store.lease("one") == a_lease()
    await book.save(replace(a_lease(), phase=Phase.PARKED))
    assert store.lease("one").phase is Phase.PARKED


def test_while_the_database_is_locked_reads_are_answered_and_writes_refused_quickly(store, path):
    store.save([a_lease()])
    other = block(path)
    began = time.monotonic()
    for _ in range(40):
        with pytest.raises(Unavailable, match="locked"):
            store.save([a_lease("new")])
        assert store.live() == [a_lease()]
        store.check_epoch()
    assert time.monotonic() - began < 5
    other.execute("ROLLBACK")
    other.close()
    store.save([a_lease("new")])
    assert store._patience_seconds > 0


def test_a_write_waits_for_another_process_for_a_moment(store, path):
    other = block(path)
    release = threading.Timer(0.1, other.execute, ["ROLLBACK"])
    release.start()
    store.save([a_lease("new")])
    release.join()
    other.close()
    assert store.lease("new") is not None


async def test_a_full_disk_is_unavailable_and_nothing_is_remembered(store):
    book = Book(store)
    await book.save(a_lease())
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(Unavailable, match="full"):
        await book.save(replace(a_lease(), options={"much": "x" * 100_000}))
    assert book.get("one") == a_lease()
    assert store.lease("one") == a_lease()


@pytest.mark.parametrize(
    ("content", "message"), [(b"no database" * 1000, "not a database"), (None, "unable to open database file")]
)
def test_a_file_that_is_no_database_is_unavailable(tmp_path, content, message):
    path = tmp_path / "service.sqlite"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    broken = Store(f"sqlite:///{path}")
    with pytest.raises(Unavailable, match=message):
        broken.open()
    broken.close()


def test_a_database_of_a_newer_version_is_told_so(store, path):
    with store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    older = Store(f"sqlite:///{path}")
    with pytest.raises(Unavailable, match=r"is of another version\. It has schema 9999"):
        older.open()
    older.close()


def test_a_lease_that_this_version_cannot_read_is_told_and_nothing_is_served_without_it(store, path):
    lease = a_lease("one")
    store.save([lease], [])
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE leases SET document = json_set(document, '$.streak.mode', 'later')")
    with pytest.raises(Unavailable, match=r"the lease 'one', whose streak\.mode this version can't read"):
        store.live()


def test_a_damaged_row_is_unavailable_too(store, path):
    store.save([a_lease("one")])
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE leases SET document = '{not what it was'")
    with pytest.raises(Unavailable, match=r"holds what can't be read \(.+\)\. Is its file whole\?"):
        store.live()


def test_a_store_that_takes_no_writes_is_known_before_anybody_asks_and_so_is_one_that_does_again(
    store, path, monkeypatch
):
    at = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: at)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.try_to_write()
        assert store.trouble == "", "what was written a moment ago tells"
        at += 11
        with pytest.raises(Unavailable):
            store.try_to_write()
        assert "database is locked" in store.trouble
        store.check_epoch()
        assert store.trouble, "that it can be read says nothing"
    at += 3
    store.try_to_write()
    assert store.trouble == ""


async def test_what_is_written_beside_the_loop_holds_up_no_read_and_fails_no_write(store):
    held, done = threading.Event(), threading.Event()

    def write_slowly():
        with store._transaction(writes=True):
            held.set()
            done.wait(20)

    slow = asyncio.create_task(store.write(write_slowly))
    await asyncio.to_thread(held.wait, 20)
    assert await store.read(store.live) == []
    await store.read(store.check_epoch)
    other = asyncio.create_task(store.write(store.save, [a_lease()]))
    await asyncio.sleep(2 * stores.PATIENCE_SECONDS)
    assert not other.done(), "it waits for its turn, however long, and is not refused"
    assert await store.read(store.live) == []
    done.set()
    assert (await slow, await other) == (None, None)
    assert (store.live(), store.trouble) == ([a_lease()], "")


def test_a_write_that_changes_nothing_does_not_hide_a_full_disk(store):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(Unavailable):
            store.save([a_lease()])
        with pytest.raises(Unavailable):
            store.ages.forget_ended(NOW)
        assert "The store does not answer (" in store.trouble
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.ages.forget_ended(NOW)
    assert store.trouble == ""


def test_audit_of_the_version_before_is_read_without_parsing_it_again(tmp_path):
    path = tmp_path / "service.sqlite"
    older = Store(f"sqlite:///{path}")
    older.open()
    older.close()
    config = Config()
    config.set_main_option("script_location", str(Path(stores.__file__).parent / "migrations"))
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0009")
        insert = (
            "INSERT INTO audit (at, lease, user, actor, action, why) VALUES (1, 'one', 'alice', 'gpuspawner', ?, ?)"
        )
        idle = "GPU 0 has done nothing."
        for row in (("warned", "ends in 1 h"), ("warned", idle), ("stop", "idle: GPU 0 did nothing.")):
            connection.exec_driver_sql(insert, row)
    engine.dispose()
    newer = Store(f"sqlite:///{path}")
    newer.open()
    events = [line.event for line in reversed(newer.audit("one"))]
    newer.close()
    assert [type(event) for event in events] == [WarnedOfEnd, WarnedIdle, Stopped]
    assert [event.why for event in events] == ["ends in 1 h", "GPU 0 has done nothing.", "GPU 0 did nothing."]


OF_THE_RULES = (
    "given", "rate", "latest_end", "fixed_end", "lost", "notice", "waiting_since", "held_back", "held_back_seconds",
    "estimate", "terms", "judged", "came_back", "made_room_at", "reaches_into", "request.team", "request.substitutes",
    "request.needs_memory_bytes", "request.needs_compute", "request.priority", "request.least_lifetime_seconds",
    "request.classes",
)  # fmt: skip
"""What documents of leases have had since there are teams, quotas and budgets."""


def test_a_store_from_before_the_rules_opens_with_its_leases(tmp_path):
    path = tmp_path / "service.sqlite"
    older = Store(f"sqlite:///{path}")
    older.open()
    older.save([a_lease("waits"), FULL_LEASE])
    older.close()
    config = Config()
    config.set_main_option("script_location", str(Path(stores.__file__).parent / "migrations"))
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0009")
        paths = ", ".join(f"'$.{name}'" for name in OF_THE_RULES)
        connection.exec_driver_sql(f"UPDATE leases SET document = json_remove(document, {paths})")
    engine.dispose()
    newer = Store(f"sqlite:///{path}")
    newer.open()
    assert newer.lease("waits") == a_lease("waits")
    found = newer.lease(FULL_LEASE.id)
    assert (found.rate, found.latest_end, found.lost, found.request.team) == (None, None, (), "")
    assert (found.deadline_at, found.streak, found.slots) == (
        FULL_LEASE.deadline_at,
        FULL_LEASE.streak,
        FULL_LEASE.slots,
    )
    assert (newer.ledger.grants(), list(newer.ledger.since(0)), newer.ledger.alive_at()) == ([], [], None)
    newer.close()
