"""The decisions of the reference scheduler, with a clock that the test sets."""

import pytest
from reference_claims import NOW, Played, asking, holding

from demo.scheduler import queue
from demo.scheduler.records import Job, Refused, from_time


@pytest.fixture
def machine():
    return Played()


def training(machine, count=1, kind="a100", name="train", lasts=60):
    machine.submit(Job(name, kind, count, 10, lasts, machine.now))
    machine.after(0)


def refused(call, *args):
    with pytest.raises(Refused) as caught:
        call(*args)
    return caught.value.status, caught.value.error


def named(state):
    return state["grant"]["cluster"], state["grant"]["slots"]


def test_a_grant_is_near_the_homes_first_and_void_unless_taken(machine):
    state = machine.wants("one")
    assert (state["state"], named(state)) == ("granted", ("near", [{"node": "n1", "gpus": ["C"], "count": 1}]))
    assert state["grant"]["expires_at"] == from_time(NOW + 60)
    machine.wants("two", at=NOW - 100)
    assert named(machine.state("two"))[0] == "far"
    assert machine.after(59, "one")["state"] == "granted"
    machine.after(1)
    assert machine.after(0, "one")["grant"]["expires_at"] == from_time(NOW + 120)  # no other claim wanted it
    assert machine.confirm("hub", "one", 1, machine.now)["state"] == "running"
    assert machine.after(5000, "one")["grant"]["expires_at"] is None


def test_a_waiting_request_is_told_where_why_and_until_when(machine):
    for number in range(3):
        machine.starts(f"runs-{number}", at=NOW + number)
    machine.put("hub", "runs-0", asking(want="running", ends_at=from_time(NOW + 300)), NOW)
    machine.wants("first", at=NOW + 10)
    second = machine.wants("second", at=NOW + 20)
    assert (second["state"], second["position"], second["of"]) == ("waiting", 2, 2)
    assert second["reason"] == {"code": "behind_others", "words": "For a100, 1 workspace goes first."}
    assert (second["earliest_start"], second["latest_start"]) == (from_time(NOW + 300), None)
    assert machine.state("first")["latest_start"] == from_time(NOW + 300)
    assert machine.state("first")["reason"]["code"] == "no_gpus_free"


def test_a_waiting_request_is_not_passed_for_the_same_kind(machine):
    machine.starts("runs", 2)
    machine.wants("wants-two", 2, at=NOW + 1)
    assert machine.wants("wants-one", at=NOW + 2)["state"] == "waiting"
    assert machine.wants("other-kind", kind="t4", at=NOW + 3)["state"] == "granted"


def test_a_substitute_is_given_with_consent_alone_and_the_best_first(machine):
    machine.starts("a", 2)
    machine.starts("b")
    assert machine.wants("no", at=NOW - 1)["state"] == "waiting"
    machine.release("hub", "no", NOW)
    assert machine.wants("yes", substitutes=["t4", "h100"])["grant"]["kind"] == "h100"
    assert machine.wants("last", substitutes=["t4", "h100"])["grant"]["kind"] == "t4"


@pytest.mark.parametrize(
    ("count", "kind", "code"), [(1, "b200", "unknown_kind"), (3, "a100", "too_many"), (2, "t4", "too_many")]
)
def test_an_impossible_claim_is_refused_until_it_changes(machine, count, kind, code):
    state = machine.wants("one", count, kind)
    assert (state["state"], state["reason"]["code"], state["position"]) == ("refused", code, None)
    assert machine.wants("one", revision=2)["state"] == "granted"


def test_an_older_or_conflicting_revision_is_refused_and_changes_nothing(machine):
    machine.starts("one", revision=5)
    before = machine.state("one")
    put = lambda **asked: refused(machine.put, "hub", "one", asking(**asked), NOW)  # noqa: E731
    assert put(revision=4) == (409, "older")
    assert put(revision=5, kind="t4") == (409, "differs")
    machine.put("hub", "one", asking(revision=5, want="running", holds=holding(before)), NOW)
    assert put(revision=5) == (409, "older")
    assert refused(machine.confirm, "hub", "one", 4, NOW) == (409, "older")
    assert machine.state("one") == before
    machine.release("hub", "one", NOW)
    assert put(revision=5) == (409, "older")
    assert machine.wants("one", revision=6)["state"] == "granted"


def test_a_newer_revision_that_waits_gives_back_what_the_older_held(machine):
    machine.starts("one", 2)
    assert machine.wants("one", 2, revision=2, not_before=from_time(NOW + 60))["reason"]["code"] == "not_before"
    assert not list(machine.used())
    assert machine.after(60, "one")["state"] == "granted"


def test_training_preempts_with_notice_the_last_and_those_beyond_their_quota_first(machine):
    for number, team in enumerate(["vision", None, "vision"]):
        machine.starts(f"runs-{number}", at=NOW + number, team=team)
    training(machine)
    states = {name: machine.state(name) for name in ("runs-0", "runs-1", "runs-2")}
    assert [one["state"] for one in states.values()] == ["running", "running", "preempting"]
    notice = states["runs-2"]["preemption"]
    assert notice == {
        "deadline": from_time(NOW + 120),
        "words": "Training that goes first needs 1 a100.",
        "acknowledged": False,
    }
    assert machine.acknowledge("hub", "runs-2", NOW)["preemption"]["acknowledged"] is True
    assert machine.after(500, "runs-2")["state"] == "preempting"  # nothing is taken from who does not give it
    back = machine.wants("runs-2", revision=2, at=NOW + 2, team="vision")
    assert (back["state"], back["preemption"]) == ("waiting", None)
    assert machine.jobs["train"].gpus
    assert machine.after(60, "runs-2")["state"] == "granted"


def test_a_notice_is_withdrawn_where_its_training_is(machine):
    for number in range(3):
        machine.starts(f"runs-{number}", at=NOW + number)
    training(machine)
    assert machine.state("runs-2")["state"] == "preempting"
    machine.cancel("train")
    assert machine.after(0, "runs-2")["state"] == "running"


def test_an_extension_is_granted_or_refused_in_words(machine):
    machine.starts("one", 2)
    extend = lambda at: machine.extend("hub", "one", from_time(at), NOW)  # noqa: E731
    assert extend(NOW + 7200)["state"] == "running"
    assert refused(extend, NOW - 1) == (409, "extension_refused")
    assert refused(extend, NOW + 90_000) == (409, "extension_refused")
    machine.starts("two")
    training(machine)
    with pytest.raises(Refused, match="1 training job for a100 must wait"):
        machine.extend("hub", "one" if machine.state("one")["state"] == "running" else "two", from_time(NOW + 60), NOW)
    assert refused(machine.extend, "hub", "none", from_time(NOW + 60), NOW) == (404, "not_found")
    machine.wants("waits")
    assert refused(machine.extend, "hub", "waits", from_time(NOW + 60), NOW) == (409, "not_running")


def test_a_quota_warns_and_lets_others_go_first(machine):
    machine.starts("one", 1, team="vision")
    machine.starts("two", 2)
    warned = queue.offers(machine, asking(team="vision"), NOW)["offers"][0]
    assert warned["reason"]["code"] == "quota"
    machine.wants("beyond", team="vision", at=NOW + 1)
    within = machine.wants("within", at=NOW + 2)
    assert within["position"] == 1
    assert "team vision has 2 of its 1 GPUs" in machine.state("beyond")["reason"]["words"]


def test_offers_tell_price_place_and_notice_and_change_nothing(machine):
    change = machine.change
    offers = queue.offers(machine, asking(substitutes=["h100"]), NOW)["offers"]
    assert [(one["kind"], one["cluster"], one["cost_per_hour"]) for one in offers] == [
        ("a100", "near", 2.0),
        ("a100", "far", 1.0),
        ("h100", "near", 4.0),
    ]
    assert {one["earliest_start"] for one in offers} == {from_time(NOW)}
    assert queue.offers(machine, asking(5), NOW)["refused"]["code"] == "too_many"
    (without,) = queue.offers(machine, asking(0, None), NOW)["offers"]
    assert (without["kind"], without["count"]) == (None, 0)
    assert machine.change == change
    assert machine.wants("cpu", 0, None)["grant"]["slots"] == []


def test_a_silent_waiting_claim_ends_and_a_running_one_stays(machine):
    machine.starts("runs", 2)
    machine.starts("also")
    machine.wants("waits", ttl_seconds=60)
    cursor = machine.since("hub", None)[0]["cursor"]
    machine.after(61)
    (gone,) = machine.since("hub", cursor)[0]["claims"]
    assert (gone["id"], gone["state"], gone["reason"]["code"]) == ("waits", "released", "not_heard")
    assert machine.after(100_000, "runs")["state"] == "running"
    assert machine.wants("waits")["state"] == "waiting"  # the same revision: its hub did not release it


def test_a_cursor_gives_what_changed_again_and_again_and_ends_with_its_life(machine):
    machine.wants("one")
    cursor = machine.since("hub", None)[0]["cursor"]
    assert machine.since("hub", cursor) == ({"cursor": cursor, "complete": False, "claims": []}, False)
    machine.wants("two")
    machine.wants("theirs", hub="other")
    machine.release("hub", "one", NOW)
    for _ in range(2):
        told = machine.since("hub", cursor)[0]
        assert [(one["id"], one["state"]) for one in told["claims"]] == [("two", "granted"), ("one", "released")]
    for lost in ("second-0", cursor + "0", "nonsense"):
        assert refused(machine.since, "hub", lost) == (410, "gone")
    machine.after(1000)
    assert refused(machine.since, "hub", cursor) == (410, "gone")


def test_a_restarted_scheduler_waits_for_reports_of_running_workspaces_and_trusts_them(machine):
    state = machine.starts("runs")
    again = Played("second", now=NOW, settle_seconds=5)
    assert again.wants("waits")["reason"]["code"] == "starting"
    again.put("hub", "runs", asking(revision=3, want="running", holds=holding(state)), NOW)
    assert again.after(4, "waits")["state"] == "waiting"
    assert named(again.state("runs")) == named(state)
    assert named(again.after(1, "waits")) != named(state)
    assert again.state("runs")["state"] == "running"


def test_a_late_report_gives_a_notice_if_its_gpus_belong_to_another(machine):
    late = asking(want="running", holds=holding(machine.starts("late")))
    given = {"training": Played("a"), "granted": Played("b"), "taken": Played("c")}
    training(given["training"])
    given["granted"].wants("other")
    given["taken"].starts("other")
    for again in given.values():
        again.put("hub", "late", late, NOW)
        again.after(0)
    assert {gpu.name for gpu in given["training"].jobs["train"].gpus} <= {"A", "B"}
    assert named(given["granted"].state("other"))[0] == "far"
    told = {name: again.state("late")["preemption"] for name, again in given.items()}
    assert (told["training"], told["granted"]) == (None, None)
    assert "given to another" in told["taken"]["words"]


def test_an_empty_claim_cannot_hold_gpus(machine):
    assert refused(machine.put, "hub", "one", asking(want="hold"), NOW) == (409, "no_grant")
    assert machine.state("one") is None
    bad = [asking(0), asking(1, None), asking(asked_at="2026-02-31T00:00:00Z")]
    slots = [{"node": "n1", "gpus": ["C"], "count": 2}]
    bad.append(asking(want="hold", holds={"kind": "a100", "cluster": "near", "slots": slots}))
    for asked in bad:
        assert refused(machine.put, "hub", "one", asked, NOW) == (400, "bad_request")
