"""Old data in the database: maxima of readings, all readings before a stop, and finally no data."""

import contextlib
import sqlite3
from dataclasses import replace

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_builders import a_lease
from store_builders import NOW, reading

from gpuspawner.core.events import Asked, Stopped
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.store import AuditLine, Store
from gpuspawner.service.store.readings import BUCKET_SECONDS, MAXIMA_SECONDS, RAW_SECONDS

pytestmark = pytest.mark.postgresql

DAY = 86400.0


def test_old_readings_leave_their_ten_minutes_highest(store):
    start = NOW - 2 * DAY - (NOW - 2 * DAY) % BUCKET_SECONDS
    percents = [1.0, 90.0, None, 3.0, 90.0, 2.0, 0.0, None]
    rows = [reading(start + 60 * i, percent) for i, percent in enumerate(percents)]
    unknown = [reading(start + BUCKET_SECONDS + 60 * i, None) for i in range(3)]
    other = [reading(start + 60, 5.0, gpu="a100-1"), reading(start + 60, 6.0, lease="two")]
    young = [reading(NOW - RAW_SECONDS + 60 * i, 1.0) for i in range(3)]
    store.save([], readings=[*rows, *unknown, *other, *young])
    store.readings.thin(NOW)
    assert store.readings.of_lease("one") == [other[0], rows[4], unknown[2], *young]
    assert store.readings.of_lease("two") == [other[1]]
    store.readings.thin(NOW)
    assert len(store.readings.of_lease("one")) == 6


def test_thinning_a_day_at_a_time_or_as_time_goes_on_leaves_the_same(store, tmp_path):
    rows = [reading(NOW - 3.5 * DAY + 37 * i, float(i % 90)) for i in range(6000)]
    other = Store(f"sqlite:///{tmp_path / 'other.sqlite'}")
    other.open()
    for each in (store, other):
        each.save([], readings=rows)
    assert not other.readings.thin(NOW)
    steps = [store.readings.thin(NOW, DAY)]
    while steps[-1]:
        steps.append(store.readings.thin(NOW, DAY))
    assert len(steps) == 29
    assert store.readings.of_lease("one") == other.readings.of_lease("one")
    for seconds in range(0, 4000, 170):  # not in step with the ten minutes
        assert not store.readings.thin(NOW + seconds, DAY)
    again = Store(f"sqlite:///{tmp_path / 'other.sqlite'}")
    again.open()
    again.readings.thin(NOW + seconds)
    assert store.readings.of_lease("one") == again.readings.of_lease("one")
    other.close()
    again.close()


def test_among_old_readings_a_busy_one_outlives_a_higher_one_without_work(store):
    start = NOW - 2 * DAY - (NOW - 2 * DAY) % BUCKET_SECONDS
    woken = replace(reading(start, 100.0), kind="idle", holders=0)
    shared = replace(reading(start + 60, 3.0), shared=True, holders=1, holders_cpu_cores=1.5, cpu_cores=2.0)
    store.save([], readings=[woken, shared, replace(woken, at=start + 120)])
    store.readings.thin(NOW)
    assert store.readings.of_lease("one") == [shared]


def test_readings_behind_a_stop_stay_whole_as_long_as_their_lease_others_thirty_days(store):
    old = [reading(NOW - MAXIMA_SECONDS - 3600 + 60 * i, 1.0) for i in range(6)]
    store.save([], readings=old)
    store.save([], kept=[("one", old[2].at)])
    store.readings.thin(NOW)
    assert store.readings.of_lease("one") == [replace(row, kept=True) for row in old[2:]]


def test_long_ended_leases_are_forgotten_with_audit_and_readings_in_batches(store):
    old = [a_lease(f"old-{i}", Phase.ENDED, ended_at=NOW - 10 + i) for i in range(5)]
    kept = [a_lease("young", Phase.ENDED, ended_at=NOW), a_lease("live")]
    names = [lease.id for lease in [*old, *kept]] + ["of no lease"]
    lines = [AuditLine(NOW - 400 * DAY, name, "alice", "gpuspawner", Asked("why")) for name in names]
    lines.append(AuditLine(NOW, "of no lease", "alice", "gpuspawner", Stopped(message="why")))
    readings = [reading(0.0, 5.0, lease=lease.id, kept=True) for lease in [*old, *kept]]
    store.save([*old, *kept], lines, readings)
    assert [store.leases.delete_ended(NOW, at_once=2), len(store.leases.ended(None))] == [True, 4]
    assert [store.leases.delete_ended(NOW, at_once=2) for _ in range(2)] == [True, False]
    assert ([x.id for x in store.leases.ended(None)], [x.id for x in store.leases.live()]) == (["young"], ["live"])
    assert [x.lease for x in store.audit_log.latest()] == ["of no lease", "live", "young"]
    assert [len(store.readings.of_lease(name)) for name in names] == [0, 0, 0, 0, 0, 1, 1, 0]


def test_expired_rows_are_found_by_an_index(tmp_path):
    path = tmp_path / "service.sqlite"
    store = Store(f"sqlite:///{path}")
    store.open()
    statements = []
    sa.event.listen(store._engine, "before_cursor_execute", lambda c, cur, sql, p, ctx, m: statements.append((sql, p)))
    store.leases.delete_ended(NOW)
    queries = [(sql, p) for sql, p in statements if sql.startswith("SELECT") and "meta" not in sql]
    with contextlib.closing(sqlite3.connect(path)) as other:
        plans = [row[3] for sql, p in queries for row in other.execute(f"EXPLAIN QUERY PLAN {sql}", p)]
    store.close()
    assert len(queries) == 2
    assert not [plan for plan in plans if plan.startswith(("SCAN leases", "SCAN audit"))], plans


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3000), st.none() | st.integers(0, 100), st.booleans()), max_size=25))
def test_thinning_loses_no_maximum_and_nothing_kept(tmp_path_factory, rows):
    store = Store("sqlite://")
    store._engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    store.open()
    start = NOW - 3 * DAY
    store.save([], readings=[reading(start + at, None if p is None else float(p), kept=k) for at, p, k in rows])
    before = store.readings.of_lease("one")
    store.readings.thin(NOW)
    after = store.readings.of_lease("one")
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
