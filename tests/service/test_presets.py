"""A user's own presets over HTTP: saved, renamed and deleted by them alone, within bounds."""

import re

import pytest
import requests
from page_world import NOW, api, world_fixture

from gpuspawner.core.authentication import sign_ticket
from gpuspawner.core.errors import Unavailable
from gpuspawner.service.engine.hub_client import HubClient
from gpuspawner.service.forgetting import forget
from gpuspawner.service.start.api import MAX_PRESETS

NIGHTLY = {"template": "pytorch", "gpu": "a100", "count": "4", "substitutes": ["t4"], "tools": ["nlp"]}
NAME = "my 4 \N{MULTIPLICATION SIGN} A100 for nightly?"


def ask(world, path="presets", who="alice", status=200, method="GET", **body):
    return api(world, who, path, method, body, status=status).json()


def save(world, name=NAME, who="alice", status=201, **options):
    return ask(world, "presets", who, status, "POST", name=name, options=options or NIGHTLY)


def names(world, who="alice"):
    return [one["name"] for one in ask(world, who=who)["presets"]]


world = world_fixture(is_observed=False)


@pytest.mark.postgresql
def test_a_preset_is_saved_used_renamed_and_deleted_by_its_user_alone(world):
    assert save(world) == {"name": NAME, "options": NIGHTLY, "saved_at": NOW}
    save(world, NAME, template="pytorch", lifetime="1h30")  # in its place
    assert ask(world)["presets"] == [
        {"name": NAME, "options": {"template": "pytorch", "lifetime": "1h30"}, "saved_at": NOW}
    ]
    assert names(world, "bob") == []
    path = f"presets/{requests.utils.quote(NAME, safe='')}"
    ask(world, path, "bob", 404, "DELETE")
    ask(world, path, "bob", 404, "POST", name="mine")
    save(world, "other")
    assert "already" in ask(world, path, status=409, method="POST", name="other")["error"]["message"]
    assert ask(world, path, method="POST", name="  nightly ") == {"name": "nightly"}
    assert names(world) == ["nightly", "other"]
    ask(world, "presets/nightly", method="DELETE")
    ask(world, "presets/nightly", status=404, method="DELETE")
    assert names(world) == ["other"]


def test_presets_are_bounded_in_number_and_length_and_hold_options_alone(world):
    for number in range(MAX_PRESETS):
        save(world, f"n{number}")
    assert "up to 20" in save(world, "one more", status=403)["error"]["message"]
    save(world, "n0", template="pytorch")
    for name in ("", " ", "x" * 61, "a/b", "a\nb", 7, None):
        save(world, name, status=400)
    for options in ({"shell": "rm"}, {"env": "A=1"}, {"memory": "x" * 501}, {"memory": 7}, {"substitutes": [1]}):
        save(world, "n1", status=400, **options)
    save(world, "n1", status=400, script="echo \udc80")
    ask(world, status=400, method="POST", name="n1", options={})


def test_a_form_for_another_user_shows_no_presets(world):
    save(world)
    for form, status in ((False, 200), (True, 403)):
        ticket = sign_ticket(b"s" * 32, "alice", "alice born", NOW, form=form)
        headers = {"Authorization": f"ticket {ticket}"}
        answer = requests.get(f"{world.home}api/v1/presets", headers=headers, timeout=20)
        assert answer.status_code == status


@pytest.mark.postgresql
def test_a_deleted_users_presets_are_forgotten_and_no_others(world):
    for who in ("alice", "bob"):
        save(world, who=who)
    world.hub_down = True
    with pytest.raises(Unavailable):
        world.call(forget, world.parts)
    world.hub_down, world.created["alice"] = False, None
    world.call(forget, world.parts)
    assert world.call(world.parts.store.retention.owners, "hub-1") == {"bob born"}
    world.created["alice"] = "alice again"
    assert names(world) == []
    assert names(world, "bob") == [NAME]


@pytest.mark.postgresql
def test_presets_skipped_during_another_users_deletion_are_kept(world, monkeypatch):
    save(world)
    listed = [f"user {number}" for number in range(250)]
    listed[200] = "alice"

    async def fetch(_hub, _method, path):
        first = int(re.search(r"offset=([0-9]+)", path)[1])
        items = [{"name": name, "created": f"{name} born", "groups": []} for name in listed[first : first + 200]]
        if first == 0:
            del listed[0]  # by the hub's administrator: all others move up by one
        following = {"offset": first + 200} if first + 200 < len(listed) else None
        return {"items": items, "_pagination": {"next": following}}

    monkeypatch.setattr(HubClient, "_fetch", fetch)
    world.call(forget, world.parts)
    assert world.call(world.parts.store.retention.owners, "hub-1") == {"alice born"}
