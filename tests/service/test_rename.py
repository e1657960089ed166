"""Names for people: given by the user alone, kept over restarts and later starts, and shown on pages and messages."""

import pytest
from page_world import Browser, api, running

from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces.actions import LONGEST_TITLE, act
from gpuspawner.service.workspaces.presenter import present_workspace


@pytest.fixture
def web(make_web_world):
    made = make_web_world()
    made.observe()
    made.save(running("runs", server="train"))
    return made


def rename(web, title, who="alice", status=200):
    return api(web, who, "workspaces/runs/rename", "POST", {"title": title}, status=status).json()


def test_pages_show_the_title_and_the_server_keeps_its_name(web):
    told = rename(web, "  Llama   fine-tuning ")
    assert (told["name"], told["server"]) == ("Llama fine-tuning", "train")
    for page in ("", "workspaces/runs"):
        assert "Llama fine-tuning" in Browser(web, "alice").look(page).text
    assert "Llama fine-tuning" in Browser(web, "admin").look("console/workspaces").text
    rename(web, "<b>x</b>")
    assert "<b>x</b>" not in Browser(web, "alice").look("workspaces/runs").text
    assert rename(web, "")["name"] == "train"


@pytest.mark.parametrize("title", ["x" * (LONGEST_TITLE + 1), "a\x1b[2J", "\u202e"])
def test_an_invalid_title_is_refused(web, title):
    assert rename(web, title, status=400)["error"]["field"] == "title"


@pytest.mark.parametrize("who", ["bob", "admin"])
def test_only_the_user_renames_a_workspace(web, who):
    rename(web, "mine", who, status=404 if who == "bob" else 403)


async def test_a_title_is_kept_for_later_starts(world):
    lease = await world.up("alice")
    person = Person("alice", lease.key.owner)
    for _ in range(2):  # a second click
        await act(world.parts, person, lease, "rename", "its page", "Mine")
    assert world.did(lease).count("renamed") == 1
    await act(world.parts, person, world.now_of(lease), "without-gpu", "its page")
    await world.rounds(3)
    after = world.registry.of_key(lease.key)
    assert (after.title, after.id != lease.id) == ("Mine", True)
    await act(world.parts, person, after, "stop", "its page")
    await world.rounds(3)
    assert world.phase(after) is Phase.ENDED
    again = await world.start("alice")
    assert present_workspace(world.parts, world.registry.get(again.id)).name == "Mine"
