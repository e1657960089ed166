"""The lines of ``probe.sh`` about activity: kernels, terminals, SSH sessions, editors, and the GPU monitor.

The functions are pure and never raise. A line about soft evidence that is not understood makes its own evidence
unknown. The workspace's user can write to the reports of the workspace's processes
(``gpuspawner.workspace.probe_reports``). So an incomplete, old or invalid report is ignored, and also a report of
another boot. A child process that inherited its parent's file has another pid. The process that keeps the file of a GPU
monitor has the device files open without computing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, StrictBool, StrictInt

from gpuspawner.core.errors import quoted
from gpuspawner.core.idle.readings import GpuReading, Measure, SoftReading, Source, SourceReading

STALE_SECONDS = 60.0
"""A report older than this is ignored. Reports are written every 5 s."""
TTY_SECONDS = 8.0
"""The kernel records the use of a terminal this coarsely, to protect typing patterns."""
LATE_SECONDS = 8.0
"""A report is up to 5 s old and a probe takes some time, so a cell between two looks is still seen."""
SAMPLE_SECONDS = 2.0
"""The longest time between a sample of the driver and its report."""
WOKEN_SECONDS = 1.0
"""How long after a probe's readings a sample may still cover them. A sample covers a second at most."""
RATES_SHARE = 2 / 3
"""Share of the time that a monitor without the driver's sample buffer observes: 1/6 s of each 1/4 s at least."""
MOST_WINDOWS = 3
"""Remembered probes. A late report may cover a probe before the last one."""
NAMES_SHOWN = 2
"""Names of kernels in a sentence."""
MOST_NAMES = 20
"""The most kernels whose names are kept. A Jupyter server reports as many."""
LONGEST_NAME = 100
MOST_GPUS, MOST_PERCENTS = 64, 110

SMI_CLOCK = re.compile(r"(from|until) ([0-9]{1,12}\.[0-9]{1,9})")
"""Lines with the begin and the end of a probe's runs of nvidia-smi."""
_SOFT = re.compile(r"(kernels|terminal|now|used|ssh|editor)( .*)?")
_KERNELS = re.compile(r"kernels ([0-9]{1,9}) (.*)")
_TERMINAL = re.compile(r"terminal (/dev/pts/[0-9]{1,7}) ([0-9]{1,9}) (-?[0-9]{1,9})")
_NOW = re.compile(r"now ([0-9]{1,15})")
_USED = re.compile(r"used (/dev/pts/[0-9]{1,7}) (-?[0-9]{1,15}) (-?[0-9]{1,15})")
_SESSION = re.compile(r"(ssh|editor) ([0-9]{1,9})")
_MONITOR = re.compile(r"monitor ([0-9]{1,9}) ([0-9]{1,9}) (.*)")
_COMPUTES = re.compile(r"computes ([0-9]{1,9})")


def _printable(name: object) -> str:
    if not isinstance(name, str):
        raise ValueError("no text")  # noqa: TRY004 - pydantic takes it for a wrong value
    return "".join(c for c in name if c.isprintable())[:LONGEST_NAME] or "without a name"


Seconds = Annotated[float, Field(strict=True, ge=0, le=1e12, allow_inf_nan=False)]
"""Seconds since the machine started, or a duration. Larger values are not times."""
Percent = Annotated[float, Field(strict=True, ge=0, le=100, allow_inf_nan=False)]


class _Report(BaseModel, extra="forbid", frozen=True):
    """The report of one process. ``begin`` and ``end`` are equal unless it was read while it was written."""

    begin: StrictInt
    pid: StrictInt
    uptime: Seconds
    end: StrictInt

    def is_current(self, clock_seconds: float) -> bool:
        return -1.0 <= clock_seconds - self.uptime <= STALE_SECONDS


class _Kernel(BaseModel, extra="forbid", frozen=True):
    name: Annotated[str, BeforeValidator(_printable)]
    busy: StrictBool | None
    idle_seconds: Seconds


class _ServerReport(_Report, frozen=True):
    """The report of a Jupyter server. ``opened`` tells whether a page was loaded. Older extensions do not write it."""

    kernels: list[_Kernel]
    opened: StrictBool | None = None


class _Gpu(BaseModel, frozen=True):
    """A GPU's utilization: percent, seconds of it and its last time. ``since`` is the begin without a gap.

    ``gpu`` is the GPU of a MIG device, "" for a whole GPU.
    """

    uuid: str
    gpu: str = ""
    since: Seconds
    percents: Annotated[list[tuple[Percent, Seconds, Seconds]], Field(max_length=MOST_PERCENTS)]
    source: Any = None

    @property
    def has_gpm(self) -> bool:
        """Whether its newest values are the activity of its engines."""
        return bool(self.source == "gpm")

    @property
    def seen_share(self) -> float:
        """The observed share of the time without gaps. Utilization rates miss some of it."""
        return RATES_SHARE if self.source == "rates" else 1.0

    def is_past(self, uptime: float) -> bool:
        return max([self.since, *(last for _, _, last in self.percents)]) <= uptime


class _MonitorReport(_Report, frozen=True):
    gpus: Annotated[list[_Gpu], Field(max_length=MOST_GPUS)]


def _server_reports(lines: Iterable[str]) -> tuple[list[_ServerReport], bool]:
    """Return the reports that Jupyter servers wrote themselves, and whether any report is not understood."""
    own, is_odd = [], False
    for line in lines:
        if not line.startswith("kernels"):
            continue
        match = _KERNELS.fullmatch(line)
        try:
            report = _ServerReport.model_validate(json.loads(match[2])) if match else None
        except (ValueError, RecursionError):
            report = None
        if match is None or report is None or report.begin != report.end:
            is_odd = True
        elif report.pid == int(match[1]):
            own.append(report)
    return own, is_odd


def _read_monitor_report(text: str, pid: int, clock_seconds: float) -> _MonitorReport | None:
    """Return the report of the monitor of a process, None if it cannot be trusted."""
    try:
        report = _MonitorReport.model_validate(json.loads(text))
    except (ValueError, RecursionError):
        return None
    is_own = report.begin == report.end and report.pid == pid and report.is_current(clock_seconds)
    return report if is_own and all(gpu.is_past(report.uptime) for gpu in report.gpus) else None


def is_soft(line: str) -> bool:
    """Return whether this module reads a line of the probe as soft evidence."""
    return _SOFT.fullmatch(line) is not None


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
    own, is_odd = _server_reports(lines)
    if any(one.opened for one in own):
        return True
    is_known = own and all(one.opened is False and one.is_current(clock_seconds) for one in own)
    return False if is_known and not is_odd else None


def kernel_names(lines: Iterable[str], clock_seconds: float) -> tuple[str, ...] | None:
    """Return the names of the running kernels, None if a Jupyter server does not report them now."""
    own, is_odd = _server_reports(lines)
    if is_odd or not own or not all(one.is_current(clock_seconds) for one in own):
        return None
    return tuple(kernel.name for report in own for kernel in report.kernels)[:MOST_NAMES]


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


def _kernels(lines: list[str], clock_seconds: float, interval_seconds: float) -> SoftReading:
    """Combine the reports of the workspace's Jupyter servers.

    One busy kernel is enough, and one unknown makes all so.
    """
    own, is_odd = _server_reports(lines)
    kernels: list[tuple[_Kernel, float]] = []
    problems = ["the report of its Jupyter server is not understood"] if is_odd else []
    for report in own:
        age_seconds = clock_seconds - report.uptime
        if report.is_current(clock_seconds):
            kernels += [(one, one.idle_seconds + max(0.0, age_seconds)) for one in report.kernels]
        else:
            problems.append(f"its Jupyter server has reported nothing for {age_seconds:.0f} s")
    if busy := [one.name for one, _ in kernels if one.busy]:
        return SoftReading("kernel", active=True, words=f"{_named(busy)} busy")
    recent_seconds = interval_seconds + LATE_SECONDS
    if recent := [one.name for one, seconds in kernels if one.busy is False and seconds <= recent_seconds]:
        return SoftReading("kernel", active=True, words=f"{_named(recent)} in use")
    if strange := [one.name for one, _ in kernels if one.busy is None]:
        problems.append(f"{_named(strange)} does not report its state")
    if problems:
        return SoftReading("kernel", None, problems[0])
    if not own:
        return SoftReading("kernel", None, "no Jupyter server with gpuspawner's extension was found")
    return SoftReading("kernel", active=False, words="kernels quiet" if kernels else "no kernel")


def _named(names: list[str]) -> str:
    """Return ``kernel train.ipynb``, or ``kernels a.ipynb, b.ipynb and 3 more``."""
    if len(names) == 1:
        return f"kernel {names[0]}"
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"kernels {', '.join(names[:NAMES_SHOWN])}{more}"


class Window(NamedTuple):
    """Begin and end of a probe's runs of nvidia-smi, by the script's clock."""

    begin: float
    until: float


@dataclass(frozen=True)
class MonitorState:
    """Kept for the next probe: the end of the monitors' reports, and the windows of the last probes."""

    until: float
    windows: tuple[Window, ...] = ()


class SeenGpu(NamedTuple):
    """A leased GPU as NVML names it in the workspace.

    Attributes:
        uuid: the UUID of the GPU or of the MIG device. If the MIG device is not known, that of its GPU.
        devices: how many MIG devices of this GPU the workspace has.
        is_divided: other workspaces use the GPU, or the MIG device, too.
    """

    uuid: str
    devices: int
    is_divided: bool


@dataclass(frozen=True)
class Monitors:
    """The reports of a workspace's monitors by GPU UUID, up to ``reported_until`` of the script's clock.

    ``mig`` are the reports of MIG devices by the UUIDs of their GPUs. ``computing`` are the processes with CUDA open.
    ``keepers`` keep the files without CUDA. ``before`` is from the last probe.
    """

    gpus: Mapping[str, tuple[_Gpu, ...]]
    mig: Mapping[str, tuple[_Gpu, ...]]
    reported_until: float | None
    keepers: frozenset[int]
    computing: frozenset[int]
    before: MonitorState

    def sources(self, seen: SeenGpu, reading: GpuReading, clock_seconds: float) -> list[SourceReading]:
        """Return a GPU's reports since the last probe, given its reading. Empty without a report."""
        told, until, since = self.mig.get(seen.uuid) or self.gpus.get(seen.uuid), self.reported_until, self.before.until
        if not told or until is None or until <= since:
            return []
        percent = max((percent for gpu in told for percent in self._percents(gpu, reading)), default=0.0)
        # Only GPM has fractions of a percent, perhaps from before it was lost.
        is_engine = any(gpu.has_gpm for gpu in told) or 0 < percent < 1
        # Several monitors may report one device, and one report may have several MIG devices.
        begins = {gpu.uuid: min(one.since for one in told if one.uuid == gpu.uuid) for gpu in told}
        gapless_seconds = until - max(begins.values()) if len(begins) >= seen.devices else 0.0
        is_mig = any(gpu.gpu for gpu in told)
        return [
            SourceReading(
                reading.gpu,
                Source.MONITOR,
                Measure.ENGINE if is_engine else Measure.UTILIZATION,
                percent=percent,
                begin_seconds=max(0.0, clock_seconds - since),
                end_seconds=max(0.0, clock_seconds - until),
                coverage=max(0.0, min(1.0, gapless_seconds / (until - since))) * max(gpu.seen_share for gpu in told),
                is_own=not (seen.is_divided if is_mig else reading.shared),
            )
        ]

    def _percents(self, gpu: _Gpu, reading: GpuReading) -> Iterable[float]:
        """Yield a GPU's values since the last probe.

        A sample during a probe is left out if the probe itself may have woken the GPU. A value of GPM is not: most of
        its time is not the probe's.
        """
        own = self.before.windows if reading.may_be_woken and not gpu.has_gpm else ()
        for percent, _, last in gpu.percents:
            if last > self.before.until and not any(one.begin <= last <= one.until + WOKEN_SECONDS for one in own):
                yield percent

    def next_state(self, clock_seconds: float, asked: Window | None) -> MonitorState:
        """Return the values for the next probe."""
        windows = (*self.before.windows, *([asked] if asked else ()))[-MOST_WINDOWS:]
        until = clock_seconds - LATE_SECONDS if self.reported_until is None else self.reported_until - SAMPLE_SECONDS
        return MonitorState(until, windows)


def is_monitor(line: str) -> bool:
    """Return whether this module reads a line of the probe."""
    return line.startswith("monitor ") or _COMPUTES.fullmatch(line) is not None


def probe_window(lines: Iterable[str]) -> Window | None:
    """Return the window of a probe's runs of nvidia-smi, None if unknown."""
    clocks = {match[1]: float(match[2]) for line in lines if (match := SMI_CLOCK.fullmatch(line))}
    if len(clocks) != len(Window._fields) or clocks["until"] < clocks["from"]:
        return None
    return Window(clocks["from"], clocks["until"])


def read_monitors(lines: Collection[str], clock_seconds: float, before: MonitorState) -> Monitors:
    """Return the monitors' reports in the lines of one probe, at this time of the script's clock."""
    told = [match for line in lines if (match := _MONITOR.fullmatch(line))]
    computing = {int(match[1]) for line in lines if (match := _COMPUTES.fullmatch(line))}
    gpus: dict[str, tuple[_Gpu, ...]] = {}
    mig: dict[str, tuple[_Gpu, ...]] = {}
    until: list[float] = []
    for match in told:
        report = _read_monitor_report(match[3], int(match[2]), clock_seconds)
        if report is None:
            continue
        until.append(report.uptime)
        for gpu in {one.uuid: one for one in report.gpus}.values():
            gpus[gpu.uuid] = (*gpus.get(gpu.uuid, ()), gpu)
            if gpu.gpu:
                mig[gpu.gpu] = (*mig.get(gpu.gpu, ()), gpu)
    keepers = frozenset(int(match[1]) for match in told) - computing
    return Monitors(gpus, mig, min(until, default=None), keepers, frozenset(computing), before)
