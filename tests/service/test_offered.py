"""GPUs that a user can have now: a GPU reserved for others is not free, and the page says for whom it is reserved."""

import pytest
from page_world import CATALOG, NOW, Browser, api, running, waiting

from gpuspawner.catalog import load_catalog
from gpuspawner.cli.main import main
from gpuspawner.service.start.models import Offers

VISION = {"vision": {"group": "vision", "gpus": {"soft": 4}}}


@pytest.fixture
def world(make_web_world):
    world = make_web_world(load_catalog({**CATALOG, "timezone": "UTC", "quotas": VISION}))
    world.groups["bob"] = ["vision"]
    world.observe()
    hold = {"what": "reserve", "kind": "a100", "count": 2, "team": "vision", "until": "2h", "reason": "a demonstration"}
    assert api(world, "admin", "admin/restrictions", "POST", hold).status_code == 201
    return world


def offered(world, name):
    one = api(world, name, "offers").json()["offers"][0]
    return one["free"], one["total"], one["note"]


def until(world):
    (one,) = world.call(world.parts.queue._held)
    return one.note(2, NOW).partition("until ")[2]


def test_gpus_held_for_a_team_are_free_only_to_its_members(world):
    assert offered(world, "alice") == (2, 4, f"2 reserved for team vision until {until(world)}")
    assert offered(world, "admin")[0] == 2, "an administrator gets none of them either"
    assert offered(world, "bob") == (4, 4, "")
    world.save(running("theirs", "bob", gpus=(0,)))
    assert offered(world, "bob")[0] == 3
    world.clock.at += 7201
    world.observe()
    assert offered(world, "alice") == (3, 4, "")


def test_home_command_line_and_the_sentence_of_start_say_the_same_number(world, monkeypatch, capsys):
    home = Browser(world, "alice").home.text
    assert "2 of 4 free" in home
    assert f"2 reserved for team vision until {until(world)}" in home
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("alice"))
    main(["offers", "--url", world.home.rstrip("/")])
    row = capsys.readouterr().out.splitlines()[1]
    assert "2 of 4" in row
    assert f"2 reserved for team vision until {until(world)}" in row
    options = {"template": "pytorch", "gpu": "a100", "count": 1, "lifetime": "1h"}
    assert "(2 free)" in api(world, "alice", "check", "POST", options).json()["sentence"]
    assert "(4 free)" in api(world, "bob", "check", "POST", options).json()["sentence"]
    assert "4 of 4" in Browser(world, "bob").home.text


def test_a_waiting_user_reads_that_gpus_held_for_others_are_not_free_to_them(world):
    world.save(running("theirs", "erin", gpus=(0, 1)))
    world.save(waiting("waits", "alice", count=3))
    held = f"2 reserved for team vision until {until(world)}"
    told = api(world, "alice", "workspaces/waits").json()["queue"]["sentence"]
    assert told.startswith(f"0 of 4 simulated A100 80 GB are free, {held}, and you need 3. You are 1st in line. ")
    options = {"template": "pytorch", "gpu": "a100", "count": 3, "lifetime": "1h", "server": "second"}
    told = api(world, "alice", "check", "POST", options).json()["sentence"]
    assert told.startswith(f"0 of 4 simulated A100 80 GB are free, {held}, and you need 3. ")


@pytest.mark.parametrize(
    ("currency", "price", "told"),
    [
        pytest.param("CHF", "CHF 2.10 / h", "CHF 2.10 per hour", id="set"),
        pytest.param("", "2.10 / h", ">2.10 per hour", id="not set"),
    ],
)
def test_prices_of_what_is_free_have_their_currency(make_web_world, monkeypatch, capsys, currency, price, told):
    world = make_web_world(load_catalog({**CATALOG, **({"currency": currency} if currency else {})}))
    world.observe()
    assert Offers.model_validate(api(world, "alice", "offers").json()).currency == currency
    assert told in Browser(world, "alice").home.text
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("alice"))
    main(["offers", "--url", world.home.rstrip("/")])
    assert f"  {price}" in capsys.readouterr().out


def test_an_administrator_reads_that_they_are_held_for_a_team(world):
    target = "2 A100 80 GB for team vision"
    title = f"2 A100 80 GB are reserved for team vision until {until(world)}"
    assert [one["title"] for one in api(world, "admin", "admin/restrictions").json()["restrictions"]] == [title]
    assert f'<th scope="row">{target}</th>' in Browser(world, "admin").look("console/restrictions").text


def test_pages_are_refreshed_when_a_hold_ends(world):
    version = world.call(lambda: world.parts.queue.version)
    world.clock.at += 7201
    world.observe()
    assert world.call(lambda: world.parts.queue.version) > version


def test_reserved_gpus_are_ignored_if_another_scheduler_owns_the_queue(world, monkeypatch):
    capabilities = type("Capabilities", (), {"owns_queue": True})
    monkeypatch.setattr(type(world.parts.scheduler), "capabilities", capabilities)
    assert world.call(world.parts.queue._held) == ()


def test_everybody_reads_whether_the_memory_of_a_share_is_enforced(make_web_world, monkeypatch, capsys):
    half = {"title": "Half", "of": "a100", "shares": 2}
    kinds = {"half": half, "mps-half": {**half, "title": "MPS half", "memory_enforced": True}}
    world = make_web_world(load_catalog({**CATALOG, "gpus": {**CATALOG["gpus"], **kinds}}))
    world.observe()
    offers = {one["kind"]: one["memory_enforced"] for one in api(world, "alice", "offers").json()["offers"]}
    assert (offers["a100"], offers["half"], offers["mps-half"]) == (True, False, True)
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("alice"))
    main(["offers", "--url", world.home.rstrip("/")])
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "40 GiB, not enforced" in rows["half"]
    assert "others on the same GPU may use up its memory" in rows["half"]
    assert "not enforced" not in rows["mps-half"] + rows["a100"]
