"""The inbox: what people are told of stays there until they have read it; messages of administrators."""

import json
import re
from dataclasses import replace

import page_world
import pytest
from page_world import NOW, PEOPLE, Browser, api, command_fixture, reclaimed, running, waiting, world_fixture

from gpuspawner.catalog import load_catalog
from gpuspawner.core import events
from gpuspawner.core.administration import parse_announcement
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.units import BadValue, show_time
from gpuspawner.service.settings import Settings
from gpuspawner.service.store import AuditLine

world = world_fixture(is_observed=False)


def save(world, lease, *steps):
    lines = [AuditLine(at, lease.id, lease.user, actor, event) for at, actor, event in steps]
    world.call(world.parts.registry.save, lease, audit=lines)


def ended_idle(world):
    """A workspace of alice's that was warned and stopped while she was away."""
    stopped = events.Stopped("idle", "The GPU has been idle for 40 min. Its highest use was 1 %.")
    warned = events.WarnedIdle(1, 1800.0, peak_percent=1.0)
    asked = (NOW - 7600, "alice", events.Asked("pytorch", "1 a100", 8 * 3600.0))
    save(world, reclaimed("gone"), asked, (NOW - 1200, "gpuspawner", warned), (NOW - 600, "gpuspawner", stopped))


def inbox(world, name="alice", query=""):
    return api(world, name, f"inbox{query}", status=200).json()


def read(world, name="alice", **body):
    return api(world, name, "inbox/read", "POST", body, status=200).json()


def send(world, to="all", text="Maintenance on Friday.", until="2h", name="admin", status=201, **more):
    return api(world, name, "messages", "POST", {"to": to, "text": text, "until": until, **more}, status=status).json()


def told(document):
    return [(one["title"], one["unread"]) for one in document["notices"]]


def test_a_program_that_was_killed_for_memory_is_a_notice(world):
    killed = events.KilledForMemory(2, 16 * 2**30)
    asked = (NOW - 7600, "alice", events.Asked("pytorch", "1 a100", 8 * 3600.0))
    save(world, page_world.running("runs"), asked, (NOW - 60, "cluster", killed))
    (notice,) = inbox(world)["notices"]
    assert (notice["title"], notice["unread"]) == ("A program was killed because memory ran out", True)
    assert notice["text"] == "2 programs killed: the workspace had used all of its 16 GiB"


def test_a_history_says_you_to_nobody_but_the_actor_and_names_no_component(world):
    ended_idle(world)
    for reader, actor in (("alice", "you"), ("admin", "alice")):
        page = page_world.Browser(world, reader).look("workspaces/gone").text
        (events_shown,) = re.findall(r'<ol class="gs-timeline" id="events".*?</ol>', page, re.DOTALL)
        assert re.findall(r", by (\w+)</p>", events_shown) == [actor]


def test_home_names_the_workspace_of_each_notice(world):
    warned = events.WarnedIdle(1, 1800.0, peak_percent=1.0)
    save(world, page_world.running("runs"), (NOW - 60, "gpuspawner", warned))
    news = page_world.Browser(world, "alice").home.text.partition('id="news"')[2]
    assert "default workspace: Idle warning" in news


def test_events_during_an_absence_are_kept_until_they_are_read(world):
    ended_idle(world)
    document = inbox(world)
    assert told(document) == [("Stopped as idle", True), ("Idle warning", True)]
    assert document["unread"] == 2
    first = document["notices"][0]
    assert first["page"] == "/services/gpu/workspaces/gone"
    assert "The GPU has been idle for 40 min" in first["text"]

    assert read(world, ids=[document["notices"][1]["id"]])["unread"] == 1
    assert told(inbox(world)) == [("Stopped as idle", True), ("Idle warning", False)]
    assert [one["title"] for one in inbox(world, query="?unread=1")["notices"]] == ["Stopped as idle"]
    assert not world.lease("gone").seen_by_user
    assert read(world, ids=[first["id"]])["unread"] == 0
    assert world.lease("gone").seen_by_user  # and so no other page tells of it any more
    assert inbox(world, "bob") == {"notices": [], "unread": 0, "messages": [], "now": NOW}


def test_users_get_no_notice_of_their_own_actions_and_answers(world):
    stopped = reclaimed("mine", reason=ExitReason.STOPPED, ended_by="alice")
    save(world, stopped, (NOW - 600, "alice", events.Stopped("stopped", "It was stopped by alice.")))
    kept = page_world.running("kept", server="kept")
    save(world, kept, (NOW - 900, "gpuspawner", events.WarnedIdle(1, 1800.0)), (NOW - 800, "alice", events.Kept(7200)))
    assert told(inbox(world)) == [("Idle warning", False)]


@pytest.mark.parametrize(("waited_seconds", "titles"), [(20, []), (1800, ["Your workspace got its GPU"])])
def test_a_grant_is_a_notice_only_after_a_long_wait(world, waited_seconds, titles):
    lease = page_world.running("came")
    lease = replace(lease, asked_at=lease.granted_at - waited_seconds)
    save(world, lease, (lease.granted_at, "gpuspawner", events.Granted(("GPU-1",))))
    assert [title for title, _ in told(inbox(world))] == titles


def test_reading_the_reason_of_an_end_marks_its_causes_read(world):
    ended_idle(world)
    assert api(world, "alice", "workspaces/gone/seen", "POST").status_code == 200
    assert told(inbox(world)) == [("Stopped as idle", False), ("Idle warning", False)]


def test_a_user_with_a_reused_name_reads_no_messages_of_its_former_owner(world):
    ended_idle(world)
    world.created["alice"] = "another alice born"
    assert inbox(world)["notices"] == []
    assert read(world, ids=["s1", "s2"])["unread"] == 0
    assert not world.lease("gone").seen_by_user


@pytest.mark.postgresql
def test_read_messages_stay_read_after_a_restart_and_those_older_than_a_month_are_gone(world):
    ended_idle(world)
    read(world, all=True)
    world.parts.inboxes._read.clear()
    assert inbox(world)["unread"] == 0
    world.clock.at += 31 * 86400
    world.parts.inboxes._read.clear()
    assert inbox(world)["notices"] == []


@pytest.mark.parametrize(
    ("to", "reaches", "readers"),
    [("all", len(PEOPLE), {"alice", "bob", "admin"}), ("user:bob", 1, {"bob"}), ("group:vision", 1, {"alice"})],
)
def test_a_message_reaches_those_it_is_for_until_its_end_or_until_they_have_read_it(world, to, reaches, readers):
    world.groups["alice"] = ["vision"]
    assert send(world, to, dry_run=True, status=200)["reaches"] == reaches
    assert inbox(world, "alice")["messages"] == []  # a dry run sends nothing
    made = send(world, to)
    assert (made["reaches"], made["state"], made["mailed"]) == (reaches, "shown", 0)
    for name in ("alice", "bob", "admin"):
        shown = [one["text"] for one in inbox(world, name)["messages"]]
        assert shown == (["Maintenance on Friday."] if name in readers else [])
    reader = min(readers)
    document = read(world, reader, ids=[f"m{made['id']}"])
    assert (document["unread"], document["messages"]) == (0, [])
    assert inbox(world, reader)["notices"][0]["title"] == "Announcement from admin"
    world.clock.at += 3 * 3600
    assert all(inbox(world, name)["messages"] == [] for name in readers)


def test_a_withdrawn_message_is_in_no_inbox_and_both_are_audited(world):
    made = send(world)
    gone = api(world, "admin", f"messages/{made['id']}", "DELETE")
    assert (gone.status_code, gone.json()["state"], gone.json()["withdrawn_by"]) == (200, "withdrawn", "admin")
    assert inbox(world)["notices"] == []
    assert api(world, "admin", f"messages/{made['id']}", "DELETE").status_code == 409
    assert api(world, "admin", "messages").json()["messages"] == []
    assert [one["state"] for one in api(world, "admin", "messages?past=1").json()["messages"]] == ["withdrawn"]
    lines = world.call(world.parts.store.audit_log.latest)
    assert [(line.actor, line.event.name) for line in lines] == [
        ("admin", "message withdrawn"),
        ("admin", "message sent"),
    ]
    world.call(world.parts.announcements.load)  # as after a restart
    assert inbox(world)["messages"] == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"to": "everyone"}, "Allowed: all, user:NAME or group:NAME"),
        ({"to": "user:nobody"}, "users of the hub"),
        ({"to": "group:none"}, "groups of the hub with members"),
        ({"text": " "}, "The announcement has no text"),
        ({"text": "x" * 501}, "A text of 501 characters is too long"),
        ({"text": "a\u202eb"}, "characters that cannot be shown"),
        ({"until": "yesterday"}, "is not a time"),
        ({"colour": "red"}, "a field that does not exist"),
    ],
)
def test_a_message_without_text_or_recipients_is_refused_with_a_remedy(world, body, words):
    answer = api(world, "admin", "messages", "POST", {"to": "all", "text": "Hello", "until": "2h", **body})
    assert answer.status_code in {400, 422}, answer.text
    assert words.lower() in answer.json()["error"]["message"].lower()


def test_only_administrators_send_and_a_workspaces_token_reads_no_inbox(world):
    send(world, name="alice", status=403)
    assert api(world, "alice", "messages").status_code == 403
    assert api(world, "alice", "messages/x", "DELETE").status_code == 403


def test_a_message_is_mailed_to_each_recipient(world, monkeypatch):
    monkeypatch.setattr(world.parts.notifier, "_settings", Settings(notify_users="json://localhost/{user}"))
    send(world, text="Cooling is <b>off</b>.")
    mailed = [row.document for row in world.parts.store.outbox.due(NOW, 99)]
    told = sorted((mail["user"], mail["title"], mail["text"].splitlines()[0]) for mail in mailed)
    assert told == [(n, "Announcement from admin", "Cooling is <b>off</b>.") for n in sorted(PEOPLE)]


def test_lines_of_a_message_stay_and_other_whitespace_goes():
    assert parse_announcement("  Friday:\r\n  the cluster is off.  \n") == "Friday:\nthe cluster is off."
    with pytest.raises(BadValue):
        parse_announcement(None)


@pytest.mark.postgresql
def test_a_workspaces_document_has_the_messages_that_its_user_has_not_read(world):
    save(world, page_world.running("runs"))
    made = send(world, to="user:alice")
    document = api(world, "alice", "workspaces/runs").json()
    assert [one["text"] for one in document["messages"]] == ["Maintenance on Friday."]
    read(world, ids=[f"m{made['id']}"])
    assert api(world, "alice", "workspaces/runs").json()["messages"] == []


def test_a_grant_to_a_team_reaches_who_is_in_it_and_one_to_everybody_all(make_web_world):
    world = make_web_world(load_catalog({**page_world.CATALOG, "teams": {"vision": {"title": "Vision"}}}))
    world.groups["alice"] = {"vision"}
    for whom, why in (({"team": "vision"}, "The paper"), ({"everybody": True}, "Holidays")):
        body = {**whom, "what": "2 GPUs", "until": "tomorrow", "why": why}
        assert api(world, "admin", "quota-grants", "POST", body).status_code == 201
    everybody, team = ("Everybody was granted more", True), ("Your team vision was granted more", True)
    assert sorted(told(inbox(world))) == [everybody, team]
    assert told(inbox(world, "bob")) == [everybody]
    save(world, page_world.running("runs"))
    made = send(world)
    assert len(api(world, "alice", "workspaces/runs").json()["messages"]) == 1  # whatever her teams are
    assert api(world, "admin", f"messages/{made['id']}", "DELETE").status_code == 200
    (one,) = [row for row in api(world, "admin", "quota-grants").json()["grants"] if row["team"]]
    assert api(world, "admin", f"quota-grants/{one['id']}", "DELETE", {"why": "It is over"}).status_code == 200
    assert ("A grant of your team vision was taken back", True) in told(inbox(world))
    read(world, all=True)
    assert inbox(world)["unread"] == 0
    world.hub_down = True
    world.clock.at += 60
    assert told(world.call(inbox_of, world)) == [("Everybody was granted more", False)]


async def inbox_of(world):
    found = await world.parts.inboxes.of(Owner("hub-1", "alice born"), "alice")
    return {"notices": [{"title": one.title, "unread": one.unread} for one in found.notices]}


def test_messages_about_starts_are_switched_by_api_and_page(world, monkeypatch):
    assert api(world, "alice", "notifications").json() == {"start_mail": True, "reached": False}
    assert api(world, "alice", "notifications", "POST", {"start_mail": "x"}).status_code == 400
    assert "Turn off" not in Browser(world, "alice").look("inbox").text, "this hub sends no mail"
    monkeypatch.setattr(world.parts.notifier, "reaches", lambda _user: True)
    world.observe()
    world.save(running("others", "bob", gpus=(0, 1, 2, 3)))
    world.save(waiting("mine", "alice"))
    browser = Browser(world, "alice")
    assert "You get a mail or chat message too." in browser.look("workspaces/mine").text
    after = browser.submit("notifications", start_mail="0", workspace="mine")
    assert "You get no mail or chat message about starts." in after.text
    assert api(world, "alice", "notifications").json()["start_mail"] is False
    assert api(world, "bob", "notifications").json()["start_mail"] is True
    assert "You get a mail or chat message too." in browser.submit("notifications", start_mail="1").text


announce = command_fixture("announce", "admin", "announce")


def test_an_announcement_is_sent_listed_and_withdrawn(announce):
    sending = ("send", "--to", "all", "--until", "2h", "Maintenance on Friday.")
    reach = f"{len(PEOPLE)} people (everybody) until {show_time(NOW + 7200, NOW)}; mail is not set up.\n"
    assert announce(*sending, "--dry-run")[:2] == (0, f"It would reach {reach}")
    assert announce("list")[1] == "No announcement is shown now.\n"
    code, out, _ = announce(*sending)
    assert (code, f"it reaches {reach}" in out) == (0, True)
    code, out, _ = announce("list")
    assert out.splitlines()[0].split() == ["ID", "TO", "BY", "SENT", "UNTIL", "STATE", "TEXT"]
    assert out.splitlines()[1].split()[1:3] == ["all", "admin"]
    assert out.rstrip().endswith("shown  Maintenance on Friday.")
    name = out.splitlines()[1].split()[0]
    assert announce("withdraw", name)[:2] == (0, "Withdrawn: to everybody: Maintenance on Friday.\n")
    assert announce("withdraw", name)[0] == 2
    assert json.loads(announce("list", "--past", "--json")[1])["messages"][0]["state"] == "withdrawn"


@pytest.mark.parametrize(
    ("arguments", "name", "words"),
    [
        (("send", "--to", "vision", "--until", "2h", "Hi"), "admin", "all, user:NAME or group:NAME"),
        (("send", "--to", "user:nobody", "--until", "2h", "Hi"), "admin", "Name one as the hub does"),
        (("send", "--to", "all", "--until", "2h", "Hi"), "alice", "Only operators and administrators"),
        (("withdraw", "x"), "admin", "See gpuspawner admin announce list"),
        (("withdraw", ""), "admin", "No announcement"),
    ],
)
def test_a_refusal_says_why(announce, arguments, name, words):
    code, out, error = announce(*arguments, name=name)
    assert (code, out) == (2, "")
    assert words in error
