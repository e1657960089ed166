"""Requests for extra quota: users send them, leads and administrators answer, and what is approved takes effect."""

import html
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from page_world import CATALOG, NOW, PEOPLE, STAFF, Browser, api, command_fixture, running

from gpuspawner.catalog import load_catalog
from gpuspawner.core.quotas.quota_requests import LONGEST_SECONDS, MAX_A_DAY, MAX_OPEN
from gpuspawner.service.quota_requests.api import remind
from gpuspawner.service.settings import Settings

DAY = 86400.0
QUOTAS = {
    "each": {"each": "user", "gpus": {"hard": 2}, "gpu_hours": {"per": "week", "hard": 40}},
    "members": {"each": "user", "group": "vision", "gpus": {"hard": 2}, "gpu_hours": {"per": "week", "hard": 40}},
    "vision": {"group": "vision", "gpus": {"hard": 3}, "types": {"a100": {"hard": 3}}},
}
ASK = {"what": "2 GPUs", "until": "3d", "why": "The paper", "team": "vision"}
ASK_OWN = {**ASK, "team": None}


@pytest.fixture
def world(make_web_world, monkeypatch):
    monkeypatch.setattr("page_world.PEOPLE", {**PEOPLE, **STAFF})
    catalog = {**CATALOG, "teams": {"vision": {"title": "Vision"}, "speech": {}}, "quotas": QUOTAS, "currency": "CHF"}
    made = make_web_world(load_catalog(catalog))
    made.groups.update(alice={"vision"}, lena={"vision"})
    made.observe()
    return made


def ask(world, name="alice", status=201, **body):
    return api(world, name, "quota-requests", "POST", {**ASK, **body}, status=status).json()


def answer(world, request, act, name="admin", status=200, **body):
    return api(world, name, f"quota-requests/{request['id']}/{act}", "POST", body, status=status).json()


def listed(world, name, query=""):
    return [(one["user"], one["state"]) for one in api(world, name, f"quota-requests{query}").json()["requests"]]


def most_gpus(world, name="alice"):
    limits = api(world, name, "quota").json()["limits"]
    return {one["entry"]: one["hard"] for one in limits if one["limit"] == "gpus"}


def audited(world, actor):
    entries = api(world, "admin", f"admin/audit?who={actor}").json()["audit"]
    return [one["action"] for one in entries]


def titles(world, name):
    return [one["title"] for one in api(world, name, "inbox").json()["notices"]]


def error(answered):
    return answered["error"]["message"]


def test_an_approved_request_takes_effect_at_once_and_ends_on_time(world):
    asked = ask(world)
    words = "2 GPUs more for alice in vision until Mon 18 Jan 08:00"
    assert (asked["state"], asked["words"], asked["own"]) == ("open", words, True)
    assert most_gpus(world)["members"] == 2
    given = answer(world, asked, "approve", "lena", why="Good luck")
    assert (given["state"], given["answered_by"], given["answer"], given["grant"]["amount"]) == (
        "approved", "lena", "Good luck", 2,
    )  # fmt: skip
    assert most_gpus(world)["members"] == 4
    assert titles(world, "alice") == ["You were granted more"]
    assert audited(world, "lena") == ["quota granted", "quota request approved"]
    assert audited(world, "alice") == ["quota requested"]
    world.clock.at = asked["until"]
    assert most_gpus(world)["members"] == 2
    assert listed(world, "alice") == [("alice", "approved")]


def test_a_request_of_a_later_time_begins_then(world):
    asked = ask(world, since="2d", until="4d")
    given = answer(world, asked, "approve")
    assert (given["grant"]["state"], most_gpus(world)["members"]) == ("to come", 2)
    world.clock.at = NOW + 2 * DAY
    assert most_gpus(world)["members"] == 4


def test_a_request_is_approved_with_changes_only_with_a_sentence(world):
    asked = ask(world)
    assert "You changed the request: tell alice why." in error(
        answer(world, asked, "approve", status=400, what="1 GPU")
    )
    given = answer(world, asked, "approve", what="1 GPU", until="1d", why="One is free")
    assert (given["amount"], given["grant"]["amount"], given["grant"]["until"]) == (2, 1, NOW + DAY)
    assert most_gpus(world)["members"] == 3


run = command_fixture("run")


def test_the_command_shows_what_was_given_instead_of_the_request(world, run):
    assert "You have sent no requests." in run("request", name="alice")[1]
    answer(world, ask(world), "approve", what="1 GPU", why="One is free")
    assert re.search(r"2 GPUs more .* approved +1 GPU ", run("request", name="alice")[1])
    assert "No request is open. --all also lists those that were answered." in run("admin", "requests")[1]
    assert re.search(r"approved +1 GPU ", run("admin", "requests", "--all")[1])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param({"what": "3 workspaces"}, "Give more of a quota that limits the user.", id="no such quota"),
        pytest.param({"until": f"{int(LONGEST_SECONDS / DAY) + 1}d"}, "Ask again before it ends.", id="too long"),
        pytest.param({"since": "2d", "until": "1d"}, "Give a later end.", id="ends first"),
    ],
)
def test_a_changed_approval_has_the_bounds_of_a_request(world, body, told):
    asked = ask(world)
    for dry in (True, False):
        assert told in error(answer(world, asked, "approve", status=400, why="So", dry_run=dry, **body))
    assert listed(world, "alice") == [("alice", "open")]


def effects(world, asked, status=200, **body):
    """Return the sentences of a preview, each with its kind."""
    shown = answer(world, asked, "approve", status=status, why="So", dry_run=True, **body)
    assert (shown["dry_run"], shown["state"], most_gpus(world)["members"]) == (True, "open", 2)
    return [(one["kind"], one["words"]) for one in shown["effects"]]


def test_a_preview_of_an_approval_says_what_the_user_has_then_and_what_still_limits(world):
    asked = ask(world)
    more = ("good", "Alice in vision: up to 4 GPUs at once instead of 2 GPUs.")
    stays = ("warn", "The limit of team Vision stays 3 GPUs at once.")
    cost = ("info", "Up to CHF 4.20 an hour, paid by team vision.")
    assert effects(world, asked) == [more, stays, cost]
    one = ("good", "Alice in vision: up to 3 GPUs at once instead of 2 GPUs.")
    assert effects(world, asked, what="1 GPU")[:2] == [one, ("info", "Up to CHF 2.10 an hour, paid by team vision.")]
    hours = effects(world, asked, what="20 GPU h", until="10d")
    assert hours[0] == ("good", "Alice in vision: 60 GPU hours left this week instead of 40 GPU hours.")
    assert hours[1] == ("info", "The amount is added in each of 3 weeks.")
    other = ask(world)
    answer(world, other, "approve")
    shown = answer(world, asked, "approve", dry_run=True)
    assert ("Alice in vision: up to 6 GPUs at once instead of 4 GPUs.") in [one["words"] for one in shown["effects"]]
    already = "2 GPUs more for alice in vision until Mon 18 Jan 08:00 already. Both add up."
    assert already in [one["words"] for one in shown["effects"]]


def test_a_preview_names_a_team_budget_with_less_left_and_a_later_beginning(make_web_world, monkeypatch):
    monkeypatch.setattr("page_world.PEOPLE", {**PEOPLE, **STAFF})
    rules = {
        "each": {"each": "user", "gpu_hours": {"per": "week", "hard": 40}},
        "vision": {"group": "vision", "gpu_hours": {"per": "month", "hard": 15}},
    }
    world = make_web_world(load_catalog({**CATALOG, "teams": {"vision": {}}, "quotas": rules}))
    world.groups.update(alice={"vision"})
    asked = ask(world, what="20 GPU h", team=None, since="7d", until="9d")
    shown = answer(world, asked, "approve", dry_run=True)
    assert [(one["kind"], one["words"]) for one in shown["effects"]][:2] == [
        ("good", "Alice: 60 GPU hours left of the week from Mon 18 Jan 00:00 instead of 40 GPU hours."),
        ("warn", "Only 15 GPU hours are left of vision's 15 GPU hours this month."),
    ]


def test_the_command_previews_an_approval(world, run):
    asked = ask(world)
    typed = ("admin", "requests", "approve", asked["id"][:6], "--amount", "1 GPU", "--reason", "One is free")
    told = run(*typed, "--dry-run")[1]
    assert "1 GPU more for alice in vision until Mon 18 Jan 08:00 (request" in told
    assert "Nothing was changed" in told
    assert "Alice in vision: up to 3 GPUs at once instead of 2 GPUs." in told
    assert listed(world, "alice") == [("alice", "open")]
    assert "approved" in run(*typed)[1]
    assert "approved already by" in run(*typed)[2], "it is found, though it is not open any more"
    assert "No request has an ID that begins with 'zz'" in run("admin", "requests", "approve", "zz")[2]


def test_the_command_says_once_what_was_given_as_requested(world, run):
    asked = ask(world)
    told = run("admin", "requests", "approve", asked["id"][:6])[1]
    assert told.splitlines()[0].endswith("): approved.")


def test_a_declined_request_changes_nothing_and_has_the_reason(world):
    asked = ask(world)
    assert "why" in error(answer(world, asked, "decline", status=400))
    declined = answer(world, asked, "decline", why="Use T4")
    assert (declined["state"], declined["grant"], most_gpus(world)["members"]) == ("declined", None, 2)
    (notice,) = api(world, "alice", "inbox").json()["notices"]
    assert (notice["title"], notice["text"], notice["by"]) == (
        "Your request for 2 GPUs was declined",
        "Use T4",
        "admin",
    )
    assert "declined already by admin" in error(answer(world, asked, "approve", status=409))


def test_its_user_withdraws_a_request_and_nobody_else(world):
    asked = ask(world)
    path = f"quota-requests/{asked['id']}"
    assert api(world, "bob", path, "DELETE").status_code == 404
    assert api(world, "admin", path, "DELETE").status_code == 403
    assert api(world, "alice", path, "DELETE").json()["state"] == "withdrawn"
    assert "withdrawn already" in error(answer(world, asked, "approve", status=409))
    assert titles(world, "admin") == []


def test_one_of_several_simultaneous_answers_counts(world):
    asked = ask(world)
    with ThreadPoolExecutor(6) as pool:
        path = f"quota-requests/{asked['id']}/approve"
        found = sorted(one.status_code for one in pool.map(lambda _: api(world, "admin", path, "POST"), range(6)))
    assert found == [200, 409, 409, 409, 409, 409]
    assert len(api(world, "admin", "quota-grants").json()["grants"]) == 1


@pytest.mark.parametrize("name", ["alice", "lena", "otto", "vera", "admin"])
def test_promise_9_only_leads_of_the_team_and_administrators_answer(world, name):
    for body in (ASK, ASK_OWN, {**ASK, "whole_team": True, "what": "1 a100"}):
        asked = ask(world, "alice", **body)
        leads = name == "lena" and asked["team"] == "vision"
        expected = {"admin": 200, "lena": (200 if not asked["whole_team"] else 403) if leads else 404}.get(name, 403)
        answer(world, asked, "decline", name, expected, why="No")


def test_nobody_answers_their_own_request(world):
    for name in ("lena", "admin"):
        world.groups[name] = {"vision"}
        asked = ask(world, name)
        assert not asked["may_answer"]
        assert "Nobody answers their own request." in error(answer(world, asked, "approve", name, 403))
    assert sorted(listed(world, "lena", "?all=1&open=1")) == [("admin", "open"), ("lena", "open")]
    assert listed(world, "lena") == [("lena", "open")]


def test_lists_of_requests_depend_on_the_role(world):
    ask(world)
    ask(world, "bob", team=None)
    assert listed(world, "bob") == [("bob", "open")]
    assert listed(world, "lena", "?all=1") == [("alice", "open")]
    assert sorted(listed(world, "admin", "?all=1")) == [("alice", "open"), ("bob", "open")]
    for name in ("alice", "otto", "vera"):
        assert api(world, name, "quota-requests?all=1").status_code == 403


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"what": "many"}, "'many' is not an amount"),
        ({"what": "3 workspaces"}, "GPU hours, you in Vision"),
        ({"team": "speech"}, "Name a team that you are in."),
        ({"team": None, "whole_team": True}, "Name the team that the request is for."),
        ({"until": f"{int(LONGEST_SECONDS / DAY) + 1}d"}, "Ask again before it ends."),
        ({"since": "2d", "until": "1d"}, "Give a later end."),
        ({"why": ""}, "Say why."),
        ({"why": "x" * 501}, "a reason of at most 500 letters"),
        ({"colour": "red"}, "a field that does not exist"),
    ],
)
def test_a_wrong_request_is_refused_with_what_to_do_next(world, body, told):
    assert told in error(ask(world, status=400, **body))
    assert listed(world, "alice") == []


def test_open_requests_of_a_person_are_bounded(world):
    for _ in range(MAX_OPEN):
        asked = ask(world)
    assert f"You have {MAX_OPEN} open requests" in error(ask(world, status=409))
    answer(world, asked, "decline", why="No")
    ask(world)


def test_simultaneous_requests_are_bounded(world):
    with ThreadPoolExecutor(9) as pool:
        sent = pool.map(lambda _: api(world, "alice", "quota-requests", "POST", ASK).status_code, range(9))
        assert sorted(sent) == [201] * MAX_OPEN + [409] * (9 - MAX_OPEN)


def test_requests_of_a_day_are_bounded(world):
    for _ in range(MAX_A_DAY):
        assert api(world, "alice", f"quota-requests/{ask(world)['id']}", "DELETE").status_code == 200
    assert f"You sent {MAX_A_DAY} requests in a day" in error(ask(world, status=409))
    world.clock.at += DAY
    ask(world)


def test_an_expired_request_cannot_be_answered(world):
    asked = ask(world)
    world.clock.at = asked["until"]
    assert listed(world, "alice") == [("alice", "expired")]
    assert "The requested time is over" in error(answer(world, asked, "approve", status=409))
    assert titles(world, "admin") == []


def test_requests_survive_a_restart(world):
    asked = ask(world)
    world.call(world.parts.quota_requests.load)
    answer(world, asked, "decline", why="No")
    world.call(world.parts.quota_requests.load)
    assert listed(world, "alice") == [("alice", "declined")]


def test_leads_and_administrators_are_told_by_inbox_and_mail_with_links_that_ask(world, monkeypatch):
    chat = {"vision": "json://localhost/vision", "speech": "json://localhost/speech"}
    users, admins = "json://localhost/{user}", ["json://localhost/admins"]
    settings = Settings(notify_users=users, notify_admins=admins, notify_teams=chat)
    monkeypatch.setattr(world.parts.notifier, "_settings", settings)
    api(world, "lena")  # she has used her role
    asked = ask(world)
    rows = [(row.channel, row.document) for row in world.parts.store.outbox.due(NOW, 99)]
    assert sorted((channel, mail["user"]) for channel, mail in rows) == [
        ("admins 0", "alice"),
        ("team vision", "alice"),
        ("user", "lena"),
    ]
    text = rows[0][1]["text"]
    assert text.startswith("“The paper”\n\n2 GPUs more for alice in vision until ")
    link = re.search(r"Approve: (\S+)", text)[1].partition("/services/gpu/")[2]
    page = html.unescape(Browser(world, "lena").look(link).text)
    assert "Approve a request for more" in page
    assert listed(world, "alice") == [("alice", "open")]
    for name, told in (("lena", 1), ("admin", 1), ("bob", 0), ("otto", 0)):
        assert titles(world, name) == ["alice asks for 2 GPUs more"] * told
    answer(world, asked, "decline", why="No")
    mails = [row.document for row in world.parts.store.outbox.due(NOW, 99) if row.channel == "user"]
    assert [mail["text"].splitlines()[0] for mail in mails if mail["user"] == "alice"] == ["admin declined it. “No”"]


def test_after_two_days_without_an_answer_leads_and_administrators_are_reminded_once(world, monkeypatch):
    settings = Settings(notify_users="json://localhost/{user}", notify_admins=["json://localhost/admins"])
    api(world, "lena")
    ask(world)
    monkeypatch.setattr(world.parts.notifier, "_settings", settings)
    for days, told in ((1.9, 0), (2, 2), (2.5, 2)):
        world.clock.at = NOW + days * DAY
        world.call(remind, world.parts)
        rows = world.parts.store.outbox.due(world.clock.at, 99)
        assert [row.document["title"] for row in rows] == ["alice still waits for an answer: 2 GPUs more"] * told
    assert listed(world, "alice") == [("alice", "open")]


# Pages


def test_a_user_asks_on_the_page_sees_where_it_stands_and_withdraws(world):
    browser = Browser(world, "alice")
    assert 'href="/services/gpu/quota/request"' in browser.look("quota").text
    page = html.unescape(browser.look("quota/request").text)
    assert "GPUs at once, you in Vision" in page
    typed = {"choice": "GPU h/vision/", "number": "20", "until": "2027-01-18", "why": "More\r\nseeds"}
    refused = html.unescape(browser.submit("quota/request", 400, **{**typed, "number": "many"}).text)
    assert 'id="number-wrong"' in refused
    assert 'value="many"' in refused
    page = html.unescape(browser.submit("quota/request", **typed).text)
    assert "20 GPU h more in team vision" in page
    assert "“More seeds”" in page
    (one,) = api(world, "alice", "quota-requests").json()["requests"]
    page = browser.submit(f"quota/request/{one['id']}/withdraw").text
    assert "You have no open request." in page
    browser.submit(f"quota/request/{one['id']}/withdraw")  # a second click
    assert listed(world, "alice") == [("alice", "withdrawn")]


def test_without_a_quota_there_is_nothing_to_ask_for(make_web_world):
    world = make_web_world()
    assert "No quota limits you." in Browser(world, "alice").look("quota/request").text
    assert "no quota limits you" in error(ask(world, status=400, team=None))


def test_a_request_that_only_the_team_s_quota_limits_says_how_to_ask_for_it(make_web_world):
    rules = {"vision": {"group": "vision", "gpu_hours": {"per": "day", "hard": 80}}}
    world = make_web_world(load_catalog({**CATALOG, "teams": {"vision": {}}, "quotas": rules}))
    world.groups.update(alice={"vision"})
    whole = "You can ask for it for the whole team vision (--team vision --whole-team)."
    for team in (None, "vision"):
        assert error(ask(world, status=400, what="20 GPU h", team=team)).endswith(whole)
    assert ask(world, what="20 GPU h", team="vision", whole_team=True)["state"] == "open"
    assert error(ask(world, status=400)).endswith("No quota limits this amount.")


def test_an_administrator_answers_on_the_page(world):
    world.save(running("runs", "alice", gpus=(0,)))
    asked = ask(world, what="20 GPU h")
    browser = Browser(world, "admin")
    page = html.unescape(browser.look("console/requests").text)
    for told in ("</a> asks for 20 GPU h more", "“The paper”", "Up to CHF 42.00, paid by team vision", "1<span"):
        assert told in page
    link = html.unescape(re.search(r'href="/services/gpu/(console/act/change-request[^"]*)"', page)[1])
    dialog = browser.look(link).text
    assert 'name="number" value="20"' in dialog
    typed = {"request": asked["id"], "number": "10", "unit": "GPU h", "back": "console/requests"}
    assert 'id="act-why-wrong"' in browser.submit("console/act/change-request", 400, **typed).text
    looked = html.unescape(browser.submit("console/act/change-request", **typed, why="Half").text)
    assert "10 GPU h more for alice in vision until" in looked
    assert "Alice in vision: 50 GPU hours left this week instead of 40 GPU hours." in looked
    assert "Up to CHF 21.00, paid by team vision." in looked
    assert listed(world, "alice") == [("alice", "open")], "a preview changes nothing"
    page = html.unescape(browser.submit("console/act/change-request", **typed, why="Half", step="do").text)
    assert "No request waits for an answer." in page
    assert "alice: 10 GPU h</b> instead of 20 GPU h" in page
    assert "“Half”" in html.unescape(browser.look("console/requests?show=answered").text)
    assert "declined" not in browser.look("console/requests.csv?show=answered").text
    assert "approved" in browser.look("console/requests.csv?show=answered").text
    assert "approved already by admin" in browser.submit("console/act/decline", 409, request=asked["id"], why="x").text


def test_a_lead_sees_no_button_on_requests_that_others_answer(world):
    ask(world, whole_team=True, what="1 a100")
    ask(world, "lena")
    page = Browser(world, "lena").look("console/requests").text
    assert "console/act/approve" not in page
    assert "Only administrators answer a request" in page
    assert "Nobody answers their own request." in page
    assert "gs-count" not in page.partition('aria-label="Admin"')[2].partition("</nav>")[0]


def test_the_page_of_a_person_has_their_open_requests(world):
    asked = ask(world)
    assert f"console/requests#r-{asked['id']}" in Browser(world, "admin").look("console/people/alice").text
    for name in ("otto", "vera"):  # they do not see requests
        assert asked["why"] not in Browser(world, name).look("console/people/alice").text
    answer(world, asked, "decline", why="No")
    assert "waits for an answer" not in Browser(world, "admin").look("console/people/alice").text


def test_a_dialog_shows_nothing_of_a_request_of_another_team(world):
    asked = ask(world, "bob", team=None, why="A secret")
    assert "A secret" not in Browser(world, "lena").look(f"console/act/approve?request={asked['id']}").text


# Approval by the catalog's rule


@pytest.fixture
def ruled(make_web_world):
    rule = {"approve": {"below": "8 GPU h", "each": "week"}}
    made = make_web_world(load_catalog({**CATALOG, "teams": {"vision": {}}, "quotas": QUOTAS, **rule}))
    made.groups.update(alice={"vision"})
    made.observe()
    return made


def test_small_requests_are_approved_at_once_up_to_the_amount_of_a_period(ruled):
    small = ask(ruled, what="6 GPU h", until="1d")
    assert (small["state"], small["answered_by"], small["given"]) == ("approved", "", "6 GPU h")
    budgets = {one["entry"]: one["granted"] for one in api(ruled, "alice", "quota").json()["budgets"]}
    assert budgets["members"] == 6
    assert audited(ruled, "gpuspawner") == ["quota granted", "quota request approved"]
    assert ask(ruled, what="3 GPU h", until="1d")["state"] == "open"
    assert ask(ruled, what="2 GPU h", until="1d")["state"] == "approved"
    assert ask(ruled, "bob", what="8 GPU h", team=None)["state"] == "approved"
    ruled.clock.at += 7 * DAY
    assert ask(ruled, what="8 GPU h", until="1d")["state"] == "approved"


def test_a_rule_approves_its_amount_once_for_requests_of_the_same_moment(ruled):
    body = {**ASK, "what": "8 GPU h", "until": "1d"}
    with ThreadPoolExecutor(4) as pool:
        sent = pool.map(lambda _: api(ruled, "alice", "quota-requests", "POST", body).json()["state"], range(4))
        assert sorted(sent) == ["approved", "open", "open", "open"]


def test_a_request_beyond_the_rule_stays_open(ruled):
    assert ask(ruled, what="8.5 GPU h")["state"] == "open"
    assert ask(ruled, what="1 GPU")["state"] == "open"
    page = Browser(ruled, "alice").look("quota/request").text
    assert "Up to 8 extra GPU hours of a user and week are approved at once." in page


def test_a_rule_never_gives_its_amount_again_in_each_day_of_a_longer_request(make_web_world):
    quotas = {"each": {"each": "user", "gpu_hours": {"per": "day", "hard": 4}}}
    made = make_web_world(
        load_catalog({**CATALOG, "quotas": quotas, "approve": {"below": "10 GPU h", "each": "month"}})
    )
    made.observe()
    assert ask(made, what="10 GPU h", until="3d", team=None)["state"] == "open"
    assert ask(made, what="5 GPU h", until="tomorrow", team=None)["state"] == "approved"
