"""Faults of SQLite: its file and its disk."""

import resource
import sqlite3
from dataclasses import replace

import pytest
import sqlalchemy as sa
from lease_builders import a_lease
from store_builders import FULL_LEASE, NOW

from gpuspawner.core.administration import Announcement, AnnouncementAudience, Restriction, RestrictionKind
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.events import Stopped
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.outages import DATABASE
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.store import AuditLine, Store
from gpuspawner.service.store.audit_log import AuditFilter
from gpuspawner.service.store.personal import Preset


@pytest.fixture
def path(tmp_path):
    """Where `store` has its file."""
    return tmp_path / "service.sqlite"


@pytest.fixture
def store(path):
    """A database with nothing in it, open."""
    opened = Store(f"sqlite:///{path}")
    opened.open()
    yield opened
    opened.close()


async def test_a_full_disk_is_unavailable_and_nothing_is_remembered(store):
    registry = LeaseRegistry(store)
    await registry.save(a_lease())
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(Unavailable, match="full"):
        await registry.save(replace(a_lease(), options={"much": "x" * 100_000}))
    assert registry.get("one") == a_lease()
    assert store.leases.get("one") == a_lease()


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


@pytest.mark.parametrize("asked", [("", ""), ("ali", ""), ("", "idle")])
def test_ended_leases_are_counted_by_an_index_alone(store, path, asked):
    seen = []
    sa.event.listen(store._engine, "before_cursor_execute", lambda *told: seen.append((told[2], told[3])))
    store.leases.search_ended(*asked, 0, 50)
    query, values = next(one for one in seen if "count(" in one[0])
    with sqlite3.connect(path) as raw:
        (plan,) = raw.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall()
    assert "USING COVERING INDEX" in plan[-1], plan


@pytest.mark.parametrize("sort", ["ended_at", "-ended_at", "user", "-user", "reason", "-reason"])
def test_ended_leases_are_read_in_the_order_of_an_index(store, path, sort):
    seen = []
    sa.event.listen(store._engine, "before_cursor_execute", lambda *told: seen.append((told[2], told[3])))
    store.leases.search_ended("", "", 50, 50, sort)
    query, values = next(one for one in seen if "ORDER BY" in one[0])
    with sqlite3.connect(path) as raw:
        plan = [row[-1] for row in raw.execute(f"EXPLAIN QUERY PLAN {query}", values)]
    assert "USING INDEX" in plan[0], plan
    assert not any(step.endswith("TEMP B-TREE FOR ORDER BY") for step in plan), f"all would be sorted for 50: {plan}"


def test_a_damaged_row_is_unavailable_too(store, path):
    store.save([a_lease("one")])
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE leases SET document = '{not what it was'")
    with pytest.raises(Unavailable, match=r"holds what can't be read \(.+\)\. Is its file whole\?"):
        store.leases.live()


@pytest.mark.parametrize("damage", ["x", b"\xff", 1e300], ids=["text", "bytes", "a large number"])
def test_damaged_marks_of_the_store_are_unavailable(store, path, damage):
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE meta SET number = ? WHERE name = 'epoch'", (damage,))
    with pytest.raises(Unavailable, match="can't be read"):
        store.check_epoch()


def test_a_write_that_changes_nothing_does_not_hide_a_full_disk(store):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(Unavailable):
            store.save([a_lease()])
        with pytest.raises(Unavailable):
            store.leases.delete_ended(NOW)
        assert "The store does not answer (" in store.trouble
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.leases.delete_ended(NOW)
    assert store.trouble == ""


@pytest.mark.parametrize(
    "damage", ["'{not what it was'", "'[]'", "replace(document, 'enforce', 'later')"], ids=["text", "shape", "value"]
)
def test_lists_leave_out_a_damaged_row_and_say_so_once(store, path, damage, caplog):
    owner = FULL_LEASE.key.owner
    ended = [replace(FULL_LEASE, id=name, phase=Phase.ENDED, ended_at=1.0) for name in ("whole", "damaged")]
    store.save(ended, [AuditLine(1.0, x.id, x.user, "root", Stopped("idle", "why")) for x in ended])
    with sqlite3.connect(path) as raw:
        raw.execute(f"UPDATE leases SET document = {damage}, disputed_at = 1 WHERE id = 'damaged'")
        raw.execute("UPDATE audit SET fields = '{not' WHERE lease = 'damaged'")
    for _ in range(2):
        assert [x.id for x in store.leases.ended(None)] == ["whole"]
        assert [x.id for x in store.leases.ended(owner)] == ["whole"]
        assert store.leases.disputed(None) == []
        assert store.leases.last_ended(FULL_LEASE.key) is None
        assert [x.id for x in store.leases.search_ended("", "", 0, 10)[0]] == ["whole"]
        assert [x.id for x in store.leases.ended_of_user(FULL_LEASE.user, 10)] == ["whole"]
        assert [x.lease for x in store.audit_log.latest()] == ["damaged", "whole"]
        assert len(store.audit_log.search(AuditFilter(), None, 10)) == len(store.inbox.notices(owner, 2.0)[0]) == 2
    assert list(store.damaged.found) == ["leases damaged"]
    assert caplog.text.count("the row leases damaged can't be read") == 1


@pytest.mark.parametrize("damage", ["{not", "[]", "[" * 100_000], ids=["text", "shape", "depth"])
def test_a_damaged_preset_announcement_or_expired_restriction_blocks_no_user(store, path, damage):
    owner = FULL_LEASE.key.owner
    for name in ("whole", "damaged"):
        store.presets.save(owner, Preset(name, {"gpu": "a100"}, NOW), 9)
        store.announcements.save(
            Announcement(name, AnnouncementAudience.ALL, "", frozenset(), "Hello", "root", NOW, NOW + 9), []
        )
        store.restrictions.save([Restriction(name, RestrictionKind.PAUSE, "a100", "x", "root", NOW, lifted_at=NOW + 1)])
    with sqlite3.connect(path) as raw:
        for table, column, key in (
            ("presets", "options", "name"),
            ("announcements", "recipients", "id"),
            ("restrictions", "document", "id"),
        ):
            raw.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = 'damaged'", (damage,))
    assert [x.name for x in store.presets.of(owner)] == ["whole"]
    assert [x.id for x in store.restrictions.latest(9)] == ["whole"]
    assert store.restrictions.in_force(NOW + 2) == []
    announced = [x.id for x in store.announcements.made_since(0.0)]
    assert announced == (["damaged", "whole"] if damage == "[]" else ["whole"]), "an empty list of recipients is one"
    assert store.trouble == ""
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE restrictions SET lifted_at = NULL WHERE id = 'damaged'")
    with pytest.raises(Unavailable, match="The store holds what can't be read"):
        store.restrictions.in_force(NOW + 2)


async def test_a_file_that_vanishes_is_an_outage_until_it_is_back(store, path, tmp_path, caplog):
    registry = LeaseRegistry(store)
    await registry.save(a_lease())
    gone = tmp_path / "gone"
    gone.mkdir()
    for file in tmp_path.glob("service.sqlite*"):
        file.rename(gone / file.name)
    for step in (store.try_to_write, store.leases.live, store.check_epoch):
        store._written_at = 0.0
        with pytest.raises(Unavailable, match=r"its file .*/service.sqlite is gone: No such file or directory"):
            step()
    with pytest.raises(Unavailable):
        await registry.save(replace(a_lease(), options={"much": "x"}))
    assert store.outage.part == DATABASE
    assert caplog.text.count("is gone") == 1
    for file in gone.iterdir():
        file.rename(tmp_path / file.name)
    await registry.save(replace(a_lease(), options={"much": "y"}))
    assert (store.outage, store.leases.get("one").options) == (None, {"much": "y"})


async def test_an_older_file_in_the_place_of_the_store_is_not_served_from(store, path):
    await LeaseRegistry(store).save(a_lease())
    with sqlite3.connect(path) as now, sqlite3.connect(path.with_suffix(".copy")) as copy:
        now.backup(copy)
    await LeaseRegistry(store).save(replace(a_lease("two")))
    for file in path.parent.glob("service.sqlite*"):
        file.unlink()
    path.with_suffix(".copy").rename(path)
    with pytest.raises(Unavailable, match="was replaced by another one"):
        store.check_epoch()
    with pytest.raises(Unavailable, match="The database is older than what this service wrote"):
        store.check_epoch()
