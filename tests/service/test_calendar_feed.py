"""The iCalendar feed: its format, whom it names, and that its address opens nothing else and can be ended."""

import re

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from page_world import CATALOG, GPUS, NOW, Browser, api

from gpuspawner.catalog import load_catalog
from gpuspawner.service.calendar.feed import CalendarEvent, calendar_text, stored_hash

NODE = GPUS[0].node
WHY = "Final projects; rooms 1, 2 \\ 3: Prüfung für alle, die im Sommersemester Bildverarbeitung gehört haben"


@pytest.fixture
def world(make_web_world):
    made = make_web_world(load_catalog({**CATALOG, "teams": {"vision": {}}}))
    made.observe()
    for body in (
        {"what": "reserve", "kind": "a100", "count": 3, "user": "bob", "begins": "2h", "until": "4h"},
        {
            "what": "reserve",
            "kind": "a100",
            "count": 1,
            "team": "vision",
            "every": "Mon-Sun 09:00-11:00",
            "until": "3d",
        },
        {"what": "drain", "node": NODE, "begins": "9d", "until": "10d"},
    ):
        api(made, "admin", "admin/restrictions", "POST", {**body, "reason": WHY}).raise_for_status()
    return made


def make(world, name):
    page = Browser(world, name).submit("calendar/link").text
    (token,) = re.findall(r"<code[^>]*>[^<]*/calendar/([\w-]+)\.ics<", page)
    return token


def read(world, token):
    return requests.get(f"{world.home}calendar/{token}.ics", timeout=20)


def events_of(text):
    """Return the events of a calendar as RFC 5545 has them unfolded and unescaped, and check its lines."""
    assert text.endswith("\r\n")
    lines = text.removesuffix("\r\n").split("\r\n")
    assert all(len(line.encode()) <= 75 and "\n" not in line for line in lines)
    whole = re.sub(r"\r\n[ \t]", "", text).removesuffix("\r\n").split("\r\n")
    assert (whole[:2], whole[-1]) == (["BEGIN:VCALENDAR", "VERSION:2.0"], "END:VCALENDAR")
    found, event = [], {}
    for line in whole[6:-1]:
        name, _, value = line.partition(":")
        if line == "BEGIN:VEVENT":
            event = {}
        elif line == "END:VEVENT":
            found.append(event)
        else:
            event[name] = re.sub(r"\\(.)", lambda one: "\n" if one[1] in "nN" else one[1], value)
    return found


def test_a_calendar_program_reads_what_its_user_sees_without_names_of_others(world):
    answer = read(world, make(world, "alice"))
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/calendar; charset=utf-8")
    events = events_of(answer.content.decode())
    (reserved,) = [one for one in events if one["SUMMARY"] == "Another user: 3 × A100 80 GB"]
    assert (reserved["DTSTART"], reserved["DTEND"]) == ("20270115T100000Z", "20270115T120000Z")
    assert reserved["DESCRIPTION"] == WHY
    assert [one["SUMMARY"] for one in events].count("Team vision: 1 × A100 80 GB") == len(events) - 2
    assert len({one["UID"] for one in events}) == len(events) in {4, 5}
    assert events[-1]["SUMMARY"] == "Maintenance: 4 × A100 80 GB"
    assert NODE not in answer.text
    assert "bob" not in answer.text
    theirs = events_of(read(world, make(world, "bob")).content.decode())
    assert "You: 3 × A100 80 GB" in {one["SUMMARY"] for one in theirs}
    assert "bob" not in read(world, make(world, "admin")).text, "an address is read without a sign-in"


def test_an_address_is_where_its_user_opened_the_page_if_no_public_address_is_configured(world):
    browser = Browser(world, "alice")
    cookies = "; ".join(f"{one.name}={one.value}" for one in browser.cookies)
    browser.headers.update({"Host": "hub.example.org", "X-Forwarded-Proto": "https,http", "Cookie": cookies})
    assert ">https://hub.example.org/services/gpu/calendar/" in browser.submit("calendar/link").text


def test_an_address_is_valid_for_a_year_and_until_another_is_made_or_it_is_ended_or_its_user_is_gone(world):
    first = make(world, "alice")
    token = make(world, "alice")
    assert [read(world, one).status_code for one in (first, token)] == [404, 200]
    assert "is not valid" in read(world, "x" * 32).text
    assert read(world, "short").status_code == 404
    world.clock.at += 366 * 86400
    assert read(world, token).status_code == 404
    world.clock.at = NOW
    tokens = Browser(world, "alice").get(f"{world.home}tokens").text
    assert "Reads your calendar" in tokens
    world.created["alice"] = None
    world.parts.known._until.clear()
    assert read(world, token).status_code == 404
    acts = [(one.actor, one.event.action) for one in world.call(world.parts.store.audit_log.latest, None)]
    assert [act for who, act in acts if who == "alice"] == ["calendar shared", "signed out", "calendar shared"]


def test_an_address_opens_nothing_else_and_no_token_makes_one(world):
    token = make(world, "alice")
    hashed = stored_hash(world.parts.secret, token)
    assert world.call(world.parts.store.tokens.find_by_hash, hashed).user == "alice"
    for secret in (token, hashed, f"calendar {token}"):
        headers = {"Authorization": f"token {secret}"}
        assert requests.get(f"{world.url}/services/gpu/api/v1/", headers=headers, timeout=20).status_code == 403
    headers = {"Authorization": f"token {world.token('alice')}"}
    assert requests.post(f"{world.home}calendar/link", headers=headers, timeout=20).status_code == 403


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_survives_folding_and_escaping(summary, description):
    text = calendar_text("GPUs", [CalendarEvent("u@g", 0.0, 3600.0, summary, description)], 0.0)
    (event,) = events_of(text)
    shown = "".join(x for x in re.sub(r"\r\n|\r", "\n", summary) if x.isprintable() or x == "\n")
    assert event["SUMMARY"] == shown
    assert event["DTSTART"] == "19700101T000000Z"
