"""While somebody waits for such a GPU, its holder is asked once when they will be done. Nothing ends by the answer."""

from dataclasses import replace

import pytest
import requests
from page_world import NOW, Browser, running, waiting, world_fixture

from gpuspawner.cli.main import main
from gpuspawner.core.idle.arrival import Arrival
from gpuspawner.core.leases.lease import Key

world = world_fixture(running("runs", "alice", gpus=(0,)), running("bobs", "bob", gpus=(1,)))
"""Return a world in which alice and bob have a GPU each, and carl waits for four."""


def ask(world, path="workspaces/runs", method="GET", body=None, who="alice"):
    headers = {"Authorization": f"token {world.token(who)}"}
    return requests.request(method, f"{world.home}api/v1/{path}", headers=headers, json=body, timeout=20)


def question(world, lease="runs", who="alice"):
    return ask(world, f"workspaces/{lease}", who=who).json()["planned_end"]


def test_a_holder_is_asked_only_while_somebody_waits_for_such_a_gpu_and_only_once(world):
    assert question(world) is None
    world.save(waiting("waits", user="carl", count=4))
    asked = question(world)
    assert (asked["asked"], asked["words"]) == (
        True,
        "Somebody waits for a GPU like yours (A100 80 GB). When will you be done?",
    )
    end = world.lease("runs").deadline_at
    answer = ask(world, "workspaces/runs/done", "POST", {"minutes": 30})
    assert answer.json()["planned_end"]["at"] == NOW + 1800
    assert question(world)["asked"] is False
    assert question(world)["words"].startswith("You said that you will be done at about ")
    assert world.lease("runs").deadline_at == end
    assert question(world, "bobs", "bob")["asked"] is True
    assert ask(world, "workspaces/bobs/done", "POST", {"minutes": 0}, "bob").status_code == 200
    assert question(world, "bobs", "bob") is None, "not soon: not asked again"


def test_who_has_not_opened_a_new_workspace_is_not_asked(world):
    world.save(waiting("waits", user="carl", count=4))
    world.save(replace(world.lease("runs"), arrival=Arrival(1800.0)))
    assert question(world) is None


def test_only_its_user_answers_and_only_in_a_day(world):
    for minutes in (-1, 1441, "soon", None):
        answer = ask(world, "workspaces/runs/done", "POST", {"minutes": minutes})
        assert answer.status_code == 400, answer.text
        assert "minutes" in answer.json()["error"]["message"]
    assert ask(world, "workspaces/runs/done", "POST", {"minutes": 10}, "bob").status_code in {403, 404}
    world.save(replace(waiting("waits", user="alice"), key=Key("hub-1", "alice born", "w")))
    assert ask(world, "workspaces/waits/done", "POST", {"minutes": 10}).status_code == 409
    assert world.lease("runs").planned_end is None


def test_the_page_has_the_four_answers_and_the_list_leads_to_it(world):
    world.save(waiting("waits", user="carl", count=4))
    alice = Browser(world, "alice")
    page = alice.look("workspaces/runs")
    assert "When will you be done?" in page.text
    assert page.text.count('action="/services/gpu/workspaces/runs/done"') == 4
    assert "When will you be done?" in alice.home.text
    assert 'href="/services/gpu/workspaces/runs" aria-label="Answer for' in alice.home.text
    alice.submit("workspaces/runs/done", minutes="60")
    assert world.lease("runs").planned_end.at == NOW + 3600
    assert "When will you be done?" not in Browser(world, "admin").look("workspaces/bobs").text


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["done", "runs", "--in", "30"], "you will be done at about 08:30. It does not stop then."),
        (["done", "runs", "--in", "0"], "you will not be done soon. It does not stop then."),
        (["keep", "runs"], "Its idle check is paused until 10:00. You can keep it 2 more times."),
    ],
    ids=["in half an hour", "not soon", "keep"],
)
def test_the_command_line_says_what_it_noted(world, monkeypatch, capsys, command, told):
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("alice"))
    assert main([*command, "--url", world.home]) == 0
    assert told in capsys.readouterr().out
