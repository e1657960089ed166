"""The probe with real terminals, a real sshd, and processes with names of VS Code's."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from harness.programs import require, require_namespaces
from harness.waiting import eventually, until

from demo.ports import pick_free
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.idle.readings import SoftReading

Start = Callable[..., "subprocess.Popen[bytes]"]

TERMINAL = """
import fcntl, os, pty, struct, time
pid, master = pty.fork()
if pid == 0:
    os.environ["PS1"] = "ready$ "
    os.execvp("sh", ["sh", "-i"])
seen = b""
while b"ready$ " not in seen:
    seen += os.read(master, 1024)
os.write(master, b"{typed}\\n")
TIOCGPTN = 0x80045430
number, = struct.unpack("I", fcntl.ioctl(master, TIOCGPTN, bytes(4)))
with open({told!r}, "w") as file:
    file.write(f"/dev/pts/{{number}}")
print("up", flush=True)
while True:
    try:
        os.read(master, 1024)
    except OSError:
        time.sleep(60)
"""

KERNELS = """
import sys, time
from gpuspawner.workspace.probe_reports import KernelFile
file, told = KernelFile(), [dict(name=sys.argv[1], busy=sys.argv[2] == "busy", idle_seconds=9000.0)]
file.write(told, opened=False)
print("up", flush=True)
while True:
    time.sleep(1)
    file.write(told, opened=False)
"""


class Probe:
    """The probe's softer evidence now."""

    def __init__(self, lease_id: str, folder: Path) -> None:
        self._lease_id, self.backend = lease_id, LocalBackend([], {}, folder)

    async def now(self, name: str, interval_seconds: float = 1.0) -> SoftReading:
        result = await self.backend.probe(self._lease_id, 1, (), 20.0)
        sample, _ = parse_probe(result, (), None, interval_seconds=interval_seconds, age_seconds=600.0)
        assert not sample.problem
        return next(one for one in sample.soft if one.name == name)

    async def becomes(self, name: str, words: str, interval_seconds: float = 1.0) -> None:
        async def says() -> bool:
            return (await self.now(name, interval_seconds)).words == words

        await until(says, what=words)


@pytest.fixture
async def probe(start: Start, lease_id: str, tmp_path: Path) -> AsyncIterator[Probe]:
    probe = Probe(lease_id, tmp_path)
    yield probe
    assert await probe.backend.end(lease_id), "with all that it started"


async def test_a_program_in_front_of_a_shell(probe: Probe, start: Start) -> None:
    start(TERMINAL.format(typed="sleep 600", told="/dev/null"))
    await probe.becomes("terminal", "a terminal runs a program")


@pytest.fixture
def quiet_terminal(start: Start, lease_id: str, tmp_path: Path) -> Path:
    """A shell that waits for its user, last used an hour ago."""
    name = tmp_path / "tty"
    start(TERMINAL.format(typed="true", told=str(name)))
    return Path(name.read_text(encoding="utf-8"))


async def test_a_terminal_is_in_use_while_its_user_types_and_no_longer(probe: Probe, quiet_terminal: Path) -> None:
    await probe.becomes("terminal", "a terminal is in use", 60.0)
    hour_ago = time.time() - 3600

    async def is_quiet() -> bool:
        os.utime(quiet_terminal, (hour_ago, hour_ago))  # its last prompt may still come
        seen = await probe.now("terminal", 60.0)
        return seen.words == "terminals quiet" and seen.active is False

    await until(is_quiet)


async def test_a_busy_kernel_in_a_pid_namespace_of_its_own_is_busy(probe: Probe, start: Start) -> None:
    """A server in a sandbox has another pid in it, and an idle server may exist too."""
    require_namespaces()
    within = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", sys.executable, "-c", KERNELS]
    start(
        "import subprocess, sys, time\n"
        f"rests = subprocess.Popen([sys.executable, '-c', {KERNELS!r}, 'rests.ipynb', 'idle'], stdout=-1)\n"
        f"works = subprocess.Popen({[*within, 'train.ipynb', 'busy']!r}, stdout=-1)\n"
        "rests.stdout.readline(), works.stdout.readline()\n"
        "print('up', flush=True)\ntime.sleep(600)",
        PYTHONPATH=str(Path(__file__).parents[2]),
    )
    await probe.becomes("kernel", "kernel train.ipynb busy")


async def test_no_terminal(probe: Probe, start: Start) -> None:
    start("import time; print('up', flush=True); time.sleep(600)")
    assert (await probe.now("terminal")).words == "no terminal open"


async def test_without_a_tool_for_it_the_last_use_of_a_terminal_is_unknown(
    probe: Probe, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "ls", "sleep", "date"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    start(TERMINAL.format(typed="true", told="/dev/null"), PATH=str(tmp_path / "bin"))
    seen = await probe.now("terminal")
    assert (seen.active, seen.words) == (None, "the image has no tool that reports a terminal's last use")


@pytest.mark.parametrize(
    ("name", "argument", "words"),
    [
        ("node", "--type=extensionHost", "a VS Code window is open"),
        ("node", "--type=fileWatcher", "no VS Code window"),
        ("MainThread", "--type=extensionHost", "a VS Code window is open"),
        ("python3", "--type=extensionHost", "no VS Code window"),
    ],
)
async def test_a_window_of_vs_code_is_its_extension_host(
    probe: Probe, start: Start, tmp_path: Path, name: str, argument: str, words: str
) -> None:
    program = tmp_path / name
    program.symlink_to(Path(sys.executable).resolve())
    host = "import time; time.sleep(600)"
    start(
        f"import subprocess, time; subprocess.Popen([{str(program)!r}, '-c', {host!r}, {argument!r}]); "
        "print('up', flush=True); time.sleep(600)"
    )
    await probe.becomes("editor", words)


@pytest.fixture
def ssh(start: Start, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """A real sshd in the workspace; call it to open a session. ``ssh.port`` is where it listens."""
    program = require("sshd")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where root's sshd keeps its separated part
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    (port,) = pick_free(1)
    options = {
        "AuthorizedKeysFile": tmp_path / "user.pub",
        "HostKey": tmp_path / "host",
        "ListenAddress": f"127.0.0.1:{port}",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
    }
    command = [program, "-D", "-e", "-f", "/dev/null", *(f"-o{key}={value}" for key, value in options.items())]
    log = tmp_path / "sshd.log"
    start(
        f"import subprocess, time; log = open({str(log)!r}, 'w'); "
        f"subprocess.Popen({[str(part) for part in command]!r}, stderr=log); print('up', flush=True); time.sleep(600)"
    )
    eventually(lambda: "Server listening" in log.read_text(encoding="utf-8"), what="sshd listens")
    clients: list[subprocess.Popen[bytes]] = []

    def connect(how: str, *command: str) -> None:
        trust = ["-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oIdentityAgent=none"]
        where = ["-F", "/dev/null", "-i", str(tmp_path / "user"), "-p", str(port), how, "127.0.0.1"]
        silent = subprocess.DEVNULL
        clients.append(subprocess.Popen(["ssh", "-q", *trust, *where, *command], stdin=silent, stdout=silent))

    connect.port = port  # type: ignore[attr-defined]
    yield connect
    for client in clients:
        client.kill()
        client.wait()


@pytest.mark.parametrize(
    "arguments", [("-N",), ("-T", "sleep 600"), ("-tt", "sleep 600")], ids=["tunnel", "command", "terminal"]
)
async def test_a_session_of_sshd_and_not_its_mere_listening(
    probe: Probe, ssh: Callable[..., None], arguments: tuple[str, ...]
) -> None:
    with socket.create_connection(("127.0.0.1", ssh.port)) as stranger:  # type: ignore[attr-defined]
        stranger.recv(100)
        assert (await probe.now("ssh")).words == "no SSH session", "a connection without sign-in is no session"
    ssh(*arguments)
    await probe.becomes("ssh", "an SSH session is open")
