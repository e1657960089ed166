"""The processes of this machine that belong to leases: found by their environment, ended by pid and start time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpuspawner.backends.base import ATTEMPT, LEASE_ID, PROBE, VARIABLE_PREFIX

_MARK = f"{LEASE_ID}=".encode()
_PREFIX = VARIABLE_PREFIX.encode()
POLL_SECONDS = 0.1
"""Between two looks at processes that are being ended. Arbitrary: a person does not notice it, the machine neither."""
KILL_SECONDS = 10.0
"""How long a process may outlive SIGKILL before ``end`` gives up. Arbitrary: only one stuck in the kernel does."""


@dataclass(frozen=True)
class Process:
    """One live process of a lease. Pid and start time (ticks since boot) name it: a pid alone is used again."""

    pid: int
    start_ticks: int
    lease_id: str
    attempt: int
    environment: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def probes(self) -> bool:
        """Whether a probe started it: no part of the workspace, but it ends with it."""
        return PROBE in self.environment


@dataclass(frozen=True)
class _Stat:
    ppid: int
    start_ticks: int


def scan() -> list[Process]:
    """Return every live process that carries a lease id, and their descendants that carry none, oldest first.

    Descendants count because some programs overwrite their environment (those that set a process title). What ends
    during the scan, and processes of other users that may not be read, are left out.
    """
    own = {pid: found for pid in _pids() if (found := _variables(pid)) is not None}
    if not own:
        return []
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
    processes = []
    for pid, stat in stats.items():
        if (owner := _owner(pid, own, stats)) is None or pid == os.getpid():
            continue
        attempt = own[owner].get(ATTEMPT, "")
        number = int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 10 else 0  # noqa: PLR2004
        processes.append(Process(pid, stat.start_ticks, own[owner][LEASE_ID], number, own[owner]))
    return sorted(processes, key=lambda process: (process.start_ticks, process.pid))


def is_alive(process: Process) -> bool:
    """Whether this very process still runs (one that ended and is not yet waited for does not)."""
    stat = _stat(process.pid)
    return stat is not None and stat.start_ticks == process.start_ticks


async def end(belongs: Callable[[Process], bool], grace_seconds: float) -> bool:
    """End every process that ``belongs``: SIGTERM, after the grace SIGKILL, until two scans in a row find none.

    Two, because one may miss a process that is born while it looks. Returns False when some outlive KILL_SECONDS more.
    """
    began = time.monotonic()
    targets: set[Process] = set()
    asked: set[Process] = set()
    empty_scans = 0
    while True:
        targets = await asyncio.to_thread(_still_there, targets, belongs)
        waited = time.monotonic() - began
        empty_scans = 0 if targets else empty_scans + 1
        if empty_scans == 2:  # noqa: PLR2004
            return True
        if waited > grace_seconds + KILL_SECONDS:
            return False
        if waited >= grace_seconds:
            _signal(targets, signal.SIGKILL)
        else:
            _signal(targets - asked, signal.SIGTERM)
            asked |= targets
        await asyncio.sleep(POLL_SECONDS)


def identity(pid: int) -> tuple[int, int, list[int]] | None:
    """Return real user, real group and further groups of a process, or None once it is gone."""
    try:
        lines = _read(f"/proc/{pid}/status").split(b"\n")
    except OSError:
        return None
    fields = {name: value.split() for name, _, value in (line.partition(b":") for line in lines)}
    return int(fields[b"Uid"][0]), int(fields[b"Gid"][0]), [int(group) for group in fields[b"Groups"]]


def environment(pid: int) -> dict[str, str]:
    """Return the whole environment that a process was started with; empty once it is gone or may not be read."""
    pairs = (entry.partition(b"=") for entry in _environ(pid).split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if name and equals}


def age_seconds(process: Process) -> float:
    """Return how long ago the process started."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - process.start_ticks / os.sysconf("SC_CLK_TCK"))


def _still_there(targets: Iterable[Process], belongs: Callable[[Process], bool]) -> set[Process]:
    return {process for process in targets if is_alive(process)} | {p for p in scan() if belongs(p)}


def _signal(targets: Iterable[Process], number: signal.Signals) -> None:
    for process in targets:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if is_alive(process):  # immediately before: the pid is still this process
                os.kill(process.pid, number)


def _owner(pid: int, own: dict[int, dict[str, str]], stats: dict[int, _Stat]) -> int | None:
    """Return the nearest process from ``pid`` upwards that carries a lease id."""
    seen = set()
    while pid not in own:
        seen.add(pid)
        if pid not in stats or (pid := stats[pid].ppid) in seen:
            return None
    return pid


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 (names are all that is needed)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (a scan opens hundreds: a Path doubles its time)
        return file.read()


def _environ(pid: int) -> bytes:
    try:
        return _read(f"/proc/{pid}/environ")
    except OSError:  # gone, or another user's
        return b""


def _variables(pid: int) -> dict[str, str] | None:
    """Return the ``GPUSPAWNER_*`` variables of a process that carries a lease id, else None."""
    environ = _environ(pid)
    if _MARK not in environ:
        return None
    pairs = (entry.partition(b"=") for entry in environ.split(b"\0") if entry.startswith(_PREFIX))
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return found if found.get(LEASE_ID) else None


def _stat(pid: int) -> _Stat | None:
    try:
        # The name stands in parentheses and may hold anything: what follows the last one is numbers.
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) < 20 or fields[0] in {b"Z", b"X"}:  # noqa: PLR2004
        return None
    return _Stat(int(fields[1]), int(fields[19]))
