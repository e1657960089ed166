"""Real processes: found by the lease's id, ended whatever they do, and never another's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.waiting import until

from gpuspawner.backends.local import processes
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.backends.local.processes import Process

Start = Callable[..., "subprocess.Popen[bytes]"]

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
DOUBLE_FORK = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('up', flush=True)
        time.sleep(60)
    os._exit(0)
time.sleep(60)
"""
LEAVES_A_DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('up', flush=True)
        time.sleep(60)
os._exit(0)
"""
NOHUP = "import subprocess, time; subprocess.Popen(['nohup', 'sleep', '60']); print('up', flush=True); time.sleep(60)"
WITHOUT_ENVIRONMENT = """
import subprocess, time
subprocess.Popen(['env', '-i', 'sleep', '60'])
time.sleep(0.2)
print('up', flush=True)
time.sleep(60)
"""
FORKS_ON = """
import os, signal, time
def again(*_):
    if os.fork() != 0:
        os._exit(0)
signal.signal(signal.SIGTERM, again)
print('up', flush=True)
while True:
    time.sleep(0.01)
"""


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    return LocalBackend([], {}, tmp_path, grace_seconds=0.5)


def pids(lease_id: str) -> list[int]:
    return [process.pid for process in processes.scan() if process.lease_id == lease_id]


async def test_processes_are_grouped_by_lease_and_attempt(backend: LocalBackend, start: Start, lease_id: str) -> None:
    first = start(SLEEP, GPUSPAWNER_LEASE='{"user": "ü"}', OTHER="x")
    second, other = start(SLEEP), start(SLEEP, attempt="2")
    mine = [running for running in await backend.workspaces() if running.lease_id == lease_id]
    assert [(running.attempt, running.pids) for running in mine] == [(1, (first.pid, second.pid)), (2, (other.pid,))]
    assert mine[0].environment["GPUSPAWNER_LEASE"] == '{"user": "ü"}'
    assert "OTHER" not in mine[0].environment
    assert 0 <= mine[0].age_seconds < 30


@pytest.mark.parametrize("attempt", ["", "x", "-1", "²", "9" * 5000])
async def test_a_forged_attempt_is_attempt_0(backend: LocalBackend, start: Start, lease_id: str, attempt: str) -> None:
    start(SLEEP, attempt=attempt)
    assert [running.attempt for running in await backend.workspaces() if running.lease_id == lease_id] == [0]


@pytest.mark.parametrize(
    ("code", "count"),
    [
        pytest.param(SLEEP, 1, id="plain"),
        pytest.param(IGNORES, 1, id="ignores-sigterm"),
        pytest.param(NOHUP, 2, id="nohup"),
        pytest.param(DOUBLE_FORK, 2, id="double-fork"),
        pytest.param(LEAVES_A_DAEMON, 1, id="daemon-of-a-dead-parent"),
        pytest.param(WITHOUT_ENVIRONMENT, 2, id="child-without-the-id"),
        pytest.param(FORKS_ON, 1, id="forks-at-every-sigterm"),
    ],
)
async def test_all_of_a_lease_ends(backend: LocalBackend, start: Start, lease_id: str, code: str, count: int) -> None:
    start(code)
    await until(lambda: len(pids(lease_id)) == count)
    found = pids(lease_id)
    assert await backend.end(lease_id)
    assert pids(lease_id) == []
    assert [pid for pid in found if _state(pid) not in "ZX"] == []


async def test_nothing_else_ends(backend: LocalBackend, start: Start, lease_id: str) -> None:
    own, earlier = start(SLEEP, attempt="2"), start(SLEEP, attempt="1")
    other = start(SLEEP, lease=lease_id[:-1])
    longer = start(SLEEP, lease=lease_id + "0")
    assert await backend.end(lease_id, frozenset({1}))
    assert earlier.wait(5) == -signal.SIGTERM
    assert own.poll() is None
    assert await backend.end(lease_id)
    assert own.wait(5) == -signal.SIGTERM
    assert (other.poll(), longer.poll()) == (None, None)


async def test_a_workspace_inside_a_workspace_is_its_own(backend: LocalBackend, start: Start, lease_id: str) -> None:
    inner = lease_id[::-1]
    start(
        "import os, subprocess, time\n"
        f"subprocess.Popen(['sleep', '60'], env={{**os.environ, 'GPUSPAWNER_LEASE_ID': '{inner}'}})\n"
        "time.sleep(0.2)\nprint('up', flush=True)\ntime.sleep(60)"
    )
    (inner_pid,) = pids(inner)
    assert await backend.end(lease_id)
    assert pids(inner) == [inner_pid]
    assert await backend.end(inner)


async def test_nothing_to_end_has_ended(backend: LocalBackend, lease_id: str) -> None:
    assert await backend.end(lease_id)


async def test_an_unkillable_process_is_reported(
    backend: LocalBackend, start: Start, lease_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "KILL_SECONDS", 0.1)
    monkeypatch.setattr(processes, "_signal", lambda *_: None)
    process = start(SLEEP)
    assert not await backend.end(lease_id)
    assert process.poll() is None


def test_a_pid_used_again_is_never_hit(start: Start) -> None:
    process = start(SLEEP)
    earlier = Process(process.pid, 1, "lease", 1)
    assert not processes.is_alive(earlier)
    processes._signal({earlier}, signal.SIGKILL)
    time.sleep(0.05)
    assert process.poll() is None


def test_processes_that_vanish_and_odd_names_are_tolerated(start: Start, lease_id: str) -> None:
    odd = "import ctypes, time; ctypes.CDLL(None).prctl(15, b') Z 1 (\\n x)'); print('up', flush=True); time.sleep(60)"
    process = start(odd)
    assert pids(lease_id) == [process.pid]
    assert processes.environment(2**22 + 1) == {}
    assert processes.identity(2**22 + 1) is None
    assert processes.identity(os.getpid()) == (os.getuid(), os.getgid(), sorted(os.getgroups()))


async def test_a_process_that_ended_unwaited_is_gone(lease_id: str) -> None:
    environment = {**os.environ, "GPUSPAWNER_LEASE_ID": lease_id}
    process = subprocess.Popen([sys.executable, "-c", ""], env=environment)
    await until(lambda: _state(process.pid) == "Z")
    assert pids(lease_id) == []
    process.wait()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "X"
