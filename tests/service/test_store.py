"""The database: its schema, its epoch, what it keeps, and what becomes of its troubles."""

import contextlib
import sqlite3
import threading
import time
from dataclasses import replace

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_builders import a_lease, a_request, slots

from gpuspawner.core.errors import Conflict, Superseded, Unavailable
from gpuspawner.core.evidence import SampleKind
from gpuspawner.core.idleness import Streak
from gpuspawner.core.lease import Key, Owner, Phase, Reason
from gpuspawner.core.policy import Mode
from gpuspawner.service.book import Book
from gpuspawner.service.store import AuditLine, ReadingRow, Store, tables
from gpuspawner.service.store.store import BUCKET_SECONDS, MAXIMA_SECONDS, RAW_SECONDS

NOW = 1_800_000_000.0
DAY = 86400.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "service.sqlite"


@pytest.fixture
def store(path):
    opened = Store(f"sqlite:///{path}")
    opened.open()
    yield opened
    opened.close()


def reading(at, percent, gpu="a100-0", lease="one", *, kept=False):
    kind = "unknown" if percent is None else "busy"
    return ReadingRow(lease, at, 60.0, gpu, percent, 1, 2, kind, "because", kept)


def line(action="did"):
    return AuditLine(NOW, "one", "alice", "gpuspawner", action, "why")


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
    "keep_readings": lambda store: store.keep_readings("one", 0.0),
    "thin_readings": lambda store: store.thin_readings(NOW),
    "forget_ended": lambda store: store.forget_ended(NOW),
    "check_epoch": Store.check_epoch,
    "live": Store.live,
    "readings": lambda store: store.readings("one"),
    "audit": Store.audit,
    "ended": lambda store: store.ended(None),
    "disputed": lambda store: store.disputed(None),
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


FULL_LEASE = a_lease(
    "full",
    Phase.RECLAIMING,
    held=slots("a100-0", "a100-1", share="1/3"),
    request=a_request(gpu="half", count=2, cpu_cores=0.5),
    key=Key("hub", "2026-01-01T00:00:00Z", "named"),
    streak=Streak(1.5, 2.5, 3, 4.5, 0.5, 60.0, Mode.ENFORCE, (("a100-1", 7200.5),), SampleKind.IDLE, "GPU 0 at 1 %"),
    warned_seconds=(3600.0, 600.0),
    kept_until=NOW,
    sampled_at=NOW,
    reason=Reason.IDLE,
)


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
    store.save([], audit=[line("first"), line("second"), replace(line("other"), lease="two")])
    assert [x.action for x in store.audit("one")] == ["second", "first"]
    assert [x.action for x in store.audit(limit=2)] == ["other", "second"]


def test_all_of_a_write_happens_or_nothing(store):
    with pytest.raises(sa.exc.IntegrityError):
        store.save([a_lease("new")], audit=[line()], readings=[replace(reading(0.0, 1.0), gpu=None)])
    assert (store.live(), store.audit(), store.readings("one")) == ([], [], [])


# Readings that grow old


def test_old_readings_leave_their_ten_minutes_highest(store):
    start = NOW - 2 * DAY - (NOW - 2 * DAY) % BUCKET_SECONDS
    percents = [1.0, 90.0, None, 3.0, 90.0, 2.0, 0.0, None]
    rows = [reading(start + 60 * i, percent) for i, percent in enumerate(percents)]
    unknown = [reading(start + BUCKET_SECONDS + 60 * i, None) for i in range(3)]
    other = [reading(start + 60, 5.0, gpu="a100-1"), reading(start + 60, 6.0, lease="two")]
    young = [reading(NOW - RAW_SECONDS + 60 * i, 1.0) for i in range(3)]
    store.save([], readings=[*rows, *unknown, *other, *young])
    store.thin_readings(NOW)
    assert store.readings("one") == [other[0], rows[4], unknown[2], *young]
    assert store.readings("two") == [other[1]]
    store.thin_readings(NOW)
    assert len(store.readings("one")) == 6


def test_thinning_a_day_at_a_time_or_as_time_goes_on_leaves_the_same(store, tmp_path):
    rows = [reading(NOW - 3.5 * DAY + 37 * i, float(i % 90)) for i in range(6000)]
    other = Store(f"sqlite:///{tmp_path / 'other.sqlite'}")
    other.open()
    for each in (store, other):
        each.save([], readings=rows)
    assert not other.thin_readings(NOW)
    steps = [store.thin_readings(NOW, DAY)]
    while steps[-1]:
        steps.append(store.thin_readings(NOW, DAY))
    assert len(steps) == 29
    assert store.readings("one") == other.readings("one")
    for seconds in range(0, 4000, 170):  # not in step with the ten minutes
        assert not store.thin_readings(NOW + seconds, DAY)
    again = Store(f"sqlite:///{tmp_path / 'other.sqlite'}")
    again.open()
    again.thin_readings(NOW + seconds)
    assert store.readings("one") == again.readings("one")
    other.close()
    again.close()


def test_of_old_readings_a_busy_one_outlives_a_higher_one_that_was_none_s_work(store):
    start = NOW - 2 * DAY - (NOW - 2 * DAY) % BUCKET_SECONDS
    woken = replace(reading(start, 100.0), kind="idle", holders=0)
    shared = replace(reading(start + 60, 3.0), shared=True, holders=1, holders_cpu_cores=1.5, cpu_cores=2.0)
    store.save([], readings=[woken, shared, replace(woken, at=start + 120)])
    store.thin_readings(NOW)
    assert store.readings("one") == [shared]


def test_readings_behind_a_stop_stay_whole_as_long_as_their_lease_others_thirty_days(store):
    old = [reading(NOW - MAXIMA_SECONDS - 3600 + 60 * i, 1.0) for i in range(6)]
    store.save([], readings=old)
    store.keep_readings("one", old[2].at)
    store.thin_readings(NOW)
    assert store.readings("one") == [replace(row, kept=True) for row in old[2:]]


def test_what_ended_long_ago_is_forgotten_with_its_audit_and_readings_some_at_a_time(store):
    old = [a_lease(f"old-{i}", Phase.ENDED, ended_at=NOW - 10 + i) for i in range(5)]
    kept = [a_lease("young", Phase.ENDED, ended_at=NOW), a_lease("live")]
    names = [lease.id for lease in [*old, *kept]] + ["of no lease"]
    lines = [AuditLine(NOW - 400 * DAY, name, "alice", "gpuspawner", "asked", "why") for name in names]
    lines.append(AuditLine(NOW, "of no lease", "alice", "gpuspawner", "stop", "why"))
    readings = [reading(0.0, 5.0, lease=lease.id, kept=True) for lease in [*old, *kept]]
    store.save([*old, *kept], lines, readings)
    assert [store.forget_ended(NOW, at_once=2), len(store.ended(None))] == [True, 4]
    assert [store.forget_ended(NOW, at_once=2) for _ in range(2)] == [True, False]
    assert ([x.id for x in store.ended(None)], [x.id for x in store.live()]) == (["young"], ["live"])
    assert [x.lease for x in store.audit()] == ["of no lease", "live", "young"]
    assert [len(store.readings(name)) for name in names] == [0, 0, 0, 0, 0, 1, 1, 0]


def test_what_is_forgotten_is_found_by_index(store, path):
    statements = []
    sa.event.listen(store._engine, "before_cursor_execute", lambda c, cur, sql, p, ctx, m: statements.append((sql, p)))
    store.forget_ended(NOW)
    queries = [(sql, p) for sql, p in statements if sql.startswith("SELECT") and "meta" not in sql]
    with contextlib.closing(sqlite3.connect(path)) as other:
        plans = [row[3] for sql, p in queries for row in other.execute(f"EXPLAIN QUERY PLAN {sql}", p)]
    assert len(queries) == 2
    assert not [plan for plan in plans if plan.startswith(("SCAN leases", "SCAN audit"))], plans


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3000), st.none() | st.integers(0, 100), st.booleans()), max_size=25))
def test_thinning_loses_no_maximum_and_nothing_kept(tmp_path_factory, rows):
    store = Store("sqlite://")
    store._engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    store.open()
    start = NOW - 3 * DAY
    store.save([], readings=[reading(start + at, None if p is None else float(p), kept=k) for at, p, k in rows])
    before = store.readings("one")
    store.thin_readings(NOW)
    after = store.readings("one")
    store.close()

    def highest(found):
        buckets = {}
        for row in found:
            bucket = int(row.at / BUCKET_SECONDS)
            buckets[bucket] = max(
                buckets.get(bucket, -1.0), -1.0 if row.utilization_percent is None else row.utilization_percent
            )
        return buckets

    assert highest(after) == highest(before)
    assert [row for row in after if row.kept] == [row for row in before if row.kept]
    assert len([row for row in after if not row.kept]) <= len(highest(before))


# Troubles


def block(path):
    """Another process holds the database."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    return other


def test_a_locked_database_is_unavailable_and_nothing_is_remembered(store, path):
    book = Book(store)
    book.save(a_lease())
    store._engine.dispose()
    sa.event.listen(store._engine, "connect", lambda c, _: c.execute("PRAGMA busy_timeout=50").close())
    other = block(path)
    with pytest.raises(Unavailable, match="locked"):
        book.save(replace(a_lease(), phase=Phase.PARKED), audit=[line()])
    other.execute("ROLLBACK")
    other.close()
    assert book.get("one") == a_lease()
    assert store.lease("one") == a_lease()
    book.save(replace(a_lease(), phase=Phase.PARKED))
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


def test_a_full_disk_is_unavailable_and_nothing_is_remembered(store):
    book = Book(store)
    book.save(a_lease())
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(Unavailable, match="full"):
        book.save(replace(a_lease(), options={"much": "x" * 100_000}))
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
    with pytest.raises(Unavailable, match="another version of gpuspawner"):
        older.open()
    older.close()


# The book


def test_the_book_refuses_a_second_live_lease_of_a_key(store):
    book = Book(store)
    book.save(FULL_LEASE)
    with pytest.raises(Conflict):
        book.save(replace(FULL_LEASE, id="second"))
    assert [x.id for x in book] == ["full"]


def test_a_key_passes_on_in_the_book_too(store):
    book, second = Book(store), replace(FULL_LEASE, id="second")
    book.save(FULL_LEASE)
    ended = replace(FULL_LEASE, phase=Phase.ENDED)
    book.save(second, ended)
    assert book.of_key(FULL_LEASE.key) == second
    book.save(ended)
    assert book.of_key(FULL_LEASE.key) == second, "an end told again takes no other's key"


def test_the_book_forgets_what_ended_and_reads_what_lives(store):
    book = Book(store)
    book.save(FULL_LEASE, a_lease())
    book.save(replace(a_lease(), phase=Phase.ENDED))
    again = Book(store)
    again.load()
    assert list(book) == list(again) == [FULL_LEASE]
    assert book.of_key(FULL_LEASE.key) == FULL_LEASE
    assert book.of_key(a_lease().key) is None


def test_the_book_counts_each_end_once_by_its_reason(store):
    book = Book(store)
    book.save(FULL_LEASE, a_lease())
    ended = replace(FULL_LEASE, phase=Phase.ENDED)
    book.save(ended, replace(a_lease(), phase=Phase.STOPPING, reason=Reason.STOPPED))
    book.save(replace(ended, seen_by_user=True))
    assert book.ends == {Reason.IDLE: 1}


async def test_who_waits_is_woken_by_what_may_move_a_place_and_by_nothing_else(store):
    book = Book(store)
    book.save(FULL_LEASE)
    for change, wakes in [
        ({"sampled_at": 1.0}, False),
        ({"phase": Phase.STOPPING}, True),
        ({"deadline_at": 9.0}, True),
    ]:
        waiting = book._changed
        book.save(replace(book.get("full"), **change))
        assert waiting.is_set() == wakes
    await book.wait_for_change(0.01)
    book.note_heard("full", 5.0)
    book.note_heard("nobody", 5.0)
    assert book.get("full").heard_at == 5.0
    assert store.lease("full").heard_at == FULL_LEASE.heard_at
