"""Identity of a visitor on pages and in the API: by account, whatever the name; signed in, with the scope."""

import re
from dataclasses import replace

import page_world
import pytest
import requests
from page_world import Browser, api, world_fixture

from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.service.engine.allocation.start_attempts import hash_token

world = world_fixture(is_observed=False)


def test_promise_9_a_new_user_with_a_deleted_one_s_name_sees_nothing_of_theirs(world):
    world.save(page_world.running("live"))
    world.save(page_world.reclaimed("gone"), audit=page_world.reclaimed_audit())
    world.created["alice"] = "another alice born"
    alice = Browser(world, "alice")
    assert not {"live", "gone"} & set(re.findall(r"workspaces/(\w+)", alice.home.text))
    for lease in ("live", "gone"):
        alice.look(f"workspaces/{lease}", 404)
        assert api(world, "alice", f"workspaces/{lease}/audit").status_code == 404
    alice.submit("workspaces/live/stop", 404)
    assert api(world, "alice").json() == {"workspaces": [], "next": None}
    assert world.lease("live").phase is Phase.RUNNING


def test_promise_9_a_renamed_user_keeps_what_is_theirs_by_cookie_and_token(world):
    world.save(page_world.running("live", server="second"))
    world.save(page_world.reclaimed("gone"))
    world.names["alice"], world.created["alicia"] = "alicia", "alice born"
    alicia = Browser(world, "alice")
    assert {"live", "gone"} <= set(re.findall(r"workspaces/(\w+)", alicia.home.text))
    assert "/hub/spawn/alicia?" in alicia.look("workspaces/gone").text, "it starts again under the name of now"
    assert [x["id"] for x in api(world, "alice").json()["workspaces"]] == ["live", "gone"]


def test_promise_9_a_name_that_passes_on_while_its_token_is_remembered_changes_nothing(world):
    world.save(page_world.running("live"))
    assert [x["id"] for x in api(world, "alice").json()["workspaces"]] == ["live"]
    world.save(replace(page_world.running("newcomer-s"), key=Key("hub-1", "another alice born", "")))
    world.names["alice"], world.created["alice"] = "alicia", "another alice born"
    assert [x["id"] for x in api(world, "alice").json()["workspaces"]] == ["live"], "the token is the renamed one's"
    assert world.models_asked == ["alice"], "asked once for a token, not at each request"


def test_promise_9_a_deleted_user_cannot_act_although_the_answer_is_cached(world):
    world.save(page_world.running("live"))
    alice = Browser(world, "alice")
    world.names["alice"] = None
    assert api(world, "alice").json()["workspaces"], "what was answered for a moment is still shown"
    assert "Nothing was done." in alice.submit("workspaces/live/stop", 403).text
    assert api(world, "alice", "workspaces/live/stop", "POST").status_code == 403
    assert world.lease("live").phase is Phase.RUNNING


def test_promise_5_who_was_known_a_moment_ago_keeps_a_workspace_while_the_hub_is_away(world):
    world.save(page_world.in_grace("warned"))
    alice = Browser(world, "alice")
    world.hub_down = True
    alice.submit("workspaces/warned/keep")
    assert world.lease("warned").phase is Phase.RUNNING


@pytest.mark.parametrize("what", ["error", None, "passes on"])
def test_promise_9_who_someone_is_is_never_guessed(world, what):
    world.save(page_world.running("live"))

    def passes_on():
        world.names["alice"] = "alicia"
        return "alice born"

    world.created["alice"] = passes_on if what == "passes on" else what
    answer = api(world, "alice")
    assert answer.status_code == 503
    assert "The hub " in answer.json()["error"]["message"]
    world.names.clear(), world.created.clear()
    assert [x["id"] for x in api(world, "alice").json()["workspaces"]] == ["live"], "once it can be asked"


def test_promise_9_a_service_with_a_user_s_name_owns_nothing(world):
    world.save(page_world.running("live"))
    world.save(page_world.reclaimed("gone"))
    world.names["robot"] = "alice"
    assert api(world, "robot").json() == {"workspaces": [], "next": None}
    for lease in ("live", "gone"):
        assert api(world, "robot", f"workspaces/{lease}").status_code == 404
    assert api(world, "robot", "workspaces/live/stop", "POST").status_code == 403
    assert api(world, "robot", "check", "POST").status_code == 200
    assert world.models_asked == []


def test_a_signed_out_visitor_is_sent_to_the_hub_and_returns(world):
    world.save(page_world.running())
    first = requests.get(f"{world.home}workspaces/runs", allow_redirects=False)
    assert first.status_code == 302
    assert first.headers["Location"].startswith("/hub/api/oauth2/authorize?")
    session = requests.Session()
    page = session.get(f"{world.home}workspaces/runs")
    assert page.url == f"{world.home}workspaces/runs"
    assert "1 × A100 80 GB" in page.text


def test_a_script_is_not_sent_to_sign_in(world):
    response = requests.get(world.home, headers={"Sec-Fetch-Mode": "cors"}, allow_redirects=False)
    assert (response.status_code, "no longer signed in" in response.text) == (403, True)


def test_signed_in_without_the_scope_is_told_so_and_not_sent_round_in_circles(world):
    world.signing_in = "mallory"
    response = requests.Session().get(world.home)
    assert response.status_code == 403
    assert "Your account may not use GPUs here: it lacks the scope custom:gpu:use." in response.text
    assert len(response.history) == 3


def test_the_hub_away_is_a_503_that_says_so(world):
    alice = Browser(world, "alice")
    world.hub_down = True
    world.number += 1  # a token that no cache knows
    alice.headers["Authorization"] = f"token {world.token('alice')}"
    assert "The hub does not answer" in alice.look("", 503).text


def test_a_workspaces_own_token_opens_no_page(world):
    token = "gpuws-0123456789"
    world.save(page_world.running("mine", token_hash=hash_token(token)))
    for method in ("GET", "POST"):
        headers = {"Authorization": f"token {token}"}
        response = requests.request(method, f"{world.home}workspaces/mine/stop", headers=headers)
        assert response.status_code == 403
    assert world.lease("mine").phase is Phase.RUNNING
