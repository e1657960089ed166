"""Names of workspaces: at every entry as the hub takes them."""

import pytest
from jupyterhub import slugs
from page_world import api, world_fixture

from gpuspawner.core.errors import RequestRefused

NAMES = ["", "train", "t", "train-2", "a" * 30, "a" * 31, "-a", "a-", "a--b", "2nd", "Train", "weird name!", "a/b", "é"]


world = world_fixture()


@pytest.mark.parametrize("name", [*NAMES, None, 3, "\ud800"])
def test_the_name_of_a_new_workspace_is_valid_in_the_newest_hub(world, name):
    good = name == "" or (isinstance(name, str) and slugs.is_valid_safe_slug(name))
    if good:
        assert world.call(world.parts.hub.check_server_name, "alice", name) == name
        assert world.models_asked == [], "the hub is asked about odd names alone"
    else:
        with pytest.raises(RequestRefused, match="lower-case letters, digits and single hyphens"):
            world.call(world.parts.hub.check_server_name, "alice", name)


def test_an_existing_or_older_name_is_still_valid(world):
    world.servers["My Server"] = {"name": "My Server"}
    assert world.call(world.parts.hub.check_server_name, "alice", "My Server") == "My Server"
    with pytest.raises(RequestRefused):
        world.call(world.parts.hub.check_server_name, "alice", "Mine")
    world.hub_version = "5.5.4"
    assert world.call(world.parts.hub.check_server_name, "alice", "Mine") == "Mine"
    with pytest.raises(RequestRefused):
        world.call(world.parts.hub.check_server_name, "alice", "a/b")


@pytest.mark.parametrize("path", ["check", "workspaces", "ready"])
def test_a_hub_without_named_servers_refuses_a_name_before_the_request(world, path):
    body = {"server": "train", **({"at": "8:00", "on": "weekdays"} if path == "ready" else {})}
    world.named_servers = False
    refused = api(world, "alice", path, "POST", body, status=400)
    assert refused.json()["error"]["message"] == (
        "Name: You asked for 'train'. Allowed: no name, because this hub has no named servers. Leave the name out, or "
        "ask your administrator to allow named servers."
    )
    assert list(world.parts.registry) == []
    world.named_servers = True
    assert api(world, "alice", path, "POST", body).ok, "it is asked again after a refusal"


@pytest.mark.parametrize("path", ["check", "workspaces", "ready"])
def test_every_entry_refuses_a_name_that_the_hub_would_not_take(world, path):
    body = {"server": "weird name!", **({"at": "8:00", "on": "weekdays"} if path == "ready" else {})}
    refused = api(world, "alice", path, "POST", body)
    words = refused.json()["error"]["message"]
    assert refused.status_code == 400
    assert words.startswith("Name: You asked for 'weird name!'. Allowed: at most 30 lower-case letters, digits and ")
    assert words.endswith("a letter first, no hyphen last. Choose another name, or leave it out.")
    assert list(world.parts.registry) == []
