"""An end that was wrong: who may say so, what is kept with it, who answers, and where the answer is read."""

from dataclasses import replace

import page_world
import pytest
import requests
from page_world import NOW, Browser, api, world_fixture

from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import LONGEST_DISPUTE_CHARACTERS, Phase
from gpuspawner.service.engine.allocation.start_attempts import hash_token

AT = NOW - 600
DECIDING = AT - 40 * 60
SENTENCE = "My training reads data for an hour before it computes."


world = world_fixture(is_observed=False)


@pytest.fixture
def gone(world):
    """Stopped for being idle 10 min ago, after 40 idle minutes; nothing of its readings is kept for its end."""
    lease = page_world.reclaimed("gone")
    return world.save(lease, page_world.reclaimed_audit(AT), page_world.readings(lease, [80] * 30 + [1] * 41, until=AT))


def test_a_user_disputes_an_end_and_an_administrator_answers_on_the_page(world, gone):
    alice = Browser(world, "alice")
    text = alice.look("workspaces/gone").text
    assert "This was wrong" in text
    assert "We send your administrator this report with the readings from" in text
    text = alice.submit("workspaces/gone/dispute", sentence=SENTENCE).text
    assert "You called this wrong at" in text
    assert f"“{SENTENCE}”" in text
    assert "Your administrator has it." in text
    assert 'action="/services/gpu/workspaces/gone/dispute"' not in text, "once for each end"
    assert 'action="/services/gpu/workspaces/gone/answer"' not in text

    admin = Browser(world, "admin")
    told = "1 stop was reported as wrong."
    assert told in admin.look("console/").text
    assert '<a href="/services/gpu/workspaces/gone">' in admin.look("console/").text
    assert "alice called this wrong" in admin.look("workspaces/gone").text
    world.clock.at += 60
    admin.submit("workspaces/gone/answer", sentence="Sorry. The policy counts CPU now.")
    assert told not in admin.look("console/").text

    assert 'title="Unread"' in alice.look("").text, "the answer is something new"
    text = alice.look("workspaces/gone").text
    assert "<b>admin</b>" in text
    assert "Sorry. The policy counts CPU now." in text
    history = [
        (line.actor, line.event.action, line.why) for line in world.call(world.parts.store.audit_log.latest, "gone")
    ][:2]
    assert history == [("admin", "answered", "Sorry. The policy counts CPU now."), ("alice", "disputed", SENTENCE)]


def test_the_readings_that_decided_stay_as_long_as_its_audit(world, gone):
    store = world.parts.store
    assert not any(row.kept for row in world.call(store.readings.of_lease, "gone"))
    assert api(world, "alice", "workspaces/gone/dispute", "POST").status_code == 200
    kept = [row.at for row in world.call(store.readings.of_lease, "gone") if row.kept]
    assert (min(kept), max(kept), len(kept)) == (DECIDING, AT, 41)
    while world.call(store.readings.thin, NOW + 60 * 86400):
        pass
    assert [row.at for row in world.call(store.readings.of_lease, "gone")] == kept
    while world.call(store.leases.delete_ended, NOW + 1):
        pass
    assert world.call(store.readings.of_lease, "gone") == []
    assert world.call(store.leases.disputed, None) == []


@pytest.mark.postgresql
def test_a_dispute_is_sent_listed_and_answered_by_the_api(world, gone):
    assert api(world, "alice", "disputes").json() == {"workspaces": [], "next": None}
    answer = api(world, "alice", "workspaces/gone/dispute", "POST", {"sentence": f"  {SENTENCE}\n\n"}).json()
    dispute = answer["end"]["dispute"]
    assert (dispute["sentence"], dispute["since"], dispute["until"]) == (SENTENCE, DECIDING, AT)
    assert (dispute["at"], dispute["answer"], answer["end"]["disputable"]) == (NOW, "", False)
    assert [x["id"] for x in api(world, "alice", "disputes").json()["workspaces"]] == ["gone"]
    assert [x["id"] for x in api(world, "admin", "disputes?all=1").json()["workspaces"]] == ["gone"]
    assert api(world, "bob", "disputes").json() == {"workspaces": [], "next": None}
    assert api(world, "bob", "disputes?all=1").status_code == 403
    answered = api(world, "admin", "workspaces/gone/answer", "POST", {"sentence": "Sorry."}).json()
    assert answered["end"]["dispute"]["answered_by"] == "admin"
    assert api(world, "admin", "disputes?all=1").json() == {"workspaces": [], "next": None}


def test_promise_9_only_its_user_disputes_and_only_an_administrator_answers(world, gone):
    for name, status in (("bob", 404), ("admin", 403), ("robot", 403)):
        assert api(world, name, "workspaces/gone/dispute", "POST").status_code == status
    assert world.lease("gone") == gone
    api(world, "alice", "workspaces/gone/dispute", "POST")
    disputed = world.lease("gone")
    for name, status in (("bob", 403), ("alice", 403)):
        assert api(world, name, "workspaces/gone/answer", "POST", {"sentence": "Yes."}).status_code == status
    assert world.lease("gone") == disputed


def test_an_end_is_disputed_once_and_answered_once(world, gone):
    assert api(world, "admin", "workspaces/gone/answer", "POST", {"sentence": "Early."}).status_code == 409
    alice, admin = Browser(world, "alice"), Browser(world, "admin")
    for _ in range(2):  # a second click is no mistake
        assert "You have said so already." not in alice.submit("workspaces/gone/dispute").text
    other = alice.submit("workspaces/gone/dispute", 409, sentence="And besides.")
    assert "You have said so already." in other.text
    for _ in range(2):
        assert "already" not in admin.submit("workspaces/gone/answer", sentence="Sorry.").text
    assert "admin has answered it already." in admin.submit("workspaces/gone/answer", 409, sentence="Not sorry.").text
    assert world.lease("gone").dispute.answer == "Sorry."


@pytest.mark.parametrize("reason", list(ExitReason))
def test_only_an_end_that_others_decided_can_be_disputed(world, reason):
    world.save(page_world.reclaimed("gone", reason=reason))
    may = reason not in {
        ExitReason.STOPPED,
        ExitReason.MOVED,
        ExitReason.CHANGED,
        ExitReason.FAILED,
        ExitReason.CANCELLED,
    }
    assert ("This was wrong" in Browser(world, "alice").look("workspaces/gone").text) is may
    answer = api(world, "alice", "workspaces/gone/dispute", "POST")
    assert answer.status_code == (200 if may else 409)
    if not may:
        assert f"ended as {reason.value}" in answer.json()["error"]["message"]


def test_a_live_workspace_cannot_be_disputed(world):
    world.save(page_world.in_grace("mine"))
    assert "has not ended" in api(world, "alice", "workspaces/mine/dispute", "POST").json()["error"]["message"]
    assert world.lease("mine").phase is Phase.RECLAIMING


def test_an_oversized_text_is_reported_and_not_lost(world, gone):
    typed = "x" * (LONGEST_DISPUTE_CHARACTERS + 1)
    text = Browser(world, "alice").submit("workspaces/gone/dispute", 400, sentence=typed).text
    assert (
        f"sentence: You asked for 501 characters. Allowed: none to {LONGEST_DISPUTE_CHARACTERS} characters of text."
        in text
    )
    assert f">{typed}</textarea>" in text
    assert world.lease("gone").dispute is None


@pytest.mark.parametrize("sentence", [7, None, ["a"], {"a": 1}])
def test_promise_10_what_is_no_text_is_refused(world, gone, sentence):
    answer = api(world, "alice", "workspaces/gone/dispute", "POST", {"sentence": sentence})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "sentence")


def test_an_empty_answer_is_no_dispute(world, gone):
    api(world, "alice", "workspaces/gone/dispute", "POST")
    assert api(world, "admin", "workspaces/gone/answer", "POST", {"sentence": " \n"}).status_code == 400


def test_user_text_is_no_markup_and_fits_in_every_store(world, gone):
    api(world, "alice", "workspaces/gone/dispute", "POST", {"sentence": "<img src=x>\ud800\x00 ☃"})
    assert world.lease("gone").dispute.sentence == "<img src=x> ☃"
    for name, page in (("alice", "workspaces/gone"), ("admin", "console/")):
        assert "“&lt;img src=x&gt; ☃”" in Browser(world, name).look(page).text


@pytest.mark.parametrize("action", ["dispute", "answer"])
def test_a_forged_form_disputes_and_answers_nothing(world, gone, action):
    response = Browser(world, "alice").post(f"{world.home}workspaces/gone/{action}", data={"_xsrf": "forged"})
    assert response.status_code == 403
    assert world.lease("gone") == gone


def test_promise_9_a_workspace_s_token_reads_nothing_of_its_user_s_other_ones(world, gone):
    assert api(world, "alice", "workspaces/gone/dispute", "POST", {"sentence": SENTENCE}).status_code == 200
    world.save(page_world.running("runs", server="x", token_hash=hash_token("gpuws-abc")))
    waiting = page_world.waiting("waits", user="alice")
    world.save(replace(waiting, key=replace(waiting.key, server="y")))
    headers = {"Authorization": "token gpuws-abc"}
    answers = {
        path: requests.get(f"{world.home}api/v1/{path}", headers=headers).json() for path in ("disputes", "queue")
    }
    assert answers["disputes"] == {"workspaces": [], "next": None}
    (line,) = answers["queue"]["queue"]
    assert (line["id"], line["user"], line["mine"]) == (None, None, False)
