"""``gpuspawner admin announce``: sends, lists, withdraws, and says how many people it reaches."""

import json

import pytest
from page_world import NOW, PEOPLE, command_fixture, world_fixture

from gpuspawner.core.units import show_time

world = world_fixture(is_observed=False)
announce = command_fixture("announce", "admin", "announce")


def test_an_announcement_is_sent_listed_and_withdrawn(announce):
    sending = ("send", "--to", "all", "--until", "2h", "Maintenance on Friday.")
    reach = f"{len(PEOPLE)} people (everybody) until {show_time(NOW + 7200, NOW)}; mail is not set up.\n"
    assert announce(*sending, "--dry-run")[:2] == (0, f"It would reach {reach}")
    assert announce("list")[1] == "No announcement is shown now.\n"
    code, out, _ = announce(*sending)
    assert (code, f"it reaches {reach}" in out) == (0, True)
    code, out, _ = announce("list")
    assert out.splitlines()[0].split() == ["ID", "TO", "BY", "SENT", "UNTIL", "STATE", "TEXT"]
    assert out.splitlines()[1].split()[1:3] == ["all", "admin"]
    assert out.rstrip().endswith("shown  Maintenance on Friday.")
    name = out.splitlines()[1].split()[0]
    assert announce("withdraw", name)[:2] == (0, "Withdrawn: to everybody: Maintenance on Friday.\n")
    assert announce("withdraw", name)[0] == 2
    assert json.loads(announce("list", "--past", "--json")[1])["messages"][0]["state"] == "withdrawn"


@pytest.mark.parametrize(
    ("arguments", "name", "words"),
    [
        (("send", "--to", "vision", "--until", "2h", "Hi"), "admin", "all, user:NAME or group:NAME"),
        (("send", "--to", "user:nobody", "--until", "2h", "Hi"), "admin", "Name one as the hub does"),
        (("send", "--to", "all", "--until", "2h", "Hi"), "alice", "Only operators and administrators"),
        (("withdraw", "x"), "admin", "See gpuspawner admin announce list"),
        (("withdraw", ""), "admin", "No announcement"),
    ],
)
def test_a_refusal_says_why(announce, arguments, name, words):
    code, out, error = announce(*arguments, name=name)
    assert (code, out) == (2, "")
    assert words in error
