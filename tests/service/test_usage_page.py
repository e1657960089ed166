"""Usage for administrators: page, JSON, CSV, report, API and metrics of the same month say the same."""

import csv
import io
import json
import re
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from fractions import Fraction

import page_world
import pytest
from page_world import NOW, asked

from gpuspawner.catalog import load_catalog
from gpuspawner.cli.main import main
from gpuspawner.core.events import Stopped
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.rules import Rate
from gpuspawner.service.store.usage_sums import UsageAmounts
from gpuspawner.service.usage import pages as use_page
from gpuspawner.service.usage.pages import LABELS, columns_of


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
    made.save(stopped, audit=[(NOW, "gpuspawner", Stopped("idle", "idle"))])
    made.save(replace(stopped, phase=Phase.ENDED, ended_at=NOW))
    made.save(page_world.running("other", user="erin", gpus=(3,), rate=one, minutes=10))
    return made


@pytest.mark.postgresql
def test_the_currency_precedes_the_cost(make_web_world):
    world = make_web_world(load_catalog({**page_world.CATALOG, "currency": "EUR"}))
    world.observe()
    figures = asked(world, "console/usage").text.partition('id="usage-figures"')[2].partition("</dl>")[0]
    assert '<dt>Cost</dt><dd class="gs-value"><small>EUR</small> 0.00</dd>' in figures
    assert "Idle hours: EUR 0.00" in figures


@pytest.mark.postgresql
def test_page_json_csv_report_api_and_metrics_tell_the_same(world, monkeypatch, capsys):
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("admin"))
    for by in ("user", "team", "kind"):
        document = asked(world, f"console/usage.json?by={by}").json()
        page = asked(world, f"console/usage?by={by}").text
        lines = list(csv.DictReader(io.StringIO(asked(world, f"console/usage.csv?by={by}").text)))
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


def test_usage_adds_up_in_each_grouping(world):
    whole = asked(world, "console/usage.json").json()
    users = {row["name"]: row for row in whole["rows"]}
    assert users["alice"]["allocated"] == pytest.approx(2.0)
    assert users["alice"]["active"] == pytest.approx(1.0)  # 30 minutes of 2 GPUs were read, the rest was not
    assert users["alice"]["not_measured"] == pytest.approx(1.0)
    assert users["bob"]["idle"] == pytest.approx(1.0)
    assert users["bob"]["reclaimed"] == pytest.approx(6.0)  # 2 of 8 hours had passed
    assert whole["total"]["reclaims"] == 1
    for by in ("team", "kind", "template", "node", "day", "week"):
        other = asked(world, f"console/usage.json?by={by}").json()
        assert other["total"] == whole["total"]
        assert sum(row["allocated"] for row in other["rows"]) == pytest.approx(whole["total"]["allocated"])
    assert [row["name"] for row in asked(world, "console/usage.json?by=template").json()["rows"]] == ["PyTorch"]
    assert [row["name"] for row in asked(world, "console/usage.json?by=node").json()["rows"]] == ["node-1"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("by=x", "by: You asked for 'x'. Allowed: user, team, kind, node, template, day, week"),
        ("since=yesterday", "write one like 2026-12-24"),
        ("since=9999-12-31&until=9999-12-31", "write one like 2026-12-24"),
        ("since=2027-01-20&until=2027-01-02", "Enter the earlier day as since"),
        ("since=2001-01-01", "Allowed: 400 days"),
    ],
)
def test_invalid_days_and_groupings_are_refused(world, query, said):
    answer = asked(world, f"console/usage.json?{query}", status=400)
    assert said.removeprefix("write ") in answer.json()["error"]["message"]


@pytest.mark.postgresql
def test_the_page_of_a_user_has_workspaces_usage_and_ends(world):
    people = {row["user"]: row for row in asked(world, "console/people.json").json()["rows"]}
    assert (people["alice"]["running"], people["alice"]["gpus"]) == (1, 2)
    assert people["bob"]["idle"] == pytest.approx(1.0)
    page = asked(world, "console/people/bob").text
    assert "Recently ended" in page
    assert re.search(r"<dt>Idle</dt><dd>1\.0", page)
    assert re.search(r"Stopped 1\W", page)
    assert "No workspace of carol is running." in asked(world, "console/people/carol").text, "the hub has her"
    world.created["stranger"] = None
    asked(world, "console/people/stranger", status=404)


def test_no_rounding_error_of_a_sum_is_exported(world):
    world.save(page_world.running("busy", user="alice", gpus=(0, 1), rate=Rate(Fraction(1, 3), Fraction(1, 7))))
    for row in asked(world, "console/usage.json?by=user").json()["rows"]:
        for name, value in row.items():
            assert not isinstance(value, float) or len(str(value).partition(".")[2]) <= 9, (name, value)


def test_the_hours_of_all_gpus_are_told_and_how_much_of_them_was_allocated(world):
    page = asked(world, "console/usage").text
    assert "All GPUs, 96 a day" in page, "4 GPUs, each 24 hours"
    total = asked(world, "console/usage.json").json()["total"]["allocated"]
    hours = (NOW - datetime(2027, 1, 1, tzinfo=timezone.utc).timestamp()) / 3600
    assert f"{100 * total / (4 * hours):.0f} % of all GPUs" in page


def test_idle_hours_cost_what_the_kind_costs(world):
    page = asked(world, "console/usage").text
    document = asked(world, "console/usage.json?by=kind").json()
    (row,) = document["rows"]
    assert f"Idle hours: {row['idle'] * row['cost'] / row['charged']:,.2f}" in page
    assert row["idle"] > 0


@pytest.mark.parametrize(
    ("since", "until", "current", "earlier", "later"),
    [
        ("2027-01-01", "2027-01-15", "Month", "since=2026-12-01&until=2026-12-31", ""),
        ("2026-12-01", "2026-12-31", "Month", "since=2026-11-01&until=2026-11-30", "since=2027-01-01&until=2027-01-15"),
        ("2027-01-11", "2027-01-15", "Week", "since=2027-01-04&until=2027-01-10", ""),
        (
            "2026-10-01",
            "2026-12-31",
            "Quarter",
            "since=2026-07-01&until=2026-09-30",
            "since=2027-01-01&until=2027-01-15",
        ),
        ("2026-01-01", "2026-12-31", "Year", "since=2025-01-01&until=2025-12-31", "since=2027-01-01&until=2027-01-15"),
        ("2026-12-30", "2027-01-02", "", "since=2026-12-26&until=2026-12-29", "since=2027-01-03&until=2027-01-06"),
    ],
)
def test_the_periods_before_and_after_are_one_click_away(world, since, until, current, earlier, later):
    page = asked(world, f"console/usage?since={since}&until={until}").text.replace("&amp;", "&")
    assert re.findall(r'aria-current="true">(Week|Month|Quarter|Year)<', page) == ([current] if current else [])
    links = dict(re.findall(r'href="[^"]*\?([^"]*)" aria-label="(?=(Earlier|Later))', page))
    named = {words: query for query, words in links.items()}
    assert named == {"Earlier": earlier, **({"Later": later} if later else {})}


def test_running_leases_are_read_after_the_store_so_an_end_in_between_counts_at_most_once(world, monkeypatch):
    before = asked(world, "console/usage.json?by=user").json()
    runs = use_page.running_parts

    async def ends_first(parts):
        stopping = replace(
            parts.registry.get("other"), phase=Phase.STOPPING, phase_since=NOW, reason=ExitReason.STOPPED
        )
        await parts.registry.save(stopping)
        await parts.registry.save(replace(stopping, phase=Phase.ENDED, ended_at=NOW))
        return await runs(parts)

    monkeypatch.setattr(use_page, "running_parts", ends_first)
    between = asked(world, "console/usage.json?by=user").json()
    monkeypatch.setattr(use_page, "running_parts", runs)
    after = asked(world, "console/usage.json?by=user").json()

    def of_erin(document):
        (row,) = [row for row in document["rows"] if row["name"] == "erin"]
        return row["allocated"], row["charged"]

    assert of_erin(before) == of_erin(after)
    allocated, charged = of_erin(between)
    assert charged == 0.0, "it is told at the next look"
    assert 0.0 < allocated < of_erin(before)[0], "its samples had added most of its time to the sums"


def series(days, hours=1.0):
    first = date(2026, 11, 1)
    return [
        ((first + timedelta(days=number)).isoformat(), UsageAmounts(active=hours, idle=hours / 2, not_measured=0.25))
        for number in range(days)
    ]


@pytest.mark.parametrize("days", [1, 2, 7, 10, 26, 31, 62])
def test_labels_are_few_and_different(days):
    labels = [one.label for one in columns_of(series(days), weekly=False).columns if one.label]
    assert 1 <= len(labels) <= LABELS
    assert len(set(labels)) == len(labels)


def test_each_part_has_its_height_on_the_axis():
    chart = columns_of(series(3, hours=10.0), weekly=False)
    highest = {float(words): percent for words, percent in chart.ticks}
    for column in chart.columns:
        assert [part.kind for part in column.parts] == ["hole", "idle", "gpu"]
        gpu = column.parts[-1].percent
        assert gpu == pytest.approx(highest[10.0], abs=0.1)
        assert sum(part.percent for part in column.parts) <= 100


def test_days_without_usage_have_no_bar():
    chart = columns_of([("2026-11-01", UsageAmounts()), *series(1)], weekly=False)
    assert chart.columns[0].parts == ()


@pytest.mark.parametrize(("capacity", "is_shown"), [(20.0, True), (96.0, False), (None, False)])
def test_the_line_of_all_gpus_is_left_out_where_it_would_flatten_the_bars(capacity, is_shown):
    chart = columns_of(series(5, hours=3.0), weekly=False, capacity_hours=capacity)
    assert (chart.capacity_percent is not None) is is_shown
    assert max(part.percent for one in chart.columns for part in one.parts) > 10
