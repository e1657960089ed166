"""The audit: one list of actions for API, page, CSV and JSON, with filters and a cursor for pages."""

import csv
import html
import io
import re

import pytest
import requests
from page_world import GPUS, NOW, Browser, api, reclaimed, running, world_fixture

from gpuspawner.core import events
from gpuspawner.service.store import AuditLine

DAY = 86400.0
NODE = GPUS[0].node


world = world_fixture(running("runs", "alice", gpus=(0,)), running("other", "bob", gpus=(1,)))


def act(world, path, reason="The driver is changed", **body):
    response = api(world, "admin", f"admin/{path}", "POST", {"reason": reason, **body})
    assert response.status_code in {200, 201, 409}, response.text
    return response


def found(world, query="", status=200):
    return api(world, "admin", f"admin/audit?{query}", status=status).json()


def test_the_audit_has_actor_address_target_reason_and_outcome_of_each_action(world):
    act(world, "restrictions", what="drain", node=NODE)
    act(world, "restrictions", what="drain", node=NODE)  # refused: it is so already
    act(world, "workspaces/extend", ids=["runs"], until="3d")
    api(world, "bob", "workspaces/other/keep", "POST")
    api(world, "admin", "quota-grants", "POST", {"user": "alice", "what": "2 GPUs", "until": "3d", "why": "a paper"})
    lines = found(world, "by=people")["audit"]
    told = [(x["actor"], x["where"], x["action"], x["user"], x["target"], x["outcome"]) for x in reversed(lines)]
    assert told == [
        ("admin", "the API, as administrator", "drained", "", NODE, "done"),
        ("admin", "the API, as administrator", "gpu closed", "alice", "runs", "done"),
        ("admin", "the API, as administrator", "gpu closed", "bob", "other", "done"),
        ("admin", "the API, as administrator", "refused", "", "", "refused"),
        ("admin", "the API, as administrator", "extended", "alice", "runs", "done"),
        ("bob", "the API", "kept", "bob", "other", "done"),
        ("admin", "the API, as administrator", "quota granted", "alice", "", "done"),
    ]
    assert all("The driver is changed" in x["why"] for x in lines if x["action"] in {"drained", "extended"})
    rows = re.findall(r'data-label="What">(.*?)</td>', Browser(world, "admin").look("console/audit").text)
    (refused,) = [row for row in rows if "Refused" in row]
    assert (refused.count("Refused"), refused.endswith(" drain")) == (1, True)


def told(world, query="by=people"):
    """Return actor, address, action, user and target of each entry, the oldest first."""
    return [
        (x["actor"], x["where"], x["action"], x["user"], x["target"]) for x in reversed(found(world, query)["audit"])
    ]


@pytest.mark.postgresql
def test_the_audit_has_refused_grants_corrections_and_lifts(world):
    browser, grant = Browser(world, "admin"), {"user": "alice", "what": "2 GPUs", "until": "3d", "why": "a paper"}
    made = api(world, "admin", "quota-grants", "POST", grant).json()
    api(world, "admin", "quota-grants", "POST", {**grant, "team": "ghost"})
    browser.submit(
        "console/act/grant", user="alice", number="0", unit="GPUs", until="3d", why="a paper", step="do", status=400
    )
    for _ in range(2):  # it is taken back once
        api(world, "admin", f"quota-grants/{made['id']}", "DELETE", {"why": "a mistake"})
    api(world, "admin", "usage/corrections", "POST", {"user": "alice", "amount": "much", "why": "a fault"})
    act(world, "restrictions", what="drain", node=NODE)
    drain = api(world, "admin", "admin/restrictions").json()["restrictions"][0]["id"]
    api(world, "admin", f"admin/restrictions/{drain}", "DELETE", {})
    browser.submit("console/act/lift", restriction=drain, reason="", status=400)
    lines = found(world, "what=refused")["audit"]
    assert [(x["actor"], x["where"], x["outcome"]) for x in lines[::-1]] == [
        ("admin", f"{where}, as administrator", "refused")
        for where in ("the API", "the console", *("the API",) * 3, "the console")
    ]
    begins = [
        "grant: Team: You asked for 'ghost'",
        "grant: Amount: You asked for '0 GPUs'",
        "take a grant back: admin has taken it back already",
        "correct usage: Amount: You asked for 'much'",
    ]
    for line, words in zip(lines[::-1], [*begins, "lift: ", "lift: "], strict=True):
        assert line["why"].startswith(words), line["why"]


def test_the_name_of_a_refused_act_is_text_that_every_reader_takes(world):
    assert api(world, "admin", "admin/restrictions", "POST", {"what": "\ud800"}).status_code == 400
    (entry,) = found(world, "what=refused")["audit"]
    assert (entry["fields"]["act"], entry["actor"]) == ("?", "admin")


@pytest.mark.postgresql
def test_the_audit_has_each_step_of_a_claim(world):
    asked = {"kind": "a100", "external": "train-77", "key": "once"}
    made = api(world, "admin", "preemptions", "POST", asked).json()
    api(world, "admin", "preemptions", "POST", asked)  # a repeated message
    Browser(world, "admin").submit(f"console/claims/{made['id']}/give-up")
    api(world, "admin", f"preemptions/{made['id']}", "DELETE")  # it is so already
    assert api(world, "admin", "preemptions", "POST", {**asked, "key": "", "count": 99}).status_code == 409
    free = api(world, "admin", "preemptions", "POST", {"kind": "a100", "user": "bob"}).json()
    assert api(world, "admin", f"preemptions/{free['id']}/claimed", "POST").status_code == 200
    assert [x for x in told(world) if "claim" in x[2] or x[2] == "refused"] == [
        ("admin", "the API, as administrator", "claim made", "", "a100"),
        ("admin", "the console, as administrator", "claim given up", "", "a100"),
        ("admin", "the API, as administrator", "refused", "", ""),
        ("admin", "the API, as administrator", "claim made", "bob", "a100"),
        ("admin", "the API, as administrator", "claim served", "bob", "a100"),
    ]
    assert found(world, "what=claim+given+up")["audit"][0]["why"] == "1 A100 80 GB for train-77"


@pytest.mark.postgresql
def test_actions_of_people_have_their_source_address(world):
    api(world, "alice", "workspaces", "POST", {"template": "pytorch", "server": "second"})
    login = requests.post(f"{world.home}api/v1/login?device=laptop", timeout=20).json()
    browser = Browser(world, "alice")
    browser.submit("login-code", code=login["code"], answer="allow")
    got = requests.post(
        f"{world.home}api/v1/login/token", headers={"Authorization": f"login {login['secret']}"}, timeout=20
    ).json()
    browser.submit("tokens", token=got["about"]["id"])
    world.save(reclaimed("gone", "bob"))
    api(world, "bob", "workspaces/gone/dispute", "POST", {"sentence": "It worked"})
    Browser(world, "admin").submit("workspaces/gone/answer", sentence="We look")
    browser = Browser(world, "admin")
    browser.submit("console/act/announce", whom="all", name="", text="Friday", until="2h", step="do")
    browser.submit(f"console/announcements/{world.parts.announcements.all()[0].id}/withdraw")
    (asked,) = told(world, "by=people&what=asked")
    token = got["about"]["id"]
    assert asked[:4] == ("alice", "the API", "asked", "alice")
    assert [x for x in told(world) if x[2] != "asked"] == [
        ("alice", "the page Command line", "signed in", "alice", token),
        ("alice", "the page Command line", "signed out", "alice", token),
        ("bob", "the API", "disputed", "bob", "gone"),
        ("admin", "its page, as administrator", "answered", "bob", "gone"),
        ("admin", "the console, as administrator", "message sent", "", ""),
        ("admin", "the console, as administrator", "message withdrawn", "", ""),
    ]


@pytest.mark.parametrize("program", ["gpuspawner/1.0", "curl/8"])
def test_the_audit_tells_the_command_line_from_other_programs(world, program, monkeypatch):
    monkeypatch.setattr("requests.utils.default_user_agent", lambda *_: program)
    act(world, "restrictions", what="pause")
    where = "the command line" if program.startswith("gpuspawner/") else "the API"
    assert found(world, "what=grants+paused")["audit"][0]["where"] == f"{where}, as administrator"


def many(world, count=7):
    lines = [
        AuditLine(NOW - DAY * (count - n), f"w{n}", "carol", "admin" if n % 2 else "gpuspawner", events.Started())
        for n in range(count)
    ]
    world.call(world.parts.registry.save, audit=lines)


@pytest.mark.postgresql
def test_cursor_pages_have_each_entry_once_despite_new_ones(world):
    many(world)
    seen, before = [], ""
    for _ in range(9):
        page = found(world, f"user=carol&limit=3{before}")
        seen += [x["target"] for x in page["audit"]]
        world.call(world.parts.registry.save, audit=[AuditLine(NOW, "new", "carol", "admin", events.Started())])
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert seen == [f"w{n}" for n in reversed(range(7))]


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("query", "targets"),
    [
        ("who=admin", ["w5", "w3", "w1"]),
        ("by=parts", ["w6", "w4", "w2", "w0"]),
        ("target=w3", ["w3"]),
        ("what=running&limit=2", ["w6", "w5"]),
        ("since=2027-01-13&until=2027-01-13", ["w5"]),
        ("user=nobody", []),
    ],
)
def test_filters(world, query, targets):
    many(world)
    assert [x["target"] for x in found(world, query)["audit"]] == targets


def test_the_filter_has_the_words_of_the_rows_and_each_once(world):
    page = Browser(world, "admin").look("console/audit").text
    (menu,) = re.findall(r'<select[^>]*name="what".*?</select>', page, re.DOTALL)
    options = [html.unescape(words) for words in re.findall(r"<option[^>]*>([^<]*)</option>", menu)][1:]
    assert len(set(options)) == len(options) == len(events.EVENTS) - 1
    assert options == sorted(options)
    rows = {kind.words for kind in events.EVENTS.values()}
    assert [words for words in options if not words.startswith(tuple(rows))] == []
    assert [words for words in options if words.endswith(tuple(f"({name})" for name in events.EVENTS))] == []


@pytest.mark.postgresql
def test_a_stop_whose_actor_is_known_later_is_one_entry_with_that_actor(world):
    unnamed = events.Stopped("stopped", "It was stopped from the hub. It is not known who stopped it.")
    named = events.StopperNamed("It was stopped by bob, from the hub.")
    stop = AuditLine(NOW - 10, "runs", "alice", "hub", unnamed)
    world.call(world.parts.registry.save, audit=[stop])
    assert [(x["actor"], x["what"]) for x in found(world, "what=stop")["audit"]] == [("hub", "Stopped")]
    world.call(world.parts.registry.save, audit=[AuditLine(NOW - 5, "runs", "alice", "bob", named)])
    for query in ("what=stop", "target=runs"):
        (entry,) = found(world, query)["audit"]
        assert (entry["actor"], entry["what"], entry["why"]) == (
            "bob",
            "Stopped",
            "It was stopped by bob, from the hub.",
        )
    again = AuditLine(NOW, "runs", "alice", "carol", events.Stopped("stopped", "It was stopped by carol."))
    world.call(world.parts.registry.save, audit=[again])
    assert [x["actor"] for x in found(world, "what=stop")["audit"]] == ["carol", "bob"], "a later stop is another one"


def test_a_user_named_like_a_component_is_listed_as_a_person(world):
    done = AuditLine(NOW, "runs", "hub", "hub", events.Extended(3600.0), "the API")
    by_itself = AuditLine(NOW, "other", "bob", "hub", events.Started())
    world.call(world.parts.registry.save, audit=[done, by_itself])
    assert [x["target"] for x in found(world, "by=people")["audit"]] == ["runs"]
    assert [x["target"] for x in found(world, "by=parts")["audit"]] == ["other"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=0", "greater than or equal to 1"),
        ("before=x", "answered as next"),
        ("what=nothing", "Choose one of them"),
        ("since=2027-01-13&until=2027-01-12", "Enter the earlier day as since"),
        ("since=someday", "2026-12-24"),
        ("until=9999-12-31", "2026-12-24"),
        ("color=red", "does not exist"),
    ],
)
def test_an_unknown_filter_is_refused_with_the_known_ones(world, query, words):
    assert words in found(world, query, 400)["error"]["message"]


def test_only_administrators_read_it(world):
    assert api(world, "alice", "admin/audit").status_code == 403
    Browser(world, "alice").look("console/audit", 403)


def test_page_csv_and_json_say_the_same_and_no_cell_is_calculated(world):
    act(world, "restrictions", reason="=1+1", what="pause")
    act(world, "workspaces/extend", ids=["runs"], until="3d", reason="x")
    line = AuditLine(NOW, "", "=cmd()", "admin", events.Came("=x"))
    world.call(world.parts.registry.save, audit=[line])
    browser = Browser(world, "admin")
    page = browser.look("console/audit?by=people")
    rows = browser.look("console/audit.json?by=people").json()["audit"]
    response = browser.look("console/audit.csv?by=people")
    assert response.headers["Content-Type"].startswith("text/csv")
    table = list(csv.DictReader(io.StringIO(response.content.decode())))
    assert [x["why"].lstrip("'") for x in table] == [x["why"] for x in rows]
    assert not [cell for row in table for cell in row.values() if cell.startswith(("=", "+", "-", "@"))]
    assert all(row["why"].split(":")[0] in page.text for row in rows)
    assert "X-Next" not in response.headers


def test_the_page_names_workspaces_and_not_their_ids(world):
    world.save(running("trains", "alice", gpus=(2,), server="train"))
    for lease in ("trains", "runs"):
        line = AuditLine(NOW, lease, "alice", "alice", events.Extended(3600.0))
        world.call(world.parts.registry.save, audit=[line])
    page = Browser(world, "admin").look("console/audit?who=alice").text
    assert re.findall(r'workspaces/(\w+)">(alice / [^<]*)</a>', page) == [
        ("runs", "alice / default workspace"),
        ("trains", "alice / train"),
    ]


@pytest.mark.postgresql
def test_the_page_pages_and_restarts_with_another_filter(world):
    world.call(
        world.parts.registry.save, audit=[AuditLine(NOW, f"w{n}", "", "admin", events.Started()) for n in range(60)]
    )
    browser = Browser(world, "admin")
    first = browser.look("console/audit?who=admin")
    assert "w59" in first.text
    assert "w5<" not in first.text
    older = first.text.split('rel="next" href="')[1].split('"')[0].replace("&amp;", "&")
    second = browser.get(world.url + older)
    assert ("w5<" in second.text, "w59" in second.text, 'name="before"' in second.text) == (True, False, False)
