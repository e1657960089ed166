"""The lines of ``probe.sh`` about activity: kernels, terminals, SSH sessions, editors, and processes.

Pure, and never raises. A line that is not understood makes its own evidence unknown, and for processes all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuspawner.backends.probes.monitor import SMI_CLOCK, Followed, is_monitor
from gpuspawner.backends.probes.nvidia_smi import READING
from gpuspawner.core.errors import quoted
from gpuspawner.core.idle.readings import SoftReading

STALE_SECONDS = 60.0
"""A Jupyter server's report older than this is ignored. Reports are written every 5 s."""
TTY_SECONDS = 8.0
"""The kernel records the use of a terminal this coarsely, to protect typing patterns."""
KERNEL_SECONDS = 8.0
"""A Jupyter server's report is up to 5 s old and a probe takes some time, so a cell between two looks is still seen."""
OPENED = "opened"
"""The field for whether a page was loaded. Older extensions do not write it."""
NAMES_SHOWN = 2
"""Names of kernels in a sentence."""

_LINE = re.compile(r"(kernels|terminal|now|used|ssh|editor)( .*)?")
_KERNELS = re.compile(r"kernels ([0-9]{1,9}) (.*)")
_TERMINAL = re.compile(r"terminal (/dev/pts/[0-9]{1,7}) ([0-9]{1,9}) (-?[0-9]{1,9})")
_NOW = re.compile(r"now ([0-9]{1,15})")
_USED = re.compile(r"used (/dev/pts/[0-9]{1,7}) (-?[0-9]{1,15}) (-?[0-9]{1,15})")
_SESSION = re.compile(r"(ssh|editor) ([0-9]{1,9})")


def is_soft(line: str) -> bool:
    """Return whether this module reads a line of the probe as soft evidence."""
    return _LINE.fullmatch(line) is not None


def soft_readings(lines: Iterable[str], clock_seconds: float, interval_seconds: float) -> tuple[SoftReading, ...]:
    """Return the reading of each kind of soft evidence.

    Args:
        lines: lines of the probe. Other lines are skipped.
        clock_seconds: the script's clock, which the Jupyter server also reads.
        interval_seconds: time since the last sample. Use within it counts as active.
    """
    own = [line for line in lines if is_soft(line)]
    return (
        _kernels([line for line in own if line.startswith("kernels")], clock_seconds, interval_seconds),
        _terminals([line for line in own if line.startswith(("terminal", "now", "used"))], interval_seconds),
        _sessions([line for line in own if line.startswith("ssh")], "ssh", "SSH session"),
        _sessions([line for line in own if line.startswith("editor")], "editor", "VS Code window"),
    )


def opened_reading(lines: Iterable[str], clock_seconds: float) -> bool | None:
    """Return whether a page was loaded since the workspace's Jupyter server started, None if unknown."""
    reports = [_read_report(line) for line in lines if line.startswith("kernels")]
    own = [one for one in reports if one is not None and one.is_own]
    if any(one.opened for one in own):
        return True
    known = [one.opened is False and -1.0 <= clock_seconds - one.uptime <= STALE_SECONDS for one in own]
    return False if known and all(known) and None not in reports else None


def _sessions(lines: list[str], name: str, title: str) -> SoftReading:
    if odd := [line for line in lines if not _SESSION.fullmatch(line)]:
        return SoftReading(name, None, f"a line of the probe is not understood: {quoted(odd[0])}")
    if not lines:
        return SoftReading(name, active=False, words=f"no {title}")
    return SoftReading(name, active=True, words=f"an {title} is open" if name == "ssh" else f"a {title} is open")


def _terminals(lines: list[str], interval_seconds: float) -> SoftReading:
    def unknown(why: str) -> SoftReading:
        return SoftReading("terminal", None, why)

    leaders: dict[str, bool] = {}
    used: dict[str, int] = {}
    now: int | None = None
    for line in lines:
        if match := _TERMINAL.fullmatch(line):
            leader, front = int(match[2]), int(match[3])
            leaders[match[1]] = leaders.get(match[1], False) or (front > 0 and front != leader)
        elif match := _USED.fullmatch(line):
            used[match[1]] = max(int(match[2]), int(match[3]))
        elif match := _NOW.fullmatch(line):
            now = int(match[1])
        else:
            return unknown(f"a line of the probe is not understood: {quoted(line)}")
    if any(leaders.values()):
        return SoftReading("terminal", active=True, words="a terminal runs a program")
    if now is not None and any(now - used[tty] <= interval_seconds + TTY_SECONDS for tty in leaders if tty in used):
        return SoftReading("terminal", active=True, words="a terminal is in use")
    if leaders and (now is None or set(leaders) - set(used)):
        return unknown("the image has no tool that reports a terminal's last use")
    return SoftReading("terminal", active=False, words="terminals quiet" if leaders else "no terminal open")


@dataclass(frozen=True)
class _Kernel:
    name: str
    busy: bool | None
    idle_seconds: float


@dataclass(frozen=True)
class _ServerReport:
    """The report of a Jupyter server. ``opened`` is None if an older extension does not write it.

    ``is_own`` is False for a child process that inherited its parent's file. The script lists each file by pid.
    """

    is_own: bool
    uptime: float
    kernels: list[_Kernel]
    opened: bool | None


def _kernels(lines: list[str], clock_seconds: float, interval_seconds: float) -> SoftReading:
    """Combine the reports of the workspace's Jupyter servers.

    One busy kernel is enough, and one unknown makes all so.
    """
    kernels: list[_Kernel] = []
    problems: list[str] = []
    servers = 0
    for line in lines:
        report = _read_report(line)
        if report is None:
            problems.append("the report of its Jupyter server is not understood")
            continue
        if not report.is_own:
            continue
        servers += 1
        age_seconds = clock_seconds - report.uptime
        if not -1.0 <= age_seconds <= STALE_SECONDS:
            problems.append(f"its Jupyter server has reported nothing for {age_seconds:.0f} s")
            continue
        kernels += [_Kernel(one.name, one.busy, one.idle_seconds + max(0.0, age_seconds)) for one in report.kernels]
    if busy := [one.name for one in kernels if one.busy]:
        return SoftReading("kernel", active=True, words=f"{_named(busy)} busy")
    if recent := [
        one.name for one in kernels if one.busy is False and one.idle_seconds <= interval_seconds + KERNEL_SECONDS
    ]:
        return SoftReading("kernel", active=True, words=f"{_named(recent)} in use")
    if strange := [one.name for one in kernels if one.busy is None]:
        problems.append(f"{_named(strange)} does not report its state")
    if problems:
        return SoftReading("kernel", None, problems[0])
    if not servers:
        return SoftReading("kernel", None, "no Jupyter server with gpuspawner's extension was found")
    return SoftReading("kernel", active=False, words="kernels quiet" if kernels else "no kernel")


def _named(names: list[str]) -> str:
    """Return ``kernel train.ipynb``, or ``kernels a.ipynb, b.ipynb and 3 more``."""
    if len(names) == 1:
        return f"kernel {names[0]}"
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"kernels {', '.join(names[:NAMES_SHOWN])}{more}"


MAX_SECONDS = 1e12
"""Longer than the uptime of any machine. Larger values are not times."""


def _is_seconds(value: Any) -> bool:
    return type(value) in {int, float} and 0 <= value <= MAX_SECONDS


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "begin": lambda value: type(value) is int,
    "pid": lambda value: type(value) is int,
    "uptime": _is_seconds,
    "kernels": lambda value: isinstance(value, list),
    "end": lambda value: type(value) is int,
}


def _read_report(line: str) -> _ServerReport | None:
    """Return the report that a Jupyter server keeps (gpuspawner.workspace.kernels), None for any other line."""
    match = _KERNELS.fullmatch(line)
    try:
        found = json.loads(match[2]) if match else None
    except (ValueError, RecursionError):
        return None
    if match is None or not isinstance(found, dict) or set(found) - {OPENED} != set(_CHECKS):
        return None
    opened = found.get(OPENED)
    if not (opened is None or isinstance(opened, bool)):
        return None
    if not all(check(found[key]) for key, check in _CHECKS.items()) or found["begin"] != found["end"]:
        return None
    kernels = [_kernel(one) for one in found["kernels"]]
    known = [one for one in kernels if one is not None]
    if len(known) < len(kernels):
        return None
    return _ServerReport(found["pid"] == int(match[1]), float(found["uptime"]), known, opened)


def _kernel(found: Any) -> _Kernel | None:
    if not isinstance(found, dict) or set(found) != {"name", "busy", "idle_seconds"}:
        return None
    name, busy, idle_seconds = found["name"], found["busy"], found["idle_seconds"]
    if not isinstance(name, str) or not (busy is None or isinstance(busy, bool)):
        return None
    if not _is_seconds(idle_seconds):
        return None
    return _Kernel("".join(c for c in name if c.isprintable())[:100] or "without a name", busy, float(idle_seconds))


_CLOCK = re.compile(r"clock ([0-9]{1,12}\.[0-9]{1,9}) ([1-9][0-9]{0,5})")
_PROCESS = re.compile(r"process ([0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,18})")
_UNREADABLE = re.compile(r"unreadable ([0-9]{1,9})")
_OBSERVES = re.compile(r"observes ([0-9]{1,9})")
_KILLS = re.compile(r"kills ([0-9]{1,9})")
_OPEN = re.compile(r"open ([0-9]{1,9}) (/.+)")
_REAL_DEVICE = re.compile(r"/dev/nvidia([0-9]{1,5})")
ANY_PID = 0
"""The script reports this pid as unreadable if it could not list the open files of any process."""


@dataclass(frozen=True)
class ProcessTime:
    """CPU time of one process in clock ticks: its own, and that of its ended, waited-for children."""

    ppid: int
    own_ticks: int
    children_ticks: int

    @property
    def ticks(self) -> int:
        """Their sum."""
        return self.own_ticks + self.children_ticks


@dataclass(frozen=True)
class ProcessTable:
    """The processes of a workspace at one time: ``times`` by (pid, start time in ticks since boot).

    It is kept for the next probe, and the difference is the CPU use. ``followed`` is for the workspace's GPU monitor.
    """

    clock_seconds: float
    ticks_per_second: int
    times: Mapping[tuple[int, int], ProcessTime] = field(default_factory=dict)
    followed: Followed | None = None

    def cores_since(self, previous: ProcessTable | None) -> dict[int, float] | None:
        """Return the average CPU cores of each process since ``previous``, by pid. None if unknown.

        All time of a new process counts. When a process ends, its time moves to the parent that waits for it, where the
        part counted before is subtracted. The time of ended processes without a waiting parent here is lost.
        """
        used = self._cores_since(previous)
        return None if used is None else {pid: own + ended for pid, (own, ended) in used.items()}

    def ended_cores_since(self, previous: ProcessTable | None) -> float | None:
        """Return the average CPU cores of ended processes since ``previous``, None if unknown."""
        used = self._cores_since(previous)
        return None if used is None else sum((ended for _, ended in used.values()), 0.0)

    def _cores_since(self, previous: ProcessTable | None) -> dict[int, tuple[float, float]] | None:
        """Return for each process its own CPU cores and those of its ended children."""
        if previous is None or self.clock_seconds <= previous.clock_seconds:
            return None
        counted_of_ended: dict[int, int] = {}
        for key, before in previous.times.items():
            if key not in self.times:
                counted_of_ended[before.ppid] = counted_of_ended.get(before.ppid, 0) + before.ticks
        ticks_of_one_core = (self.clock_seconds - previous.clock_seconds) * self.ticks_per_second
        used = {}
        for key, now in self.times.items():
            before = previous.times.get(key, ProcessTime(0, 0, 0))
            waited_for = now.children_ticks - before.children_ticks - counted_of_ended.get(key[0], 0)
            own = now.own_ticks - before.own_ticks
            used[key[0]] = max(0, own) / ticks_of_one_core, max(0, waited_for) / ticks_of_one_core
        return used


@dataclass(frozen=True)
class Holders:
    """The processes that hold one GPU, by pid.

    Attributes:
        known: processes with its device file open, None if unknown.
        possible: processes whose open files cannot be listed. Each may hold it.
        problem: why ``known`` is unknown, in words.
    """

    known: frozenset[int] | None = None
    possible: frozenset[int] = frozenset()
    problem: str = ""

    def without(self, pids: Collection[int]) -> Holders:
        """Return the holders without these processes."""
        known = None if self.known is None else self.known.difference(pids)
        return Holders(known, self.possible.difference(pids), self.problem)


def sum_cores(pids: Collection[int] | None, cores: Mapping[int, float] | None) -> float | None:
    """Return the total CPU use of these processes, None if one is unknown."""
    if pids is None or cores is None or not cores.keys() >= set(pids):
        return None
    return sum((cores[pid] for pid in pids), 0.0)


class ProcessLines:
    """The lines of one probe about processes and device files."""

    def __init__(self, lines: Iterable[str]) -> None:
        """``table`` is None if a line about processes is not understood."""
        self.problem = ""
        self.clock = (0.0, 0)
        self.memory_kills: int | None = None
        self._has_devices = False
        self.are_hidden = False
        self._unreadable: set[int] = set()
        self._observers: set[int] = set()
        self._open: dict[str, set[int]] = {}
        self._minors: dict[str, str] = {}
        times: dict[tuple[int, int], ProcessTime] = {}
        self._read(lines, times)
        self.table = ProcessTable(*self.clock, times) if self.clock[1] and not self.problem else None
        real = {device: match[1] for device in self._open if (match := _REAL_DEVICE.fullmatch(device))}
        self._unnamed_device = next((device for device, minor in real.items() if minor not in self._minors), "")
        self._named = set(self._minors.values()) if real else None
        self._by_uuid: dict[str, set[int]] = {}
        for device, pids in self._open.items():
            uuid = self._minors.get(real[device], "") if device in real else device.rsplit("/", 1)[-1]
            self._by_uuid.setdefault(uuid, set()).update(pids)

    def _read(self, lines: Iterable[str], times: dict[tuple[int, int], ProcessTime]) -> None:
        uuid = ""
        for line in lines:
            name, _, rest = line.partition(":")
            value, *more = rest.split() or [""]
            if name == "driver GPU UUID" and not more:
                uuid = value
            elif name == "driver Device Minor" and not more:
                if uuid:
                    self._minors[value], uuid = uuid, ""
            elif match := _PROCESS.fullmatch(line):
                pid, ppid, start, own, children = map(int, match.groups())
                times[pid, start] = ProcessTime(ppid, own, children)
            elif not (self._takes(line) or _is_of_others(line)):
                self.problem = f"a line of the probe is not understood: {quoted(line)}"

    def _takes(self, line: str) -> bool:
        if match := _CLOCK.fullmatch(line):
            self.clock = float(match[1]), int(match[2])
        elif match := _OPEN.fullmatch(line):
            self._open.setdefault(match[2], set()).add(int(match[1]))
        elif match := _UNREADABLE.fullmatch(line):
            self._unreadable.add(int(match[1]))
        elif match := _OBSERVES.fullmatch(line):
            self._observers.add(int(match[1]))
        elif match := _KILLS.fullmatch(line):
            self.memory_kills = int(match[1])
        elif line.startswith("device /"):
            self._has_devices = True
        elif line == "hidden":
            self.are_hidden = True
        else:
            return False
        return True

    def observers(self, computing: Collection[int]) -> frozenset[int]:
        """Return the processes that open a GPU's device only to read its state, like ``nvidia-smi``."""
        return frozenset(self._observers.difference(computing))

    def holders(self, uuid: str | None = None) -> Holders:
        """Return the processes that hold this GPU's device, or any GPU's for None."""
        problem = self._problem() or ("" if uuid is None else self._problem_of(uuid))
        if self.table is None or problem:
            return Holders(problem=problem)
        pids = self._open.values() if uuid is None else [self._by_uuid.get(uuid, set())]
        known = set().union(*pids)
        possible = {pid for pid, _ in self.table.times} if ANY_PID in self._unreadable else self._unreadable
        return Holders(frozenset(known), frozenset(possible - known))

    def _problem(self) -> str:
        """Return why the holders of all GPUs are unknown, else ""."""
        if self.table is None:
            return self.problem or "the probe printed no clock"
        if not self._has_devices:
            return "its processes are unknown: no GPU device file is visible"
        return "its processes are unknown: /proc hides those of other users (hidepid)" if self.are_hidden else ""

    def _problem_of(self, uuid: str) -> str:
        """Return why the holders of this GPU are unknown although others are known, else ""."""
        if self._unnamed_device:
            device = quoted(self._unnamed_device)
            return f"its processes are unknown: the driver does not tell which GPU {device} is"
        if self._named is not None and uuid not in self._named and uuid not in self._by_uuid:
            return "its processes are unknown: the driver does not tell its device file"
        return ""


def _is_of_others(line: str) -> bool:
    """Return whether another module reads this line."""
    return bool(
        line.startswith(("smi ", "buffer "))
        or is_soft(line)
        or is_monitor(line)
        or READING.fullmatch(line)
        or SMI_CLOCK.fullmatch(line)
    )
