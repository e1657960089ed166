"""Watch and end all descendants of a process, including orphans. Linux only, by prctl(2) and /proc.

Run as a program it becomes the command of its arguments, which then ends with its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None)


def adopt_orphans() -> None:
    """From now on, what a descendant leaves behind becomes this process's child, so that none escapes."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """From now on, this process gets SIGTERM once its parent ends, however that ends. An exec keeps this."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def start(command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str], log: IO[str]) -> int:
    """Start ``command`` in a session of its own, so that a terminal's Ctrl-C does not reach it; return its process id.

    Should this process be killed outright, the child gets SIGTERM and can still end what it started.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        end_with_parent()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(cwd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        os.execvpe(command[0], [str(part) for part in command], dict(env))
    finally:
        os._exit(127)


def children() -> list[int]:
    """Return the ids of this process's own children, adopted orphans and finished but unread ones included."""
    return _by_parent()[os.getpid()]


def descendants() -> list[int]:
    """Return the ids of all processes below this one."""
    by_parent = _by_parent()
    found, waiting = [], [os.getpid()]
    while waiting:
        below = by_parent[waiting.pop()]
        found += below
        waiting += below
    return found


def reap() -> list[int]:
    """Read the status of every finished child, so that none stays as a zombie; return their ids."""
    finished = []
    with suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            finished.append(pid)
    return finished


def end_descendants(seconds: float, number: int, hurry: Callable[[], bool]) -> bool:
    """Send signal ``number`` to all below this process and wait ``seconds`` for their end, less if ``hurry()``.

    Returns:
        Whether nothing is left.
    """
    for pid in descendants():
        send(pid, number)
    return wait_for_none(seconds, hurry)


def wait_for_none(seconds: float, hurry: Callable[[], bool]) -> bool:
    """Wait up to ``seconds`` until nothing is left below this process; tell whether that is so."""
    deadline = time.monotonic() + seconds
    while True:
        reap()
        if not descendants():
            return True
        if time.monotonic() > deadline or hurry():
            return False
        time.sleep(0.05)


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _by_parent() -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = stat.read_text().rpartition(")")[2].split()[1]
            found[int(parent)].append(int(stat.parent.name))
    return found


if __name__ == "__main__":
    end_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])
