"""Quotas on a real hub: a race for the last GPU of a quota, a changed group, a grant that starts and expires."""

import os
import sys
import threading

import pytest
from groups import end_all, gpu, join, leave, ruled_hub, token_of
from harness.fork_server import run_python
from harness.hub import ADMIN_TOKEN, eventually

CATALOG = """
version: 1
contact: gpu-help@example.org
gpus: {a100: {title: A100, match: NVIDIA-A100, memory: 80GiB}}
simulated: {a100: 6}
templates: {lab: {title: Lab, gpus: {a100: 1-4}, default: {gpu: a100, lifetime: 8h}}}
policies: {default: {mode: observe}}
teams: {vision: {title: Vision}, speech: {title: Speech}}
quotas:
  each-user: {each: user, gpus: {soft: 1, hard: 2}}
  vision: {group: vision, gpus: {hard: 2}}
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with ruled_hub(
        tmp_path_factory.mktemp("quotas"), CATALOG, "vision", "speech", wait=600.0, slow_spawn_timeout=5.0
    ) as real:
        yield real


@pytest.fixture(autouse=True)
def nothing_is_left(hub):
    yield
    end_all(hub)


def stop(hub, user):
    hub.stop(user)
    eventually(lambda: hub.server(user) is None, what=f"{user} is stopped")


def cli(hub, *arguments):
    environment = {**os.environ, "GPUSPAWNER_URL": f"{hub.url}/services/gpu", "GPUSPAWNER_TOKEN": ADMIN_TOKEN}
    command = [sys.executable, "-m", "gpuspawner.cli", *arguments]
    done = run_python(command, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("ways", ["form and REST", pytest.param("REST and REST", marks=pytest.mark.slow)])
def test_promise_8_of_two_who_race_for_the_last_gpu_of_a_quota_one_gets_it_and_the_other_waits_for_it(hub, ways):
    racers = [f"{name}-{ways[:4].lower()}" for name in ("ada", "ben")]
    for user in ("first", *racers):
        join(hub, user, "vision")
    assert hub.begin("first").status_code in {201, 202}
    hub.until("first", "running")
    session = hub.login(racers[0])
    url = hub.form_url(session, racers[0])
    by_form = lambda: hub.send(session, url, template="lab")  # noqa: E731
    starts = [by_form if ways.startswith("form") else lambda: hub.begin(racers[0]), lambda: hub.begin(racers[1])]
    threads = [threading.Thread(target=start) for start in starts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    phases = lambda: {hub.lease(user)["phase"]: user for user in racers}  # noqa: E731
    found = eventually(lambda: (now := phases()).keys() == {"queued", "running"} and now, what="one runs and one waits")
    got, waits = found["running"], found["queued"]
    lease = hub.lease(waits)
    held = lease["queue"]["wait_reason"]
    assert (held["rule"], held["entry"]) == ("quota vision", "vision")
    assert held["words"].startswith(
        "You asked for 1 GPU. Team vision has 2 of 2 in use. Wait until a colleague stops (next "
    )
    assert held["words"].endswith("Raising it: gpu-help@example.org.")
    told = cli(hub, "explain", lease["id"])
    assert held["words"] in told
    assert "Held back by the rule quota vision since " in told
    assert hub.lease(got)["phase"] == "running"
    stop(hub, got)
    assert hub.until(waits, "running")["id"] == lease["id"]


def test_a_share_is_told_before_start_and_is_no_bound_and_the_limit_is_one_by_every_way(hub):
    join(hub, "cleo", "vision")
    token = token_of(hub, "cleo")
    assert "your share is" not in gpu(hub, token, "/check", {}).json()["sentence"]
    told = gpu(hub, token, "/check", {"count": 2}).json()["sentence"]
    assert "With this you would have 2 GPUs. Your share is 1. You get it while GPUs are free." in told
    assert hub.begin("cleo", count=2).status_code in {201, 202}
    hub.until("cleo", "running")
    refused = hub.begin("cleo", "more")
    assert refused.status_code == 403
    assert refused.json()["message"] == (
        "GPUs: You asked for 1. Allowed: 2 per user. You use or wait for 2. "
        "Stop another of your workspaces first. Raising it: gpu-help@example.org."
    )
    words = [line["words"] for line in gpu(hub, token, "/quota").json()["limits"]]
    assert words == ["2 of 2 GPUs used, share 1", "team vision: 2 of 2 GPUs used"]
    assert cli(hub, "quota", "--user", "cleo").splitlines() == words


def test_a_group_changed_in_the_hub_changes_the_quota_of_the_next_request_and_ends_nothing(hub):
    join(hub, "dora", "vision")
    join(hub, "emil", "vision")
    assert hub.begin("dora", count=2).status_code in {201, 202}
    running = hub.until("dora", "running")
    assert hub.begin("emil").status_code in {201, 202}
    waiting = hub.until("emil", "queued")
    leave(hub, "dora", "vision")
    assert hub.lease("dora")["id"] == running["id"]
    assert hub.lease("emil")["phase"] == "queued", "what runs counts for the team that it was started for"
    hub.end(waiting["id"])
    leave(hub, "emil", "vision")
    join(hub, "emil", "speech")
    eventually(lambda: hub.begin("emil").status_code in {201, 202}, what="it is asked anew")
    assert hub.until("emil", "running")["request"]["team"] == "speech"
    token = token_of(hub, "dora")
    told = eventually(lambda: (seen := gpu(hub, token, "/quota").json())["teams"] == [] and seen, 15, "it is told")
    assert [line["entry"] for line in told["limits"]] == ["each-user"]


def test_a_quota_grant_applies_at_once_expires_by_itself_and_ends_no_workspace(hub):
    join(hub, "fritz", "vision")
    join(hub, "gina", "vision")
    assert hub.begin("fritz", count=2).status_code in {201, 202}
    hub.until("fritz", "running")
    assert hub.begin("gina").status_code in {201, 202}
    waiting = hub.until("gina", "queued")
    made = cli(hub, "admin", "grant", "--team", "vision", "1 GPU", "--until", "8s", "--reason", "a deadline")
    assert made.startswith("1 GPU more for team vision until ")
    assert hub.until("gina", "running")["id"] == waiting["id"], "it starts by itself"
    (grant,) = hub.gpu("/quota-grants")["grants"]
    assert (grant["by"], grant["why"]) == ("tests", "a deadline")
    eventually(lambda: hub.gpu("/quota-grants")["grants"][0]["state"] == "over", 15, "it lapses")
    assert hub.lease("gina")["phase"] == "running", "it ends nothing"
    join(hub, "hugo", "vision")
    assert hub.begin("hugo").status_code in {201, 202}
    held = hub.until("hugo", "queued")["queue"]["wait_reason"]
    assert "Team vision has 3 of 2 in use" in held["words"]
    given = hub.gpu("/quota-grants", "POST", {"team": "vision", "what": "2 GPUs", "until": "1h", "why": "again"})
    hub.until("hugo", "running")
    taken = cli(hub, "admin", "grant", "--take-back", given["id"], "--reason", "a mistake")
    assert "taken back" in taken
    assert hub.lease("hugo")["phase"] == "running"
