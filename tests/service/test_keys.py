"""Idempotency keys survive a kill: a key is stored in the transaction of its act, and bounded by person and size."""

import json
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
import requests
from page_world import CATALOG, GPUS, NOW, in_grace, reclaimed, running, waiting

from gpuspawner.catalog import load_catalog
from gpuspawner.core.idle.arrival import Arrival
from gpuspawner.core.leases.lease import Key, Owner
from gpuspawner.core.rules import Rate
from gpuspawner.service.api.rest.keys import LOST
from gpuspawner.service.api.routes import ROUTERS
from gpuspawner.service.app import load
from gpuspawner.service.sign_in.tokens import Login, make_token
from gpuspawner.service.store import OutputRow
from gpuspawner.service.store.idempotency import MAX_ANSWER_CHARACTERS, MAX_KEYS, KeyRow

WEEK = {"gpu_hours": {"per": "week", "hard": 400}}
OPTIONS = {"template": "pytorch", "gpu": "a100", "count": 1, "server": "second"}


@pytest.fixture
def world(make_web_world):
    kinds = {**CATALOG["gpus"], "h100": {"match": "*H100*", "memory": "80GiB"}}
    pytorch = {**CATALOG["templates"]["pytorch"], "gpus": {"a100": "1-4", "h100": "1-4"}}
    pytorch["substitutes"] = {"a100": ["h100"]}
    more = {"gpus": kinds, "templates": {"pytorch": pytorch}, "quotas": {"each-user": {"each": "user", **WEEK}}}
    made = make_web_world(load_catalog({**CATALOG, **more}))
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
GRANT = {"what": "4 GPUs", "user": "alice", "until": "1d", "why": "x"}
MESSAGE = {"to": "all", "text": "Hello", "until": "2h"}
PRESET = {"name": "mine", "options": {"template": "pytorch"}}
SCHEDULE = {"template": "pytorch", "gpu": "a100", "count": 1, "at": "8:00", "on": "weekdays"}
CORRECTION = {"user": "alice", "amount": "+3 GPU h", "why": "x"}
RESERVE = {"what": "reserve", "kind": "a100", "count": 1, **ALICES}
DRAIN = {"what": "drain", "node": GPUS[0].node, "reason": "x"}
CLAIM = {"kind": "a100", "count": 1, "external": "train-77"}
MORE = {"what": "20 GPU h", "until": "1d", "why": "x"}
BOTH = {"ids": ["runs", "bobs"], "reason": "x"}
ACTS = {
    "grant": ("admin", "POST", "quota-grants", GRANT, ["quota granted"]),
    "take back": ("admin", "DELETE", "quota-grants/{}", {"why": "x"}, ["quota taken back"]),
    "correct": ("admin", "POST", "usage/corrections", CORRECTION, ["usage corrected"]),
    "reserve": ("admin", "POST", "admin/restrictions", RESERVE, ["gpus reserved"]),
    "exempt": ("admin", "POST", "admin/restrictions", {"what": "exempt", **ALICES}, ["exempted"]),
    "drain": ("admin", "POST", "admin/restrictions", DRAIN, ["drained", "gpu closed"]),
    "lift": ("admin", "DELETE", "admin/restrictions/{}", {"reason": "x"}, ["lifted"]),
    "message": ("admin", "POST", "messages", MESSAGE, ["message sent"]),
    "withdraw": ("admin", "DELETE", "messages/{}", {}, ["message withdrawn"]),
    "claim": ("admin", "POST", "preemptions", CLAIM, ["claim made"]),
    "give up": ("admin", "DELETE", "preemptions/{}", {}, ["claim given up"]),
    "claimed": ("admin", "POST", "preemptions/{}/claimed", {}, ["claim served"]),
    "stop several": ("admin", "POST", "admin/workspaces/stop", BOTH, ["end announced", "end announced"]),
    "stop several now": ("admin", "POST", "admin/workspaces/stop", {**BOTH, "now": True}, ["stop", "stop"]),
    "move several": ("admin", "POST", "admin/workspaces/move", BOTH, ["end announced", "end announced"]),
    "extend several": ("admin", "POST", "admin/workspaces/extend", {**BOTH, "until": "3d"}, ["extended", "extended"]),
    "answer": ("admin", "POST", "workspaces/gone/answer", {"sentence": "Sorry."}, ["answered"]),
    "ask for more": ("alice", "POST", "quota-requests", MORE, ["quota requested"]),
    "approve": ("admin", "POST", "quota-requests/{}/approve", {}, ["quota granted", "quota request approved"]),
    "decline": ("admin", "POST", "quota-requests/{}/decline", {"why": "x"}, ["quota request declined"]),
    "withdraw what was asked": ("alice", "DELETE", "quota-requests/{}", {}, ["quota request withdrawn"]),
    "start": ("alice", "POST", "workspaces", OPTIONS, ["asked"]),
    "preset": ("alice", "POST", "presets", PRESET, []),
    "rename": ("alice", "POST", "presets/mine", {"name": "other"}, []),
    "delete": ("alice", "DELETE", "presets/mine", {}, []),
    "schedule": ("alice", "POST", "ready", SCHEDULE, ["ready wished"]),
    "pause": ("alice", "POST", "ready/{}", {"paused": True}, ["ready halted"]),
    "remove": ("alice", "DELETE", "ready/{}", {}, ["ready removed"]),
    "delete a secret": ("alice", "DELETE", "secrets/TOKEN", {}, ["secret deleted"]),
    "read": ("alice", "POST", "inbox/read", {"all": True}, []),
    "keep": ("alice", "POST", "workspaces/warned/keep", {}, ["kept"]),
    "extend": ("alice", "POST", "workspaces/runs/extend", {}, ["extended"]),
    "move": ("alice", "POST", "workspaces/bad/move", {}, ["stop"]),
    "stop": ("alice", "POST", "workspaces/runs/stop", {}, ["stop"]),
    "without a GPU": ("alice", "POST", "workspaces/runs/without-gpu", {}, ["stop"]),
    "rename it": ("alice", "POST", "workspaces/runs/rename", {"title": "Run"}, ["renamed"]),
    "size": ("alice", "POST", "workspaces/runs/size", {"cpu": 4, "at_once": True}, ["size change", "stop"]),
    "withdraw a size": ("alice", "DELETE", "workspaces/runs/size", {}, []),
    "seen": ("alice", "POST", "workspaces/gone/seen", {}, []),
    "share": ("alice", "POST", "workspaces/gone/share", {}, ["shared"]),
    "dispute": ("alice", "POST", "workspaces/gone/dispute", {"sentence": "It worked."}, ["disputed"]),
    "came": ("alice", "POST", "workspaces/asked/came", {}, ["came"]),
    "with a GPU": ("alice", "POST", "workspaces/plain/with-gpu", {}, ["stop"]),
    "consent": ("bob", "POST", "workspaces/waits/consent", {"substitutes": ["h100"]}, ["consented"]),
    "plan the end": ("alice", "POST", "workspaces/runs/done", {"minutes": 30}, ["end planned"]),
    "take fewer": ("bob", "POST", "workspaces/waits/take", {"count": 3}, ["reduced"]),
    "withdraw a request": ("bob", "POST", "workspaces/waits/stop", {}, ["stop"]),
}  # fmt: skip
"""Person, method, path, body and what the audit then has of that person. ``{}`` is an id that is made before."""
MADE_BEFORE = {
    "take back": ("admin", "quota-grants", GRANT),
    "lift": ("admin", "admin/restrictions", {"what": "exempt", **ALICES}),
    "withdraw": ("admin", "messages", MESSAGE),
    "give up": ("admin", "preemptions", CLAIM),
    "claimed": ("admin", "preemptions", CLAIM),
    "answer": ("alice", "workspaces/gone/dispute", {"sentence": "It worked."}),
    "approve": ("alice", "quota-requests", MORE),
    "decline": ("alice", "quota-requests", MORE),
    "withdraw what was asked": ("alice", "quota-requests", MORE),
    "rename": ("alice", "presets", PRESET),
    "delete": ("alice", "presets", PRESET),
    "delete a secret": ("alice", "secrets", {"name": "TOKEN", "value": "x"}),
    "pause": ("alice", "ready", SCHEDULE),
    "remove": ("alice", "ready", SCHEDULE),
}
RATE = Rate(Fraction(1), Fraction(2))
LEASES = {
    "several": lambda: running("bobs", "bob", gpus=(1,), rate=RATE),
    "warned": lambda: in_grace("warned", gpus=(1,), server="w", rate=RATE),
    "bad": lambda: running("bad", gpus=(1,), server="b", unhealthy=(GPUS[1].id,), rate=RATE),
    "gone": lambda: replace(reclaimed(), key=Key("hub-1", "alice born", "g")),
    "waits": lambda: waiting("waits", count=4),
    "asked": lambda: running("asked", gpus=(1,), server="a", arrival=Arrival(1800.0), rate=RATE),
    "plain": lambda: running("plain", gpus=(), server="p"),
}


def prepared(world, act):
    """Return the person, method, path and body of an act, once what it needs is there."""
    who, method, path, body, _ = ACTS[act]
    for word, make in LEASES.items():
        if word in f"{act} {path}":
            world.save(make())
    if "share" in act:
        world.call(world.parts.store.write, world.parts.store.outputs.save, OutputRow("gone", NOW, "The last line."))
    if act in MADE_BEFORE:
        by, where, what = MADE_BEFORE[act]
        made = send(world, by, "POST", where, what, key="before").json()
        made = made.get("restrictions", [made])[0]
        path = path.format(made.get("id"))
    return who, method, path, body


def audit_of(world, who):
    """Return the actions of a person in the audit, with their workspaces."""
    lines = world.parts.store.audit_log.latest(limit=1000)
    return Counter((x.event.action, x.lease) for x in lines if x.actor == who)


@pytest.mark.parametrize("act", ACTS)
def test_promise_1_an_action_repeated_after_a_crash_is_done_once(world, monkeypatch, act):
    who, method, path, body = prepared(world, act)
    before = audit_of(world, who)
    kill_after_the_next_write(world, monkeypatch)
    assert send(world, who, method, path, body).status_code // 100 in {2, 5}
    restart(world, monkeypatch)
    again = [send(world, who, method, path, body) for _ in range(2)]
    assert [x.status_code // 100 for x in again] == [2, 2], again[0].text
    assert sorted(action for action, _ in (audit_of(world, who) - before).elements()) == ACTS[act][-1]
    changed = send(world, who, method, path, {**body, "other": 1})
    assert changed.status_code == (400 if act == "claim" else 422)


TRIED_ELSEWHERE = {
    "/api/v1/tokens/{token}",
    "/api/v1/admin/catalog",
    "/api/v1/admin/workspaces/reorder",
    "/api/v1/quota-moves",
}
"""The first has a test below. The others need a catalog in a file, a queue, and budgets."""


def test_each_endpoint_that_takes_a_key_is_repeated_after_a_kill():
    acts = {(method.lower(), path.partition("?")[0]) for _, method, path, *_ in ACTS.values()}
    missing = [
        (one.method, one.path)
        for router in ROUTERS
        for one in router.endpoints
        if one.idempotent
        and one.path not in TRIED_ELSEWHERE
        and one.method != "get"
        and not any(
            one.method == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", one.path), f"/api/v1/{path}")
            for method, path in acts
        )
    ]
    assert missing == []


def test_an_extension_before_a_kill_happens_once_and_is_answered_with_the_present_end(world, monkeypatch):
    before = world.lease("runs").deadline_at
    kill_after_the_next_write(world, monkeypatch)
    send(world, "alice", "POST", "workspaces/runs/extend", {})
    restart(world, monkeypatch)
    answer = send(world, "alice", "POST", "workspaces/runs/extend", {}).json()
    assert world.lease("runs").extended_seconds == world.lease("runs").deadline_at - before > 0
    assert answer["id"] == "runs"


def allowed(user):
    scopes = frozenset({"custom:gpu:admin"} if user == "admin" else ())
    return Login("secret", "BCDF-GHJK", "a laptop", admin=bool(scopes), at=NOW, user=user, scopes=scopes)


def test_a_lost_answer_that_cannot_be_repeated_is_reported(world, monkeypatch):
    _, row = world.call(make_token, world.parts, allowed("alice"), Owner("hub-1", "alice born"))
    revoke = "alice", "DELETE", f"tokens/{row.id}", {}
    kill_after_the_next_write(world, monkeypatch)
    assert send(world, *revoke).status_code == 500
    restart(world, monkeypatch)
    answer = send(world, *revoke)
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, LOST)
    assert world.parts.store.tokens.of(Owner("hub-1", "alice born"), NOW) == []


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
    first = send(world, "admin", *ACTS["grant"][1:4])
    token, _ = world.call(make_token, world.parts, allowed("admin"), Owner("hub-1", "admin born"))
    again = send(world, "admin", *ACTS["grant"][1:4], token=token)
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (first.json(), "true")
    assert len(world.parts.accounting.all_grants()) == 1
    other = send(world, *ACTS["preset"][:4])
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
