"""Only the user of a running workspace can report that somebody came; other cases print an error in the terminal."""

from dataclasses import replace
from types import SimpleNamespace

from page_world import api, reclaimed, running, waiting, world_fixture

from gpuspawner.cli import start
from gpuspawner.cli.client import Session
from gpuspawner.cli.main import main
from gpuspawner.core.idle.arrival import Arrival

ENDED = "This workspace has ended. Start it again from the form; its files are kept."


world = world_fixture()


def came(world, name, lease="runs"):
    answer = api(world, name, f"workspaces/{lease}/came", "POST")
    return answer.status_code, answer.json().get("error", {}).get("message", "")


def test_only_the_user_of_a_live_workspace_reports_a_visit(world):
    world.save(running("runs", arrival=Arrival(1800.0)))
    assert came(world, "admin") == (403, "Only alice may report, share or confirm something about a workspace.")
    assert came(world, "bob")[0] == 404
    assert world.lease("runs").arrival is not None
    for _ in range(2):
        assert came(world, "alice") == (200, "")
        assert world.lease("runs").arrival is None
    world.save(reclaimed("gone"))
    assert came(world, "alice", "gone") == (409, ENDED)
    world.save(waiting("waits", "bob"))
    assert came(world, "bob", "waits") == (200, "")
    assert world.lease("waits").claimed_at is None, "nobody comes to what does not run"


def test_a_terminal_says_that_the_workspace_ended_before_the_visit(world, monkeypatch, capsys):
    world.save(running("bobs", "bob", gpus=(0, 1, 2, 3)))
    monkeypatch.setattr(start.sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(start, "time", SimpleNamespace(sleep=lambda _seconds: runs()))

    def runs():
        (mine,) = [one for one in world.parts.registry if one.user == "alice"]
        world.save(replace(running("up"), id=mine.id, key=mine.key, arrival=Arrival(1800.0)))

    def ends_first(session, path, *others):
        if path.endswith("/came"):
            world.save(replace(reclaimed(), id=path.split("/")[2]))
        return ask(session, path, *others)

    ask = Session.ask
    monkeypatch.setattr(Session, "ask", ends_first)
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("alice"))
    assert main(["start", "--url", world.home.rstrip("/")]) == 2
    assert capsys.readouterr().err.endswith(f"{ENDED}\n")
