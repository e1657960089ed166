"""Dashboards and alert rules: each expression on a real Prometheus that scrapes the service, each alert by promtool."""

import re
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

import page_world
import pytest
import requests
import yaml
from harness.programs import require
from harness.waiting import eventually
from prometheus import prometheus
from test_web_metrics import metrics

from gpuspawner.catalog import load_catalog
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.calibration import Accuracy
from gpuspawner.service.metrics.api import store_counters
from tools.monitoring.__main__ import FILES, files
from tools.monitoring.alerts import ALERTS, rules
from tools.monitoring.panels import DASHBOARDS

NAME = re.compile(r"\b(gpuspawner_\w+|process_\w+|up)\b")
EXPRESSIONS = [
    (page.name, panel.title, expression)
    for page in DASHBOARDS
    for panel in page.panels
    for expression in panel.expressions.values()
]


def test_the_files_of_the_chart_equal_the_generated_ones():
    found = {
        path.relative_to(FILES): path.read_text() for path in FILES.rglob("*") if path.suffix in {".json", ".yaml"}
    }
    assert found == files(), "run python -m tools.monitoring"


@contextmanager
def scraping(folder, world):
    """Run Prometheus on the service's metrics; yield its address."""
    job = {
        "job_name": "gpuspawner",
        "metrics_path": f"{page_world.PREFIX}/metrics",
        "authorization": {"type": "token", "credentials": world.token("prometheus")},
        "static_configs": [{"targets": [world.home.split("/")[2]]}],
    }
    with prometheus(folder, job, rule_files=[FILES / "alerts.yaml"]) as address:
        yield address


def ask(address, expression):
    """Return the current value of an expression. Fails if Prometheus rejects it."""
    answer = requests.get(f"{address}/api/v1/query", params={"query": expression}, timeout=10).json()
    assert answer["status"] == "success", (expression, answer)
    return answer["data"]["result"]


def scraped(address, world, times):
    """Wait until the service was scraped ``times`` times."""
    eventually(lambda: int(ask(address, "count_over_time(up[5m])")[0]["value"][1]) >= times, what="it is scraped")
    assert ask(address, "up")[0]["value"][1] == "1", (world.home, "the service refuses the scrape")


def test_every_panel_draws_what_a_running_service_tells(make_web_world, tmp_path):
    quota = {"each-user": {"each": "user", "gpus": {"hard": 4}}}
    world = make_web_world(load_catalog({**page_world.CATALOG, "quotas": quota}))
    world.observe()
    world.parts.allocator.accounting.gpu_seconds["", "a100", "active"] += 60
    lease = page_world.running("idles", streak=page_world.idle_streak(12), sampled_at=page_world.NOW - 70)
    world.save(lease, readings=page_world.readings(lease, [1] * 3))
    world.save(page_world.waiting())
    world.parts.allocator.estimate_records.report = [Accuracy(inf, 40, 25, 24, 20, 10, 8)]
    names = {name for name, *_ in metrics(world, "prometheus")} | {"up"}
    with scraping(tmp_path, world) as address:
        scraped(address, world, 2)
        at = page_world.NOW - 60
        begun = replace(
            page_world.running("starts"), phase=Phase.STARTING, granted_at=at, first_granted_at=at, running_at=None
        )
        starts = replace(begun, key=replace(begun.key, server="starts"))
        world.save(starts)
        world.save(replace(starts, phase=Phase.RUNNING, running_at=at + 20))
        goes = page_world.running("goes", server="goes")
        world.save(goes)
        world.save(replace(page_world.reclaimed("goes"), key=goes.key))
        world.parts.sampler.counts["idle"] += 3
        world.parts.allocator.accounting.gpu_seconds["", "a100", "active"] += 60
        world.parts.notifier.counts["sent"] += 1
        world.call(store_counters, world.parts)
        scraped(address, world, 5)
        drawn = {(page, title): ask(address, asked.replace("$job", ".*")) for page, title, asked in EXPRESSIONS}
        loaded = requests.get(f"{address}/api/v1/rules", timeout=10).json()["data"]["groups"][0]["rules"]
    for page, title, expression in EXPRESSIONS:
        assert set(NAME.findall(re.sub(r"\{.*?\}", "", expression))) <= names, (page, title)
    assert not [key for key, found in drawn.items() if not found]
    assert [rule["name"] for rule in loaded] == [alert.name for alert in ALERTS]
    assert all(rule["health"] in {"ok", "unknown"} for rule in loaded)


def series(samples, minutes):
    """Return promtool's input: a plain value holds, a `+1` grows by the minute."""
    return [
        {"series": name, "values": f"0{value}x{minutes}" if value.startswith("+") else f"{value}x{minutes}"}
        for name, value in samples.items()
    ]


def judged(folder, *cases):
    """Run cases of promtool that expect an alert not to fire: (its name, samples, minute)."""
    tests = [
        {
            "interval": "1m",
            "input_series": series(samples, minute + 5),
            "alert_rule_test": [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}],
        }
        for name, samples, minute in cases
    ]
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules()))
    (folder / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    promtool = Path(require("prometheus")).with_name("promtool")
    return subprocess.run(
        [promtool, "test", "rules", folder / "tests.yaml"], check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_fires_after_its_time_and_not_without_its_cause(alert, tmp_path):
    growing = any(value.startswith("+") for value in alert.fires.values())
    late = alert.minutes + (65 if growing else 1)
    quiet = judged(tmp_path, (alert.name, alert.fires, alert.minutes - 1), (alert.name, alert.rests, late))
    assert quiet.returncode == 0, quiet.stdout + quiet.stderr
    fired = judged(tmp_path, (alert.name, alert.fires, late))
    assert fired.returncode == 1
    assert f'alertname="{alert.name}"' in fired.stdout + fired.stderr
