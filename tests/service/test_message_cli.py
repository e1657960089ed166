"""``gpuspawner message``: sends, lists, withdraws, and says how many people it reaches."""

import json

import pytest
from page_world import NOW

from gpuspawner.cli.main import main
from gpuspawner.core.units import show_time


@pytest.fixture
def message(make_web_world, monkeypatch, capsys):
    world = make_web_world()

    def run(*arguments, name="admin"):
        monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token(name))
        code = main(["message", *arguments, "--url", world.home.rstrip("/")])
        return code, *capsys.readouterr()

    return run


def test_a_message_is_sent_listed_and_withdrawn(message):
    sending = ("send", "--to", "all", "--until", "2h", "Maintenance on Friday.")
    reach = f"3 people (everybody) until {show_time(NOW + 7200, NOW)}; no mail is set up.\n"
    assert message(*sending, "--dry-run")[:2] == (0, f"Would reach {reach}")
    assert message("list")[1] == "No message is shown now.\n"
    code, out, _ = message(*sending)
    assert (code, f"reaches {reach}" in out) == (0, True)
    code, out, _ = message("list")
    assert out.splitlines()[0].split() == ["ID", "TO", "BY", "SENT", "UNTIL", "STATE", "TEXT"]
    assert out.splitlines()[1].split()[1:3] == ["all", "admin"]
    assert out.rstrip().endswith("shown  Maintenance on Friday.")
    name = out.splitlines()[1].split()[0]
    assert message("withdraw", name)[:2] == (0, "Withdrawn: to everybody: Maintenance on Friday.\n")
    assert message("withdraw", name)[0] == 2
    assert json.loads(message("list", "--past", "--json")[1])["messages"][0]["state"] == "withdrawn"


@pytest.mark.parametrize(
    ("arguments", "name", "words"),
    [
        (("send", "--to", "vision", "--until", "2h", "Hi"), "admin", "all, user:NAME or group:NAME"),
        (("send", "--to", "user:nobody", "--until", "2h", "Hi"), "admin", "Name one as the hub does"),
        (("send", "--to", "all", "--until", "2h", "Hi"), "alice", "Only administrators"),
        (("withdraw", "x"), "admin", "See gpuspawner message list"),
        (("withdraw", ""), "admin", "No message"),
    ],
)
def test_what_is_refused_says_why(message, arguments, name, words):
    code, out, error = message(*arguments, name=name)
    assert (code, out) == (2, "")
    assert words in error
