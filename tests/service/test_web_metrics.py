"""The metrics for Prometheus: the same numbers as the pages, no unknown values, and only for users with the scope."""

import contextlib
import re
from dataclasses import replace
from datetime import datetime, timezone
from fractions import Fraction

import page_world
import pytest
import requests
from harness import pages
from page_world import NOW, world_fixture
from prometheus_client.parser import text_string_to_metric_families

from gpuspawner import __version__
from gpuspawner.catalog import load_catalog
from gpuspawner.core import events
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.rules import EndNotice, Rate
from gpuspawner.service.metrics import collector as per_user
from gpuspawner.service.metrics.api import store_counters
from gpuspawner.service.metrics.collector import ServiceCollector
from gpuspawner.service.rules.accounting import STATES
from gpuspawner.service.settings import Settings, change_settings
from gpuspawner.version import commit, describe_version

METRICS_PAGE = pages.page("reference/metrics")


world = world_fixture(is_observed=False)


def metrics(world, name, page="metrics"):
    with contextlib.suppress(Unavailable, TypeError):  # as it is kept every ten seconds
        world.call(store_counters, world.parts)
    response = requests.get(f"{world.home}{page}", headers={"Authorization": f"token {world.token(name)}"})
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
    world.parts.sampler.counts["idle"] += 3
    world.call(store_counters, world.parts)
    world.call(monkeypatch.setattr, world.parts.store.counters, "_transaction", None)
    world.call(monkeypatch.setattr, world.parts.store, "_transaction", None)  # a scrape costs the store nothing
    world.clock.at += 30
    found = metrics(world, "prometheus")
    assert found["gpuspawner_gpus", "a100", "default", "idle"] == 1
    assert found["gpuspawner_gpus", "a100", "default", "free"] == 3
    assert found["gpuspawner_leases", "a100", "none", "running"] == 1
    assert found["gpuspawner_queue_length", "a100"] == 1
    assert found["gpuspawner_queue_length", "t4"] == 0
    assert found["gpuspawner_ends_total", "idle", "none"] == 1
    assert found["gpuspawner_ends_total", "expired", "none"] == 0
    assert found["gpuspawner_samples_total", "idle"] == 3
    assert found["gpuspawner_sample_age_seconds",] == 100
    assert found["gpuspawner_fleet_age_seconds", "default"] == 30


def test_starts_and_waits_are_counted_once_and_only_if_a_user_waited(world):
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
    waits = page_world.waiting()
    world.save(replace(waits, key=replace(waits.key, server="later")))  # takes nothing yet
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
    before = dict(world.parts.allocator.accounting.gpu_seconds)
    for _ in range(5):
        world.clock.at += 60
        await world.sample()
    found = {key: value - before.get(key, 0) for key, value in world.parts.allocator.accounting.gpu_seconds.items()}
    assert found == {("", "a100", "active"): 300, ("", "half", "idle"): 150}, "half a GPU counts half"
    first, last = (f"{datetime.fromtimestamp(world.clock.at + days * 86400, timezone.utc).date()}" for days in (-2, 2))
    sums = await world.parts.store.read(world.parts.store.usage_sums.of_days, "kind", first, last)
    hours = {(one.key, state): getattr(one.amounts, state) for one in sums for state in STATES}
    counted = {(kind, state): value for (_, kind, state), value in world.parts.allocator.accounting.gpu_seconds.items()}
    told = {key: value * 3600 for key, value in hours.items() if value}
    assert told == pytest.approx(counted), "the console's hours are those of the metrics"


def test_metrics_have_no_series_for_what_is_unknown(world):
    found = metrics(world, "admin")
    names = {name for name, *_ in found}
    assert not names & {"gpuspawner_gpus", "gpuspawner_sample_age_seconds", "gpuspawner_fleet_age_seconds"}


@pytest.mark.parametrize("name", ["alice", "mallory", "nobody"])
def test_metrics_are_for_those_with_the_scope(world, name):
    response = metrics(world, name)
    assert response.status_code == 403
    assert "read:metrics" in response.json()["error"]["message"]


def test_the_token_that_was_made_for_prometheus_reads_metrics_and_nothing_else(world):
    def status(page, token):
        return requests.get(f"{world.home}{page}", headers={"Authorization": f"Bearer {token}"}).status_code

    assert [status(page, page_world.METRICS_TOKEN) for page in ("metrics", "metrics/people")] == [200, 200]
    assert status("metrics", page_world.METRICS_TOKEN[:-1]) == 403
    assert [status(page, page_world.METRICS_TOKEN) for page in ("api/v1/", "api/v1/workspaces")] == [403, 403]


def test_the_document_tells_every_metric_with_its_labels_and_no_other(world):
    world.observe()
    lease = page_world.running("idles", streak=page_world.idle_streak(12), sampled_at=NOW - 70)
    told = {
        name: set(re.split(r",\s*", labels)) - {""}
        for row in re.findall(r"^\| (`gpuspawner_.*?) \|", METRICS_PAGE, re.MULTILINE)
        for name, labels in re.findall(r"`(\w+)(?:\{(.*?)\})?`", row)
    }
    world.parts.allocator.accounting.user_gpu_seconds["alice", "a100", "active"] += 60
    world.parts.counters.dropped["workspace_gpus"] += 1
    world.save(lease, readings=page_world.readings(lease, [1] * 3))
    world.call(store_counters, world.parts)
    headers = {"Authorization": f"token {world.token('prometheus')}"}
    pages = [requests.get(f"{world.home}{page}", headers=headers).text for page in ("metrics", "metrics/people")]
    families = {
        f"{one.name}_total" if one.type == "counter" else one.name: one.samples
        for page in pages
        for one in text_string_to_metric_families(page)
        if one.name.startswith("gpuspawner_") and not one.name.endswith("_created")  # of a histogram, its beginning
    }
    assert set(families) == set(told)
    for name, samples in families.items():
        assert all(set(sample.labels) - {"le"} == told[name] for sample in samples), name


@pytest.mark.parametrize("kept_in", ["sqlite"], indirect=True)  # its file is used
def test_counters_go_on_after_a_restart_and_never_fall_also_after_a_crash(make_web_world, tmp_path, monkeypatch):
    first = make_web_world()
    first.save(page_world.running("gone"))
    first.save(page_world.reclaimed("gone"))
    first.parts.sampler.counts["idle"] += 5
    first.parts.registry.start_times._waits.observe(7)
    found = metrics(first, "admin")
    first.parts.sampler.counts["idle"] += 100  # counted but not reported yet: the crash loses it
    next_one = page_world.World(tmp_path, monkeypatch)
    try:
        next_one.call(next_one.parts.counters.load)
        assert metrics(next_one, "admin")["gpuspawner_samples_total", "idle"] == 5
        next_one.parts.sampler.counts["idle"] += 2
        after = metrics(next_one, "admin")
    finally:
        next_one.close()
    counters = {name for name, *_ in found if name.endswith(("_total", "_bucket", "_sum", "_count"))}
    ours = {name for name in counters if name.startswith("gpuspawner_")}
    assert after["gpuspawner_samples_total", "idle"] == 7
    assert after["gpuspawner_ends_total", "idle", "none"] == 1
    assert after["gpuspawner_queue_wait_seconds_sum",] == 7
    assert [key for key, value in found.items() if key[0] in ours and after[key] < value] == []


def test_a_counter_stands_still_while_the_store_takes_nothing(world, monkeypatch):
    world.parts.sampler.counts["idle"] += 1
    assert metrics(world, "admin")["gpuspawner_samples_total", "idle"] == 1
    with monkeypatch.context() as away:
        away.setattr(world.parts.store.counters, "save", fails)
        world.parts.sampler.counts["idle"] += 1
        assert metrics(world, "admin")["gpuspawner_samples_total", "idle"] == 1
    assert metrics(world, "admin")["gpuspawner_samples_total", "idle"] == 2


def fails(*_):
    raise Unavailable("The store does not answer.")


def test_outcomes_of_warnings_are_counted_by_reason(world):
    kept, taken, gone = (page_world.in_grace(name, server=name, gpus=(n,)) for n, name in enumerate("abc"))
    for lease in (kept, taken, gone):
        world.save(lease)
    world.save(replace(kept, phase=Phase.RUNNING, keeps_used=1, kept_until=NOW + 7200))
    world.save(replace(taken, phase=Phase.STOPPING, reason=ExitReason.IDLE))
    world.save(replace(gone, phase=Phase.STOPPING, reason=ExitReason.STOPPED))
    told = page_world.running("claimed", "bob", gpus=(3,), notice=EndNotice("claim-1", NOW + 60, "train-77", "admin"))
    world.save(told)
    world.save(replace(told, notice=None))
    found = {key[1:]: n for key, n in metrics(world, "admin").items() if key[0] == "gpuspawner_warnings_total" and n}
    assert found == {("idle", "kept"): 1, ("ended", "idle"): 1, ("ended otherwise", "idle"): 1, ("claim", "went on"): 1}


async def test_restarted_workspaces_and_failed_scheduler_actions_are_counted(make_world):
    world = make_world()
    lease = await world.up("alice")
    placed = world.allocator.commits.line(lease, "gpuspawner", events.Placed(("GPU-x",)))
    await world.registry.save(
        lease, audit=[placed, world.allocator.commits.line(lease, "gpuspawner", events.Adopted("no lease"))]
    )
    assert dict(world.registry.mismatches) == {"elsewhere": 1, "unknown": 1}
    world.allocator.syncs.errors["no answer"] += 2
    told = {one.name: one.samples for one in ServiceCollector(world.parts).collect()}
    errors = {sample.labels["reason"]: sample.value for sample in told["gpuspawner_scheduler_errors"]}
    assert errors == {"not seen": 0, "no answer": 2, "failed": 0}
    assert {sample.labels["adapter"] for sample in told["gpuspawner_scheduler_errors"]} == {"memory"}


def test_people_stand_on_a_page_of_their_own_with_the_most_that_is_told_of_each(world, monkeypatch):
    monkeypatch.setattr(per_user, "MAX_SERIES", 2)
    world.observe()
    for number in range(3):
        lease = page_world.running(f"w{number}", f"user-{number}", gpus=(number,))
        world.save(lease, readings=page_world.readings(lease, [10 * number]))
    counted = world.parts.allocator.accounting.user_gpu_seconds
    counted.clear()
    for number in range(3):
        counted[f"user-{number}", "a100", "active"] += 60.0 * number
    assert not [key for key in metrics(world, "admin") if "user-1" in key]
    found = metrics(world, "prometheus", "metrics/people")
    assert found["gpuspawner_user_gpu_seconds_total", "a100", "active", "user-2"] == 120
    shown = [key[-1] for key in found if key[0] == "gpuspawner_workspace_gpu_utilization_percent"]
    assert shown == ["user-2", "user-1"]
    again = metrics(world, "prometheus", "metrics/people")
    assert again["gpuspawner_series_dropped_total", "gpuspawner_workspace_gpus"] == 1
    assert metrics(world, "alice", "metrics/people").status_code == 403


def test_metrics_api_and_pages_name_the_version_with_its_commit(world):
    assert commit(), "a checkout has a commit"
    headers = {"Authorization": f"token {world.token('prometheus')}"}
    text = requests.get(f"{world.home}metrics", headers=headers, timeout=20).text
    assert f'gpuspawner_build_info{{commit="{commit()}",version="{__version__}"}} 1.0' in text
    account = page_world.api(world, "alice", "").json()
    assert (account["version"], account["commit"]) == (__version__, commit())
    assert f"<p>gpuspawner {describe_version()}</p>" in page_world.Browser(world, "alice").home.text


def test_pages_link_to_the_documentation_if_an_administrator_names_it(world):
    assert ">Help</a>" not in page_world.Browser(world, "alice").home.text
    settings = change_settings(Settings(), {"documentation_url": "https://docs.example.org/gpu/"})
    object.__setattr__(world.parts, "settings", settings)  # as a service that starts with it
    assert '<a href="https://docs.example.org/gpu/">Help</a>' in page_world.Browser(world, "alice").home.text
