"""One month, as samples read it: pages, API, command line, CSV and metrics tell the same hours and the same cost."""

import csv
import io
import json
import re
from collections import defaultdict
from fractions import Fraction

import pytest
from page_world import NOW, Browser, api, asked, running
from prometheus_client.parser import text_string_to_metric_families

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.fake import probe_text
from gpuspawner.cli.main import main
from gpuspawner.core.rules import Rate
from gpuspawner.service.metrics.api import store_counters
from gpuspawner.service.quotas.own_usage import hours_text
from gpuspawner.service.rules.accounting import STATES

USE = {"alice": ((0, 1), 80), "bob": ((2,), 0)}
"""The GPUs of each, and how busy they are."""
MINUTES = 20
COLUMNS = ("allocated", "active", "idle", "not_measured", "reclaimed", "charged", "credited", "cost")


@pytest.fixture
def world(make_web_world):
    """alice works on two GPUs and bob rests on one, for twenty minutes; each minute is sampled."""
    made = make_web_world()
    made.observe()
    leases = {}
    for user, (gpus, _) in USE.items():
        rate = Rate(Fraction(len(gpus)), Fraction("2.1") * len(gpus))
        made.backend.run(user)
        times = {"minutes": 0, "sampled_at": NOW, "deadline_at": NOW + 8 * 3600}
        leases[user] = made.save(running(user, user, gpus, rate=rate, **times))
    for minute in range(MINUTES):
        made.clock.at += 60
        for user, (_, percent) in USE.items():
            percents = {slot.gpu: percent for slot in leases[user].slots}
            read = probe_text(percents, clock_seconds=100.0 + 60 * minute, memory_mib=100, holders=list(percents))
            made.backend.probes[user] = [ProbeResult(read)]
        made.call(sampled, made.parts.sampler)
    return made


async def sampled(sampler):
    sampler.start_due()
    for task in list(sampler._tasks.values()):
        await task


def counted(world, path, name):
    """A metric's hours, by user or kind, then by state."""
    found = defaultdict(float)
    world.call(store_counters, world.parts)  # as every ten seconds
    for family in text_string_to_metric_families(asked(world, path).text):
        for sample in family.samples:
            if sample.name == name:
                whose = sample.labels.get("user") or sample.labels["kind"]
                found[whose, sample.labels["state"]] += sample.value / 3600
    return found


def test_pages_api_command_line_csv_and_metrics_tell_the_same_month(world, monkeypatch, capsys):
    def cli(*arguments, name="admin"):
        monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token(name))
        assert main([*arguments, "--url", world.home.rstrip("/")]) == 0
        return capsys.readouterr().out

    document = asked(world, "console/usage.json?by=user").json()
    rows = {row["name"]: row for row in document["rows"]}
    assert rows["alice"]["active"] == pytest.approx(2 * MINUTES / 60, abs=0.05), "what is compared is something"
    assert rows["bob"]["idle"] == pytest.approx(MINUTES / 60, abs=0.05)

    assert json.loads(cli("admin", "report", "--by", "user", "--json")) == document
    for text in (
        asked(world, "console/usage.csv?by=user").text,
        cli("admin", "report", "--by", "user", "--csv"),
    ):
        lines = {line["name"]: line for line in csv.DictReader(io.StringIO(text))}
        for name in COLUMNS:
            assert {who: float(line[name]) for who, line in lines.items()} == {who: rows[who][name] for who in rows}

    whole = api(world, "admin", "usage?by=user&all=1").json()
    assert json.loads(cli("usage", "--by", "user", "--all", "--json"))["rows"] == whole["rows"]
    assert whole["charged_gpu_hours"] == pytest.approx(document["total"]["charged"])
    of_api = {row["name"]: row for row in whole["rows"]}
    people = counted(world, "metrics/people", "gpuspawner_user_gpu_seconds_total")
    page, printed = asked(world, "console/usage?by=user").text, cli("admin", "report", "--by", "user")
    for who, row in rows.items():
        assert (of_api[who]["charged_gpu_hours"], of_api[who]["cost"]) == pytest.approx((row["charged"], row["cost"]))
        assert of_api[who]["credited_gpu_hours"] == pytest.approx(row["credited"])
        assert row["allocated"] == pytest.approx(row["active"] + row["idle"] + row["not_measured"])
        assert [people[who, state] for state in STATES] == pytest.approx([row[state] for state in STATES])
        for name in ("allocated", "active", "idle", "not_measured", "charged", "credited"):
            shown = re.escape(f"{row[name]:.1f}")
            assert re.search(rf">{who}</a>.*?>\s*{shown}\s*<", page, re.DOTALL)
            assert re.search(rf"^{who} .*{shown}", printed, re.MULTILINE)
        own = json.loads(cli("usage", "--json", name=who))
        assert (own["charged_gpu_hours"], own["cost"]) == pytest.approx((row["charged"], row["cost"]))
        for by in ("workspace", "day", "kind", "team", "user"):  # of one workspace on one day
            (mine,) = json.loads(cli("usage", "--by", by, "--json", name=who))["rows"]
            assert [mine["active_gpu_hours"], mine["idle_gpu_hours"]] == pytest.approx([row["active"], row["idle"]])
        share = round(100 * row["idle"] / (row["active"] + row["idle"]))
        for period, by in (("month", "workspace"), ("month", "kind"), ("day", "team"), ("year", "day")):
            own_page = Browser(world, who).look(f"quota?period={period}&by={by}").text
            assert hours_text(row["charged"]) in own_page
            for label, shown in (("Active", hours_text(row["active"])), ("Idle", hours_text(row["idle"]))):
                assert own_page.count(f'data-label="{label}">{shown}</td>') == 2, "the row and the total"
            assert len(re.findall(rf'data-label="Share idle">.*?{share} %', own_page)) == 2
    kinds = counted(world, "metrics", "gpuspawner_lease_gpu_seconds_total")
    total = document["total"]
    assert [kinds["a100", state] for state in STATES] == pytest.approx([total[state] for state in STATES])
