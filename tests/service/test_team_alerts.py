"""What leads and administrators are told of teams, each once: budgets of money, idle GPUs, statements."""

from dataclasses import replace

import pytest
from harness.waiting import eventually
from page_world import CATALOG, STAFF, Browser, api
from test_statements import at, begin, end, sample, statement

from gpuspawner.catalog import load_catalog
from gpuspawner.core.events import BudgetReached, StatementMailed, WasteFound
from gpuspawner.service.notifications.recipients import leads_of
from gpuspawner.service.usage.alerts import send_alerts
from gpuspawner.service.usage.closing import close_months

QUOTAS = {
    "money": {"group": "vision", "cost": {"per": "month", "hard": 42}},
    "all": {"everybody": True, "cost": {"per": "week", "soft": 1000}},
    "hours": {"group": "vision", "gpu_hours": {"per": "month", "hard": 1}},
    "each": {"each": "user", "cost": {"per": "month", "hard": 1}},
}


@pytest.fixture
def world(make_web_world, mailbox, webhook, monkeypatch):
    """carol is a lead by the catalog. Users get mail. Administrators and speech have a webhook."""
    monkeypatch.setitem(STAFF, "carol", ["custom:gpu:use"])
    teams = {"vision": {"title": "Vision", "leads": ["carol"]}, "speech": {}}
    rules = {"timezone": "Europe/Zurich", "currency": "CHF", "alerts": {"idle": "40%"}}
    made = make_web_world(load_catalog({**CATALOG, **rules, "teams": teams, "quotas": QUOTAS}))
    settings = replace(
        made.parts.settings,
        notify_users=mailbox.address("{user}@example.org"),
        notify_admins=(webhook.address("hook"),),
        notify_teams={"speech": webhook.address("hook")},
    )
    made.parts.notifier._settings = settings
    object.__setattr__(made.parts, "settings", settings)  # as the service starts with them
    made.clock.at = at(1, 4)  # a Monday
    made.observe()
    return made


def told(world):
    """Return the recipient and the title of each message so far, in order. Administrators are ""."""
    world.call(send_alerts, world.parts)
    rows = world.parts.store.outbox.due(world.clock.at, 100)
    return [(row.document["user"], row.document["title"]) for row in rows]


def inbox(world, name):
    """Return the alerts in the inbox of a person, each with its page."""
    notices = api(world, name, "inbox").json()["notices"]
    return [(one["kind"], one["title"], one["page"].partition("/services/gpu/")[2]) for one in notices]


def events(world):
    return [line.event for line in reversed(world.parts.store.audit_log.latest())]


def test_a_budget_of_money_is_told_at_50_80_and_100_percent_once_each(world):
    begin(world, "runs")  # 2.10 an hour
    world.clock.at += 9.9 * 3600
    assert told(world) == []
    world.clock.at += 0.2 * 3600
    half = "50 % of vision's CHF 42.00 this month are used"
    assert told(world) == [("carol", half), ("", half)]
    assert len(told(world)) == 2, "once"
    world.call(world.parts.accounting.load)
    world.clock.at += 10 * 3600
    last = "100 % of vision's CHF 42.00 this month are used"
    assert told(world)[2:] == [("carol", last), ("", last)], "80 % was passed at the same time"
    assert len(told(world)) == 4
    assert events(world) == [BudgetReached(percent, "vision's CHF 42.00 this month") for percent in (50, 100)]
    reached = statement(world)["budget_alerts"]
    assert [one["percent"] for one in reached] == [50, 80, 100]
    assert [one["at"] for one in reached] == pytest.approx([world.clock.at - 36000, world.clock.at, world.clock.at])
    for name in ("carol", "admin"):
        assert inbox(world, name) == [("budget", title, "console/quotas") for title in (last, half)], name
    assert [inbox(world, name) for name in ("alice", "bob", "otto")] == [[], [], []]
    assert "CHF 42.00 are used. CHF" in Browser(world, "carol").look("inbox").text
    assert api(world, "carol", "inbox/read", "POST", {"all": True}).json()["unread"] == 0
    assert api(world, "admin", "inbox").json()["unread"] == 2, "each has an inbox of their own"
    page = Browser(world, "admin").look("console/statements?team=vision&month=2027-01").text
    assert "50 % was reached on 4 Jan 2027. 80 % was reached on 4 Jan 2027." in page


def test_the_budget_of_everybody_is_told_to_administrators_by_its_share_without_a_limit(world):
    quotas = {"all": {"everybody": True, "cost": {"per": "week", "soft": 20}}}
    world.parts.in_force.catalog = load_catalog({**CATALOG, "timezone": "Europe/Zurich", "quotas": quotas})
    begin(world, "runs")
    world.clock.at += 8 * 3600
    assert told(world) == [("", "80 % of everybody's 20.00 this week are used")]


def test_the_message_says_what_is_used_what_is_reserved_and_what_follows(world):
    begin(world, "runs")
    world.clock.at += 20.1 * 3600
    told(world)
    (first, *_) = world.parts.store.outbox.due(world.clock.at, 9)
    assert first.document["text"].startswith("CHF 42.21 of CHF 42.00 are used. CHF ")
    assert "are reserved by running workspaces. Nothing can start with it until it resets. It resets" in str(first)
    assert f"{world.parts.public_url}/console/quotas" in first.document["text"]


def test_the_next_period_is_told_anew(world):
    begin(world, "runs")
    world.clock.at += 10.1 * 3600
    told(world)
    end(world, "runs")
    world.clock.at = at(2, 5)
    count = len(told(world))
    begin(world, "again")
    world.clock.at += 10.1 * 3600
    assert [title for _, title in told(world)[count:]] == ["50 % of vision's CHF 42.00 this month are used"] * 2


def test_idle_gpus_are_told_on_monday_once_if_the_share_is_above_the_bound(world):
    for name, team, kinds in (("wastes", "vision", "busy idle"), ("works", "speech", "busy busy")):
        begin(world, name, team=team, rate=None)
        for kind in kinds.split():
            world.clock.at += 6 * 3600
            sample(world, name, kind)
        end(world, name)
    assert told(world) == []
    world.clock.at = at(1, 10, 23, 59)
    assert told(world) == []
    world.clock.at = at(1, 11)
    title = "Vision: GPUs were idle for 50 % of the week"
    assert told(world) == [("carol", title), ("", title)]
    world.clock.at = at(1, 15)
    assert len(told(world)) == 2
    page = "console/usage?since=2027-01-04&until=2027-01-10"
    assert inbox(world, "carol") == inbox(world, "admin") == [("waste", title, page)]
    assert events(world) == [WasteFound(50, "2027-01-04")]


def test_statements_are_mailed_to_leads_on_the_first_day_once(world, mailbox):
    begin(world, "runs", rate=None)
    world.clock.at += 3600
    end(world, "runs")
    world.clock.at = at(1, 31, 23, 59)
    assert told(world) == []
    world.clock.at = at(2, 1)
    assert told(world) == [("carol", "Statement of Vision for January 2027")]
    assert len(told(world)) == 1
    assert events(world) == [StatementMailed("2027-01-vision", ("carol",))]
    world.call(world.parts.notifier.send_due)
    eventually(lambda: mailbox.received("carol@example.org"))
    ((_, text),) = mailbox.received("carol@example.org")
    assert "It closes on Wed 03 Feb 00:00." in text
    assert "/console/statements?team=vision&month=2027-01" in text
    page = "console/statements?team=vision&month=2027-01"
    assert inbox(world, "carol") == [("statement", "Statement of Vision for January 2027", page)]
    assert inbox(world, "admin") == [], "administrators see all statements, and get none"
    world.clock.at = at(2, 3)
    world.call(close_months, world.parts)
    assert told(world) == []


def test_the_chat_of_a_team_without_leads_gets_its_alerts_and_statements(world):
    begin(world, "runs", team="speech", rate=None)
    world.clock.at += 3600
    end(world, "runs")
    world.clock.at = at(2, 1)
    title = "Statement of speech for January 2027"
    assert told(world) == [("", title)]
    (row,) = world.parts.store.outbox.due(world.clock.at, 9)
    assert row.channel == "team speech"
    assert events(world) == [StatementMailed("2027-01-speech", ("the chat of team speech",))]
    sent = Browser(world, "admin").submit("console/statements/mail", team="speech", month="2027-01").text
    assert "The statement is being mailed to the chat of team speech." in sent


def test_alerts_stay_in_inboxes_over_a_restart_for_a_month(world):
    begin(world, "runs")
    world.clock.at += 10.1 * 3600
    told(world)
    world.call(world.parts.team_alerts.load)
    assert [kind for kind, *_ in inbox(world, "carol")] == ["budget"]
    assert len(told(world)) == 2, "once"
    world.clock.at += 31 * 86400
    assert inbox(world, "carol") == []


def test_an_administrator_mails_a_statement_once_more(world):
    begin(world, "runs", rate=None)
    browser = Browser(world, "admin")
    page = browser.look("console/statements?team=vision&month=2027-01").text
    assert "Mail to carol" in page
    sent = browser.submit("console/statements/mail", team="vision", month="2027-01")
    assert "The statement is being mailed to carol." in sent.text
    (row,) = world.parts.store.outbox.due(world.clock.at, 9)
    assert (row.document["user"], row.document["title"]) == ("carol", "Statement of Vision for January 2027")
    assert events(world) == [StatementMailed("2027-01-vision", ("carol",))]
    body = {"team": "robots"}
    assert "This team has no leads." in api(world, "admin", "statement/mail", "POST", body).text
    assert api(world, "otto", "statement/mail", "POST", {"team": "vision"}).status_code == 403


def test_leads_are_those_of_the_catalog_and_those_who_used_their_right(world):
    world.names = {"lena": "lena"}
    assert leads_of(world.parts, "vision") == ["carol"]
    statement(world, who="lena")
    assert leads_of(world.parts, "vision") == ["carol", "lena"]
    assert leads_of(world.parts, "speech") == []
