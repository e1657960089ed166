"""What Prometheus reads: the same numbers as the pages, none that is unknown, for those with the scope."""

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import page_world
import pytest
import requests
from page_world import NOW
from prometheus_client.parser import text_string_to_metric_families

from gpuspawner.catalog import load_catalog
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.rules import Rate

OPERATING = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()


@pytest.fixture
def world(make_web_world):
    return make_web_world()


def metrics(world, name):
    response = requests.get(f"{world.home}metrics", headers={"Authorization": f"token {world.token(name)}"})
    if response.status_code != 200:
        return response
    families = text_string_to_metric_families(response.text)
    return {(s.name, *sorted(s.labels.values())): s.value for f in families for s in f.samples}


def test_metrics_count_what_pages_show(world, monkeypatch):
    world.observe()
    world.save(page_world.running("gone"))
    world.save(page_world.reclaimed("gone"))
    lease = page_world.running("idles", streak=page_world.idle_streak(12), sampled_at=NOW - 70)
    world.save(lease, readings=page_world.readings(lease, [1] * 3))
    world.save(page_world.waiting())
    world.call(monkeypatch.setattr, world.parts.store, "_transaction", None)  # a scrape costs the store nothing
    world.parts.sampler.counts["idle"] += 3
    world.clock.at += 30
    found = metrics(world, "prometheus")
    assert found["gpuspawner_gpus", "a100", "idle"] == 1
    assert found["gpuspawner_gpus", "a100", "free"] == 3
    assert found["gpuspawner_leases", "a100", "none", "running"] == 1
    assert found["gpuspawner_queue_length", "a100"] == 1
    assert found["gpuspawner_queue_length", "t4"] == 0
    assert found["gpuspawner_ends_total", "idle", "none"] == 1
    assert found["gpuspawner_ends_total", "expired", "none"] == 0
    assert found["gpuspawner_samples_total", "idle"] == 3
    assert found["gpuspawner_sample_age_seconds",] == 100
    assert found["gpuspawner_fleet_age_seconds",] == 30


def test_starts_and_waits_are_counted_once_and_not_those_that_nobody_waited_for(world):
    def start(name, **changes):
        lease = page_world.running(name, **changes)
        key = replace(lease.key, server=name)
        at = lease.asked_at + 40
        begun = replace(lease, key=key, phase=Phase.STARTING, granted_at=at, first_granted_at=at, running_at=None)
        world.save(begun)
        running = replace(begun, phase=Phase.RUNNING, running_at=begun.granted_at + 3)
        world.save(running)
        world.save(replace(running, sampled_at=NOW))

    start("first")
    start("later", attempt=2)
    start("found", adopted=True)
    found = metrics(world, "admin")
    assert found["gpuspawner_start_seconds_count",] == 2
    assert found["gpuspawner_start_seconds_sum",] == 6
    assert [found["gpuspawner_start_seconds_bucket", bound] for bound in ("2.0", "5.0")] == [0, 2]
    assert found["gpuspawner_queue_wait_seconds_sum",] == 80


QUOTAS = {
    "each-user": {"each": "user", "gpus": {"soft": 1, "hard": 4}, "gpu_hours": {"per": "week", "hard": 40}},
    "vision": {"group": "vision", "types": {"a100": {"soft": 8}}, "cost": {"per": "month", "hard": 100}},
    "all": {"everybody": True, "memory": {"hard": "64GiB"}},
    "nobody": {"group": "vision", "workspaces": {"hard": 9}},
}  # fmt: skip


def test_quotas_are_told_by_how_full_they_are(make_web_world):
    catalog = load_catalog({**page_world.CATALOG, "teams": {"vision": {"title": "Vision"}}, "quotas": QUOTAS})
    world = make_web_world(catalog)
    world.observe()
    lease = page_world.running("runs", gpus=(0, 1), minutes=60, rate=Rate(Fraction(2), Fraction(4)))
    world.save(replace(lease, request=replace(lease.request, team="vision"), deadline_at=NOW + 3 * 3600))
    world.save(page_world.running("bobs", "bob", gpus=(2,)))
    found = metrics(world, "admin")
    ratios = {key[1:]: value for key, value in found.items() if key[0] == "gpuspawner_quota_used_ratio"}
    assert ratios == {
        ("each-user", "gpus"): 0.5,  # alice's: bob has 1 of 4
        ("each-user", "gpu_hours/week"): pytest.approx(8 / 40),
        ("a100", "vision"): 0.25,  # of the share: there is no limit
        ("cost/month", "vision"): pytest.approx(16 / 100),
        ("all", "memory"): 0.25,
        ("nobody", "workspaces"): pytest.approx(1 / 9),
    }
    assert found["gpuspawner_leases", "a100", "running", "vision"] == 1
    assert found["gpuspawner_ends_total", "budget", "vision"] == 0


async def test_time_of_gpus_is_counted_by_what_was_read_of_each(make_world):
    world = make_world()
    works, rests = await world.up("alice"), await world.up("bob", gpu="half")
    world.shows(works, 90)
    world.shows(rests, 0)
    await world.sample()
    before = dict(world.parts.sampler.gpu_seconds)
    for _ in range(5):
        world.clock.at += 60
        await world.sample()
    found = {key: value - before.get(key, 0) for key, value in world.parts.sampler.gpu_seconds.items()}
    assert found == {("", "a100", "busy"): 300, ("", "half", "idle"): 150}, "half a GPU counts half"


def test_metrics_have_no_series_for_what_is_unknown(world):
    found = metrics(world, "admin")
    names = {name for name, *_ in found}
    assert not names & {"gpuspawner_gpus", "gpuspawner_sample_age_seconds", "gpuspawner_fleet_age_seconds"}


@pytest.mark.parametrize("name", ["alice", "mallory", "nobody"])
def test_metrics_are_for_those_with_the_scope(world, name):
    response = metrics(world, name)
    assert response.status_code == 403
    assert "read:metrics" in response.json()["error"]["message"]


def test_the_document_tells_every_metric_with_its_labels_and_no_other(world):
    world.observe()
    world.save(page_world.running("idles", streak=page_world.idle_streak(12), sampled_at=NOW - 70))
    told = {
        name: set(re.split(r",\s*", labels)) - {""}
        for row in re.findall(r"^\| (`gpuspawner_.*?) \|", OPERATING, re.MULTILINE)
        for name, labels in re.findall(r"`(\w+)(?:\{(.*?)\})?`", row)
    }
    answer = requests.get(f"{world.home}metrics", headers={"Authorization": f"token {world.token('prometheus')}"})
    families = {
        f"{one.name}_total" if one.type == "counter" else one.name: one.samples
        for one in text_string_to_metric_families(answer.text)
        if one.name.startswith("gpuspawner_") and not one.name.endswith("_created")  # of a histogram, its beginning
    }
    assert set(families) == set(told)
    for name, samples in families.items():
        assert all(set(sample.labels) - {"le"} == told[name] for sample in samples), name
