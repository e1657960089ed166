"""A batch scheduler that owns the queue, on a real hub: the reference server, by the contract alone."""

import platform
import time

import pytest
import requests
from batch import NAME, TOKEN, Batch
from harness.hub import eventually
from harness.hub_configuration import CATALOG
from moved_clock import MovedClock

from gpuspawner.schedulers.http.client import signature

INVENTORY = """
clusters:
  - {{name: east, near: true, price: {{a100: 2.0, t4: 0.5}}, nodes: {{{node}: {{a100: 2, t4: 1}}}}}}
"""
TWO_KINDS = CATALOG.replace("gpus: {a100: 1-8, half: 1}", "gpus: {a100: 1-8, t4: 1}\n    substitutes: {a100: [t4]}")
TWO_KINDS = TWO_KINDS.replace(
    "  half: {title: Half an A100, of: a100, shares: 2}", "  t4: {title: T4, match: Tesla-T4, memory: 16GiB}"
).replace("simulated: {a100: %(gpus)d}", "simulated: {a100: %(gpus)d, t4: 1}")


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    batch = Batch(tmp_path_factory.mktemp("batch"), INVENTORY.format(node=platform.node()))
    batch.start()
    yield batch
    batch.kill()


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    return MovedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def hub(shared_hub, batch, clock):
    def scheduled_by_it(hub):
        callback = f"http://127.0.0.1:{hub.service_port}"
        hub.catalog.write_text(TWO_KINDS % vars(hub) + batch.named(callback))

    return shared_hub(scheduled_by_it, gpus=2, wait=3.0, slow_spawn_timeout=0.3, planted=clock.planted)


def start(hub, user, **options):
    hub.add_user(user)
    hub.begin(user, **options)


def sentence(hub, user):
    queue = hub.lease(user)["queue"]
    return "" if queue is None else queue["sentence"]


def ask(hub, user, path, body):
    """Return the answer of the service's API to a user's request."""
    token = hub.api("POST", f"/users/{user}/tokens", {}).json()["token"]
    url, headers = f"{hub.url}/services/gpu/api/v1{path}", {"Authorization": f"token {token}"}
    return requests.post(url, headers=headers, json=body, timeout=30)


def test_it_gives_shows_places_in_its_words_substitutes_preempts_with_notice_and_refuses_to_extend(hub, batch):
    for user in ("alice", "bob"):
        start(hub, user)
    alice, bob = (hub.until(user, "running") for user in ("alice", "bob"))
    eventually(lambda: {x["state"] for x in batch.states(hub).values()} == {"running"}, what="it knows that they run")

    start(hub, "carol")
    eventually(lambda: f"{NAME} says, as of " in sentence(hub, "carol"), what="its words are shown")
    eventually(lambda: hub.lease("carol")["queue"]["place"], what="and the place that it has come to")
    carol = hub.lease("carol")
    told = batch.states(hub)[carol["id"]]
    assert (carol["queue"]["place"], carol["queue"]["of"]) == (told["position"], told["of"]) == (1, 1)
    assert sentence(hub, "carol").startswith(f"{NAME} says, as of ")
    assert told["reason"]["words"] in sentence(hub, "carol")

    would = ask(hub, "carol", "/check", {"template": "lab", "gpu": "a100", "count": 2}).json()
    assert NAME in would["sentence"]
    assert not would["starts_now"]

    start(hub, "dave", substitutes="t4")
    dave = hub.until("dave", "running")
    assert (dave["request"]["gpu"], dave["given"]) == ("a100", "t4")

    batch.train(id="llm", kind="a100", count=2, lasts_seconds=6)
    warned = eventually(lambda: hub.lease("alice")["warning"], what="alice is warned")
    assert warned["kind"] == "claim"
    assert batch.states(hub)[alice["id"]]["preemption"]["words"] in warned["text"]
    refused = ask(hub, "alice", f"/workspaces/{alice['id']}/extend", {})
    assert refused.status_code == 409
    assert f"{NAME} refuses: It must end by" in refused.text
    eventually(lambda: batch.states(hub)[bob["id"]]["preemption"]["acknowledged"], what="the notice is acknowledged")
    for lease in (alice, bob):
        ended = hub.until_ended(lease["user"], "made room")
        assert ended["id"] == lease["id"]
        assert ended["end"]["at"] >= warned["ends_at"] - 1
    again = hub.lease("alice")
    assert (again["phase"], again["asked_at"]) in {(phase, alice["asked_at"]) for phase in ("parked", "queued")}
    hub.until("alice", "running", 120)  # it asked first, and the training is over


def test_a_callback_counts_once_and_only_signed(hub):
    body = b'{"hub": "h", "claims": []}'
    url = f"http://127.0.0.1:{hub.service_port}/services/gpu/scheduler/changed"
    good = {"X-Signature": signature(TOKEN, int(time.time()), body), "X-Delivery": "delivery-1"}
    old = {"X-Signature": signature(TOKEN, int(time.time()) - 400, body), "X-Delivery": "delivery-2"}
    answers = [requests.post(url, data=body, headers=headers, timeout=30) for headers in ({}, old, good, good)]
    assert [one.status_code for one in answers] == [401, 401, 204, 401]
    assert "received before" in answers[-1].json()["words"]


def test_while_it_is_away_who_runs_goes_on_and_after_it_forgot_all_both_agree_again(hub, batch, clock):
    start(hub, "alice", count=2)
    alice = hub.until("alice", "running")
    batch.kill()
    start(hub, "bob", gpu="t4")
    away = f"{NAME} has not answered since "
    eventually(lambda: sentence(hub, "bob").startswith(away), what="bob reads that it is away")
    clock.move_to(clock.now() + 300)  # by the service's clock, that of its deadlines and of what it holds
    eventually(lambda: hub.lease("bob")["phase"] == "parked", what="five minutes later he waits without his hub")
    assert hub.lease("alice")["phase"] == "running"
    assert sentence(hub, "bob").startswith(away)
    asked = ask(hub, "bob", "/check", {"template": "lab", "gpu": "t4"})
    assert asked.status_code == 200
    assert asked.json()["sentence"].startswith(away)
    hub.kill_service()
    batch.start()
    hub.until("bob", "running", 120)
    state = eventually(lambda: batch.states(hub).get(alice["id"]), what="what runs is told again")
    assert state["state"] == "running"
    assert [slot["count"] for slot in state["grant"]["slots"]] == [2]
    assert hub.lease("alice")["id"] == alice["id"]
    start(hub, "carol")
    eventually(lambda: f"{NAME} says, as of " in sentence(hub, "carol"), what="what alice has is given to nobody")
