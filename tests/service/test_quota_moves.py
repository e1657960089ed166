"""Limits of members and moves of hours between them: by leads and administrators, with a preview, and taken back."""

import html
import re

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


def test_a_forgotten_member_is_in_no_audit_entry_of_a_move(world):
    move(world)
    body = {"user": "alice", "why": "left"}
    pseudonym = api(world, "admin", "stored/forget", "POST", body, status=201).json()["pseudonym"]
    lines = api(world, "admin", "admin/audit?what=quota moved").json()["audit"]
    assert "alice" not in str(lines)
    assert all(f"for bob in vision, from {pseudonym} until" in one["why"] for one in lines)


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


# Limits of members

LIMIT = {"user": "alice", "team": "vision", "what": "1 GPU", "as_limit": True, "until": "3d", "why": "Too many idle"}


def set_limit(world, name="lena", status=201, **body):
    return api(world, name, "quota-grants", "POST", {**LIMIT, **body}, status=status).json()


def most_gpus(world, name="alice"):
    limits = api(world, name, "quota").json()["limits"]
    return next(one["hard"] for one in limits if one["limit"] == "gpus")


def test_a_lead_sets_the_limit_of_a_member_lower_or_higher_for_some_days(world):
    looked = set_limit(world, dry_run=True, status=200)
    assert [one["words"] for one in looked["effects"]] == [
        "Alice in vision: up to 1 GPU at once instead of 2 GPUs.",
    ]
    assert most_gpus(world) == 2, "a preview changes nothing"
    made = set_limit(world)
    assert made["words"] == "1 GPU less for alice in vision until Mon 18 Jan 08:00"
    assert most_gpus(world) == 1
    assert titles(world, "alice") == ["A limit was lowered for some time"]
    (line,) = api(world, "admin", "admin/audit?what=quota limit set").json()["audit"]
    assert (line["actor"], line["user"]) == ("lena", "alice")
    assert "1 GPU for alice in vision until Mon 18 Jan 08:00: Too many idle" in line["why"]
    set_limit(world, what="4 GPUs")
    assert most_gpus(world) == 4, "both add up to the new limit"
    assert api(world, "lena", f"quota-grants/{made['id']}", "DELETE", {"why": "x"}).status_code == 200
    world.clock.at += 3 * 86400
    assert most_gpus(world) == 2


def test_a_budget_of_a_member_is_set(world):
    set_limit(world, what="10 GPU h")
    assert left(world, "alice")["members"] == 10


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param({"what": "2 GPUs"}, "is the same now", id="the same"),
        pytest.param({"what": "3 workspaces"}, "Name what the catalog limits.", id="not limited"),
        pytest.param({"user": "lena"}, "Ask another lead of the team", id="one's own"),
        pytest.param({"team": "speech"}, "Name a team of the catalog.", id="another team"),
    ],
)
def test_a_limit_that_cannot_be_set_is_refused(world, body, told):
    assert told in set_limit(world, status=400, **body)["error"]["message"]
    assert most_gpus(world) == 2


def test_a_limit_is_set_in_the_console_and_by_command(world, run):
    browser = Browser(world, "lena")
    typed = {"user": "alice", "team": "vision", "number": "1", "unit": "GPUs", "until": "3d", "why": "So"}
    page = html.unescape(browser.submit("console/act/grant", **typed, as_limit="1").text)
    assert "Alice in vision: up to 1 GPU at once instead of 2 GPUs." in page
    assert re.search(r'name="as_limit" value="1" checked', page)
    browser.submit("console/act/grant", **typed, as_limit="1", step="do", back="console/quotas")
    assert most_gpus(world) == 1
    told = run("admin", "grant", "bob", "1 GPU", "--as-limit", "--team", "vision", "--until", "3d", "--reason", "So")[1]
    assert "1 GPU less for bob in vision until" in told
    assert most_gpus(world, "bob") == 1
