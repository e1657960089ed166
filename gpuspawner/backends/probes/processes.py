"""The lines of ``probe.sh`` about processes: their CPU time, and the GPU device files that they hold open.

Pure, and never raises. A line that is not understood makes all processes unknown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpuspawner.backends.probes.activity import SMI_CLOCK, MonitorState, is_monitor, is_soft
from gpuspawner.backends.probes.gpu_tools import READING
from gpuspawner.core.errors import quoted

_CLOCK = re.compile(r"clock ([0-9]{1,12}\.[0-9]{1,9}) ([1-9][0-9]{0,5})")
_PROCESS = re.compile(r"process ([0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,18})")
_UNREADABLE = re.compile(r"unreadable ([0-9]{1,9})")
_OBSERVES = re.compile(r"observes ([0-9]{1,9})")
_KILLS = re.compile(r"kills ([0-9]{1,9})")
_MEMORY = re.compile(r"memory ([0-9]{1,18})")
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

    It is kept for the next probe, and the difference is the CPU use. ``monitor_state`` is for the workspace's GPU
    monitor.
    """

    clock_seconds: float
    ticks_per_second: int
    times: Mapping[tuple[int, int], ProcessTime] = field(default_factory=dict)
    monitor_state: MonitorState | None = None

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
        self.memory_bytes: int | None = None
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
            elif not (self._read_other_line(line) or _is_read_elsewhere(line)):
                self.problem = f"a line of the probe is not understood: {quoted(line)}"

    def _read_other_line(self, line: str) -> bool:
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
        elif match := _MEMORY.fullmatch(line):
            self.memory_bytes = int(match[1])
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


def _is_read_elsewhere(line: str) -> bool:
    """Return whether another module reads this line."""
    return bool(
        line.startswith(("smi ", "buffer "))
        or is_soft(line)
        or is_monitor(line)
        or READING.fullmatch(line)
        or SMI_CLOCK.fullmatch(line)
    )
