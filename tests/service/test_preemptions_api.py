"""Stronger claims over HTTP: who may make them, what is refused and how, and that a repeated message is one claim."""

import json

import pytest
import requests
from page_world import NOW, api, command_fixture, running, world_fixture

from gpuspawner.schedulers.base import Capabilities
from gpuspawner.service.metrics.api import store_counters

EXTERNAL = {"kind": "a100", "external": "Training job train-77"}


world = world_fixture(running("runs", "alice", gpus=(0, 1)), running("young", "bob", gpus=(2, 3), minutes=1))


def ask(world, name="admin", status=201, headers=None, **body):
    response = requests.post(
        f"{world.home}api/v1/preemptions",
        headers={"Authorization": f"token {world.token(name)}", **(headers or {})},
        json=body,
        timeout=20,
    )
    assert response.status_code == status, response.text
    return response.json()


@pytest.mark.parametrize("name", ["alice", "robot", "mallory", "prometheus"])
def test_promise_9_only_administrators_make_claims_or_see_them(world, name):
    made = ask(world, **EXTERNAL, count=1)
    for method, path in (
        ("GET", "preemptions"),
        ("POST", "preemptions"),
        ("GET", f"preemptions/{made['id']}"),
        ("DELETE", f"preemptions/{made['id']}"),
        ("POST", f"preemptions/{made['id']}/claimed"),
    ):
        assert api(world, name, path, method).status_code == 403
    assert api(world, "admin", f"preemptions/{made['id']}").json()["state"] == "coming"
    assert world.lease("runs").notice is not None


def test_a_dry_run_lists_the_evicted_users_and_changes_nothing(world):
    told = ask(world, status=200, **EXTERNAL, count=2, dry_run=True)
    assert (told["id"], told["dry_run"], [x["user"] for x in told["victims"]]) == (None, True, ["alice"])
    assert told["words"] == "2 A100 80 GB can be had by ending 1 workspace. Nothing was done."
    assert world.lease("runs").notice is None
    assert api(world, "admin", "preemptions").json() == {"preemptions": []}


def test_a_claim_is_made_listed_given_up(world):
    made = ask(world, **EXTERNAL, count=2)
    assert (made["state"], made["for"], made["by"]) == ("coming", {"external": EXTERNAL["external"]}, "admin")
    assert made["words"].startswith("1 workspace ends for it at ")
    assert [x["free"] for x in made["gpus"]] == [False, False]
    assert made["ends_at"] == NOW + 300 == made["victims"][0]["ends_at"]
    assert [x["id"] for x in api(world, "admin", "preemptions").json()["preemptions"]] == [made["id"]]
    early = api(world, "admin", f"preemptions/{made['id']}/claimed", "POST")
    assert (early.status_code, "not free yet" in early.json()["error"]["message"]) == (409, True)
    over = api(world, "admin", f"preemptions/{made['id']}", "DELETE").json()
    assert (over["state"], over["words"], over["victims"]) == ("given up", "Its administrator gave it up.", [])
    assert world.lease("runs").notice is None
    assert api(world, "admin", "preemptions/none-such").status_code == 404


@pytest.mark.parametrize("header", [True, False])
def test_a_repeated_message_is_one_claim(world, header):
    key = {"headers": {"Idempotency-Key": "k1"}} if header else {"key": "k1"}
    made = ask(world, **EXTERNAL, count=1, **key)
    assert ask(world, status=200, **EXTERNAL, count=1, **key)["id"] == made["id"]
    refused = ask(world, status=409, **EXTERNAL, count=2, **key)
    assert "used for another claim" in refused["error"]["message"]
    assert world.lease("young").notice is None


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"kind": "h100", "external": "x"}, 400, "GPU kind: You asked for 'h100'. Allowed: a100, t4."),
        ({"external": "x"}, 400, "GPU kind: Nothing was given"),
        ({**EXTERNAL, "count": 0}, 400, "GPUs: You asked for 0. Allowed: 1 to"),
        ({**EXTERNAL, "count": "2"}, 400, "GPUs: You asked for '2'"),
        ({**EXTERNAL, "count": True}, 400, "GPUs: You asked for True"),
        ({"kind": "a100"}, 400, "Give exactly one of them."),
        ({**EXTERNAL, "user": "alice"}, 400, "Give exactly one of them."),
        ({"kind": "a100", "external": ""}, 400, "Give exactly one"),
        ({"kind": "a100", "external": "a\nb"}, 400, "printable letters"),
        ({"kind": "a100", "team": "vision"}, 400, "Team: You asked for 'vision'. Allowed: none"),
        ({"kind": "a100", "user": "nobody"}, 400, "User: You asked for 'nobody'. Allowed: users of the hub"),
        ({**EXTERNAL, "by": NOW - 1}, 400, "a time within the next 7 days"),
        ({**EXTERNAL, "by": 10**400}, 400, "a time within the next 7 days"),
        ({**EXTERNAL, "hold_until": "soon"}, 400, "hold_until: You asked for 'soon'"),
        ({**EXTERNAL, "hold_until": NOW + 9 * 86400}, 400, "a time within the next 7 days"),
        ({**EXTERNAL, "hold_until": NOW + 60}, 409, "Ask for a later hold_until."),
        ({**EXTERNAL, "dry_run": 1}, 400, "true or false"),
        ({**EXTERNAL, "key": "half a letter \ud800"}, 400, "printable letters"),
        ({**EXTERNAL, "node": "n1"}, 400, "a field that does not exist"),
        (
            {**EXTERNAL, "count": 4},
            409,
            "At most 2 can be freed now. Other workspaces started recently and are protected",
        ),
        ({"kind": "t4", "external": "x"}, 409, "At most 0 can be freed now. Ask for another kind, or try again later."),
    ],
)
def test_promise_10_what_cannot_be_is_refused_with_the_next_step(world, body, status, words):
    world.created["nobody"] = None
    assert words in ask(world, status=status, **body)["error"]["message"]
    assert world.lease("runs").notice is None


def test_a_claim_for_a_user_names_them_to_administrators_alone(world):
    made = ask(world, kind="a100", user="carol", count=1)
    assert made["for"] == {"user": "carol"}
    assert world.lease("runs").notice.why == "Another request needs 1 A100 80 GB."


def test_a_claim_says_if_only_this_queue_reserves_its_gpus(world):
    assert ask(world, **EXTERNAL)["note"] == ""
    world.parts.scheduler.capabilities = Capabilities(keeps_from_all=False)
    told = ask(world, **EXTERNAL, dry_run=True, status=200)
    assert "Only gpuspawner's own queue keeps these GPUs" in told["note"]


def test_outcomes_of_claims_are_counted(world):
    made = ask(world, **EXTERNAL)
    api(world, "admin", f"preemptions/{made['id']}", "DELETE")
    world.call(store_counters, world.parts)  # as it is done every ten seconds
    headers = {"Authorization": f"token {world.token('prometheus')}"}
    text = requests.get(f"{world.home}metrics", headers=headers, timeout=20).text
    assert 'gpuspawner_preemptions_total{outcome="given up",source="claim"} 1.0' in text
    assert 'gpuspawner_preemptions_total{outcome="claimed",source="make_room"} 0.0' in text


FOR_TRAINING = ("--external", "Training job train-77")


@pytest.fixture(autouse=True)
def _same_clock(monkeypatch):
    """Let commands have the time of the service."""
    monkeypatch.setattr("time.time", lambda: NOW)


preempt = command_fixture("preempt", "admin", "preempt")


def test_a_dry_run_lists_the_evicted_users_and_their_losses(world, preempt):
    code, out, _ = preempt("take", "a100", "2", *FOR_TRAINING, "--dry-run")
    first, head, victim = out.splitlines()
    assert code == 0
    assert first.startswith("2 A100 80 GB for Training job train-77: 2 A100 80 GB can be had by ending 1 workspace.")
    assert first.endswith("Nothing was done.")
    assert head.split() == ["USER", "SERVER", "GPUS", "ENDS", "WHAT", "IS", "LOST"]
    assert victim.startswith("alice  -       2     ")
    assert victim.endswith("Running kernels of 1 h; files stay.")
    assert world.lease("runs").notice is None


def test_a_claim_is_taken_listed_shown_and_given_up(world, preempt):
    code, out, _ = preempt("take", "a100", "2", *FOR_TRAINING, "--by", "20m", "--hold", "1h", "--key", "k", "--json")
    made = json.loads(out)
    assert (code, made["ends_at"], made["kept_until"], made["key"]) == (0, NOW + 1200, NOW + 3600, "k")
    again = json.loads(preempt("take", "a100", "2", *FOR_TRAINING, "--hold", "1h", "--key", "k", "--json")[1])
    assert again["id"] == made["id"]
    _, out, _ = preempt("list")
    assert out.splitlines()[1].startswith(f"{made['id'][:8]}  2 A100 80 GB  Training job train-77  admin ")
    assert json.loads(preempt("list", "--json")[1])["preemptions"][0]["id"] == made["id"]
    assert json.loads(preempt("show", made["id"][:8], "--json")[1])["id"] == made["id"]
    assert f"(claim {made['id'][:8]}): 1 workspace ends for it at " in preempt("show", made["id"][:8])[1]
    code, _, err = preempt("claimed", made["id"][:8])
    assert (code, "not free yet" in err) == (2, True)
    code, out, _ = preempt("cancel", made["id"][:8])
    assert (code, "Its administrator gave it up." in out) == (0, True)
    assert json.loads(preempt("cancel", made["id"][:8], "--json")[1])["state"] == "given up"
    assert world.lease("runs").notice is None


def test_the_gpus_need_not_be_on_one_node_where_it_says_so(world, preempt):
    made = json.loads(preempt("take", "a100", "2", *FOR_TRAINING, "--any-node", "--json")[1])
    assert world.call(world.parts.preemptions.get, made["id"]).one_node is False


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("take", "a100", "2", *FOR_TRAINING, "--by", "soon"), 1, "'soon' is not a time"),
        (("take", "h100", "2", *FOR_TRAINING), 2, "GPU kind: You asked for 'h100'"),
        (("take", "a100", "4", *FOR_TRAINING), 2, "At most 2 can be freed now"),
        (("show", "none"), 2, "No claim has an ID that begins with 'none'"),
        (("cancel", ""), 2, "No claim has an ID that begins with ''"),
    ],
)
def test_an_impossible_preemption_is_reported_with_its_exit_code(preempt, arguments, code, words):
    found, _, err = preempt(*arguments)
    assert (found, words in err) == (code, True), err


def test_it_is_for_administrators(preempt):
    code, _, err = preempt("list", name="alice")
    assert (code, "Only auditors, operators and administrators" in err) == (2, True)
    assert preempt("list")[1] == "There are no claims.\n"
