"""The probe script, and the sample from its output.

Pure, and never raises: an invalid value is unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib import resources

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probes.activity import (
    LATE_SECONDS,
    Monitors,
    MonitorState,
    SeenGpu,
    kernel_names,
    opened_reading,
    probe_window,
    read_monitors,
    soft_readings,
)
from gpuspawner.backends.probes.gpu_tools import (
    DECODER,
    ENCODER,
    GPU,
    ToolOutput,
    UtilizationReport,
    Values,
    highest_known,
    join_readings,
    read_reports,
    read_rows,
    read_tables,
)
from gpuspawner.backends.probes.processes import Holders, ProcessLines, ProcessTable, sum_cores
from gpuspawner.core.idle.readings import GpuReading, Sample, SourceReading

BEGIN, END = "gpuspawner-probe 1 begin", "gpuspawner-probe 1 end"
MOST_GPUS = 64
"""More GPUs are invalid, and their readings would take memory. Arbitrary: four times the usual maximum."""
MOST_LINES = 20_000
"""More lines would take seconds to read. Arbitrary: 1,000 processes with 16 GPUs print fewer."""
READING_SECONDS = 1 / 6
"""The shortest time that a reading of ``utilization.gpu`` covers, by NVIDIA's manual."""
_TOO_FEW_FILES = re.compile(r"files ([0-9]{1,9})")


def script() -> bytes:
    """Return the probe script, for the stdin of ``sh -s``."""
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
    """Return the sample of one probe, and the process table for the next probe.

    Args:
        result: of the backend's ``probe``.
        leased: GPUs of the lease: UUIDs, unless the result counts GPUs.
        previous: the process table of the last probe. Without it CPU use is unknown.
        interval_seconds: time since the last sample, kept in the sample. CPU use is measured by the script's clock.
        age_seconds: time since the workspace started.
        shared: GPUs of ``leased`` that other leases may also use.
        strangers: description, by GPU, of processes without a lease that compute on it. They may belong to this
            workspace, so the holders of a shared GPU are then unknown.
    """
    lines, problem = _body(result)
    if problem:
        return Sample(leased, (), interval_seconds, age_seconds, problem=problem), previous
    probe = _ProbeReader(lines, result, previous, interval_seconds, age_seconds)
    table = probe.processes.table
    if len(probe.output.rows) > MOST_GPUS:
        listed = f"{probe.output.tool} listed {len(probe.output.rows)} GPUs"
        problem = f"{listed}, more than the {MOST_GPUS} that a machine may have"
        return Sample(leased, (), interval_seconds, age_seconds, problem=problem), table or previous
    uuids = _by_count(leased, list(probe.output.rows), result) if result.counted else dict(result.devices)
    divided = frozenset(leased) if result.divided else shared
    # The reading of a part of a device is that of the whole device, so the holders of the part decide.
    shared |= frozenset(leased) if result.shared else frozenset(result.devices)
    others = sorted(set(probe.output.rows) - set(uuids.values()))
    names = Counter(uuids.get(gpu, gpu) for gpu in dict.fromkeys(leased))
    gpus, sources = [], []
    for gpu in dict.fromkeys((*leased, *others)):  # two shares of one device are one device
        stranger = (strangers or {}).get(gpu, "") if gpu in shared else ""
        uuid = uuids.get(gpu, gpu)
        reading = probe.reading(gpu, uuid, stranger, is_shared=gpu in shared)
        gpus.append(reading)
        seen = SeenGpu(gpu, 1, gpu in divided) if gpu in result.devices else SeenGpu(uuid, names[uuid], gpu in divided)
        sources += probe.sources(seen, reading)
    cores = None if probe.processes.are_hidden else probe.cores
    total = None if cores is None else sum(cores.values())
    sample = Sample(leased, tuple(gpus), interval_seconds, age_seconds, total, sources=tuple(sources))
    # Without lines about processes the owner of soft evidence is unknown.
    if table is None:
        return sample, previous
    sample = replace(
        sample,
        soft=soft_readings(lines, table.clock_seconds, interval_seconds),
        opened=opened_reading(lines, table.clock_seconds),
        kernels=kernel_names(lines, table.clock_seconds),
        memory_kills=probe.processes.memory_kills,
        host_memory_bytes=probe.processes.memory_bytes,
        ended_cpu_cores=None if cores is None else table.ended_cores_since(previous),
    )
    return sample, replace(table, monitor_state=probe.next_monitor_state(table.clock_seconds))


class _ProbeReader:
    """Reads the lines of one probe for any GPU."""

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
        # Device files of AMD's and Intel's GPUs have no UUID, so each holder may hold all GPUs of the workspace.
        self._has_uuids = tables is None
        self.output: ToolOutput = tables or read_rows(lines)
        self._window = probe_window(lines)
        self._reports = _reports(lines, list(self.output.rows))
        clock_seconds = self.processes.clock[0]
        before = previous.monitor_state if previous else None
        # Before the first probe, monitors count from about the last sample on.
        before = before or MonitorState(clock_seconds - interval_seconds - LATE_SECONDS)
        self._monitors: Monitors = read_monitors(lines, clock_seconds, before)

    def reading(self, gpu: str, uuid: str, stranger: str, *, is_shared: bool) -> GpuReading:
        """Return the reading of a GPU with this UUID in nvidia-smi."""
        values, seen_seconds = self._values(uuid)
        if gpu in self._devices:  # the memory is that of the whole device, not of the part
            values = replace(values, memory_used_bytes=None, memory_total_bytes=None)
        holders = self._holders(uuid, stranger)
        if values.memory_used_bytes == 0:  # a computing process has a context, which takes memory
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

    def sources(self, seen: SeenGpu, reading: GpuReading) -> list[SourceReading]:
        """Return the readings of a GPU by the workspace's GPU monitors."""
        return self._monitors.sources(seen, reading, self.processes.clock[0])

    def next_monitor_state(self, clock_seconds: float) -> MonitorState:
        """Return the values of the GPU monitors for the next probe."""
        return self._monitors.next_state(clock_seconds, self._window)

    def _holders(self, uuid: str, stranger: str) -> Holders:
        """Return the processes of a GPU, without those that open its device only to read it."""
        if stranger:
            return Holders(problem=stranger)
        holders = self.processes.holders(uuid if self._has_uuids else None)
        return holders.without(self._monitors.keepers | self.processes.observers(self._monitors.computing))

    def _values(self, uuid: str) -> tuple[Values, float]:
        """Return the values of a GPU, and how much of the time since the last sample they cover.

        A buffer not longer than the probe is one more reading, for example of a GPU that was woken. A buffer that
        reaches back before the last sample may repeat a burst or contain another one as high, so it counts. That keeps
        a workspace busy for the buffer's length, 17 to 100 s, while a missed burst might end it. A buffer that reaches
        back before the workspace's start is left out.
        """
        values, report = join_readings(self.output, uuid), self._reports.get(uuid)
        seen_seconds = READING_SECONDS * len(self.output.passes) if values.utilization_percent is not None else 0.0
        report = report or UtilizationReport()
        own_seconds = self._window.until - self._window.begin if self._window else 0.0
        buffers = {engine: one for engine, one in report.buffers.items() if one.seconds <= self._age_seconds}
        own = {engine: one.max_percent for engine, one in buffers.items() if one.seconds <= own_seconds}
        before = [one.max_percent for one in buffers.values() if one.seconds > own_seconds]
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
        seen_seconds = max(seen_seconds, buffers[GPU].seconds if GPU in buffers else 0.0)
        return values, min(seen_seconds, self._interval_seconds)


def _reports(lines: Collection[str], uuids: list[str]) -> dict[str, UtilizationReport]:
    """Return the output of ``nvidia-smi -q -d UTILIZATION`` by UUID.

    It lists GPUs without a UUID, in the order of the readings. All GPUs are the workspace's, so another order would
    give the same verdict.
    """
    found = read_reports(line.removeprefix("buffer ") for line in lines if line.startswith("buffer "))
    return dict(zip(uuids, found, strict=True)) if len(found) == len(uuids) else {}


def _by_count(leased: tuple[str, ...], seen: list[str], result: ProbeResult) -> dict[str, str]:
    """Return the UUID for each leased GPU, in nvidia-smi's order.

    Several parts of one device are listed once as that device, which then represents the remaining parts.
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
        return [], "the probe printed no begin marker"
    lines = lines[lines.index(BEGIN) + 1 :]
    if END not in lines:
        return [], "the probe's output was cut off"
    lines = lines[: lines.index(END)]
    if lines and (match := _TOO_FEW_FILES.fullmatch(lines[0])):
        return [], f"a process of the workspace may have {match[1]} files open, too few for the probe"
    return lines, ""
