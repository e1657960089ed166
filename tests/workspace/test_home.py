"""A user's own variables, start-up script and repository: read, run and told, with a real shell and a real Git."""

import asyncio
import json
import logging
import os
import subprocess
from pathlib import Path

import pytest
from harness.waiting import until
from workspace_server import LEASE, TOKEN

from gpuspawner.workspace.home import own_files
from gpuspawner.workspace.home import start as start_module
from gpuspawner.workspace.home.own_files import REFUSED, Notes, NotUsedError, read_own, read_variables
from gpuspawner.workspace.home.start import begin, clone, folder_name
from gpuspawner.workspace.service import ServiceClient

SECRET = "value-that-nobody-may-read"


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".gpuspawner").mkdir()
    return tmp_path


def write(home, name, text, mode=0o600):
    file = home / ".gpuspawner" / name
    file.write_text(text)
    file.chmod(mode)
    return file


def start(home, **variables):
    """Do what a workspace does when it starts; return its environment, and what is told in JupyterLab."""
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], "GPUSPAWNER_LEASE_ID": "w", **variables}
    notes = Notes(logging.getLogger("workspace"))

    async def whole():
        task = begin(environ, notes)
        if task is not None:
            await task

    asyncio.run(whole())
    assert notes.busy == ""
    return environ, notes.view()["notes"]


def test_variables_are_those_of_the_workspace_and_its_script(home):
    write(home, "env", f"# mine\nexport TOKEN='{SECRET} # x'\nA=b c\n\nHF_HOME=\"/data/hf\"\n")
    write(home, "startup.sh", "echo $TOKEN > made\n")
    environ, told = start(home)
    assert (environ["TOKEN"], environ["A"], environ["HF_HOME"]) == (f"{SECRET} # x", "b c", "/data/hf")
    assert (told, (home / "made").read_text()) == ([], f"{SECRET} # x\n")


def test_the_script_of_the_form_runs_first_and_its_failure_is_reported(home):
    write(home, "startup.sh", "echo second >> made\n")
    script = "echo first >> made\necho lost the data\nexit 3\n"
    environ, told = start(home, GPUSPAWNER_SCRIPT=script)
    assert (home / "made").read_text() == "first\nsecond\n"
    assert told[0].startswith("The start-up script failed: exit code 3. The workspace goes on without it. See ~/.gpusp")
    assert told[0].endswith("Its last line: lost the data")
    assert (home / ".gpuspawner" / "start-script.log").read_text() == "lost the data\n"
    assert "GPUSPAWNER_SCRIPT" not in environ, "no kernel needs it"


def start_with(home, service, **variables):
    """Do what a workspace with a client of the service does when it starts."""
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], "GPUSPAWNER_LEASE_ID": "w", **variables}
    notes = Notes(logging.getLogger("workspace"))

    async def whole():
        await begin(environ, notes, client=ServiceClient(service.url, LEASE, TOKEN, logging.getLogger("workspace")))

    asyncio.run(whole())
    return environ, notes.view()["notes"]


def test_secrets_are_variables_of_the_workspace_before_its_script_runs(home, service):
    service.answer = (200, json.dumps({"values": {"HF_TOKEN": SECRET}, "unreadable": ["OLD"]}).encode())
    environ, told = start_with(home, service, GPUSPAWNER_SCRIPT="printf %s $HF_TOKEN > made")
    assert (environ["HF_TOKEN"], (home / "made").read_text()) == (SECRET, SECRET)
    assert told == ["These secrets can't be decrypted any more: OLD. Save them again on the page Secrets."]
    assert service.received[0][:2] == ("POST", "/secrets")


def test_a_service_that_does_not_answer_delays_the_script_and_is_reported(home, service, monkeypatch):
    monkeypatch.setattr(start_module, "SECRET_SECONDS", 0.01)
    service.answer = (503, b"{}")
    _, told = start_with(home, service, GPUSPAWNER_SCRIPT="echo ran > made")
    assert told[0].startswith("Your secrets are missing: the GPU service did not answer them.")
    assert (home / "made").read_text() == "ran\n"


@pytest.mark.parametrize("name", [*(f"{begins}X" for begins in REFUSED), "nvidia_visible_devices", "LD_PRELOAD"])
def test_names_that_identify_the_workspace_are_refused_with_the_reason(name):
    found, wrong = read_variables(f"A=1\n{name}={SECRET}\nno line\nB=2", "~/.gpuspawner/env")
    assert found == {"A": "1", "B": "2"}
    assert f"line 2: {name} is refused: names that begin" in wrong[0]
    assert wrong[1] == "~/.gpuspawner/env, line 3 is ignored: write NAME=value."
    assert SECRET not in "".join(wrong)


@pytest.mark.parametrize("value", ["a\0b", "x" * 70_000], ids=["a byte that is 0", "huge"])
def test_a_value_too_long_for_programs_is_ignored_and_the_rest_is_used(home, value):
    write(home, "env", f"BAD={value}\nGOOD=1\n")
    write(home, "startup.sh", "echo $GOOD$BAD > made\n")
    _, told = start(home)
    assert (len(told), (home / "made").read_text()) == (1, "1\n")
    assert "env, line 1 is ignored: a value has at most 65,536 bytes" in told[0]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o606])
def test_files_that_others_may_read_are_not_used_and_reported_with_the_remedy(home, mode, caplog):
    write(home, "env", f"TOKEN={SECRET}", mode)
    write(home, "startup.sh", "touch made", mode)
    environ, told = start(home)
    assert "TOKEN" not in environ
    assert not (home / "made").exists()
    assert ["Do: chmod 600 ~/.gpuspawner/env" in told[0], "chmod 600 ~/.gpuspawner/startup.sh" in told[1]] == [True] * 2
    assert "chmod 600" in caplog.text


def test_a_file_without_text_is_not_used(home):
    os.mkfifo(home / "pipe", 0o600)
    write(home, "binary", "x").write_bytes(b"\xff\xfe")
    for file in (home / "pipe", home / ".gpuspawner" / "binary", home / ".gpuspawner"):
        with pytest.raises(NotUsedError):
            read_own(file)
    assert read_own(home / "none") is None


def test_a_failed_script_is_reported_and_its_output_is_only_for_its_user(home, caplog):
    write(home, "startup.sh", f"echo {SECRET}; exit 3")
    _, told = start(home)
    failed = "~/.gpuspawner/startup.sh failed: exit code 3. The workspace goes on without it."
    assert told == [f"{failed} See ~/.gpuspawner/startup.log. Its last line: {SECRET}"]
    assert failed in caplog.text
    assert SECRET not in caplog.text
    assert (home / ".gpuspawner" / "startup.log").stat().st_mode & 0o777 == 0o600


async def test_a_script_is_ended_with_all_that_it_started_once_its_time_is_over(home):
    write(home, "endless.sh", "sleep 300 & echo $!; wait")
    script, output = str(home / ".gpuspawner" / "endless.sh"), home / "output"
    outcome = await own_files.run(("bash", script), home, output, os.environ, 0.5)
    assert outcome.failure == "it took longer than 0.5 s and was ended"
    status = Path(f"/proc/{outcome.last_line}/stat")
    await until(lambda: not status.exists() or " Z " in status.read_text(), what="what it started has ended")


def test_outside_a_workspace_nothing_is_done(home):
    write(home, "startup.sh", "touch made")
    start(home, GPUSPAWNER_LEASE_ID="")
    assert not (home / "made").exists()


def test_a_repository_is_cloned_into_the_home_once_and_a_failure_passed_over(home, tmp_path_factory):
    far = tmp_path_factory.mktemp("far")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(far)]
    subprocess.run([*git, "init", "-q"], check=True)
    (far / "notebook.py").write_text("1")
    for command in (("add", "."), ("commit", "-qm", "x")):
        subprocess.run([*git, *command], check=True)
    ssh = write(home, "ssh", f'#!/bin/sh\nexec git-upload-pack "{far}"\n', 0o700)  # in place of another machine
    write(home, "startup.sh", "cp work/notebook.py copied")
    _, told = start(home, GIT_SSH_COMMAND=str(ssh), GPUSPAWNER_REPOSITORY="ssh://git@far.example.org/team/work.git")
    assert (told, (home / "work" / "notebook.py").read_text(), (home / "copied").read_text()) == ([], "1", "1")
    (home / "work" / "notebook.py").write_text("mine")
    start(home, GIT_SSH_COMMAND="false", GPUSPAWNER_REPOSITORY="ssh://git@far.example.org/team/work.git")
    assert (home / "work" / "notebook.py").read_text() == "mine"
    _, told = start(home, GIT_SSH_COMMAND="false", GPUSPAWNER_REPOSITORY="ssh://git@far.example.org/team/other.git")
    assert told[0].startswith("ssh://git@far.example.org/team/other.git was not cloned: exit code 128. The workspace")
    assert sorted(one.name for one in home.iterdir()) == [".gpuspawner", "copied", "work"]


@pytest.mark.parametrize("url", ["file:///etc", "ext::sh -c x", "--upload-pack=x", "https://h/..", "ssh://h/.ssh"])
async def test_other_addresses_are_not_cloned(home, url):
    assert (await clone(url, home, os.environ))[0] == "its address cannot be cloned"
    assert folder_name("https://example.org/a/work.git/") == "work"


def test_folders_of_the_machine_are_linked_and_nothing_of_the_home_is_replaced(home, tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    (home / "mine").write_text("kept")
    folders = {"~/data/sets": str(data), "~/mine": str(data), "~/none": "/there/is/none"}
    for _ in range(2):  # the second start finds its own link
        _, told = start(home, GPUSPAWNER_FOLDERS=json.dumps(folders))
        assert (home / "data" / "sets").resolve() == data
        assert (home / "mine").read_text() == "kept"
        said = " ".join(one["text"] if isinstance(one, dict) else str(one) for one in told)
        assert f"~/mine does not lead to {data}, because your home has something of that name." in said
        assert "~/none is missing: this machine has no folder /there/is/none." in said
