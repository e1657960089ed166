"""The processes of this machine that belong to leases, and scripts that run with them.

Processes are found by their environment and ended by pid and start time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpuspawner.backends.base import ATTEMPT, LEASE_ID, PROBE, VARIABLE_PREFIX, ProbeResult
from gpuspawner.core.errors import quoted

_MARK = f"{LEASE_ID}=".encode()
_PREFIX = VARIABLE_PREFIX.encode()
POLL_SECONDS = 0.1
"""Interval between scans while processes are ended. Arbitrary: too short to notice."""
KILL_SECONDS = 10.0
"""How long a process may survive SIGKILL before ``end`` gives up. Arbitrary: only one stuck in the kernel does."""


@dataclass(frozen=True)
class Process:
    """A live process of a lease. Pid and start time (ticks since boot) identify it, because pids are reused."""

    pid: int
    start_ticks: int
    lease_id: str
    attempt: int
    environment: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def probes(self) -> bool:
        """Whether a probe started it. It ends with the workspace but is not part of it."""
        return PROBE in self.environment


class _Stat(NamedTuple):
    ppid: int
    start_ticks: int


def scan() -> list[Process]:
    """Return each live process with a lease id and its descendants without one, oldest first.

    Descendants count because some programs overwrite their environment to set a process title. Processes that end
    during the scan, and unreadable processes of other users, are left out.
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
    """Return whether this process still runs. A zombie does not."""
    stat = _stat(process.pid)
    return stat is not None and stat.start_ticks == process.start_ticks


async def end(belongs: Callable[[Process], bool], grace_seconds: float) -> bool:
    """End each process that ``belongs``: SIGTERM, after the grace SIGKILL, until two scans in a row find none.

    One scan may miss a process that starts meanwhile. Returns False if some survive KILL_SECONDS.
    """
    began = time.monotonic()
    targets: set[Process] = set()
    signalled: set[Process] = set()
    empty_scans = 0
    while True:
        targets = await asyncio.to_thread(_remaining, targets, belongs)
        waited = time.monotonic() - began
        empty_scans = 0 if targets else empty_scans + 1
        if empty_scans == 2:  # noqa: PLR2004
            return True
        if waited > grace_seconds + KILL_SECONDS:
            return False
        if waited >= grace_seconds:
            _signal(targets, signal.SIGKILL)
        else:
            _signal(targets - signalled, signal.SIGTERM)
            signalled |= targets
        await asyncio.sleep(POLL_SECONDS)


def identity(pid: int) -> tuple[int, int, list[int]] | None:
    """Return real user, real group and further groups of a process, None if it is gone."""
    try:
        lines = _read(f"/proc/{pid}/status").split(b"\n")
    except OSError:
        return None
    fields = {name: value.split() for name, _, value in (line.partition(b":") for line in lines)}
    return int(fields[b"Uid"][0]), int(fields[b"Gid"][0]), [int(group) for group in fields[b"Groups"]]


def environment(pid: int) -> dict[str, str]:
    """Return the environment that a process started with, {} if it is gone or unreadable."""
    pairs = (entry.partition(b"=") for entry in _environ(pid).split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if name and equals}


def age_seconds(process: Process) -> float:
    """Return how long ago the process started."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - process.start_ticks / os.sysconf("SC_CLK_TCK"))


def _remaining(targets: Iterable[Process], belongs: Callable[[Process], bool]) -> set[Process]:
    return {process for process in targets if is_alive(process)} | {p for p in scan() if belongs(p)}


def _signal(targets: Iterable[Process], number: signal.Signals) -> None:
    for process in targets:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if is_alive(process):  # immediately before: the pid is still this process
                os.kill(process.pid, number)


def _owner(pid: int, own: dict[int, dict[str, str]], stats: dict[int, _Stat]) -> int | None:
    """Return the nearest process from ``pid`` upwards with a lease id."""
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
    """Return the ``GPUSPAWNER_*`` variables of a process with a lease id, else None."""
    environ = _environ(pid)
    if _MARK not in environ:
        return None
    pairs = (entry.partition(b"=") for entry in environ.split(b"\0") if entry.startswith(_PREFIX))
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return found if found.get(LEASE_ID) else None


def _stat(pid: int) -> _Stat | None:
    try:
        # The name in parentheses may hold anything. Numbers follow the last parenthesis.
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) < 20 or fields[0] in {b"Z", b"X"}:  # noqa: PLR2004
        return None
    return _Stat(int(fields[1]), int(fields[19]))


REAP_SECONDS = 5.0
"""How long a killed tool may take to end. A tool that waits in the driver ends when the driver returns."""


async def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill the rest of the process group led by ``process``, wait for it, and close its pipes.

    A process that left the group may keep the pipes open, and asyncio has no public way to close its end.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), REAP_SECONDS)
    finally:
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001
        await asyncio.sleep(0)  # the pipes close in the next iteration of the loop


MAX_OUTPUT_BYTES = 1024 * 1024
"""More output than this is a fault. 16 GPUs and 1,000 processes print a tenth of it."""


class TooMuchOutputError(Exception):
    """A program printed more than MAX_OUTPUT_BYTES."""


async def run_script(
    pid: int, text: bytes, parameters: Mapping[str, str], deadline_seconds: float, what: str
) -> ProbeResult:
    """Run a script as the user of process ``pid`` with its environment. ``what`` names it in problems. Never raises."""
    variables, as_user = environment(pid), _as_user(pid)
    if not variables or as_user is None:
        return ProbeResult(problem="the workspace's process has ended or cannot be read")
    try:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-s",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # The lease id stays: processes left by the user's tools then end with the workspace.
            env={**variables, **parameters, PROBE: "1"},
            cwd="/",
            start_new_session=True,
            **as_user,
        )
    except OSError as error:
        return ProbeResult(problem=f"{what} could not be started: {error}")
    try:
        printed, said = await asyncio.wait_for(_talk(process, text), deadline_seconds)
    except asyncio.TimeoutError:
        return ProbeResult(problem=f"{what} did not end within {deadline_seconds:g} s")
    except TooMuchOutputError:
        return ProbeResult(problem=f"{what} printed more than {MAX_OUTPUT_BYTES} bytes")
    finally:
        await kill_group(process)
    if process.returncode != 0:
        return ProbeResult(problem=f"{what} failed with exit code {process.returncode}: {quoted(said.strip())}")
    return ProbeResult(text=printed)


async def _talk(process: asyncio.subprocess.Process, text: bytes) -> tuple[str, str]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(text)
        await process.stdin.drain()
    process.stdin.close()
    output, said = await asyncio.gather(read_stream(process.stdout), read_stream(process.stderr))
    await process.wait()
    return output.decode(errors="replace"), said.decode(errors="replace")


async def read_stream(stream: asyncio.StreamReader) -> bytes:
    """Return all that a program prints. Raises TooMuchOutputError."""
    chunks, size = [], 0
    while chunk := await stream.read(65536):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_OUTPUT_BYTES:
            raise TooMuchOutputError
    return b"".join(chunks)


def _as_user(pid: int) -> dict[str, Any] | None:
    """Return the arguments that start a process as another's user: its tools must not run as root."""
    known = identity(pid)
    if known is None:
        return None
    user, group, groups = known
    if os.geteuid() != 0 or user == 0:
        return {}
    return {"user": user, "group": group, "extra_groups": groups}
