"""The walls around a cluster: its own namespaces for processes, mounts and network, joined to the machine by one link.

The end of the first process ends everything in the process namespace: components, pods, mounts and bridges. So
nothing of a cluster can stay behind, however it was ended, but its control groups, which are removed by name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tools.progress import StepError

CGROUPS = Path("/sys/fs/cgroup")


class Namespaces:
    """Namespaces that exist, known by the machine's process id of their first process."""

    def __init__(self, init: int) -> None:
        self.init = init

    @classmethod
    def create(cls, init_program: Path, link: str, host_address: str, address: str, pods: str) -> Namespaces:
        """Make them: ``link`` on the machine has ``host_address``, its other end ``address``, with ``pods`` behind it.

        Raises:
            StepError: the machine does not allow it.
        """
        command = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]
        parent = subprocess.Popen(
            [*command, "--", init_program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        while not (found := _read(children).split()):
            if parent.poll() is not None:
                said = parent.stderr.read().decode().strip() if parent.stderr else ""
                raise StepError(f"No namespaces can be made here ({said}): run it on a machine, or privileged.")
            time.sleep(0.02)
        namespaces = cls(int(found[0]))
        # It execs once its mounts are its own.
        while _read(Path(f"/proc/{found[0]}/comm")).strip() != init_program.name:
            time.sleep(0.02)
        try:
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", found[0])
            _ip("address", "add", f"{host_address}/30", "dev", link)
            _ip("link", "set", link, "up")
            _ip("route", "add", pods, "via", address)
        except StepError:
            namespaces.kill()
            raise
        return namespaces

    def run(self, script: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """Run a shell script inside; return what it printed."""
        command = [*self.enter(), "sh", "-ec", script, "sh", *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout

    def enter(self) -> list[str]:
        """Return the words that go before a command that shall run inside."""
        return ["nsenter", f"--target={self.init}", "--mount", "--net", "--pid", "--ipc", "--uts", "--"]

    def start(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> int:
        """Start a process inside, its output appended to ``log``; return the machine's id of it."""
        script = 'log=$1; shift; setsid "$@" </dev/null >>"$log" 2>&1 & echo $!'
        inside = self.run(script, str(log), *command, env=env).strip()
        for pid in self.processes():
            status = _read(Path(f"/proc/{pid}/status"))
            if any(line.split()[-1] == inside for line in status.splitlines() if line.startswith("NSpid:")):
                return pid
        raise StepError(f"{command[0]} ended at once.", log)

    def processes(self) -> list[int]:
        """Return the machine's ids of all processes inside, those of pods (in namespaces of their own) not counted."""
        namespace = _readlink(f"/proc/{self.init}/ns/pid")
        if not namespace:
            return []
        pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        return [pid for pid in pids if _readlink(f"/proc/{pid}/ns/pid") == namespace]

    def kill(self) -> None:
        """End every process inside, and wait until the kernel has."""
        with suppress(ProcessLookupError):
            os.kill(self.init, signal.SIGKILL)
        # The first process goes last: the kernel has ended all others by then.
        while _read(Path(f"/proc/{self.init}/stat")).rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"]):
            time.sleep(0.02)


def started_at(pid: int) -> str:
    """Return the kernel's start time of a process, which no later process of that id has; empty for a missing process.

    A process that was killed is a zombie from its first thread's end on: as long as others live, so do its ports.
    """
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    if not fields or (fields[0] in "ZX" and int(fields[17]) <= 1):
        return ""
    return fields[19]


def create_cgroup(name: str) -> None:
    """Make a control group of that name in every hierarchy.

    Raises:
        StepError: they are not writable here.
    """
    try:
        for root in _hierarchies():
            (root / name).mkdir(exist_ok=True)
            if (root / "cpuset.cpus").exists():  # version 1 starts without any, and then takes no process
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (root / name / file).write_text((root / file).read_text())
            if (root / "cgroup.subtree_control").exists() and root == CGROUPS:
                (root / "cgroup.subtree_control").write_text("+cpu +cpuset +memory +pids")
    except OSError as error:
        raise StepError(f"Control groups cannot be made here ({error}): run it on a machine, or privileged.") from error


def remove_cgroup(name: str) -> None:
    """Remove the control groups of that name, and all below them; their processes must have ended."""
    for root in _hierarchies():
        for folder, _, _ in os.walk(root / name, topdown=False):
            for _ in range(100):
                try:
                    Path(folder).rmdir()
                except FileNotFoundError:
                    break
                except OSError:  # busy: its last process is still being cleared away
                    time.sleep(0.05)


def _hierarchies() -> list[Path]:
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise StepError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _readlink(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
