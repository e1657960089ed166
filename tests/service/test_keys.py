"""Idempotency keys survive a kill: a key is stored in the transaction of its act, and bounded by person and size."""

import json
from fractions import Fraction

import pytest
import requests
from page_world import CATALOG, NOW, running

from gpuspawner.catalog import load_catalog
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.rules import Rate
from gpuspawner.service.api.rest.keys import LOST
from gpuspawner.service.app import load
from gpuspawner.service.sign_in.device_login import Login
from gpuspawner.service.sign_in.tokens import make_token
from gpuspawner.service.store.idempotency import MAX_ANSWER_CHARACTERS, MAX_KEYS, KeyRow

WEEK = {"gpu_hours": {"per": "week", "hard": 400}}
OPTIONS = {"template": "pytorch", "gpu": "a100", "count": 1, "server": "second"}


@pytest.fixture
def world(make_web_world):
    made = make_web_world(load_catalog({**CATALOG, "quotas": {"each-user": {"each": "user", **WEEK}}}))
    made.observe()
    made.save(running("runs", "alice", gpus=(0,), rate=Rate(Fraction(1), Fraction(2))))
    return made


def send(world, name, method, path, body, key="k-1", token=""):
    headers = {"Authorization": f"token {token or world.token(name)}", "Idempotency-Key": key}
    return requests.request(method, f"{world.home}api/v1/{path}", headers=headers, data=json.dumps(body), timeout=20)


def kill_after_the_next_write(world, monkeypatch):
    """The service dies once its next write is committed: nothing after it is done."""
    store, write, left = world.parts.store, world.parts.store.write, [1]

    async def write_and_die(step, *arguments, **named):
        done = await write(step, *arguments, **named)
        if left:
            left.pop()
            monkeypatch.setattr(store, "write", dead)
            raise RuntimeError("killed")
        return done

    async def dead(*_arguments, **_named):
        raise RuntimeError("killed")

    monkeypatch.setattr(store, "write", write_and_die)


def restart(world, monkeypatch):
    monkeypatch.undo()
    world.call(load, world.parts)
    world.parts.allocator.observed.hub_answers = world.parts.allocator.observed.processes_known = True


ALICES = {"user": "alice", "until": "1d", "reason": "x"}
ACTS = {
    "grant": ("admin", "POST", "quota-grants", {"what": "4 GPUs", "user": "alice", "until": "1d", "why": "x"}),
    "correction": ("admin", "POST", "usage/corrections", {"user": "alice", "amount": "-3 GPU h", "why": "x"}),
    "reserve": ("admin", "POST", "admin/restrictions", {"what": "reserve", "kind": "a100", "count": 1, **ALICES}),
    "exempt": ("admin", "POST", "admin/restrictions", {"what": "exempt", **ALICES}),
    "extend": ("alice", "POST", "workspaces/runs/extend", {}),
    "message": ("admin", "POST", "messages", {"to": "all", "text": "Hello", "until": "2h"}),
    "start": ("alice", "POST", "workspaces", OPTIONS),
    "preset": ("alice", "POST", "presets", {"name": "mine", "options": {"template": "pytorch"}}),
}  # fmt: skip


@pytest.mark.parametrize("act", ACTS)
def test_promise_1_what_is_repeated_after_a_kill_is_done_once_and_answered(world, monkeypatch, act):
    who, method, path, body = ACTS[act]
    kill_after_the_next_write(world, monkeypatch)
    assert send(world, who, method, path, body).status_code == 500
    restart(world, monkeypatch)
    before = world.parts.store.audit_log.latest(limit=1000)
    again = [send(world, who, method, path, body) for _ in range(2)]
    assert [(x.status_code // 100, x.headers["Idempotency-Replayed"]) for x in again] == [(2, "true")] * 2, again[
        0
    ].text
    assert world.parts.store.audit_log.latest(limit=1000) == before
    assert send(world, who, method, path, {**body, "other": 1}).status_code == 422


def test_an_extension_before_a_kill_happens_once_and_is_answered_with_the_present_end(world, monkeypatch):
    before = world.lease("runs").deadline_at
    kill_after_the_next_write(world, monkeypatch)
    send(world, "alice", "POST", "workspaces/runs/extend", {})
    restart(world, monkeypatch)
    answer = send(world, "alice", "POST", "workspaces/runs/extend", {}).json()
    assert world.lease("runs").extended_seconds == world.lease("runs").deadline_at - before > 0
    assert answer["id"] == "runs"


def test_an_act_whose_answer_was_lost_is_not_done_again_and_says_so(world, monkeypatch):
    wish = (
        "alice",
        "POST",
        "ready",
        {"template": "pytorch", "gpu": "a100", "count": 1, "at": "8:00", "on": "weekdays"},
    )
    kill_after_the_next_write(world, monkeypatch)
    assert send(world, *wish).status_code == 500
    restart(world, monkeypatch)
    answer = send(world, *wish)
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, LOST)
    assert len(world.parts.store.schedules.of_hub("hub-1")) == 1


def test_a_refused_request_may_be_sent_again_by_its_key(world):
    wrong = {"what": "many GPUs", "user": "alice", "until": "1d", "why": "x"}
    for _ in range(2):
        answer = send(world, "admin", "POST", "quota-grants", wrong)
        assert (answer.status_code, "Idempotency-Replayed" in answer.headers) == (400, False)


def test_a_claim_whose_end_lost_its_answer_is_given_up_once_and_answered_as_it_is(world, monkeypatch):
    claim = {"kind": "a100", "external": "train-77"}
    made = send(world, "admin", "POST", "preemptions", claim, key="make").json()
    give_up = "admin", "DELETE", f"preemptions/{made['id']}", {}
    kill_after_the_next_write(world, monkeypatch)
    assert send(world, *give_up).status_code == 500
    restart(world, monkeypatch)
    answer = send(world, *give_up)
    assert (answer.status_code, answer.json()["state"]) == (200, "given up")
    actions = [line.event.action for line in world.parts.store.audit_log.latest(limit=9)]
    assert actions.count("claim given up") == 1


def test_a_key_belongs_to_its_person_whatever_the_token(world):
    """A script may sign in again between two attempts. Another person's key is another key."""
    first = send(world, "admin", *ACTS["grant"][1:])
    allowed = Login(
        "secret", "BCDF-GHJK", "a laptop", admin=True, at=NOW, user="admin", scopes=frozenset({"custom:gpu:admin"})
    )
    token, _ = world.call(make_token, world.parts, allowed, Owner("hub-1", "admin born"))
    again = send(world, "admin", *ACTS["grant"][1:], token=token)
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (first.json(), "true")
    assert len(world.parts.accounting.all_grants()) == 1
    other = send(world, *ACTS["preset"])
    assert (other.status_code // 100, "Idempotency-Replayed" in other.headers) == (2, False)


def test_keys_and_answers_are_bounded_by_person_and_by_size(store):
    for number in range(MAX_KEYS + 50):
        store.idempotency_keys.save(KeyRow(f"a{number}", "ann", float(number), "x", 200, answer="y" * 10_000))
    store.idempotency_keys.save(KeyRow("b", "bob", 0.0, "x", 200, answer="kept"))
    assert store.idempotency_keys.get("a0") is None, "the oldest goes"
    assert store.idempotency_keys.get("b").answer == "kept", "one person's many take none of another's"
    rows = [store.idempotency_keys.get(f"a{number}") for number in range(50, MAX_KEYS + 50)]
    assert None not in rows
    assert sum(len(row.answer) for row in rows) <= MAX_ANSWER_CHARACTERS
    assert rows[-1].answer
    assert not rows[0].answer, "that it was done stays known, its answer does not"
