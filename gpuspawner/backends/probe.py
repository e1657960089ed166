"""The strict reading of what ``probe.sh`` prints.

Pure: text in, a sample out. Never raises, whatever the text: what is not understood is unknown, and said in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import TypeVar

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probe_buffer import Buffer, read_buffers
from gpuspawner.backends.probe_monitor import LATE_SECONDS, SMI_CLOCK, Followed, asked_window, is_monitor, read_monitors
from gpuspawner.backends.probe_soft import is_soft, opened_reading, soft_readings
from gpuspawner.core.errors import quoted
from gpuspawner.core.idle.readings import GpuReading, Sample

Number = TypeVar("Number", int, float)

MIB = 1024 * 1024
BEGIN, END = "gpuspawner-probe 1 begin", "gpuspawner-probe 1 end"
FIELDS = 8
"""Of one row: index, uuid, name, MIG mode, utilization, memory used, memory total, persistence mode."""
PERSISTENCE = {"Enabled": True, "Disabled": False}
MOST_GPUS = 64
"""More of them are nonsense, and keeping their readings would burden everybody. Arbitrary: four times what is seen."""

_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_WHOLE = re.compile(r"[0-9]{1,15}")
_CLOCK = re.compile(r"clock ([0-9]{1,12}\.[0-9]{1,9}) ([1-9][0-9]{0,5})")
_PROCESS = re.compile(r"process ([0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,18})")
_UNREADABLE = re.compile(r"unreadable ([0-9]{1,9})")
_OPEN = re.compile(r"open ([0-9]{1,9}) (/.+)")
_READING = re.compile(r"reading ([0-9]{1,3})")
_REAL_DEVICE = re.compile(r"/dev/nvidia([0-9]{1,5})")


def script() -> bytes:
    """Return the probe script, to be sent on the stdin of ``sh -s``."""
    return resources.files("gpuspawner.backends").joinpath("probe.sh").read_bytes()


@dataclass(frozen=True)
class ProcessTime:
    """CPU time of one process in clock ticks: its own, and that of its ended, waited-for children."""

    ppid: int
    own_ticks: int
    children_ticks: int

    @property
    def ticks(self) -> int:
        """All of it."""
        return self.own_ticks + self.children_ticks


@dataclass(frozen=True)
class ProcessTable:
    """The processes of a workspace at one instant: ``times`` by (pid, start time in ticks since boot).

    Kept from one probe to the next, whose difference is the CPU use between them. ``followed`` is for the
    workspace's GPU monitor.
    """

    clock_seconds: float
    ticks_per_second: int
    times: Mapping[tuple[int, int], ProcessTime] = field(default_factory=dict)
    followed: Followed | None = None

    def cores_since(self, previous: ProcessTable | None) -> dict[int, float] | None:
        """Return the CPU cores that each process used on average since ``previous``, by pid; None where unknown.

        A process new since then counts whole. When one ended, its time moves to the parent that waited for it: what
        was already counted is taken off there. Time of ended processes that nobody here waited for is missed.
        """
        if previous is None or self.clock_seconds <= previous.clock_seconds:
            return None
        counted_of_ended: dict[int, int] = {}
        for key, before in previous.times.items():
            if key not in self.times:
                counted_of_ended[before.ppid] = counted_of_ended.get(before.ppid, 0) + before.ticks
        seconds = self.clock_seconds - previous.clock_seconds
        cores = {}
        for key, now in self.times.items():
            before = previous.times.get(key, ProcessTime(0, 0, 0))
            waited_for = now.children_ticks - before.children_ticks - counted_of_ended.get(key[0], 0)
            ticks = max(0, now.own_ticks - before.own_ticks) + max(0, waited_for)
            cores[key[0]] = ticks / self.ticks_per_second / seconds
        return cores


def parse_probe(
    result: ProbeResult,
    leased: tuple[str, ...],
    previous: ProcessTable | None,
    *,
    interval_seconds: float,
    age_seconds: float,
    shared: frozenset[str] = frozenset(),
    strangers: Mapping[str, str] | None = None,
) -> tuple[Sample, ProcessTable | None]:
    """Return the sample that one probe told, and the table to give as ``previous`` to the next.

    Args:
        result: of the backend's ``probe``.
        leased: names of the GPUs that the lease holds: UUIDs, unless the result's GPUs are the leased ones by count.
        previous: the table of the probe before, None for the first: CPU use is then unknown.
        interval_seconds: since the sample before; kept in the sample, CPU use is measured by the script's own clock.
        age_seconds: since the workspace runs.
        shared: those of ``leased`` that other leases may use too.
        strangers: who computes without a lease, in words, by GPU. They may be this workspace's own, escaped from what
            tells whose a process is: then nobody can say that it does not use a GPU it shares.
    """
    lines, problem = _body(result)
    if problem:
        return Sample(leased, (), interval_seconds, age_seconds, problem=problem), previous
    processes = _Processes(lines)
    cores = processes.table.cores_since(previous) if processes.table else None
    gpus, seen, passes = [], _readings(lines), _passes(lines)
    if len(seen) > MOST_GPUS:
        problem = f"nvidia-smi listed {len(seen)} GPUs, more than the {MOST_GPUS} that a machine may have"
        return Sample(leased, (), interval_seconds, age_seconds, problem=problem), processes.table or previous
    asked = asked_window(lines)
    buffers, own_seconds = _buffers(lines, seen), asked.until - asked.begin if asked else 0.0
    followed = previous.followed if previous else None
    monitors = read_monitors(
        lines, processes.clock[0], followed or Followed(processes.clock[0] - interval_seconds - LATE_SECONDS)
    )
    uuids = _by_count(leased, seen, result) if result.counted else dict(result.devices)
    # A part of a device reads as all of it, if at all: its own processes judge it.
    shared |= frozenset(leased) if result.shared else frozenset(result.devices)
    unleased = sorted(set(seen) - set(uuids.values()))
    for gpu in dict.fromkeys((*leased, *unleased)):  # two shares of one device are one device
        uuid = uuids.get(gpu, gpu)
        values = _with_buffer(_of_one_gpu(seen.get(uuid, ()), passes), buffers.get(uuid), age_seconds, own_seconds)
        if gpu in result.devices:  # the memory is all of the device's, not that of the part
            values = replace(values, memory_used_bytes=None, memory_total_bytes=None)
        stranger = (strangers or {}).get(gpu) if gpu in shared else None
        holders, why = (None, stranger) if stranger else processes.holders(uuid)
        holders = None if holders is None else holders - monitors.keepers
        reading = GpuReading(gpu, **vars(values))
        count, held = None if holders is None else len(holders), _held(holders, cores)
        problem = "; ".join(filter(None, (values.problem, why)))
        reading = replace(reading, holders=count, holders_cpu_cores=held, shared=gpu in shared, problem=problem)
        gpus.append(replace(reading, monitor=monitors.reading(uuid, reading)))
    total = None if cores is None else sum(cores.values())
    # Without the processes' own lines nobody knows whose these would be.
    if processes.table is None:
        return Sample(leased, tuple(gpus), interval_seconds, age_seconds, total), previous
    clock_seconds = processes.table.clock_seconds
    soft, opened = soft_readings(lines, clock_seconds, interval_seconds), opened_reading(lines, clock_seconds)
    table = replace(processes.table, followed=monitors.followed(clock_seconds, asked))
    return Sample(leased, tuple(gpus), interval_seconds, age_seconds, total, soft, opened=opened), table


def _buffers(lines: Iterable[str], seen: Iterable[str]) -> dict[str, Buffer]:
    """Return the sample buffers that the driver tells, by UUID.

    They are listed without one, in the same order as the readings. All are the workspace's own: were the order another,
    its verdict would be the same.
    """
    found = read_buffers(line.removeprefix("buffer ") for line in lines if line.startswith("buffer "))
    uuids = list(seen)
    if len(found) != len(uuids):
        return {}
    return {uuid: one for uuid, one in zip(uuids, found, strict=True) if one is not None}


def _with_buffer(values: _Values, buffer: Buffer | None, age_seconds: float, own_seconds: float) -> _Values:
    """Return the values of a GPU with what the driver's buffer adds.

    A buffer no longer than the probe itself was asking is one more reading of these seconds: a GPU that was woken has
    such a one. One that reaches back beyond the sample before may tell of a burst that was counted there, or of another
    one as high: nobody can say, so it counts. That keeps a workspace busy for the buffer's length more, 17 to 100 s; a
    burst that is missed may end it. What reaches back beyond the workspace's start waits: its own is told again.
    """
    percent = values.utilization_percent
    if percent is None or buffer is None or buffer.seconds > age_seconds:
        return values
    if buffer.seconds <= own_seconds:
        return replace(values, utilization_percent=max(percent, buffer.max_percent))
    return replace(values, buffer_percent=buffer.max_percent)


def _held(holders: set[int] | None, cores: Mapping[int, float] | None) -> float | None:
    """Return the CPU use of a GPU's holders. Of one whose own line is missing nobody knows what it computes."""
    if holders is None or cores is None or not holders <= cores.keys():
        return None
    return sum((cores[pid] for pid in holders), 0.0)


def _by_count(leased: tuple[str, ...], seen: Iterable[str], result: ProbeResult) -> dict[str, str]:
    """Return which UUID stands for each leased GPU: those seen, in the order in which nvidia-smi lists them.

    Several parts of one device are listed as that device once: then it stands for those left over.
    """
    uuids, names = list(seen), list(dict.fromkeys(leased))
    if result.shared and uuids:
        uuids += uuids[-1:] * (len(names) - len(uuids))
    return dict(zip(names, uuids, strict=False))


def _body(result: ProbeResult) -> tuple[list[str], str]:
    """Return the lines between the markers, or why there are none."""
    if result.problem:
        return [], result.problem
    lines = [line.rstrip("\r") for line in result.text.split("\n")]
    if BEGIN not in lines:
        return [], "the probe printed no beginning"
    lines = lines[lines.index(BEGIN) + 1 :]
    if END not in lines:
        return [], "the probe's output was cut off"
    return lines[: lines.index(END)], ""


class _Processes:
    """The process lines of one probe. Anything odd among them makes all of them unknown."""

    def __init__(self, lines: list[str]) -> None:
        self.problem = ""
        self.has_devices = False
        self.unreadable = 0
        self.open: dict[str, set[int]] = {}
        self.minors: dict[str, str] = {}
        self.times: dict[tuple[int, int], ProcessTime] = {}
        self.clock = (0.0, 0)
        uuid = ""
        for line in lines:
            name, _, rest = line.partition(":")
            value, *more = rest.split() or [""]
            if name == "driver GPU UUID" and not more:
                uuid = value
            elif name == "driver Device Minor" and not more:
                if uuid:
                    self.minors[value], uuid = uuid, ""
            elif not (
                self._takes(line)
                or line.startswith(("smi ", "buffer "))
                or is_soft(line)
                or is_monitor(line)
                or _READING.fullmatch(line)
                or SMI_CLOCK.fullmatch(line)
            ):
                self.problem = f"a line of the probe is not understood: {quoted(line)}"
        self.table = ProcessTable(*self.clock, self.times) if self.clock[1] and not self.problem else None
        real = {device: match[1] for device in self.open if (match := _REAL_DEVICE.fullmatch(device))}
        self._untold_device = next((device for device, minor in real.items() if minor not in self.minors), "")
        self._known = set(self.minors.values()) if real else None
        self._holders: dict[str, set[int]] = {}
        for device, pids in self.open.items():
            uuid = self.minors.get(real[device], "") if device in real else device.rsplit("/", 1)[-1]
            self._holders.setdefault(uuid, set()).update(pids)

    def _takes(self, line: str) -> bool:
        if match := _CLOCK.fullmatch(line):
            self.clock = float(match[1]), int(match[2])
        elif match := _PROCESS.fullmatch(line):
            pid, ppid, start, own, children = map(int, match.groups())
            self.times[pid, start] = ProcessTime(ppid, own, children)
        elif match := _OPEN.fullmatch(line):
            self.open.setdefault(match[2], set()).add(int(match[1]))
        elif _UNREADABLE.fullmatch(line):
            self.unreadable += 1
        elif line.startswith("device /"):
            self.has_devices = True
        else:
            return False
        return True

    def holders(self, uuid: str) -> tuple[set[int] | None, str]:
        """Return the pids that hold this GPU's device, or None and why that is unknown."""
        if self.table is None:
            return None, self.problem or "the probe told no clock"
        if not self.has_devices:
            return None, "its processes are unknown: no GPU device file is visible"
        if self.unreadable:
            return None, f"its processes are unknown: the open files of {self.unreadable} could not be read"
        if self._untold_device:
            device = quoted(self._untold_device)
            return None, f"its processes are unknown: the driver does not tell which GPU {device} is"
        if self._known is not None and uuid not in self._known and uuid not in self._holders:
            return None, "its processes are unknown: the driver does not tell its device file"
        return self._holders.get(uuid, set()), ""


@dataclass(frozen=True)
class _Values:
    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    problem: str = ""
    persistence: bool | None = None
    buffer_percent: float | None = None


def _passes(lines: Iterable[str]) -> tuple[tuple[int, str], ...]:
    """Return exit code and first line that is no row, for each run of nvidia-smi."""
    passes: list[tuple[int, str]] = []
    for line in lines:
        if match := _READING.fullmatch(line):
            passes.append((int(match[1]), ""))
        elif passes and line.startswith("smi ") and line[4:].strip() and not passes[-1][1] and _row(line[4:]) is None:
            passes[-1] = (passes[-1][0], line[4:].strip())
    return tuple(passes)


def _row(text: str) -> tuple[str, _Values] | None:
    """Return UUID and values of one CSV row, or None for a line that is none. A row that is odd in part says so."""
    cells = [cell.strip() for cell in text.split(",")]
    if len(cells) < 2 or not _UUID.fullmatch(cells[1]):  # noqa: PLR2004 (index and UUID begin a row)
        return None
    if len(cells) != FIELDS or not _WHOLE.fullmatch(cells[0]):
        return cells[1], _Values(problem=f"nvidia-smi printed a row that is not understood: {quoted(text)}")
    utilization, used, total = cells[4:7]
    percent = _whole(utilization, 100)
    used_mib, total_mib = _whole(used, 2**40), _whole(total, 2**40)
    problems = [
        f"{name}: {quoted(value)}"
        for name, value, number in (
            ("utilization", utilization, percent),
            ("memory used", used, used_mib),
            ("memory total", total, total_mib),
        )
        if number is None
    ]
    if used_mib is not None and total_mib is not None and used_mib > total_mib:
        problems.append(f"memory used: {used_mib} of {total_mib} MiB")
        used_mib = total_mib = None
    return cells[1], _Values(
        None if percent is None else float(percent),
        None if used_mib is None else used_mib * MIB,
        None if total_mib is None else total_mib * MIB,
        ", ".join(problems),
        PERSISTENCE.get(cells[7]),
    )


def _whole(text: str, highest: int) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) and int(text) <= highest else None


def _readings(lines: Iterable[str]) -> dict[str, tuple[tuple[int, _Values], ...]]:
    """Return for each UUID its rows, each with the number of the run that printed it."""
    found: dict[str, list[tuple[int, _Values]]] = {}
    number = 0
    for line in lines:
        if _READING.fullmatch(line):
            number += 1
        elif line.startswith("smi ") and (row := _row(line[4:])) is not None:
            found.setdefault(row[0], []).append((number, row[1]))
    return {uuid: tuple(rows) for uuid, rows in found.items()}


def _of_one_gpu(rows: tuple[tuple[int, _Values], ...], passes: tuple[tuple[int, str], ...]) -> _Values:
    """Join a GPU's readings: the highest of each value, and unknown if one reading of it was unknown."""
    if not passes:
        return _Values(problem="nvidia-smi was not run")
    for code, text in passes:
        if code != 0:
            missing = "nvidia-smi is not there" if code == 127 else f"nvidia-smi failed with exit code {code}"  # noqa: PLR2004
            return _Values(problem=f"{missing}: {quoted(text)}" if text else missing)
    if [number for number, _ in rows] != list(range(1, len(passes) + 1)):
        said = next((text for _, text in passes if text), "")
        listed = f"nvidia-smi listed it {len(rows)} times in {len(passes)} readings"
        return _Values(problem=f"{listed}: {quoted(said)}" if said else listed)
    values = [value for _, value in rows]
    return _Values(
        _highest([value.utilization_percent for value in values]),
        _highest([value.memory_used_bytes for value in values]),
        _highest([value.memory_total_bytes for value in values]),
        next((value.problem for value in values if value.problem), ""),
        values[0].persistence if len({value.persistence for value in values}) == 1 else None,
    )


def _highest(values: list[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None
