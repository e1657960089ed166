"""The strict reading of what ``probe.sh`` prints.

Pure: text in, a sample out. Never raises, whatever the text: a value that is not understood is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib import resources

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probes.activity import (
    Holders,
    ProcessLines,
    ProcessTable,
    opened_reading,
    soft_readings,
    sum_cores,
)
from gpuspawner.backends.probes.monitor import LATE_SECONDS, Followed, Monitors, asked_window, read_monitors
from gpuspawner.backends.probes.nvidia_smi import (
    DECODER,
    ENCODER,
    GPU,
    Told,
    UtilizationReport,
    Values,
    highest_known,
    joined,
    read_reports,
    read_rows,
)
from gpuspawner.backends.probes.tools import read_tables
from gpuspawner.core.idle.readings import GpuReading, Sample, SourceReading

BEGIN, END = "gpuspawner-probe 1 begin", "gpuspawner-probe 1 end"
MOST_GPUS = 64
"""More GPUs are nonsense, and keeping their readings would cost memory. Arbitrary: four times what is seen."""
MOST_LINES = 20_000
"""A megabyte of empty lines would take seconds to read. Arbitrary: 1,000 processes that hold 16 GPUs print fewer."""
READING_SECONDS = 1 / 6
"""The time that one reading of ``utilization.gpu`` covers at least, by NVIDIA's manual."""
_TOO_FEW_FILES = re.compile(r"files ([0-9]{1,9})")


def script() -> bytes:
    """Return the probe script, to be sent on the stdin of ``sh -s``."""
    return resources.files("gpuspawner.backends").joinpath("probe.sh").read_bytes()


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
    """Return the sample that one probe printed, and the table to give as ``previous`` to the next.

    Args:
        result: of the backend's ``probe``.
        leased: names of the GPUs that the lease holds: UUIDs, unless the result's GPUs are the leased ones by count.
        previous: the table of the probe before, None for the first: CPU use is then unknown.
        interval_seconds: since the sample before; kept in the sample. CPU use is measured by the script's own clock.
        age_seconds: since the workspace runs.
        shared: those of ``leased`` that other leases may use too.
        strangers: for each GPU, in words, the processes without a lease that compute on it. They may belong to this
            workspace, without what tells whose they are: the holders of a GPU that it shares are then unknown.
    """
    lines, problem = _body(result)
    if problem:
        return Sample(leased, (), interval_seconds, age_seconds, problem=problem), previous
    probe = _ProbeReader(lines, result, previous, interval_seconds, age_seconds)
    table = probe.processes.table
    if len(probe.told.rows) > MOST_GPUS:
        problem = (
            f"{probe.told.tool} listed {len(probe.told.rows)} GPUs, more than the {MOST_GPUS} that a machine may have"
        )
        return Sample(leased, (), interval_seconds, age_seconds, problem=problem), table or previous
    uuids = _by_count(leased, list(probe.told.rows), result) if result.counted else dict(result.devices)
    # A part of a device reads as all of it, if at all: the processes that hold it judge it.
    shared |= frozenset(leased) if result.shared else frozenset(result.devices)
    others = sorted(set(probe.told.rows) - set(uuids.values()))
    gpus, sources = [], []
    for gpu in dict.fromkeys((*leased, *others)):  # two shares of one device are one device
        stranger = (strangers or {}).get(gpu, "") if gpu in shared else ""
        reading = probe.reading(gpu, uuids.get(gpu, gpu), stranger, is_shared=gpu in shared)
        gpus.append(reading)
        sources += probe.sources(uuids.get(gpu, gpu), reading)
    cores = None if probe.processes.are_hidden else probe.cores
    total = None if cores is None else sum(cores.values())
    sample = Sample(leased, tuple(gpus), interval_seconds, age_seconds, total, sources=tuple(sources))
    # Without lines about processes it is unknown whose the softer evidence is.
    if table is None:
        return sample, previous
    sample = replace(
        sample,
        soft=soft_readings(lines, table.clock_seconds, interval_seconds),
        opened=opened_reading(lines, table.clock_seconds),
        memory_kills=probe.processes.memory_kills,
        ended_cpu_cores=None if cores is None else table.ended_cores_since(previous),
    )
    return sample, replace(table, followed=probe.followed(table.clock_seconds))


class _ProbeReader:
    """What the lines of one probe say of any GPU."""

    def __init__(
        self,
        lines: list[str],
        result: ProbeResult,
        previous: ProcessTable | None,
        interval_seconds: float,
        age_seconds: float,
    ) -> None:
        self._interval_seconds, self._age_seconds = interval_seconds, age_seconds
        self._devices = result.devices
        self.processes = ProcessLines(lines)
        self.cores = self.processes.table.cores_since(previous) if self.processes.table else None
        tables = read_tables(lines)
        # Device files of AMD's and Intel's GPUs tell no UUID: each holder may hold all GPUs of the workspace.
        self._has_uuids = tables is None
        self.told: Told = tables or read_rows(lines)
        self._asked = asked_window(lines)
        self._reports = _reports(lines, list(self.told.rows))
        clock_seconds = self.processes.clock[0]
        before = previous.followed if previous else None
        # Before the first probe a monitor was followed since about the sample before.
        before = before or Followed(clock_seconds - interval_seconds - LATE_SECONDS)
        self._monitors: Monitors = read_monitors(lines, clock_seconds, before)

    def reading(self, gpu: str, uuid: str, stranger: str, *, is_shared: bool) -> GpuReading:
        """Return the reading of a GPU that nvidia-smi lists by this UUID."""
        values, seen_seconds = self._values(uuid)
        if gpu in self._devices:  # the memory is that of the whole device, not of the part
            values = replace(values, memory_used_bytes=None, memory_total_bytes=None)
        holders = self._holders(uuid, stranger)
        if values.memory_used_bytes == 0:  # a process that can compute has a context, which takes memory
            holders = replace(holders, possible=frozenset())
        problem = "; ".join(filter(None, (values.problem, holders.problem)))
        reading = GpuReading(gpu, **{**vars(values), "problem": problem}, shared=is_shared, seen_seconds=seen_seconds)
        return replace(
            reading,
            holders=None if holders.known is None else len(holders.known),
            holders_cpu_cores=sum_cores(holders.known, self.cores),
            possible_holders=len(holders.possible),
            possible_cpu_cores=sum_cores(holders.possible, self.cores) if holders.possible else 0.0,
        )

    def sources(self, uuid: str, reading: GpuReading) -> list[SourceReading]:
        """Return what the workspace's GPU monitors saw of a GPU."""
        return self._monitors.sources(uuid, reading, self.processes.clock[0])

    def followed(self, clock_seconds: float) -> Followed:
        """Return what the next probe needs to know of the GPU monitors."""
        return self._monitors.followed(clock_seconds, self._asked)

    def _holders(self, uuid: str, stranger: str) -> Holders:
        """Return the processes of a GPU, without those that open its device only to read it."""
        if stranger:
            return Holders(problem=stranger)
        holders = self.processes.holders(uuid if self._has_uuids else None)
        return holders.without(self._monitors.keepers | self.processes.observers(self._monitors.computing))

    def _values(self, uuid: str) -> tuple[Values, float]:
        """Return the values of a GPU, and how much of the time since the sample before they cover.

        A buffer no longer than the probe itself is one more reading of these seconds: a GPU that was woken has such a
        one. One that reaches back beyond the sample before may show a burst that was counted there, or another one as
        high: it counts. That keeps a workspace busy for the buffer's length more, 17 to 100 s, while a missed burst may
        end it. A buffer that reaches back beyond the workspace's start is left out.
        """
        values, report = joined(self.told, uuid), self._reports.get(uuid)
        seen_seconds = READING_SECONDS * len(self.told.passes) if values.utilization_percent is not None else 0.0
        report = report or UtilizationReport()
        own_seconds = self._asked.until - self._asked.begin if self._asked else 0.0
        told = {engine: one for engine, one in report.buffers.items() if one.seconds <= self._age_seconds}
        own = {engine: one.max_percent for engine, one in told.items() if one.seconds <= own_seconds}
        before = [one.max_percent for one in told.values() if one.seconds > own_seconds]
        percent = values.utilization_percent
        values = replace(
            values,
            encoder_percent=highest_known((values.encoder_percent, report.encoder_percent, own.get(ENCODER))),
            decoder_percent=highest_known((values.decoder_percent, report.decoder_percent, own.get(DECODER))),
        )
        if percent is None:
            return values, 0.0
        values = replace(
            values, utilization_percent=max(percent, own.get(GPU, 0.0)), buffer_percent=highest_known(before)
        )
        seen_seconds = max(seen_seconds, told[GPU].seconds if GPU in told else 0.0)
        return values, min(seen_seconds, self._interval_seconds)


def _reports(lines: Collection[str], uuids: list[str]) -> dict[str, UtilizationReport]:
    """Return what ``nvidia-smi -q -d UTILIZATION`` printed, by UUID.

    The GPUs are listed without one, in the same order as in the readings. All are the workspace's own: were the order
    another, its verdict would be the same.
    """
    found = read_reports(line.removeprefix("buffer ") for line in lines if line.startswith("buffer "))
    return dict(zip(uuids, found, strict=True)) if len(found) == len(uuids) else {}


def _by_count(leased: tuple[str, ...], seen: list[str], result: ProbeResult) -> dict[str, str]:
    """Return which UUID stands for each leased GPU: those seen, in the order in which nvidia-smi lists them.

    Several parts of one device are listed as that device once: it then stands for the remaining parts.
    """
    uuids, names = list(seen), list(dict.fromkeys(leased))
    if result.shared and uuids:
        uuids += uuids[-1:] * (len(names) - len(uuids))
    return dict(zip(names, uuids, strict=False))


def _body(result: ProbeResult) -> tuple[list[str], str]:
    """Return the lines between the markers, or why there are no such lines."""
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
    lines = lines[: lines.index(END)]
    if lines and (match := _TOO_FEW_FILES.fullmatch(lines[0])):
        return [], f"a process of the workspace may have {match[1]} files open, too few for the probe"
    return lines, ""
