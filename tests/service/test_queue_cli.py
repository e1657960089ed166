"""``gpuspawner queue`` and what the API says of who waits: administrators see all, others their own and counts."""

import json
import re
from dataclasses import replace

import pytest
from page_world import CATALOG, NOW, Browser, api, command_fixture, running, waiting

from gpuspawner.catalog import load_catalog
from gpuspawner.core.leases.lease import Key
from gpuspawner.core.queue.calibration import Form, ShownStart
from gpuspawner.core.queue.decisions import BlockingRule
from gpuspawner.service.waiting.presenter import present_wait_reason
from gpuspawner.service.workspaces.idleness import explained
from gpuspawner.service.workspaces.presenter import present_workspace

QUOTAS = {"vision": {"group": "vision", "gpus": {"hard": 2}}}


@pytest.fixture
def world(make_web_world):
    made = make_web_world(load_catalog({**CATALOG, "teams": {"vision": {"title": "Vision"}}, "quotas": QUOTAS}))
    made.observe()
    of_vision = replace(running("runs", gpus=(0, 1)).request, team="vision")
    made.save(replace(running("runs", gpus=(0, 1)), request=of_vision))
    made.save(running("bobs", "bob", gpus=(2, 3)))
    mine = replace(waiting("mine", "alice"), key=Key("hub-1", "alice born", "train"))
    made.save(replace(mine, request=replace(of_vision, count=1)))
    made.save(waiting("carols", "carol", count=2, asked_at=NOW - 200))
    return made


queue = command_fixture("queue", "queue", user="alice")


def test_a_user_sees_their_own_request_and_the_number_of_others(queue):
    code, out, _ = queue()
    head, mine, why, others = out.splitlines()
    assert code == 0
    assert head.split() == ["ID", "USER", "SERVER", "TEAM", "FOR", "PLACE", "SINCE", "STARTS", "IN"]
    assert mine.startswith("mine  alice  train   vision  1 simulated A100 80 GB  ")
    assert why.startswith("mine: You asked for 1 GPU. Team vision has 2 of 2 in use. Wait until a colleague stops")
    assert "Held back by the rule quota vision." in why
    assert others == "1 other request waits for 2 simulated A100 80 GB."
    assert "carol" not in out


def test_administrators_see_the_whole_queue_and_json_is_the_api_s(world, queue):
    _, out, _ = queue(name="admin")
    assert "carols  carol  " in out
    assert "other request" not in out
    told = json.loads(queue("--json", name="admin")[1])
    assert told == api(world, "admin", "queue").json()
    assert {one["user"]: one["team"] for one in told["queue"]} == {"alice": "vision", "carol": None}


def test_a_row_and_its_sentence_have_the_same_estimate(world, queue, monkeypatch):
    _, sentence = (line for line in queue(name="admin")[1].splitlines() if line.startswith("carols"))
    assert "Too few past workspaces are known to estimate the start" in sentence
    shown = ShownStart(Form.TIME, 1500.0, 900.0, 2100.0)
    monkeypatch.setattr(world.parts.allocator.estimator, "shown", lambda _: shown)
    row, sentence = (line for line in queue(name="admin")[1].splitlines() if line.startswith("carols"))
    (wait,) = re.findall(r"about .*$", row)
    assert wait.strip() == "about 25 min"
    assert wait.strip() in sentence


def test_the_api_hides_users_and_reasons_of_other_requests(world):
    (other,) = [one for one in api(world, "alice", "queue").json()["queue"] if not one["mine"]]
    hidden = ("id", "user", "server", "team", "sentence", "wait_reason", "changed", "precedence")
    assert [other[name] for name in hidden] == [None] * len(hidden)
    assert other["asked"] == "2 simulated A100 80 GB"


def test_a_user_without_a_waiting_request_is_told_so(world, queue):
    assert queue(name="bob")[1].splitlines()[0] == "You are not waiting for a GPU."
    api(world, "admin", "admin/workspaces/stop", "POST", {"ids": ["mine", "carols"], "reason": "over"})
    assert queue()[1] == "The queue is empty.\n"


def test_explain_page_and_api_name_the_rule_that_holds_a_request_back(world, queue):
    held = api(world, "alice", "workspaces/mine").json()
    assert held["queue"]["wait_reason"]["rule"] == "quota vision"
    assert held["queue"]["wait_reason"]["entry"] == "vision"
    assert held["explained"][-1].startswith("Held back by the rule quota vision")
    page = Browser(world, "alice").look("workspaces/mine").text
    assert 'Held back by the rule <a href="/services/gpu/quota#rule-vision">quota vision</a>' in page
    assert api(world, "admin", "workspaces/carols").json()["queue"]["wait_reason"] is None


def test_no_page_calls_a_start_the_latest_that_others_may_still_delay(world):
    """Extensions and requests that go first make a start later than without changes."""
    for name, pages in {"alice": ["", "workspaces/mine"], "admin": ["console/queue", "console/queue.csv"]}.items():
        browser = Browser(world, name)
        shown = [browser.look(page).text for page in pages]
        words = [re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL) for text in shown]
        assert [text for text in words if re.search("latest", text, re.IGNORECASE)] == []
        assert all("15:00" in text or "T15:00" in text for text in words)


def test_a_rule_of_another_scheduler_names_its_owner(world):
    lease = next(lease for lease in world.parts.registry if lease.id == "mine")
    held = present_wait_reason(lease, BlockingRule("quota", "Vision has all its GPUs."), "Slurm")
    shown = present_workspace(world.parts, lease)
    shown = shown.model_copy(update={"queue": shown.queue.model_copy(update={"wait_reason": held})})
    assert explained(lease, shown, None)[-2:] == ["Vision has all its GPUs.", "Held back by Slurm, by its rule quota."]
    ours = present_wait_reason(lease, BlockingRule("quota vision", "Vision has all its GPUs."), "Slurm")
    assert (ours.entry, ours.owner) == ("vision", None), "a quota of the catalog's is ours there too"
