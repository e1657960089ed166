"""What Prometheus reads: the same numbers as the pages, none that is unknown, for those with the scope."""

from dataclasses import replace

import page_world
import pytest
import requests
from page_world import NOW
from prometheus_client.parser import text_string_to_metric_families

from gpuspawner.core.leases.lease import Phase


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
    assert found["gpuspawner_leases", "a100", "running"] == 1
    assert found["gpuspawner_queue_length", "a100"] == 1
    assert found["gpuspawner_queue_length", "t4"] == 0
    assert found["gpuspawner_ends_total", "idle"] == 1
    assert found["gpuspawner_ends_total", "expired"] == 0
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


def test_metrics_have_no_series_for_what_is_unknown(world):
    found = metrics(world, "admin")
    names = {name for name, *_ in found}
    assert not names & {"gpuspawner_gpus", "gpuspawner_sample_age_seconds", "gpuspawner_fleet_age_seconds"}


@pytest.mark.parametrize("name", ["alice", "mallory", "nobody"])
def test_metrics_are_for_those_with_the_scope(world, name):
    response = metrics(world, name)
    assert response.status_code == 403
    assert "read:metrics" in response.json()["error"]["message"]
