"""An administrator or operator moves a waiting request. The users who are passed read why, and nothing ends."""

import html
from dataclasses import replace

import pytest
from page_world import CATALOG, NOW, PEOPLE, STAFF, Browser, api, running, waiting

from gpuspawner.catalog import load_catalog
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.changes import in_order
from gpuspawner.schedulers.base import Capabilities

WHY = "The paper is due at 18:00"


@pytest.fixture
def world(make_web_world, monkeypatch):
    monkeypatch.setattr("page_world.PEOPLE", {**PEOPLE, **STAFF})
    made = make_web_world(load_catalog({**CATALOG, "teams": {"vision": {}}}))
    made.observe()
    made.save(running("runs", "alice", gpus=(0, 1, 2, 3)))
    for number, name in enumerate(("bob", "admin", "robin")):
        made.save(waiting(f"of-{name}", name, count=1, asked_at=NOW - 300 + number))
    return made


def reorder(world, lease="of-robin", place=1, name="admin", status=200, **more):
    body = {"ids": [lease], "place": place, "reason": WHY, **more}
    return api(world, name, "admin/workspaces/reorder", "POST", body, status=status).json()


def order(world):
    def found():
        seen = world.parts.allocator.observed.snapshot()
        return [claim.id for claim in in_order(seen.claims, seen)]

    return world.call(found)


def test_a_request_is_moved_up_and_those_who_are_passed_read_why(world):
    dry = reorder(world, dry_run=True)
    assert dry["words"] == "robin / default workspace would be 1st of 3 in the order. Nothing was done."
    assert order(world) == ["of-bob", "of-admin", "of-robin"]
    done = reorder(world)
    assert done["words"] == "robin / default workspace is 1st of 3 in the order."
    assert [one["id"] for one in done["affected"]] == ["of-robin", "of-bob", "of-admin"]
    assert order(world) == ["of-robin", "of-bob", "of-admin"]
    assert world.lease("runs").phase is Phase.RUNNING
    (notice,) = api(world, "bob", "inbox").json()["notices"]
    assert (notice["title"], notice["text"], notice["by"]) == (
        "An administrator moved another request before yours", WHY, "admin",
    )  # fmt: skip
    note = f"An administrator moved another request before yours: “{WHY}”."
    assert note in html.unescape(Browser(world, "bob").look("workspaces/of-bob").text)
    assert note in html.unescape(api(world, "bob", "workspaces/of-bob").json()["queue"]["sentence"])
    actions = [(one["action"], one["user"]) for one in api(world, "admin", "admin/audit?by=people").json()["audit"]]
    expected = [("moved in queue", "robin"), ("passed by move", "admin"), ("passed by move", "bob")]
    assert sorted(actions) == expected


def test_a_moved_request_is_granted_first_and_its_place_survives_a_restart(world):
    reorder(world)
    world.call(world.parts.registry.load)
    assert order(world)[0] == "of-robin"
    lease = world.lease("runs")
    world.save(replace(lease, phase=Phase.STOPPING, phase_since=NOW))
    gone = replace(lease, phase=Phase.ENDED, phase_since=NOW, ended_at=NOW, slots=())
    world.save(gone)
    world.save(replace(world.lease("of-bob"), request=replace(world.lease("of-bob").request, count=4)))
    world.call(world.parts.allocator.grant_waiting)
    assert world.lease("of-robin").phase is not Phase.PARKED
    assert world.lease("of-bob").phase is Phase.PARKED


def test_a_request_is_moved_down(world):
    reorder(world, "of-bob", 2)
    assert order(world) == ["of-admin", "of-bob", "of-robin"]
    reorder(world, "of-bob", 99)
    assert order(world) == ["of-admin", "of-robin", "of-bob"]


def test_what_cannot_be_moved_is_refused_with_a_sentence(world, monkeypatch):
    def refused(**more):
        return reorder(world, status=409, **more)["error"]["message"]

    assert "Only waiting requests have a place in the queue." in refused(lease="runs")
    assert "It is 1st of 3 in the order already." in refused(lease="of-bob")
    assert "place" in reorder(world, place=0, status=400)["error"]["message"]
    assert "Move one after the other." in reorder(world, ids=["of-bob", "of-robin"], status=400)["error"]["message"]
    assert reorder(world, "none", status=404)
    monkeypatch.setattr(type(world.parts.scheduler), "capabilities", Capabilities(owns_queue=True, title="Kueue"))
    assert "Kueue owns the queue of these GPUs. Change the order there." in refused()


@pytest.mark.parametrize(
    ("name", "status"), [("bob", 403), ("lena", 403), ("otto", 403), ("vera", 200), ("admin", 200)]
)
def test_promise_9_operators_and_administrators_change_the_order(world, name, status):
    world.groups["lena"] = {"vision"}
    reorder(world, name=name, status=status)


def test_a_request_is_moved_on_the_page_of_the_queue(world):
    browser = Browser(world, "admin")
    link = "console/act/reorder?ids=of-robin&place=2&back=console%2Fqueue"
    assert link in html.unescape(browser.look("console/queue").text)
    typed = {"ids": "of-robin", "place": "1", "reason": WHY, "back": "console/queue"}
    looked = browser.submit("console/act/reorder", step="look", **typed).text
    assert "would be 1st of 3 in the order" in looked
    assert ">Move request</button>" in looked
    assert order(world)[0] == "of-bob"
    page = html.unescape(browser.submit("console/act/reorder", step="do", **typed).text)
    assert order(world)[0] == "of-robin"
    assert "admin moved the request of robin" in page
    assert 'id="act-place-wrong"' in browser.submit("console/act/reorder", 400, **{**typed, "place": "x"}).text
