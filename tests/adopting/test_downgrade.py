"""Upgrades of the store and the ways back: a newer one is refused in words, and nothing that runs or waits is lost."""

import re
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from lease_builders import a_lease

from gpuspawner.cli import main
from gpuspawner.core.errors import Unavailable
from gpuspawner.service.store import Store, schema
from gpuspawner.service.store.copies.backups import DATABASE
from gpuspawner.spawner.hub import one_hub

DONE, INVALID, REFUSED = 0, 1, 2
FIRST = (Path(__file__).parent / "first_store.sql").read_text()
STEPS = [step.revision for step in schema.known_steps()]


@pytest.fixture
def data(tmp_path):
    """A folder with a store of the first version: two run, two wait, one ended."""
    execute(tmp_path, FIRST)
    return tmp_path


def execute(folder, script):
    with sqlite3.connect(folder / DATABASE) as raw:
        raw.executescript(script)
    raw.close()


def dumped(folder):
    """All that it holds, as statements, but for what each opening notes."""
    raw = sqlite3.connect(folder / DATABASE)
    lines = [re.sub(r'[\s"]+', " ", line) for line in raw.iterdump() if not line.startswith('INSERT INTO "meta"')]
    raw.close()
    return set(lines)


def upgraded(folder):
    store = Store(f"sqlite:///{folder / DATABASE}")
    try:
        store.open()
        return store.live(), store.ended(None), store.audit(), store.readings("e" * 32)
    finally:
        store.close()


def go_back(folder, revision, *more):
    return main(["server", "store", "downgrade", revision, *more, "--data", str(folder)])


def test_promise_2_each_step_goes_back_and_forth_and_nothing_that_runs_or_waits_is_lost(data):
    first, kept = dumped(data), upgraded(data)
    assert [len(part) for part in kept] == [4, 1, 1, 1]
    for revision in reversed(STEPS[:-1]):
        assert go_back(data, revision, "--yes") == DONE
        assert upgraded(data) == kept, f"from {revision} on"
        (before,) = data.glob(f"{DATABASE}.until-*")
        before.unlink()
    assert go_back(data, "0001", "--yes") == DONE
    for part in ("INSERT", "CREATE INDEX", "CREATE UNIQUE INDEX"):
        assert {line for line in dumped(data) if line.startswith(part)} == {
            line for line in first if line.startswith(part)
        }


def test_what_is_lost_is_said_before_and_nothing_is_done_without_yes(data, capsys):
    upgraded(data)
    before = dumped(data)
    assert go_back(data, "0012") == DONE
    told = capsys.readouterr().out
    assert re.search(r"0013  How far off estimates were.*\n +Back: Forget them\.", told)
    assert "0012  " not in told, "that step stays"
    assert "Leases, deadlines, queue positions and the audit are kept" in told
    assert f"gpuspawner server store downgrade 0012 --yes --data {data}" in told
    assert dumped(data) == before


def test_a_way_back_that_there_is_not_is_refused_with_those_that_there_are(data, capsys):
    upgraded(data)
    for wrong in (STEPS[-1], "9999", "base"):
        assert go_back(data, wrong, "--yes") == REFUSED
        told = capsys.readouterr().err
        assert f"The store has schema {STEPS[-1]}, and goes back to an earlier one: 0001, 0002" in told
    one_hub.hold(data, "http://hub.example.org/")
    try:
        assert go_back(data, "0001", "--yes") == REFUSED
        assert "which serves http://hub.example.org/. Stop it first" in capsys.readouterr().err
    finally:
        one_hub._held.clear()
    assert go_back(data / "elsewhere", "0001") == INVALID


def test_a_store_of_a_later_version_is_refused_in_words_that_name_it_and_stays_as_it_is(data, capsys):
    later = schema.number_of("1.12.3rc1")
    upgraded(data)
    execute(
        data,
        f"UPDATE alembic_version SET version_num = '9999'; UPDATE meta SET number = {later} WHERE name = 'opened by'",
    )
    before = dumped(data)
    with pytest.raises(Unavailable) as refused:
        upgraded(data)
    for told in (str(refused.value), told_by(capsys, ["check"], data, INVALID)):
        assert f"It has schema 9999, and gpuspawner 0.1.0 knows {STEPS[-1]} at most: nothing of it is served" in told
        assert "Install gpuspawner 1.12.3 or a later one." in told
        assert f"`gpuspawner server store downgrade {STEPS[-1]}` with that one, or restore the backup" in told
    assert "Install gpuspawner 1.12.3" in told_by(capsys, ["downgrade", "0001", "--yes"], data, REFUSED)
    assert dumped(data) == before


def told_by(capsys, words, data, code):
    assert main(["server", "store", *words, "--data", str(data)]) == code
    return "".join(capsys.readouterr())


def test_an_upgrade_that_is_cut_off_in_the_middle_leaves_the_store_of_before(data):
    before = dumped(data)
    store = Store(f"sqlite:///{data / DATABASE}")

    @sa.event.listens_for(store._engine, "before_cursor_execute")
    def _cut_off(_connection, _cursor, statement, *_more):
        if "CREATE TABLE preemptions" in statement:
            raise sa.exc.OperationalError(statement, (), Exception("disk I/O error"))

    with pytest.raises(Unavailable, match="disk I/O error"):
        store.open()
    store.close()
    assert dumped(data) == before
    assert [len(part) for part in upgraded(data)] == [4, 1, 1, 1]


def test_a_newer_lease_is_read_by_a_version_that_does_not_know_its_new_fields(data):
    """So that versions of one schema share a store, and a way back reads what the newer one wrote."""
    store = Store(f"sqlite:///{data / DATABASE}")
    store.open()
    store.save([a_lease("one")])
    store.close()
    execute(data, "UPDATE leases SET document = json_set(document, '$.of_a_later_version', 1) WHERE id = 'one'")
    live, *_ = upgraded(data)
    assert a_lease("one") in live


@pytest.mark.parametrize("version", ["0.1.0", "1.12.3", "999.0.999"])
def test_a_version_is_kept_as_a_number(version):
    assert schema.version_of(schema.number_of(version)) == version
    assert schema.version_of(0) == ""
