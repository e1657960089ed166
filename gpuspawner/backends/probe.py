"""The strict reading of what ``probe.sh`` prints.

Pure: text in, a sample out. Never raises, whatever the text: what is not understood is unknown, and said in words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probe_buffer import Buffer, read_buffers
from gpuspawner.backends.probe_monitor import LATE_SECONDS, SMI_CLOCK, Followed, asked_window, is_monitor, read_monitors
from gpuspawner.backends.probe_rows import READING, Values, joined, read_rows
from gpuspawner.backends.probe_soft import is_soft, opened_reading, soft_readings
from gpuspawner.backends.probe_tools import read_tables
from gpuspawner.core.errors import quoted
from gpuspawner.core.idle.readings import GpuReading, Sample

BEGIN, END = "gpuspawner-probe 1 begin", "gpuspawner-probe 1 end"
MOST_GPUS = 64
"""More of them are nonsense, and keeping their readings would burden everybody. Arbitrary: four times what is seen."""
MOST_LINES = 20_000
"""A megabyte of empty ones would take seconds to read. Arbitrary: 1,000 processes that hold 16 GPUs print fewer."""

_CLOCK = re.compile(r"clock ([0-9]{1,12}\.[0-9]{1,9}) ([1-9][0-9]{0,5})")
_PROCESS = re.compile(r"process ([0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,18})")
_UNREADABLE = re.compile(r"unreadable ([0-9]{1,9})")
_OPEN = re.compile(r"open ([0-9]{1,9}) (/.+)")
_KILLS = re.compile(r"kills ([0-9]{1,9})")
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
    tables = read_tables(lines)
    told, gpus = tables or read_rows(lines), []
    seen = told.rows
    if len(seen) > MOST_GPUS:
        problem = f"{told.tool} listed {len(seen)} GPUs, more than the {MOST_GPUS} that a machine may have"
        return Sample(leased, (), interval_seconds, age_seconds, problem=problem), processes.table or previous
    asked = asked_window(lines)
    buffers, own_seconds = _buffers(lines, seen), asked.until - asked.begin if asked else 0.0
    monitors = read_monitors(lines, processes.clock[0], _followed(previous, processes.clock[0], interval_seconds))
    uuids = _by_count(leased, seen, result) if result.counted else dict(result.devices)
    # A part of a device reads as all of it, if at all: its own processes judge it.
    shared |= frozenset(leased) if result.shared else frozenset(result.devices)
    others = sorted(set(seen) - set(uuids.values()))
    for gpu in dict.fromkeys((*leased, *others)):  # two shares of one device are one device
        uuid = uuids.get(gpu, gpu)
        values = _with_buffer(joined(told, uuid), buffers.get(uuid), age_seconds, own_seconds)
        if gpu in result.devices:  # the memory is all of the device's, not that of the part
            values = replace(values, memory_used_bytes=None, memory_total_bytes=None)
        stranger = (strangers or {}).get(gpu) if gpu in shared else None
        # Device files of AMD's and Intel's GPUs tell no UUID: whoever holds one may hold all of the workspace's.
        of_gpu = processes.holders_of_any() if tables else processes.holders(uuid)
        reading = GpuReading(gpu, **vars(values), shared=gpu in shared)
        reading = _with_holders(reading, (None, stranger) if stranger else of_gpu, monitors.keepers, cores)
        gpus.append(replace(reading, monitor=monitors.reading(uuid, reading, age_seconds)))
    total = None if cores is None else sum(cores.values())
    # Without the processes' own lines nobody knows whose these would be.
    if processes.table is None:
        return Sample(leased, tuple(gpus), interval_seconds, age_seconds, total), previous
    clock_seconds = processes.table.clock_seconds
    soft, opened = soft_readings(lines, clock_seconds, interval_seconds), opened_reading(lines, clock_seconds)
    table = replace(processes.table, followed=monitors.followed(clock_seconds, asked))
    kills = processes.memory_kills
    sample = Sample(leased, tuple(gpus), interval_seconds, age_seconds, total, soft, opened=opened, memory_kills=kills)
    return sample, table


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


def _with_buffer(values: Values, buffer: Buffer | None, age_seconds: float, own_seconds: float) -> Values:
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


def _with_holders(
    reading: GpuReading,
    told: tuple[set[int] | None, str],
    keepers: Collection[int],
    cores: Mapping[int, float] | None,
) -> GpuReading:
    """Return the reading of a GPU with who holds it: ``told`` are their pids, or why these are unknown.

    The ``keepers`` of the GPU monitor hold its device and are none.
    """
    holders, why = told
    holders = None if holders is None else holders.difference(keepers)
    problem = "; ".join(filter(None, (reading.problem, why)))
    count = None if holders is None else len(holders)
    return replace(reading, holders=count, holders_cpu_cores=_held(holders, cores), problem=problem)


def _followed(previous: ProcessTable | None, clock_seconds: float, interval_seconds: float) -> Followed:
    """Return until when the GPU monitor was followed by the probe before; of the first one, since about then."""
    before = previous.followed if previous else None
    return before or Followed(clock_seconds - interval_seconds - LATE_SECONDS)


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
    if result.text.count("\n") > MOST_LINES:
        return [], f"the probe printed more than {MOST_LINES} lines"
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
        self.memory_kills: int | None = None
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
                or READING.fullmatch(line)
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
        elif match := _KILLS.fullmatch(line):
            self.memory_kills = int(match[1])
        else:
            return False
        return True

    def holders_of_any(self) -> tuple[set[int] | None, str]:
        """Return the pids that hold any GPU's device, or None and why that is unknown."""
        if self.table is None:
            return None, self.problem or "the probe told no clock"
        if not self.has_devices:
            return None, "its processes are unknown: no GPU device file is visible"
        if self.unreadable:
            return None, f"its processes are unknown: the open files of {self.unreadable} could not be read"
        return set().union(*self.open.values()), ""

    def holders(self, uuid: str) -> tuple[set[int] | None, str]:
        """Return the pids that hold this GPU's device, or None and why that is unknown."""
        of_any, why = self.holders_of_any()
        if of_any is None:
            return None, why
        if self._untold_device:
            device = quoted(self._untold_device)
            return None, f"its processes are unknown: the driver does not tell which GPU {device} is"
        if self._known is not None and uuid not in self._known and uuid not in self._holders:
            return None, "its processes are unknown: the driver does not tell its device file"
        return self._holders.get(uuid, set()), ""
