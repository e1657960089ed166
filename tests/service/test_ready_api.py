"""``gpuspawner schedule``, the API below ``/ready`` and the home: one's own alone, bounded, audited."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest
from page_world import Browser, api, world_fixture
from test_cli_using import cli  # noqa: F401 - a fixture

from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.schedules import FIRST_START_SECONDS
from gpuspawner.service.start.schedules import MAX_SCHEDULES

world = world_fixture()


def alice_of(world):
    return Owner("hub-1", "alice born")


@pytest.mark.postgresql
def test_a_command_lists_makes_resumes_and_removes_schedules(world, cli):  # noqa: F811
    assert cli("schedule").out.startswith("You have no schedules.")
    out = cli("schedule", "pytorch", "--gpu", "a100", "--count", "2", "--at", "8:00", "--name", "train").out
    assert out.startswith("weekdays 8:00 (")
    assert "Next ready" in out
    (one,) = json.loads(cli("schedule", "--json").out)["ready"]
    assert (one["server"], one["options"]) == ("train", {"template": "pytorch", "gpu": "a100", "count": "2"})
    assert "weekdays 8:00" in cli("schedule").out
    alice = Browser(world, "alice")
    assert re.search(
        "train</a>.*pytorch · a100.*<b>Weekdays 8:00</b>.*Next ready", " ".join(alice.look("").text.split())
    )
    assert cli("schedule", name="bob").out.startswith("You have no schedules.")
    for method, body in (("POST", {"paused": True}), ("DELETE", None)):
        assert api(world, "bob", f"ready/{one['id']}", method, body).status_code == 404
    assert "Next ready" in cli("schedule", "--resume", one["id"][:8]).out
    world.call(world.parts.store.schedules.change, alice_of(world), one["id"], partial(replace, missed=3))
    assert "Paused, because you missed it on 3 days in a row." in alice.look("").text
    assert "Paused" not in alice.submit("ready", id=one["id"], act="resume").text
    assert cli("schedule", "--remove", one["id"][:8]).out == f"{one['id'][:8]}: removed.\n"
    assert "No schedule has" in cli("schedule", "--remove", one["id"], code=2).err
    lines = world.call(world.parts.store.audit_log.latest)
    assert [line.event.name for line in lines] == ["ready removed", "ready resumed", "ready resumed", "ready wished"]
    assert {line.actor for line in lines} == {"alice"}
    assert list(world.parts.registry) == []


def test_a_repeated_schedule_is_made_once(world):
    body = {"template": "pytorch", "gpu": "a100", "at": "8:00", "on": "weekdays"}
    first, again = (api(world, "alice", "ready", "POST", body) for _ in range(2))
    assert (first.status_code, again.status_code, again.json()["id"]) == (201, 201, first.json()["id"])
    assert len(api(world, "alice", "ready").json()["ready"]) == 1
    api(world, "alice", "ready", "POST", {**body, "at": "9:00"})
    api(world, "alice", "ready", "POST", {**body, "server": "train"})
    assert len(api(world, "alice", "ready").json()["ready"]) == 3
    assert len(world.call(world.parts.store.audit_log.latest)) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--at", "25:00"], "Time: You asked for '25:00'. Allowed: one like 8:00 or 17:30."),
        (["--at", "8:00", "--on", "someday"], "on: You asked for 'someday'. Allowed: weekdays, weekend, daily"),
        (["--at", "8:00", "--count", "9"], "GPUs: You asked for '9'. Allowed: 1 to 4."),
        (["--at", "8:00", "--name", "a/b"], "Name: You asked for 'a/b'"),
    ],
)
def test_an_impossible_schedule_is_refused_in_words(world, cli, arguments, words):  # noqa: F811
    assert words in cli("schedule", *arguments, code=2).err
    assert "The time is missing." in cli("schedule", "--count", "1", code=1).err
    assert api(world, "alice", "ready").json()["ready"] == []


def test_schedules_of_a_user_are_bounded(world):
    body = {"at": "8:00", "on": "daily"}
    answers = [
        api(world, "alice", "ready", "POST", {**body, "at": f"{hour}:00"}) for hour in range(8, 9 + MAX_SCHEDULES)
    ]
    assert [one.status_code for one in answers] == [201] * MAX_SCHEDULES + [403]
    assert f"up to {MAX_SCHEDULES}" in answers[-1].json()["error"]["message"]
    assert api(world, "bob", "ready", "POST", body).status_code == 201


def test_a_schedule_is_changed_paused_and_resumed_everywhere(world, cli):  # noqa: F811
    one = api(world, "alice", "ready", "POST", {"at": "8:00", "on": "daily"}).json()
    assert one["asked_for_at"] == one["next_at"] - FIRST_START_SECONDS
    assert "if the queue stays as it is" in one["sentence"]
    assert cli("schedule", "--change", one["id"], "--at", "9:30", "--on", "wed,mon").out.startswith("Mon, Wed 9:30 (")
    assert "The change is missing." in cli("schedule", "--change", one["id"], code=1).err
    assert "Paused. Resume it to use it again." in cli("schedule", "--pause", one["id"][:6]).out
    alice = Browser(world, "alice")
    assert "Resume" in alice.look("").text
    page = alice.submit("ready", id=one["id"], act="resume").text
    assert "Pause</button>" in page
    page = alice.submit("ready", id=one["id"], act="change", at="07:15", on=["sunday"]).text
    assert "<b>Sun 7:15</b>" in page
    assert "Paused. Resume" in alice.submit("ready", id=one["id"], act="pause").text
    (after,) = api(world, "alice", "ready").json()["ready"]
    assert (after["at"], after["days"], after["paused"], after["next_at"]) == ("07:15", ["sunday"], True, None)
    for body, words in (
        ({}, "true or false"),
        ({"paused": "yes"}, "true or false"),
        ({"at": "25:00"}, "one like 8:00"),
        ({"when": "now"}, "a field that does not exist"),
    ):
        answer = api(world, "alice", f"ready/{one['id']}", "POST", body)
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]
    alice.submit("ready", 400, id=one["id"], act="change", at="soon")


@pytest.mark.postgresql
def test_a_schedule_that_would_be_refused_now_is_reported_before_its_time(world):
    api(world, "alice", "ready", "POST", {"at": "8:00", "on": "daily", "count": 2})
    (one,) = world.call(world.parts.store.schedules.of, alice_of(world))
    gone = partial(replace, options={"template": "gone"})
    world.call(world.parts.store.schedules.change, alice_of(world), one.id, gone)
    (told,) = api(world, "alice", "ready").json()["ready"]
    assert " It would be refused now: " in told["sentence"]
