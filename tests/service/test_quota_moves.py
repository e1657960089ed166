"""Moves of hours between members of a team: by leads and administrators, with a preview, and taken back whole."""

import html

import pytest
from page_world import CATALOG, NOW, PEOPLE, STAFF, Browser, api, command_fixture
from test_keys import send

from gpuspawner.catalog import load_catalog

QUOTAS = {
    "members": {"each": "user", "group": "vision", "gpus": {"hard": 2}, "gpu_hours": {"per": "week", "hard": 40}},
    "vision": {"group": "vision", "gpu_hours": {"per": "month", "hard": 60}},
}
MOVE = {"source": "alice", "user": "bob", "team": "vision", "what": "15 GPU h", "why": "She is on holiday"}
MONDAY = NOW + (3 * 24 - 8) * 3600
"""The reset of the budget of the week: NOW is Friday, 08:00."""
run = command_fixture("run")


@pytest.fixture
def world(make_web_world, monkeypatch):
    monkeypatch.setattr("page_world.PEOPLE", {**PEOPLE, **STAFF})
    made = make_web_world(load_catalog({**CATALOG, "teams": {"vision": {"title": "Vision"}}, "quotas": QUOTAS}))
    made.groups.update(alice={"vision"}, bob={"vision"}, lena={"vision"})
    made.observe()
    return made


def move(world, name="lena", status=201, **body):
    return api(world, name, "quota-moves", "POST", {**MOVE, **body}, status=status).json()


def left(world, name):
    budgets = api(world, name, "quota").json()["budgets"]
    return {one["entry"]: one["left"] for one in budgets}


def titles(world, name):
    return [one["title"] for one in api(world, name, "inbox").json()["notices"]]


def test_a_lead_moves_hours_from_one_member_to_another_until_the_budget_resets(world):
    looked = move(world, dry_run=True, status=200)
    assert [one["words"] for one in looked["effects"]] == [
        "Bob in vision: 55 GPU hours left this week instead of 40 GPU hours.",
        "Alice in vision: 25 GPU hours left this week instead of 40 GPU hours.",
    ]
    assert left(world, "bob")["members"] == 40, "a preview changes nothing"
    made = move(world)
    assert made["words"] == "15 GPU h for bob in vision, from alice, until Sun 17 Jan 24:00"
    assert [left(world, name) for name in ("alice", "bob")] == [
        {"members": 25, "vision": 60},
        {"members": 55, "vision": 60},
    ]
    assert (made["less"]["amount"], made["more"]["amount"], made["more"]["until"]) == (-15, 15, MONDAY)
    assert titles(world, "bob") == ["You were granted more"]
    assert titles(world, "alice") == ["A part of your quota was moved to someone else"]
    assert "15 GPU h less for alice in vision until" in html.unescape(Browser(world, "alice").look("quota").text)
    lines = api(world, "admin", "admin/audit?what=quota moved").json()["audit"]
    assert sorted((one["actor"], one["user"]) for one in lines) == [("lena", "alice"), ("lena", "bob")]
    assert all("15 GPU h more for bob in vision, from alice until" in one["why"] for one in lines)
    world.clock.at = MONDAY
    assert [left(world, name)["members"] for name in ("alice", "bob")] == [40, 40]


def test_either_side_takes_the_whole_move_back(world):
    for side in ("less", "more"):
        made = move(world)
        path = f"quota-grants/{made[side]['id']}"
        assert api(world, "lena", path, "DELETE", {"why": "She is back"}).status_code == 200
        assert [left(world, name)["members"] for name in ("alice", "bob")] == [40, 40]
        assert "What was moved away from you is yours again" in titles(world, "alice")
        assert "A grant was taken back" in titles(world, "bob")
        assert "already" in api(world, "lena", path, "DELETE", {"why": "x"}).json()["error"]["message"]


def test_a_repeated_request_moves_once(world):
    made = [send(world, "lena", "POST", "quota-moves", MOVE, key="once").json() for _ in range(2)]
    assert made[0]["more"]["id"] == made[1]["more"]["id"]
    assert left(world, "bob")["members"] == 55


def test_moves_survive_a_restart(world):
    move(world)
    world.call(world.parts.accounting.load)
    assert [left(world, name)["members"] for name in ("alice", "bob")] == [25, 55]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param({"what": "41 GPU h"}, "alice in vision has no more left this week.", id="more than is left"),
        pytest.param({"what": "2 GPUs"}, "Write hours or money.", id="no budget"),
        pytest.param({"what": "5 cost"}, "Give extra quota instead.", id="no budget of this unit"),
        pytest.param({"source": "bob"}, "Name another member.", id="the same member"),
        pytest.param({"user": "admin"}, "Name a member of the team.", id="no member"),
        pytest.param({"source": "admin"}, "Name a member of the team.", id="a source that is no member"),
        pytest.param({"user": "lena"}, "Ask another lead of the team", id="for oneself"),
        pytest.param({"team": None}, "Name the team.", id="no team"),
        pytest.param({"why": ""}, "Say why.", id="no reason"),
        pytest.param({"until": "yesterday"}, "is not a time", id="an end in the past"),
    ],
)
def test_a_move_that_is_not_possible_is_refused_with_the_next_step(world, body, told):
    for dry in (True, False):
        assert told in move(world, status=400, dry_run=dry, **body)["error"]["message"]
    assert [left(world, name)["members"] for name in ("alice", "bob")] == [40, 40]


@pytest.mark.parametrize(("name", "status"), [("alice", 403), ("otto", 403), ("vera", 403), ("admin", 201)])
def test_promise_9_only_leads_of_the_team_and_administrators_move_hours(world, name, status):
    move(world, name, status)
    lead_of_others = {**QUOTAS, "members": {**QUOTAS["members"], "group": "speech"}}
    world.parts.in_force.catalog = load_catalog({**CATALOG, "teams": {"speech": {}}, "quotas": lead_of_others})
    assert move(world, "lena", 400, team="speech")["error"]["field"] == "team"


def test_hours_are_moved_in_the_console_after_a_preview(world):
    browser = Browser(world, "lena")
    assert "console/act/move-hours" in browser.look("console/quotas").text
    typed = {"source": "alice", "user": "bob", "team": "vision", "number": "15", "unit": "GPU h", "why": "Holiday"}
    page = html.unescape(browser.submit("console/act/move-hours", **typed).text)
    assert "15 GPU h for bob in vision, from alice, until Sun 17 Jan 24:00" in page
    assert "Alice in vision: 25 GPU hours left this week instead of 40 GPU hours." in page
    assert left(world, "bob")["members"] == 40
    wrong = browser.submit("console/act/move-hours", 400, **{**typed, "source": "nobody"}).text
    assert 'id="act-user-wrong"' in wrong or 'id="act-source-wrong"' in wrong
    page = html.unescape(browser.submit("console/act/move-hours", **typed, step="do", back="console/quotas").text)
    assert left(world, "bob")["members"] == 55
    assert "-15 GPU h" in page


def test_hours_are_moved_by_command(world, run):
    typed = ("admin", "grant", "bob", "15 GPU h", "--from", "alice", "--team", "vision", "--reason", "Holiday")
    told = run(*typed, "--dry-run")[1]
    assert "Nothing was changed." in told
    assert "- Alice in vision: 25 GPU hours left this week instead of 40 GPU hours." in told
    assert "15 GPU h for bob in vision, from alice, until Sun 17 Jan 24:00 (grant " in run(*typed)[1]
    assert left(world, "bob")["members"] == 55
