"""The script before a workspace's end, in every shell and with real processes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.programs import needs

from gpuspawner.backends.base import TERMINATED, OnStopResult, on_stop_script, read_on_stop
from gpuspawner.backends.local import nvidia
from gpuspawner.backends.local.backend import LocalBackend

SHELLS = pytest.mark.parametrize(
    "shell",
    [["dash"], ["bash"], pytest.param(["busybox", "sh"], marks=needs("busybox"))],
    ids=["dash", "bash", "busybox sh"],
)


def run(home: Path, command: str = "", *, shell: list[str] | None = None, seconds: float = 30) -> OnStopResult:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    ran = subprocess.run(
        [*(shell or ["sh"]), "-s"],
        input=on_stop_script(command, seconds, "idle"),
        env=environment,
        capture_output=True,
        check=True,
        timeout=60,
    )
    return read_on_stop(ran.stdout.decode())


def own(home: Path, text: str, mode: int = 0o600) -> Path:
    path = home / ".gpuspawner" / "on-stop"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


@SHELLS
def test_the_templates_command_runs_first_then_the_users_own_script(shell: list[str], tmp_path: Path) -> None:
    path = own(tmp_path, "echo saved at $PWD because it was $GPUSPAWNER_END_REASON")
    ran = run(tmp_path, 'echo "it is $HOME"', shell=shell)
    assert ran.code == 0
    assert ran.output.splitlines() == [
        "The template's command:",
        f"it is {tmp_path}",
        f"{path}:",
        f"saved at {tmp_path} because it was idle",
    ]
    assert (tmp_path / ".gpuspawner" / "on-stop.log").read_text() == ran.output


def test_an_executable_script_is_run_by_its_own_interpreter(tmp_path: Path) -> None:
    own(tmp_path, "#!/usr/bin/env python3\nprint(6 * 7)\n", 0o700)
    assert run(tmp_path).output.splitlines()[1:] == ["42"]


@SHELLS
def test_without_a_script_nothing_is_run(shell: list[str], tmp_path: Path) -> None:
    assert run(tmp_path, shell=shell) == OnStopResult()
    assert list(tmp_path.iterdir()) == []


@SHELLS
def test_a_failing_script_reports_its_exit_code_and_the_users_own_runs_all_the_same(
    shell: list[str], tmp_path: Path
) -> None:
    own(tmp_path, "echo mine")
    ran = run(tmp_path, "exit 7", shell=shell)
    assert (ran.code, "mine" in ran.output) == (7, True)


@SHELLS
def test_a_slow_script_is_ended_and_its_output_so_far_is_kept(shell: list[str], tmp_path: Path) -> None:
    began = time.monotonic()
    ran = run(tmp_path, "echo first; sleep 50; echo never", shell=shell, seconds=1)
    assert time.monotonic() - began < 40
    assert (ran.code, "first" in ran.output, "never" in ran.output) == (TERMINATED, True, False)


def test_only_the_end_of_a_long_output_is_reported(tmp_path: Path) -> None:
    ran = run(tmp_path, "yes x | head -c 100000; echo the end")
    assert len(ran.output) <= 16384
    assert ran.output.endswith("the end\n")


def test_an_invalid_answer_is_a_problem_and_never_an_output() -> None:
    assert read_on_stop("sh: syntax error\n").problem
    assert read_on_stop("").code is None


async def test_the_script_runs_in_the_home_next_to_the_workspaces_processes(
    start: Callable[..., subprocess.Popen[bytes]], lease_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "find", lambda: None)
    backend = LocalBackend([], {}, tmp_path / "data")
    own(tmp_path, "echo $MINE >kept")
    start("import time; print('up', flush=True); time.sleep(60)", HOME=str(tmp_path), MINE="a checkpoint")
    script = on_stop_script("", 30, "expired")
    assert read_on_stop((await backend.run_script(lease_id, 1, script, 30)).text).code == 0
    assert (tmp_path / "kept").read_text() == "a checkpoint\n"
    assert "no process" in (await backend.run_script(lease_id, 2, script, 30)).problem
