"""``gpuspawner admin preempt`` over a real service: what it prints is what the API says."""

import json

import pytest
from page_world import NOW, command_fixture, running

EXTERNAL = ("--external", "Training job train-77")


@pytest.fixture
def world(make_web_world, monkeypatch):
    made = make_web_world()
    made.observe()
    made.save(running("runs", "alice", gpus=(0, 1)))
    made.save(running("young", "bob", gpus=(2, 3), minutes=1))
    monkeypatch.setattr("time.time", lambda: NOW)
    return made


preempt = command_fixture("preempt", "admin", "preempt")


def test_a_dry_run_lists_the_evicted_users_and_their_losses(world, preempt):
    code, out, _ = preempt("take", "a100", "2", *EXTERNAL, "--dry-run")
    first, head, victim = out.splitlines()
    assert code == 0
    assert first.startswith("2 A100 80 GB for Training job train-77: 2 A100 80 GB can be had by ending 1 workspace.")
    assert first.endswith("Nothing was done.")
    assert head.split() == ["USER", "SERVER", "GPUS", "ENDS", "WHAT", "IS", "LOST"]
    assert victim.startswith("alice  -       2     ")
    assert victim.endswith("Running kernels of 1 h; files stay.")
    assert world.lease("runs").notice is None


def test_a_claim_is_taken_listed_shown_and_given_up(world, preempt):
    code, out, _ = preempt("take", "a100", "2", *EXTERNAL, "--by", "20m", "--hold", "1h", "--key", "k", "--json")
    made = json.loads(out)
    assert (code, made["ends_at"], made["kept_until"], made["key"]) == (0, NOW + 1200, NOW + 3600, "k")
    again = json.loads(preempt("take", "a100", "2", *EXTERNAL, "--hold", "1h", "--key", "k", "--json")[1])
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
    made = json.loads(preempt("take", "a100", "2", *EXTERNAL, "--any-node", "--json")[1])
    assert world.call(world.parts.preemptions.get, made["id"]).one_node is False


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("take", "a100", "2", *EXTERNAL, "--by", "soon"), 1, "'soon' is not a time"),
        (("take", "h100", "2", *EXTERNAL), 2, "GPU kind: You asked for 'h100'"),
        (("take", "a100", "4", *EXTERNAL), 2, "at most 2 can be freed now"),
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
