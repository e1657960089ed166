"""The commands of users against the service: what they print and do, their exit codes, and completion."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from harness.command_lines import commands
from page_world import api, in_grace, reclaimed, running, waiting, world_fixture
from rich.cells import cell_len

from gpuspawner.cli import start, workspaces
from gpuspawner.cli.base import Command
from gpuspawner.cli.logins import save_login
from gpuspawner.cli.main import main
from gpuspawner.cli.output import Column, print_table
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.rules import EndNotice
from gpuspawner.service.engine.allocation.start_attempts import StartRequest

world = world_fixture()


@pytest.fixture
def cli(world, monkeypatch, capsys):
    def run(*arguments, name="alice", code=0):
        monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token(name))
        assert main([*arguments, "--url", world.home.rstrip("/")]) == code, capsys.readouterr()
        return capsys.readouterr()

    return run


def test_start_sends_the_options_of_the_form_and_detached_prints_the_state(world, cli):
    asked = ["--gpu", "a100", "--count", "4", "--memory", "16GiB", "--name", "train"]
    out = cli("start", "pytorch", *asked, "--detach").out
    (lease,) = world.parts.registry
    assert (lease.key.server, lease.request.count, lease.request.memory_bytes) == ("train", 4, 16 * 2**30)
    assert (lease.phase, lease.unattended) == (Phase.RESERVED, True), "nobody waits in the hub: the service starts it"
    assert out.startswith(f"alice: train ({lease.id[:8]}): ")
    again = cli("start", "--name", "train", "--detach", code=2).err
    assert again.startswith(f"You have a workspace called train already ({lease.id[:8]}): open or stop it, or name ")
    waits = json.loads(cli("start", "--json", "--detach").out)
    assert (waits["phase"], waits["queue"]["place"]) == ("parked", 1)
    assert json.loads(cli("start", "--json", "--detach").out)["id"] == waits["id"], "what waits for the same is that"


def test_where_the_workspace_without_a_name_runs_start_says_how_to_start_another_one(world, cli):
    world.save(running("up"))
    told = cli("start", code=2).err
    assert told.endswith("To start another workspace: gpuspawner start --name NAME.\n")
    assert "--name NAME" in cli("start", "--dry-run", code=2).err
    world.save(running("train", server="train", gpus=(1,)))
    assert "--name NAME" not in cli("start", "--name", "train", code=2).err


def test_stop_ends_once_the_name_can_be_started_again(world, cli, monkeypatch):
    world.servers[""] = {"name": "", "started": "then", "ready": True, "pending": None, "url": "/"}
    world.save(running("up"))

    def sleep(_seconds):
        assert world.lease("up").phase is Phase.STOPPING
        world.servers.clear()
        world.call(world.parts.engine.drive, "up")

    # Not in the module time: the service of this process sleeps too, while it waits for git.
    monkeypatch.setattr(workspaces, "time", SimpleNamespace(sleep=sleep))
    cli("stop", "up")
    assert world.lease("up").phase is Phase.ENDED
    assert cli("start", "--detach").out.startswith("alice: default workspace")
    world.save(running("more", server="more", gpus=(1,)))
    monkeypatch.setattr(workspaces, "time", SimpleNamespace(sleep=lambda _seconds: pytest.fail("it waits")))
    cli("stop", "more", "--detach")


def test_a_start_waits_for_a_scheduler_that_can_not_say_beforehand_what_it_would_do(world, cli, monkeypatch):
    async def offers(_seen, _claim):
        raise Unavailable("The batch scheduler does not answer.")

    monkeypatch.setattr(world.parts.scheduler, "offers", offers)
    assert "does not answer" in cli("start", "pytorch", "--dry-run", code=3).err
    assert cli("start", "pytorch", "--detach").out.startswith("alice: ")
    assert len(list(world.parts.registry)) == 1


def test_all_errors_of_a_start_are_printed_at_once_one_a_line(world, cli):
    wrong = ["start", "pytorch", "--count", "99", "--memory", "1 box", "--lifetime", "1h30"]
    told = cli(*wrong, code=2).err.splitlines()
    assert [line.partition(":")[0] for line in told] == ["GPUs", "Memory"]
    assert cli(*wrong, "--dry-run", code=2).err.splitlines() == told
    one = cli("start", "--count", "99", code=2).err
    assert one.startswith("GPUs: ")
    assert one.count("\n") == 1
    asked = {"template": "pytorch", "count": "99", "memory": "1 box", "lifetime": "1h30"}
    error = api(world, "alice", "workspaces", "POST", asked).json()["error"]
    assert [one["field"] for one in error["fields"]] == ["count", "memory"]
    assert error == api(world, "alice", "check", "POST", asked).json()["error"]
    assert list(world.parts.registry) == []


def test_start_waits_tells_its_place_and_ends_once_it_runs(world, cli, monkeypatch):
    world.save(running("bobs", "bob", gpus=(0, 1, 2, 3)))

    def sleep(_seconds):
        (mine,) = [one for one in world.parts.registry if one.user == "alice"]
        if mine.phase is Phase.PARKED:
            api(world, "bob", "workspaces/bobs/stop", "POST")
            world.save(replace(running("up"), id=mine.id, key=mine.key))

    monkeypatch.setattr(start, "time", SimpleNamespace(sleep=sleep))
    out, err = cli("start")
    assert err.startswith("All 4 simulated A100 80 GB are in use. ")
    assert "Running on 1 simulated A100 80 GB. It ends " in out
    assert out.endswith(f"{world.url}/user/alice/\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--memory", "16 boxes"], "Memory: You asked for '16 boxes'. Allowed: 1 GiB to 64 GiB."),
        (["--count", "9"], "GPUs: You asked for '9'. Allowed: 1 to 4."),
        (["lost"], "Template: You asked for 'lost'. Allowed: pytorch."),
        (["--repository", "https://me:secret@example.org/a.git"], "Repository: "),
        (
            ["--name", "a/b"],
            "Name: You asked for 'a/b'. Allowed: at most 30 lower-case letters, digits and single hyphens,",
        ),
        (["--name", "weird name!"], "Name: You asked for 'weird name!'. Allowed: at most 30 lower-case letters,"),
        (["--name", "weird name!", "--dry-run"], "Name: You asked for 'weird name!'. Allowed: "),
    ],
)
def test_an_impossible_start_is_refused_in_words(cli, world, arguments, words):
    assert words in cli("start", *arguments, code=2).err
    assert list(world.parts.registry) == []


def test_any_gpu_with_a_given_memory_can_be_requested(cli, world):
    cli("start", "--gpu-memory", "40GiB", "--detach")
    (lease,) = world.parts.registry
    assert lease.request.gpu == "a100"
    assert (
        "Memory of each GPU: You asked for '900GiB'. Allowed: up to 80 GiB."
        in cli("start", "--gpu-memory", "900GiB", code=2).err
    )


def test_list_and_show_print_an_end_that_others_decided(cli, world):
    soon = EndNotice("claim-1", world.clock.now() + 120, "Training job train-77 needs 1 A100 80 GB.", "root")
    world.save(replace(running(), notice=soon))
    assert "in 2 min" in cli("list").out
    assert "in 2 min" in cli("show", "-").out
    assert "train-77 needs 1 A100 80 GB." in cli("explain", "-").out.splitlines()[1]


def test_sizes_times_and_a_repository_are_understood_as_people_write_them(cli, world):
    written = ["--memory", "8 GB", "--lifetime", "1h30", "--repository", "https://example.org/team/project.git"]
    cli("start", *written, "--detach")
    (lease,) = world.parts.registry
    assert (lease.request.memory_bytes, lease.request.lifetime_seconds) == (8 * 2**30, 5400)
    assert lease.options["repository"] == "https://example.org/team/project.git"


def test_every_command_that_asks_shows_examples():
    asking = [(path, command) for path, command in commands() if "url" in [one.name for one in command.params]]
    assert len(asking) > 30
    without = [path[1:] for path, command in asking if not (isinstance(command, Command) and command.examples)]
    assert [path for path in without if path[:2] != ("admin", "preempt")] == [("logout",)]


def test_a_dry_run_says_what_start_would_do_and_asks_for_nothing(cli, world):
    assert cli("start", "--dry-run").out.startswith("Starts now on 1 simulated A100 80 GB (4 free).")
    assert list(world.parts.registry) == []


def test_show_open_keep_and_extend_act_on_the_one_that_is_meant(world, cli):
    world.save(in_grace("warned"))
    shown = cli("show").out
    assert shown.startswith("alice: default workspace (warned)\n  State:")
    assert f"  Page:      {world.home}workspaces/warned" in shown
    assert cli("open", "--print").out == f"{world.url}/user/alice/\n"
    kept = cli("keep", "-").out
    assert re.fullmatch(
        r"alice: default workspace \(warned\): Its idle check is paused until [^.]+\. You can keep it 2 more times\.\n",
        kept,
    ), kept
    before = world.lease("warned").deadline_at
    assert cli("extend", "war").out.startswith("alice: default workspace (warned) now ends ")
    assert world.lease("warned").deadline_at > before
    assert "No workspace has the name 'lost'" in cli("keep", "lost", code=2).err
    for command in ("keep", "stop"):
        assert "The name is empty. Nothing was done." in cli(command, "", code=2).err
    world.save(waiting("waits", "bob"))
    assert "bob: default workspace (waits) is not running" in cli("open", "waits", name="bob", code=2).err


def test_show_of_one_that_ended_names_its_gpus_and_waits_for_no_reading(world, cli):
    world.save(reclaimed())
    shown = cli("show", "gone").out
    assert "  GPU 0:     A100 80 GB (simulated)\n" in shown
    assert "  Ended:" in shown


def test_without_a_gpu_is_told_before_and_done(world, cli):
    world.servers[""] = {"name": "", "started": "then", "ready": True, "pending": None, "url": "/"}
    world.save(running("runs"))
    dry = cli("without-gpu", "runs", "--dry-run").out
    assert dry.startswith("It stops, and starts again without a GPU, with the same home. You lose running kernels")
    assert dry.endswith(" A workspace without a GPU starts without waiting.\nNothing was done.\n")
    assert world.lease("runs").phase is Phase.RUNNING
    assert "cannot restart with a GPU. Running on 1" in cli("with-gpu", "runs", "--dry-run", code=2).err
    assert "It has a GPU now." in cli("with-gpu", "runs", code=2).err
    assert "alice goes on with no GPU, from the command line. " in cli("without-gpu", "runs").out
    assert (world.lease("runs").phase, world.lease("runs").goes_on.request.gpu) == (Phase.STOPPING, None)


def test_a_change_of_size_is_told_before_waits_and_is_withdrawn(world, cli):
    world.save(running("runs"))
    world.save(running("other", "bob", gpus=(1, 2, 3)))
    dry = cli("change", "runs", "--count", "2", "--dry-run").out
    assert dry.startswith("2 A100 80 GB, 2 cores, 8 GiB memory. ")
    assert dry.endswith("Nothing was done.\n")
    assert "It runs on until then." in cli("change", "runs", "--count", "2").out
    assert world.lease("runs").size_change.after.request.count == 2
    assert "1 to 4" in cli("change", "runs", "--count", "9", code=2).err
    assert cli("change", "runs", "--withdraw").out == "alice: default workspace (runs) keeps its size.\n"
    assert world.lease("runs").size_change is None


def test_offers_say_what_is_free_and_what_is_not_known(world, cli):
    head, a100, t4 = cli("offers").out.splitlines()[:3]
    assert head.split() == ["KIND", "TITLE", "MEMORY", "FREE", "WAITING", "PRICE", "NOTE"]
    assert "4 of 4" in a100
    assert "2.10 / h" in a100
    assert t4.startswith("t4 ")
    assert json.loads(cli("offers", "--json").out) == api(world, "alice", "offers").json()


WORDS = {
    **dict.fromkeys(("keep", "extend", "stop", "change", "without-gpu", "with-gpu"), ("x",)),
    "rename": ["x", "Run"],
    "done": ["x", "--in", "30"],
    "grant": ["--list"],
    "correct": ["x", "1 GPU h"],
    "move": ["x"],
    "drain": ["n"],
    "quarantine": ["g"],
    "reserve": ["a100", "1", "--user", "u", "--until", "1h"],
    "exempt": ["x", "--until", "1h"],
    **dict.fromkeys(("export", "forget"), ("u",)),
    "reorder": ["x", "--place", "1"],
    "restore": ["1"],
    "save": [__file__, "--base", "1"],
    "take": ["a100", "1", "--user", "u"],
    **dict.fromkeys(("cancel", "claimed", "withdraw"), ("3f2a",)),
    "send": ["Hello", "--to", "all", "--until", "1h"],
}
"""Arguments that commands need in addition to --url and --json."""


@pytest.mark.parametrize(
    "path", [path[1:] for path, command in commands() if {"url", "as_json"} <= {one.name for one in command.params}]
)
def test_every_command_that_asks_takes_json_and_a_service_that_is_away_is_a_3(monkeypatch, capsys, tmp_path, path):
    monkeypatch.setenv("GPUSPAWNER_TOKEN", "x")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    url = "http://127.0.0.1:9/services/gpu"
    save_login(url, {"token": "x", "id": "3f2a", "user": "ada"})
    words = ["3f2a"] if path == ("admin", "preempt", "show") else WORDS.get(path[-1], [])
    assert main([*path, *words, "--json", "--url", url]) == 3
    told = capsys.readouterr().err
    assert f"No GPU service answers at {url}." in told
    assert "Is the hub running? Set --url or GPUSPAWNER_URL." in told


def test_wide_letters_keep_columns_aligned(capsys):
    rows = [("李雷", "runs"), ("e\u0301va", "waits"), ("bob\n", "runs")]
    columns = (Column("USER", ("user",)), Column("STATE", ("state",)))
    print_table(columns, [{"user": user, "state": state} for user, state in rows])
    lines = capsys.readouterr().out.splitlines()
    ends = {cell_len(line[: -len(line.split()[-1])]) for line in lines}
    assert ends == {7}, lines


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_completion(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "gpuspawner" in capsys.readouterr().out


def test_commands_and_names_of_workspaces_are_completed(world):
    world.save(running("runs", server="train"))

    def completed(*words):
        variables = {"_GPUSPAWNER_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words) - 1)}
        variables |= {"COMP_WORDS": " ".join(words)}
        variables |= {"GPUSPAWNER_TOKEN": world.token("alice"), "GPUSPAWNER_URL": world.home.rstrip("/")}
        command = [sys.executable, "-m", "gpuspawner.cli"]
        told = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=True
        )
        return [line.partition(",")[2] for line in told.stdout.splitlines()]

    assert completed("gpuspawner", "ex") == ["explain", "extend", "export-me"]
    assert completed("gpuspawner", "admin", "ex") == ["exempt", "export"]
    assert completed("gpuspawner", "keep", "t") == ["train"]
    assert completed("gpuspawner", "start", "--own") == ["--own-image"]


async def test_an_unattended_request_is_started_by_the_service_once_it_is_granted(make_world):
    world = make_world()
    world.hub.add("alice")
    request = await world.parts.allocator.resolver.resolve({}, "alice", world.key("alice").owner, frozenset())
    ask = StartRequest(world.key("alice"), "alice", request, {}, "one", "", unattended=True)
    lease = await world.parts.attempts.acquire(ask)
    assert lease.unattended
    await world.go_on(3, step=1)
    assert [(what, who) for what, who, _ in world.hub.calls] == [("start", "alice")]
