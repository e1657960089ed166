"""The console's numbers: page, JSON, CSV, report, API and metrics of the same month say the same."""

import csv
import io
import json
import re
from dataclasses import replace
from fractions import Fraction

import page_world
import pytest
import requests
from page_world import NOW

from gpuspawner.catalog import load_catalog
from gpuspawner.cli.main import main
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.rules import Rate
from gpuspawner.service.usage import pages as use_page


@pytest.fixture
def world(make_web_world):
    """alice works, bob is idle and is stopped for it, erin ended earlier: all of this month."""
    made = make_web_world()
    made.observe()
    two, one = Rate(Fraction(2), Fraction("4.2")), Rate(Fraction(1), Fraction("2.1"))
    busy = page_world.running("busy", user="alice", gpus=(0, 1), rate=two)
    made.save(busy, readings=page_world.readings(busy, [80] * 30))
    idle = page_world.running("idles", user="bob", gpus=(2,), rate=one, minutes=120, streak=page_world.idle_streak(40))
    made.save(idle, readings=page_world.readings(idle, [1] * 60))
    stopped = replace(idle, phase=Phase.STOPPING, phase_since=NOW, reason=ExitReason.IDLE, ended_by="gpuspawner")
    made.save(stopped, audit=[(NOW, "gpuspawner", "stop", "idle")])
    made.save(replace(stopped, phase=Phase.ENDED, ended_at=NOW))
    made.save(page_world.running("other", user="erin", gpus=(3,), rate=one, minutes=10))
    return made


@pytest.mark.postgresql
def test_the_currency_stands_before_the_cost_as_everywhere(make_web_world):
    world = make_web_world(load_catalog({**page_world.CATALOG, "currency": "EUR"}))
    world.observe()
    facts = asked(world, "console/use").text.partition('id="use-facts"')[2].partition("</dl>")[0]
    assert '<dt>Cost</dt><dd><span class="gs-quiet">EUR</span> 0.00</dd>' in facts


def asked(world, path, who="admin"):
    return requests.get(world.home + path, headers={"Authorization": f"token {world.token(who)}"}, timeout=20)


@pytest.mark.postgresql
def test_page_json_csv_report_api_and_metrics_tell_the_same(world, monkeypatch, capsys):
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("admin"))
    for by in ("user", "team", "kind"):
        document = asked(world, f"console/use.json?by={by}").json()
        page = asked(world, f"console/use?by={by}").text
        lines = list(csv.DictReader(io.StringIO(asked(world, f"console/use.csv?by={by}").text)))
        api = page_world.api(world, "admin", f"usage?by={by}&all=1").json()
        assert main(["admin", "report", "--by", by, "--json", "--url", world.home]) == 0
        assert json.loads(capsys.readouterr().out) == document
        assert main(["admin", "report", "--by", by, "--csv", "--url", world.home]) == 0
        assert list(csv.DictReader(io.StringIO(capsys.readouterr().out))) == lines
        assert main(["admin", "report", "--by", by, "--url", world.home]) == 0
        printed = capsys.readouterr().out
        assert document["total"]["charged"] == pytest.approx(api["charged_gpu_hours"])
        assert document["total"]["cost"] == pytest.approx(api["cost"])
        of_api = {row["key"]: row for row in api["rows"]}
        for row, line in zip(document["rows"], lines, strict=True):
            assert row["charged"] == pytest.approx(of_api[row["key"]]["charged_gpu_hours"])
            assert row["cost"] == pytest.approx(of_api[row["key"]]["cost"])
            assert {name: str(value) for name, value in row.items() if name != "key" and value is not None} == {
                name: value for name, value in line.items() if value
            }
            for name in ("allocated", "active", "idle", "not_measured", "reclaimed", "charged", "credited"):
                shown = f"{row[name]:.1f}"
                assert re.search(rf">{row['name']}</?.*?{re.escape(shown)}", page, re.DOTALL)
                assert re.search(rf"^{re.escape(row['name'])} .*{re.escape(shown)}", printed, re.MULTILINE)
    state = 'gpuspawner_gpus{cluster="default",kind="a100",state="busy"}'
    metrics = asked(world, "metrics").text
    gpus = asked(world, "console/gpus.json").json()["rows"]
    assert f"{state} {sum(row['state'] == 'busy' for row in gpus)}.0" in metrics
    waits = asked(world, "console/queue.json").json()["found"]
    assert f'gpuspawner_queue_length{{kind="a100"}} {waits}.0' in metrics


def test_use_is_by_what_is_asked_for_and_adds_up(world):
    whole = asked(world, "console/use.json").json()
    users = {row["name"]: row for row in whole["rows"]}
    assert users["alice"]["allocated"] == pytest.approx(2.0)
    assert users["alice"]["active"] == pytest.approx(1.0)  # 30 minutes of 2 GPUs were read, the rest was not
    assert users["alice"]["not_measured"] == pytest.approx(1.0)
    assert users["bob"]["idle"] == pytest.approx(1.0)
    assert users["bob"]["reclaimed"] == pytest.approx(6.0)  # 2 of 8 hours had passed
    assert whole["total"]["reclaims"] == 1
    for by in ("team", "kind", "template", "node", "day", "week"):
        other = asked(world, f"console/use.json?by={by}").json()
        assert other["total"] == whole["total"]
        assert sum(row["allocated"] for row in other["rows"]) == pytest.approx(whole["total"]["allocated"])
    assert [row["name"] for row in asked(world, "console/use.json?by=template").json()["rows"]] == ["PyTorch"]
    assert [row["name"] for row in asked(world, "console/use.json?by=node").json()["rows"]] == ["node-1"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("by=x", "by: 'x' asked; allowed: user, team, kind, template, node, day, week"),
        ("since=yesterday", "write one like 2026-12-24"),
        ("since=9999-12-31&until=9999-12-31", "write one like 2026-12-24"),
        ("since=2027-01-20&until=2027-01-02", "Write the earlier day as since"),
        ("since=2001-01-01", "allowed: 400 days"),
    ],
)
def test_days_and_dimensions_that_can_t_be_are_told(world, query, said):
    answer = asked(world, f"console/use.json?{query}")
    assert answer.status_code == 400
    assert said.removeprefix("write ") in answer.json()["error"]["message"]


@pytest.mark.postgresql
def test_a_person_is_shown_with_what_they_hold_used_and_were_told(world):
    people = {row["user"]: row for row in asked(world, "console/people.json").json()["rows"]}
    assert (people["alice"]["runs"], people["alice"]["gpus"]) == (1, 2)
    assert people["bob"]["idle"] == pytest.approx(1.0)
    page = asked(world, "console/people/bob").text
    assert "Ended last" in page
    assert re.search(r"<dt>Idle</dt><dd>1\.0", page)
    assert re.search(r"Stop 1\W", page)
    assert asked(world, "console/people/stranger").status_code == 404


def test_what_runs_is_read_after_the_store_so_that_an_end_between_them_is_counted_once_at_most(world, monkeypatch):
    before = asked(world, "console/use.json?by=user").json()
    runs = use_page.running_parts

    async def ends_first(parts):
        stopping = replace(
            parts.registry.get("other"), phase=Phase.STOPPING, phase_since=NOW, reason=ExitReason.STOPPED
        )
        await parts.registry.save(stopping)
        await parts.registry.save(replace(stopping, phase=Phase.ENDED, ended_at=NOW))
        return await runs(parts)

    monkeypatch.setattr(use_page, "running_parts", ends_first)
    between = asked(world, "console/use.json?by=user").json()
    monkeypatch.setattr(use_page, "running_parts", runs)
    after = asked(world, "console/use.json?by=user").json()

    def of_erin(document):
        (row,) = [row for row in document["rows"] if row["name"] == "erin"]
        return row["allocated"], row["charged"]

    assert of_erin(before) == of_erin(after)
    allocated, charged = of_erin(between)
    assert charged == 0.0, "it is told at the next look"
    assert 0.0 < allocated < of_erin(before)[0], "its samples had added most of its time to the sums"
