"""Operators and administrators start a workspace for another user, who is charged."""

import pytest
from page_world import api, world_fixture

ASKED = {"template": "pytorch", "gpu": "a100"}


world = world_fixture()


def audit_of(world, lease):
    return [(one["actor"], one["where"]) for one in api(world, "admin", f"admin/audit?target={lease}").json()["audit"]]


def test_an_administrator_starts_it_for_a_user_and_the_audit_names_both(world):
    answer = api(world, "admin", "workspaces", "POST", {**ASKED, "user": "bob"})
    assert answer.status_code == 202
    started = answer.json()
    assert (started["user"], world.lease(started["id"]).key.user_created) == ("bob", "bob born")
    assert ("admin", "the API, as administrator") in audit_of(world, started["id"])
    assert api(world, "bob", f"workspaces/{started['id']}").status_code == 200
    again = api(world, "admin", "workspaces", "POST", {**ASKED, "user": "bob", "count": 2})
    assert again.status_code == 409
    assert again.json()["error"]["message"].startswith("bob has a workspace without a name already")


def test_a_user_may_name_only_themselves(world):
    refused = api(world, "alice", "workspaces", "POST", {**ASKED, "user": "bob"})
    assert refused.status_code == 403
    assert refused.json()["error"]["message"].startswith("Only operators and administrators may start workspaces")
    own = api(world, "alice", "workspaces", "POST", {**ASKED, "user": "alice"})
    assert (own.status_code, own.json()["user"]) == (202, "alice")


def test_a_user_whom_the_hub_does_not_have_is_refused_by_name(world):
    world.created["ghost"] = None
    refused = api(world, "admin", "workspaces", "POST", {**ASKED, "user": "ghost"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "user")


@pytest.mark.parametrize("name", ["admin", "alice"])
def test_a_start_for_oneself_is_audited_as_before(world, name):
    started = api(world, name, "workspaces", "POST", ASKED).json()
    assert (started["user"], {actor for actor, _ in audit_of(world, started["id"])} - {"gpuspawner"}) == (name, {name})
