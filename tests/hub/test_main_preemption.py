"""A stronger claim on a real hub: its victims are warned, ended at the time said, and come back by themselves."""

import time

import pytest
from harness.hub import eventually
from harness.hub_configuration import CATALOG
from kills import STEPS, arm, kills, some_steps

QUICK = {"slow_spawn_timeout": 0.3, "wait": 3.0}
NOTICE = 5
EXTERNAL = {"kind": "a100", "external": "Training job train-77"}
SHORT = f"""    preemption: {{protected: 1s, grace: {NOTICE}s}}
quotas:"""


@pytest.fixture
def hub(shared_hub):
    """Its service dies at a step that is armed."""
    hub = shared_hub(claimed_from, gpus=2, service_poll=0.3, **QUICK)
    yield hub
    for made in hub.gpu("/preemptions")["preemptions"]:
        if made["state"] in {"coming", "held"}:
            hub.gpu(f"/preemptions/{made['id']}", "DELETE")


def claimed_from(hub):
    hub.catalog.write_text((CATALOG % vars(hub)).replace("quotas:", SHORT))
    hub.planted = kills(hub.folder, "gpuspawner.backends.local.backend", "LocalBackend")


def run(hub, *users):
    hub.add_user(*users)
    found = []
    for user in users:  # one after the other: who began last is the first victim
        hub.begin(user)
        found.append(hub.until(user, "running"))
    eventually(
        lambda: len(claim(hub, count=2, dry_run=True)["victims"]) == len(users), what="they are protected no more"
    )
    return found


def claim(hub, **body):
    return hub.gpu("/preemptions", "POST", {**EXTERNAL, **body})


def state(hub, made):
    return hub.gpu(f"/preemptions/{made['id']}")["state"]


def test_victims_are_warned_ended_at_the_time_said_and_come_back_when_the_claimant_lets_them(hub):
    alice, bob = run(hub, "alice", "bob")
    would = claim(hub, count=2, dry_run=True)
    assert [victim["user"] for victim in would["victims"]] == ["bob", "alice"]
    assert hub.lease("alice")["warning"] is None
    made = claim(hub, count=2, key="once")
    assert claim(hub, count=2, key="once")["id"] == made["id"]
    token = hub.api("POST", "/users/alice/tokens", {}).json()["token"]
    (mine,) = hub.gpu("/workspaces", token=token)["workspaces"]
    assert (mine["warning"]["kind"], mine["warning"]["ends_at"]) == ("claim", made["ends_at"])
    assert mine["warning"]["text"].startswith("Training job train-77 needs 2 A100. Your workspace ends at ")
    assert made["ends_at"] - made["made_at"] == pytest.approx(NOTICE, abs=0.5)
    for lease in (alice, bob):
        ended = hub.until_ended(lease["user"], "made room")
        assert ended["id"] == lease["id"]
        assert ended["end"]["at"] >= made["ends_at"]
        assert ended["end"]["by"] == "tests"
        back = hub.lease(lease["user"])
        assert (back["phase"], back["asked_at"]) == ("parked", lease["asked_at"])
    eventually(lambda: state(hub, made) == "held", what="its GPUs are kept")
    hub.add_user("carol")
    hub.begin("carol")
    time.sleep(3)
    assert hub.lease("carol")["phase"] in {"queued", "parked"}, "nobody gets what is kept for another"
    hub.end(hub.lease("carol")["id"])  # who has used less would go before them
    hub.gpu(f"/preemptions/{made['id']}/claimed", "POST")
    for lease in (alice, bob):
        again = hub.until(lease["user"], "running")
        assert again["id"] != lease["id"]


def test_a_withdrawn_preemption_evicts_no_workspace(hub):
    (dora,) = run(hub, "dora")
    made = claim(hub, count=2)
    assert hub.lease("dora")["warning"]["kind"] == "claim"
    assert hub.gpu(f"/preemptions/{made['id']}", "DELETE")["state"] == "given up"
    time.sleep(NOTICE + 2)
    assert hub.lease("dora")["id"] == dora["id"]
    assert hub.lease("dora")["warning"] is None
    assert [line["action"] for line in hub.audit(dora["id"])][-2:] == ["warned of claim", "claim gone"]


@pytest.mark.parametrize("step", ["once warned", *some_steps("stop sent")])
def test_killed_between_the_warning_and_the_end_it_ends_once_and_at_its_time(hub, step):
    user = f"user-{[*STEPS, step].index(step)}"
    (lease,) = run(hub, user)
    armed = None if step == "once warned" else arm(hub.folder, step)
    made = claim(hub, count=2, key=user)
    killed = hub.service_pids()
    if armed is None:
        hub.kill_service()
    else:
        eventually(lambda: not armed.exists(), what="it died")
    eventually(lambda: set(hub.service_pids()) - set(killed) and hub.gpu("/"), what="the next service answers")
    again = claim(hub, count=2, key=user)
    assert (again["id"], again["ends_at"]) == (made["id"], made["ends_at"])
    ended = hub.until_ended(user, "made room")
    assert (ended["id"], ended["end"]["at"] >= made["ends_at"]) == (lease["id"], True)
    lines = [line["action"] for line in hub.audit(lease["id"])]
    assert (lines.count("warned of claim"), lines.count("stop")) == (1, 1)
    assert hub.lease(user)["asked_at"] == lease["asked_at"]
    eventually(lambda: state(hub, made) == "held", what="its GPUs are kept")
