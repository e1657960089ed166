"""The demo's history: weeks of usage, as the service itself would have written them."""

import itertools
import time

import pytest
from sqlalchemy import create_engine, text

from demo import history
from gpuspawner.catalog import load_catalog
from gpuspawner.cli import main
from gpuspawner.service.store.readings import BUCKET_SECONDS, RAW_SECONDS
from tools.install import ROOT

CATALOG = str(ROOT / "demo" / "catalog.yaml")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "gpuspawner"
    history.main(folder, CATALOG)
    return folder


def rows(data, query):
    engine = create_engine(f"sqlite:///{data}/gpuspawner.sqlite")
    try:
        with engine.connect() as connection:
            return connection.execute(text(query)).all()
    finally:
        engine.dispose()


def test_no_user_holds_two_workspaces_at_once_and_all_have_ended(data):
    leases = rows(data, "select user, asked_at, ended_at, phase from leases order by user, asked_at")
    assert len(leases) > 30
    assert {user for user, *_ in leases} == set(history.HOLDS)
    assert {phase for *_, phase in leases} == {"ended"}
    assert all(before[2] <= after[1] for before, after in itertools.pairwise(leases) if before[0] == after[0])


def test_all_of_it_is_older_than_a_day_and_thinned_to_ten_minutes(data):
    found = rows(data, "select lease, gpu, at from readings")
    assert max(at for *_, at in found) < time.time() - RAW_SECONDS
    assert len({(lease, gpu, int(at / BUCKET_SECONDS)) for lease, gpu, at in found}) == len(found)


def test_usage_is_charged_to_teams_and_adds_up(data):
    charged = rows(data, "select team, sum(milliseconds * gpus) from ledger group by team order by team")
    held = rows(data, "select sum((ended_at - asked_at) * json_extract(document, '$.request.count')) from leases")
    assert [team for team, _ in charged] == ["speech", "vision"]
    assert sum(much for _, much in charged) / 1000 == pytest.approx(held[0][0], rel=0.001)


def test_its_audit_is_in_the_order_of_time(data):
    at = [one for (one,) in rows(data, "select at from audit order by number")]
    assert len(at) > 30
    assert at == sorted(at)


def test_a_policy_can_be_tried_on_it(data, capsys):
    assert main(["server", "simulate", CATALOG, "--data", str(data)]) == 0
    told = capsys.readouterr().out
    assert "GPU hours won" in told
    assert "grace-demo" in told


def test_gpus_are_at_work_for_about_as_long_as_is_published(data):
    """NotebookOS (ASPLOS'26): reserved GPUs idle over 81 % of the time, about 70 % of sessions never use theirs."""
    held = dict(rows(data, "select id, (ended_at - asked_at) / 3600 from leases"))
    busy = dict(
        rows(
            data,
            "select lease, count(distinct cast(at / 600 as integer)) / 6.0 from readings "
            "where kind = 'busy' group by lease",
        )
    )
    assert 0.1 < sum(busy.values()) / sum(held.values()) < 0.19
    assert len(busy) / len(held) == pytest.approx(0.3, abs=0.12)


def test_a_second_run_leaves_what_is_there(data):
    before = rows(data, "select id from leases order by id")
    history.main(data, CATALOG)
    assert rows(data, "select id from leases order by id") == before


def test_everybody_asks_for_what_the_catalog_offers():
    offered = load_catalog(CATALOG).templates["pytorch"].gpus
    assert all(
        kind in offered and offered[kind][0] <= count <= offered[kind][1] for kind, count in history.HOLDS.values()
    )
