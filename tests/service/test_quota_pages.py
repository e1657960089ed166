"""The pages of quotas: one's own, and the administrators', with what their forms do and refuse."""

import html
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from page_world import CATALOG, NOW, Browser, api, running, waiting

from gpuspawner.catalog import load_catalog
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.rules import Rate
from gpuspawner.service.quotas.own_usage import hours_text

MONEY = {"per": "month", "hard": 500}
QUOTAS = {
    "each-user": {"each": "user", "gpus": {"soft": 1, "hard": 4}, "gpu_hours": {"per": "week", "soft": 20, "hard": 40}},
    "vision": {"group": "vision", "gpus": {"hard": 8}, "types": {"a100": {"hard": 6}}, "cost": MONEY},
    "speech": {"group": "speech", "gpus": {"hard": 8}},
    "all": {"everybody": True, "memory": {"hard": "64GiB"}},
}  # fmt: skip
TEAMS = {"vision": {"title": "Vision"}}
GRANT = {"user": "alice", "number": "2", "unit": "GPUs", "until": "tomorrow", "why": "The paper", "step": "do"}


@pytest.fixture
def world(make_web_world):
    made = make_web_world(load_catalog({**CATALOG, "teams": TEAMS, "quotas": QUOTAS, "contact": "gpu@example.org"}))
    made.groups["alice"] = {"vision"}
    made.observe()
    lease = running("runs", "alice", gpus=(0, 1), rate=Rate(Fraction(2), Fraction("4.2")))
    made.save(replace(lease, request=replace(lease.request, team="vision")))
    made.save(waiting("bobs", "bob", count=1))
    return made


def text_of(page):
    """Return a page's text without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def section(page, name):
    """Return the text of one section of a page."""
    return text_of(page.partition(f'id="{name}"')[2].partition("</section>")[0])


def grants(world):
    return api(world, "admin", "quota-grants").json()["grants"]


@pytest.mark.parametrize(("currency", "shown"), [({"currency": "EUR"}, "Cost, EUR"), ({}, "Cost")])
def test_usage_has_a_price_in_the_currency_of_the_catalog(make_web_world, currency, shown):
    world = make_web_world(load_catalog({**CATALOG, **currency}))
    world.observe()
    world.save(running("runs", "alice", gpus=(0,), rate=Rate(Fraction(1), Fraction("2.1"))))
    page = Browser(world, "alice").look("quota").text
    assert f'<th scope="col" class="gs-num">{shown}</th>' in page
    assert f'<td class="gs-num" data-label="{shown}">2.10</td>' in page


def test_a_user_sees_what_they_have_used_what_is_left_and_the_rules_that_bind_them(world):
    page = Browser(world, "alice").look("quota").text
    have = section(page, "have")
    assert "GPUs now 2 of 4 Over the share" in have
    assert "Your GPU hours this week 24 of 40 left" in have
    assert "Team Vision: A100 80 GB now 2 of 6" in have
    assert "Team Vision: cost this month 466.40 of 500.00 left" in have
    assert "Everybody: memory now 8 GiB of 64 GiB" in have
    rules = text_of(page.partition('id="rules"')[2])
    assert (
        "You may have 1 GPU at once, and up to 4 while free, 20 GPU hours a week as a share, at most 40 GPU hours. "
        "Quota each-user" in rules
    )
    assert "Team Vision together may have at most 8 GPUs at once" in rules
    assert "Quota vision" in rules
    assert "speech" not in text_of(page)
    assert 'href="#rule-vision"' in page
    assert 'id="rule-vision"' in page


def test_home_shows_each_limit_with_its_share_and_the_page_of_a_workspace_its_team(world):
    alice = Browser(world, "alice")
    text = text_of(alice.home.text)
    assert "GPUs now 2 of 4 Your share is 1. Above it, you use what is free." in text
    assert "Team Vision: GPUs now 2 of 8" in text
    assert "PyTorch · Team Vision" in text_of(alice.look("workspaces/runs").text)


@pytest.mark.parametrize(
    ("hours", "text"), [(0.0, "0.0"), (0.034, "0.03"), (0.96, "0.96"), (1.0, "1.0"), (12.34, "12.3")]
)
def test_less_than_an_hour_is_not_shown_as_nothing(hours, text):
    assert hours_text(hours) == text


def test_waiting_gpus_are_shown_next_to_used_gpus(world):
    world.save(waiting("bobs", "bob", count=3))
    browser = Browser(world, "bob")
    line = "0 of 4 GPUs used, share 1, 3 waiting"
    assert "GPUs now 0 of 4 3 more requested." in text_of(browser.home.text)
    assert "GPUs now 0 of 4 3 more requested. Your share is 1." in section(browser.look("quota").text, "have")
    (limit,) = (one for one in api(world, "bob", "quota").json()["limits"] if one["entry"] == "each-user")
    assert (limit["used"], limit["waiting"], limit["left"], limit["words"]) == (0, 3, 1, line)


def test_users_without_limits_are_told_so(make_web_world):
    world = make_web_world()
    assert "You have no quota." in Browser(world, "alice").look("quota").text
    admin = text_of(Browser(world, "admin").look("console/quotas").text)
    for empty in ("The catalog has no quotas", "Nobody has extra quota now.", "No request has priority"):
        assert empty in admin


@pytest.mark.parametrize("path", ["act/grant", "act/take-back", "act/correct", "claims/x/give-up"])
def test_promise_9_only_administrators_see_and_do_it(world, path):
    browser = Browser(world, "alice")
    assert "console/" not in browser.home.text
    assert "Only team leads, auditors, operators and administrators" in browser.look("console/quotas", 403).text
    browser.submit(f"console/{path}", 403, **GRANT)
    assert grants(world) == []


def quota_rows(world):
    """Used, reserved, waiting and left of each limit and budget on the page, by its team or user and its quota."""
    rows = re.findall(
        r'<tr data-key="[^"]*">(.*?)</tr>', Browser(world, "admin").look("console/quotas").text, re.DOTALL
    )
    cells = [[text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows]
    return {(whose, quota): rest[:4] for whose, quota, *rest in cells}


def test_administrators_see_what_is_used_and_left_of_each_quota(world):
    rows = quota_rows(world)
    assert rows["alice", "4 GPUs at once"] == ["2", "", "", "2"]
    assert rows["alice", "40 GPU h a week"] == ["2", "14", "", "24"]
    assert rows["bob", "4 GPUs at once"] == ["0", "", "1", "3"]
    assert rows["Team Vision", "8 GPUs at once"] == ["2", "", "", "6"]
    assert rows["Team Vision", "500 a month"] == ["4.2", "29.4", "", "466.4"]
    assert rows["Everybody", "64 GiB memory at once"] == ["8", "", "", "56"]
    page = text_of(Browser(world, "admin").look("console/quotas").text)
    assert "Each user may have 1 GPU at once, and up to 4 while free" in page


def test_extra_quota_is_given_in_force_at_once_listed_and_taken_back_with_a_reason(world):
    browser = Browser(world, "admin")
    looked = html.unescape(browser.submit("console/act/grant", **{**GRANT, "step": "look"}).text)
    assert "2 GPUs more for alice until" in looked
    assert "Alice: up to 6 GPUs at once instead of 4 GPUs." in looked
    assert grants(world) == []
    page = browser.submit("console/act/grant", **GRANT, back="console/quotas").text
    (grant,) = grants(world)
    assert (grant["user"], grant["amount"], grant["limit"], grant["why"], grant["by"]) == (
        "alice", 2, "gpus", "The paper", "admin",
    )  # fmt: skip
    assert "alice: 2 GPUs until" in section(page, "extra")
    assert quota_rows(world)["alice", "6 GPUs at once"][3] == "4"
    dialog = browser.look(f"console/act/take-back?grant={grant['id']}").text
    assert "2 GPUs more for alice until" in dialog
    taken = {"grant": grant["id"], "back": "console/extra-quota"}
    assert 'id="act-why-wrong"' in browser.submit("console/act/take-back", 400, **taken).text
    assert grants(world)[0]["state"] == "in force"
    page = browser.submit("console/act/take-back", why="Done", **taken).text
    assert grants(world)[0]["state"] == "taken back"
    assert "Taken back" in page
    assert "has taken it back already" in browser.submit("console/act/take-back", 409, why="x", **taken).text
    browser.submit("console/act/take-back", 404, why="x", grant="none")


@pytest.mark.parametrize(
    ("wrong", "field", "told"),
    [
        ({"until": "yesterday"}, "until", "'yesterday' is not a time. Allowed: a day (Friday"),
        ({"number": "many"}, "number", "'many GPUs' is not an amount. Allowed: a number"),
        ({"number": "-2"}, "number", "adds nothing"),
        ({"user": "", "team": ""}, "user", "Name a user, a team or everybody. Allowed: user, team or everybody."),
        ({"team": "chess"}, "team", "Name a team of the catalog. Allowed: "),
        ({"why": ""}, "why", "Say why."),
        ({"since": "<b>"}, "since", "'<b>' is not a time."),
    ],
)
def test_invalid_input_is_reported_at_its_field_and_stays_there(world, wrong, field, told):
    typed = {**GRANT, "since": "today", **wrong}
    page = Browser(world, "admin").submit("console/act/grant", 400, **typed).text
    error = re.search(rf'id="act-{field}-wrong">(.*?)</p>', page)[1]
    assert told in html.unescape(error)
    for name in ("user", "number", "until", "why", "since"):
        assert f'name="{name}" value="{html.escape(typed[name], quote=False)}"' in page
    assert re.search(rf'id="act-{field}"[^>]*aria-invalid="true"[^>]*aria-describedby="act-{field}-wrong ', page)
    assert "Nothing was changed." in page
    assert grants(world) == []


def test_a_day_means_its_beginning_for_the_start_and_its_end_for_the_end_of_a_grant(world):
    Browser(world, "admin").submit("console/act/grant", **{**GRANT, "since": "tomorrow", "until": "tomorrow"})
    (made,) = grants(world)
    assert made["until"] - made["since"] == 24 * 3600


def test_memory_and_a_kind_are_granted_by_the_forms_units(world):
    browser = Browser(world, "admin")
    browser.submit("console/act/grant", **{**GRANT, "user": "", "everybody": "1", "number": "16", "unit": "GiB"})
    browser.submit("console/act/grant", **{**GRANT, "user": "", "team": "vision", "unit": "a100"})
    assert [(one["limit"], one["kind"], one["amount"]) for one in grants(world)] == [
        ("types", "a100", 2), ("memory", None, 16 * 2**30),
    ]  # fmt: skip


def test_charges_are_corrected_with_a_reason(world):
    browser = Browser(world, "admin")
    typed = {"user": "carol", "number": "+3", "unit": "GPU h", "why": "Ran elsewhere"}
    looked = browser.submit("console/act/correct", **typed, step="look").text
    assert "carol: 0.0 GPU hours charged in January 2027, 3.0 GPU hours after it" in looked
    assert "carol, GPU h a week: 0.0 GPU hours used, 3.0 GPU hours after it" in looked
    assert "carol" not in section(browser.look("console/quotas").text, "quotas")
    browser.submit("console/act/correct", **typed, step="do")
    assert quota_rows(world)["carol", "40 GPU h a week"] == ["3", "0", "", "37"]
    refused = browser.submit("console/act/correct", 400, **{**typed, "number": "0"}).text
    assert 'id="act-number-wrong"' in refused
    assert 'name="number" value="0"' in refused


def test_a_request_with_priority_is_listed_with_what_it_stops_and_given_up(world):
    world.save(running("more", "bob", gpus=(2, 3), server="more"))
    claim = {"kind": "a100", "count": 2, "external": "train-77"}
    assert api(world, "admin", "preemptions", "POST", claim).status_code == 201
    browser = Browser(world, "admin")
    claims = section(browser.look("console/quotas").text, "claims")
    assert "2 A100 80 GB for train-77 1 workspace ends for it at" in claims
    name = api(world, "admin", "preemptions").json()["preemptions"][0]["id"]
    page = browser.submit(f"console/claims/{name}/give-up").text
    assert "Earlier ones (1)" in section(page, "claims")
    browser.submit(f"console/claims/{name}/give-up")  # a second click
    browser.submit("console/claims/none/give-up", 404)


def test_a_form_without_the_token_of_its_page_does_nothing(world):
    browser = Browser(world, "admin")
    response = browser.post(f"{world.home}console/act/grant", data=GRANT)
    assert (response.status_code, grants(world)) == (403, [])


def test_former_and_present_owners_of_a_name_are_shown_apart(world):
    before = running("gone", "bob", gpus=(3,), minutes=30, rate=Rate(Fraction(1), Fraction("2.1")))
    before = replace(before, key=replace(before.key, user_created="bob long ago"))
    world.save(before)
    stops = replace(before, phase=Phase.STOPPING, phase_since=NOW, reason=ExitReason.STOPPED, ended_by="bob")
    world.save(stops)
    world.save(replace(stops, phase=Phase.ENDED, ended_at=NOW))
    world.save(running("bobs", "bob", gpus=(3,), rate=Rate(Fraction(1), Fraction("2.1"))))
    found = [whose.lower() for whose, quota in quota_rows(world) if quota == "40 GPU h a week" and "ob" in whose]
    assert sorted(found) == ["bob", "bob (before)"]
