"""The lists of quotas, of extra quota and of restrictions: filtered, sorted, and as CSV and JSON."""

import csv
import io
import re
from fractions import Fraction

import pytest
from page_world import CATALOG, NOW, Browser, api, asked, running

from gpuspawner.catalog import load_catalog
from gpuspawner.core.rules import Rate
from gpuspawner.core.units import show_iso

QUOTAS = {
    "each-user": {"each": "user", "gpus": {"soft": 1, "hard": 4}, "gpu_hours": {"per": "week", "hard": 40}},
    "all": {"everybody": True, "memory": {"hard": "64GiB"}},
}


@pytest.fixture
def world(make_web_world):
    made = make_web_world(load_catalog({**CATALOG, "quotas": QUOTAS}))
    made.observe()
    for user, gpus, hours in (("alice", (0, 1), 19), ("bob", (2,), 1)):
        made.save(running(user, user, gpus, rate=Rate(Fraction(len(gpus))), deadline_at=NOW + 3600 * hours))
    return made


def test_every_limit_and_budget_of_everybody_is_in_one_list(world):
    rows = {(x["whose"], x["what"]): x for x in asked(world, "console/quotas.json").json()["rows"]}
    assert list(rows)[-1] == ("bob", "GPU h a week"), "what most is taken of comes first"
    mine = rows["alice", "GPUs at once"]
    told = ("entry", "used", "waiting", "share", "limit", "left", "percent", "state")
    assert [mine[name] for name in told] == ["each-user", 2, 0, 1, 4, 2, 50, "over the share"]
    assert (mine["lasts_until"], mine["resets_at"]) == (None, None)
    hours = rows["alice", "GPU h a week"]
    assert (hours["used"], hours["used"] + hours["reserved"], hours["state"]) == (2, 40, "full")
    assert hours["lasts_until"] == pytest.approx(NOW + 19 * 3600)
    assert hours["resets_at"] > hours["lasts_until"]
    memory = rows["everybody", "GiB memory at once"]
    assert (memory["used"], memory["limit"]) == (16, 64)
    full = asked(world, "console/quotas.json?state=full").json()
    assert [(x["whose"], x["what"]) for x in full["rows"]] == [("alice", "GPU h a week")]
    assert full["total"] == len(rows)


def test_the_numbers_of_the_list_are_those_of_the_api(world):
    rows = {(x["entry"], x["what"]): x for x in asked(world, "console/quotas.json?find=alice").json()["rows"]}
    told = api(world, "alice", "quota").json()
    for one in (*told["limits"], *told["budgets"]):
        if one["entry"] == "each-user":
            row = rows["each-user", "GPU h a week" if one["limit"] == "gpu_hours" else "GPUs at once"]
            assert [one[name] for name in ("used", "soft", "hard", "left")] == [
                row[name] for name in ("used", "share", "limit", "left")
            ]


def test_grants_of_all_time_are_a_list(world):
    for user, what in (("alice", "2 GPUs"), ("bob", "+20 GPU h")):
        body = {"user": user, "what": what, "until": "3d", "why": f"for {user}"}
        made = api(world, "admin", "quota-grants", "POST", body).json()
    api(world, "admin", f"quota-grants/{made['id']}", "DELETE", {"why": "a mistake"})
    rows = asked(world, "console/extra-quota.json?sort=whom").json()["rows"]
    assert [(x["what"], x["whom"], x["state"], x["taken_back_by"], x["taken_back_why"]) for x in rows] == [
        ("2 GPUs", "alice", "in force", "", ""),
        ("20 GPU h", "bob", "taken back", "admin", "a mistake"),
    ]
    assert asked(world, "console/extra-quota.json?state=taken+back").json()["found"] == 1
    assert asked(world, "console/extra-quota.json?find=carol").json()["rows"] == []


@pytest.mark.parametrize("name", ["quotas", "extra-quota", "restrictions"])
def test_page_json_and_csv_say_the_same(world, name):
    api(world, "admin", "quota-grants", "POST", {"user": "bob", "what": "2 GPUs", "until": "3d", "why": "=1+1"})
    body = {"what": "pause", "kind": "a100", "reason": "=1+1", "until": "2h"}
    api(world, "admin", "admin/restrictions", "POST", body)
    page, document = (
        asked(world, f"console/{name}").text,
        asked(world, f"console/{name}.json").json(),
    )
    lines = list(csv.DictReader(io.StringIO(asked(world, f"console/{name}.csv").text)))
    assert len(lines) == document["found"] == page.count("data-key=") > 0
    for line, row in zip(lines, document["rows"], strict=True):
        times = {key: show_iso(value) for key, value in row.items() if isinstance(value, float) and value > NOW - 1}
        shown = {key: "" if value is None else str(value) for key, value in row.items()} | times
        assert line == {key: f"'{value}" if value.startswith("=") else value for key, value in shown.items()}
    assert re.search(rf'href="[^"]*console/{name}\.csv', page)


def test_teams_and_people_are_told_apart(world):
    rows = asked(world, "console/quotas.json?of=people").json()["rows"]
    assert {row["whose"] for row in rows} == {"alice", "bob"}
    assert {row["whose"] for row in asked(world, "console/quotas.json?of=teams").json()["rows"]} == {"everybody"}


def test_the_page_of_quotas_leads_to_the_list_of_extra_quota(world):
    browser = Browser(world, "admin")
    assert 'console/extra-quota">All</a>' in browser.look("console/quotas").text
    assert "Nobody has got extra quota yet." in browser.look("console/extra-quota").text
