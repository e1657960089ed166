"""The database: its schema, its epoch, what it keeps, and what becomes of its troubles."""

import asyncio
import re
import threading
import time
from dataclasses import replace

import pytest
import sqlalchemy as sa
from lease_builders import a_lease
from store_builders import FULL_LEASE, NOW, delete_old, line, reading

from gpuspawner.core.errors import Superseded, Unavailable
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Owner, Phase
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.store import Store, tables
from gpuspawner.service.store.database.dialects import PATIENCE_SECONDS

pytestmark = pytest.mark.postgresql


def test_opening_again_migrates_nothing_and_raises_the_epoch(store, database):
    store.save([a_lease()])
    again = database.opened()
    assert (store.epoch, again.epoch) == (1, 2)
    assert again.leases.live() == [a_lease()]


CALLS = {
    "save": lambda store: store.save([a_lease("new")]),
    "thin_readings": lambda store: store.readings.thin(NOW),
    "forget_ended": lambda store: store.leases.delete_ended(NOW),
    "check_epoch": Store.check_epoch,
    "live": lambda store: store.leases.live(),
    "readings": lambda store: store.readings.of_lease("one"),
    "audit": lambda store: store.audit_log.latest(),
    "ended": lambda store: store.leases.ended(None),
    "disputed": lambda store: store.leases.disputed(None),
    "lines of the ledger": lambda store: list(store.ledger.since(0)),
    "sums of the ledger": lambda store: store.ledger.sums("user", "2026-01-01", "2026-12-31", None),
    "forget lines": lambda store: delete_old(store, tables.ledger, usage=0.0),
    "grants": lambda store: store.ledger.grants(),
    "alive": lambda store: store.note_alive(NOW),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_older_service_neither_writes_nor_reads_once_a_newer_one_opened_the_store(store, database, call):
    store.save([a_lease()], readings=[reading(0.0, 5.0)])
    newer = database.opened()
    with pytest.raises(Superseded, match="epoch 2; this is 1"):
        CALLS[call](store)
    assert newer.leases.live() == [a_lease()]
    assert newer.readings.of_lease("one") == [reading(0.0, 5.0)]


def test_a_lease_comes_back_as_it_was(store):
    store.save([replace(FULL_LEASE, options={"gpu": "half", "deep": [1, {"x": None}]})])
    assert store.leases.get("full") == replace(FULL_LEASE, options={"gpu": "half", "deep": [1, {"x": None}]})
    assert store.leases.get("another") is None


def test_the_database_itself_refuses_a_second_live_lease_of_a_key(store):
    store.save([FULL_LEASE])
    with pytest.raises(sa.exc.IntegrityError):
        store.save([replace(FULL_LEASE, id="second")])
    assert store.leases.live() == [FULL_LEASE]


def test_a_key_passes_from_an_ended_lease_to_a_new_one_in_one_write(store):
    store.save([FULL_LEASE])
    second = replace(FULL_LEASE, id="second")
    store.save([second, replace(FULL_LEASE, phase=Phase.ENDED, ended_at=NOW)])
    assert store.leases.live() == [second]


def test_ended_leases_are_listed_by_owner_the_newest_first(store):
    ended = [a_lease(name, Phase.ENDED, user=user, ended_at=at) for name, user, at in
             [("a", "alice", 1.0), ("b", "bob", 2.0), ("c", "alice", 3.0), ("d", "alice", 3.0)]]  # fmt: skip
    store.save([*ended, a_lease("live")])
    assert [x.id for x in store.leases.ended(Owner("hub", "alice born"))] == ["c", "d", "a"]
    assert [x.id for x in store.leases.ended(None, 2)] == ["c", "d"]


def test_audit_lines_come_newest_first(store):
    store.save([], audit=[line("asked"), line("granted"), replace(line("running"), lease="two")])
    assert [x.event.action for x in store.audit_log.latest("one")] == ["granted", "asked"]
    assert [x.event.action for x in store.audit_log.latest(limit=2)] == ["running", "granted"]


def test_all_of_a_write_happens_or_nothing(store):
    with pytest.raises(sa.exc.IntegrityError):
        store.save([a_lease("new")], audit=[line()], readings=[replace(reading(0.0, 1.0), gpu=None)])
    assert (store.leases.live(), store.audit_log.latest(), store.readings.of_lease("one")) == ([], [], [])


# Troubles


LOCKED = r"database is locked|Another service is writing"


async def test_a_locked_database_is_unavailable_and_nothing_is_remembered(store, database):
    registry = LeaseRegistry(store)
    await registry.save(a_lease())
    with database.connected(), pytest.raises(Unavailable, match=LOCKED):
        await registry.save(replace(a_lease(), phase=Phase.PARKED), audit=[line()])
    assert registry.get("one") == a_lease()
    assert store.leases.get("one") == a_lease()
    await registry.save(replace(a_lease(), phase=Phase.PARKED))
    assert store.leases.get("one").phase is Phase.PARKED


def test_while_the_database_is_locked_reads_are_answered_and_writes_refused_quickly(store, database):
    store.save([a_lease()])
    with database.connected():
        began = time.monotonic()
        for _ in range(40):
            with pytest.raises(Unavailable, match=LOCKED):
                store.save([a_lease("new")])
            assert store.leases.live() == [a_lease()]
            store.check_epoch()
        assert time.monotonic() - began < 5
    store.save([a_lease("new")])
    assert store._database._patience_seconds > 0


def test_a_write_waits_for_another_process_for_a_moment(store, database):
    held = threading.Event()

    def hold():
        with database.connected():
            held.set()
            time.sleep(0.1)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(20)
    store.save([a_lease("new")])
    other.join()
    assert store.leases.get("new") is not None


def test_a_database_of_a_newer_version_is_told_so(store, database):
    database.run("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Unavailable, match=r"is of another version\. It has schema 9999"):
        database.opened()


def test_a_lease_that_this_version_cannot_read_is_told_and_nothing_is_served_without_it(store, database):
    store.save([replace(FULL_LEASE, id="one")], [])
    database.run("UPDATE leases SET document = CAST(replace(CAST(document AS TEXT), 'enforce', 'later') AS JSON)"
                 if database.name == "postgresql" else
                 "UPDATE leases SET document = replace(document, 'enforce', 'later')")  # fmt: skip
    with pytest.raises(Unavailable, match=r"the lease 'one', whose streak\.mode this version can't read"):
        store.leases.live()


def test_the_store_itself_finds_out_whether_it_takes_writes(store, database, monkeypatch):
    at = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: at)
    with database.connected():
        store.try_to_write()
        assert store.trouble == "", "what was written a moment ago tells"
        at += 11
        with pytest.raises(Unavailable):
            store.try_to_write()
        assert re.search(LOCKED, store.trouble)
        store.check_epoch()
        assert store.trouble, "that it can be read says nothing"
    at += 3
    store.try_to_write()
    assert store.trouble == ""


async def test_writes_outside_the_loop_delay_no_read_and_fail_no_write(store):
    held, done = threading.Event(), threading.Event()

    def write_slowly():
        with store._transaction(writes=True):
            held.set()
            done.wait(20)

    slow = asyncio.create_task(store.write(write_slowly))
    await asyncio.to_thread(held.wait, 20)
    assert await store.read(store.leases.live) == []
    await store.read(store.check_epoch)
    other = asyncio.create_task(store.write(store.save, [a_lease()]))
    await asyncio.sleep(2 * PATIENCE_SECONDS)
    assert not other.done(), "it waits for its turn, however long, and is not refused"
    assert await store.read(store.leases.live) == []
    done.set()
    assert (await slow, await other) == (None, None)
    assert (store.leases.live(), store.trouble) == ([a_lease()], "")


def test_texts_of_any_language_and_length_are_stored_and_sorted(store):
    names = ["Zoë", "anna", "Änne", "ben", "zoe", "\N{OGHAM LETTER BEITH}", "\U0001f98a", "a" * 300]
    users = [a_lease(f"of {n}", Phase.ENDED, user=name, ended_at=NOW) for n, name in enumerate(names)]
    store.save(users)
    for name in names:
        found, count = store.leases.search_ended(name[:1], "", 0, 100)
        alike = [x.id for x in users if x.user.startswith(name[:1])]
        assert (sorted(x.id for x in found), count) == (sorted(alike), len(alike))
    odd = replace(a_lease("odd"), options={"text": "NUL \0, half of a letter \ud800, backslashes \\u0000"})
    store.save([odd], audit=[replace(line(), user="\0 in a name")])
    assert store.leases.get("odd").options["text"].replace("\ufffd", "?").replace("\0", "?").replace("\ud800", "?") == (
        "NUL ?, half of a letter ?, backslashes \\u0000"
    )
    assert store.inbox.notices(odd.key.owner, NOW)[0] == []


def test_ended_leases_are_sorted_by_user_reason_and_end(store):
    ends = [
        ("bob", ExitReason.IDLE, 3),
        ("anna", ExitReason.STOPPED, 1),
        ("bob", ExitReason.EXPIRED, 2),
        ("anna", ExitReason.IDLE, 4),
    ]
    store.save(
        [
            a_lease(f"{at}", Phase.ENDED, user=user, reason=reason, ended_by="x", ended_at=NOW + at)
            for user, reason, at in ends
        ]
    )

    def ids(sort, first=0):
        return "".join(lease.id for lease in store.leases.search_ended("", "", first, 9, sort)[0])

    assert (ids("-ended_at"), ids("ended_at")) == ("4321", "1234")
    assert (ids("user"), ids("-user")) == ("1423", "3241")
    assert (ids("reason"), ids("-reason", 1)) == ("2341", "432")


def test_any_number_of_leases_is_saved_at_once_and_no_statement_binds_more_for_it(store):
    bound = []
    sa.event.listen(
        store._engine,
        "before_cursor_execute",
        lambda _c, _cur, _sql, values, _ctx, many: bound.append(max(map(len, values)) if many else len(values)),
    )
    many = [a_lease(f"{i:04}", Phase.ENDED, ended_at=NOW + i) for i in range(1500)]
    store.save(many)
    store.save([replace(x, ended_at=NOW + 1) for x in many])
    assert max(bound) < 999, "SQLite before 3.32 takes no more"
    assert len(store.leases.ended(None, 2000)) == 1500
    assert store.leases.get("1400").ended_at == NOW + 1


def test_a_store_that_is_older_than_what_was_written_is_refused_in_words(store, database):
    store.save([a_lease()])
    before = database.run("SELECT number FROM meta WHERE name = 'writes'")[0][0]
    store.save([a_lease("two")])
    database.run("UPDATE meta SET number = :before WHERE name = 'writes'", before=before)
    for call in (store.leases.live, lambda: store.save([a_lease("three")]), store.check_epoch):
        with pytest.raises(Unavailable, match=r"is older than what this service wrote \(write 1 of 2\): .+ start the"):
            call()
    again = database.opened()
    assert {x.id for x in again.leases.live()} == {"one", "two"}
    with pytest.raises(Superseded):
        store.leases.live()


async def test_a_read_during_the_close_of_the_store_returns_its_connection_closed(store):
    reads, goes_on, closed, used = threading.Event(), threading.Event(), threading.Event(), []

    def read():
        with store._begun(writes=False) as connection:
            used.append(connection.connection.dbapi_connection)
            reads.set()
            goes_on.wait(20)
        closed.set()

    asked = asyncio.ensure_future(store.read(read))
    await asyncio.to_thread(reads.wait, 20)
    store.close()
    goes_on.set()
    await asyncio.wait([asked], timeout=20)
    assert closed.is_set()
    with pytest.raises(Exception, match="closed"):
        used[0].execute("SELECT 1")
