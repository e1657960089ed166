"""The strict reading of the report of the GPU monitor in a workspace (``gpuspawner.workspace.monitor``).

The functions are pure and never raise. The workspace's user can write to the file. So an incomplete, old or invalid
line is ignored, and also a line of another boot. The process that keeps the file has the device files open without
computing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuspawner.core.idle.readings import GpuReading, Measure, Source, SourceReading

STALE_SECONDS = 60.0
"""A report older than this is ignored. Reports are written every 5 s."""
LATE_SECONDS = 8.0
"""A report is up to 5 s old, and a probe takes some time."""
SAMPLE_SECONDS = 2.0
"""The longest time between a sample of the driver and its report."""
WOKEN_SECONDS = 1.0
"""How long after a probe's readings a sample may still cover them. A sample covers a second at most."""
RATES_SHARE = 2 / 3
"""Share of the time that a monitor without the driver's sample buffer observes: 1/6 s of each 1/4 s at least."""
MOST_WINDOWS = 3
"""Remembered probes. A late report may cover a probe before the last one."""
MOST_GPUS, MOST_PERCENTS = 64, 101

SMI_CLOCK = re.compile(r"(from|until) ([0-9]{1,12}\.[0-9]{1,9})")
"""Lines with the begin and the end of a probe's runs of nvidia-smi."""
_LINE = re.compile(r"monitor ([0-9]{1,9}) ([0-9]{1,9}) (.*)")
_COMPUTES = re.compile(r"computes ([0-9]{1,9})")
_KEYS = {"begin", "pid", "uptime", "gpus", "end"}
_GPU_KEYS = {"uuid", "since", "percents"}
_MAX_VALUE = 1e12


class Window(NamedTuple):
    """Begin and end of a probe's runs of nvidia-smi, by the script's clock."""

    begin: float
    until: float


class _Percent(NamedTuple):
    percent: int
    seconds: float
    last: float


class _Gpu(NamedTuple):
    since: float
    percents: tuple[_Percent, ...]
    seen_share: float


@dataclass(frozen=True)
class Followed:
    """Kept for the next probe: the end of the monitors' reports, and the windows of the last probes."""

    until: float
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True)
class Monitors:
    """The reports of a workspace's monitors by GPU UUID, up to ``told_until`` of the script's clock.

    ``computing`` are the processes with CUDA open. ``keepers`` keep the files without CUDA. ``before`` is from the last
    probe.
    """

    gpus: Mapping[str, tuple[_Gpu, ...]]
    told_until: float | None
    keepers: frozenset[int]
    computing: frozenset[int]
    before: Followed

    def sources(self, uuid: str, reading: GpuReading, clock_seconds: float) -> list[SourceReading]:
        """Return a GPU's reports since the last probe, given its reading. Empty without a report.

        A sample during a probe is left out if the probe itself may have woken the GPU.
        """
        told, until, since = self.gpus.get(uuid), self.told_until, self.before.until
        if not told or until is None or until <= since:
            return []
        own = self.before.windows if reading.may_be_woken else ()
        percents = [
            one.percent
            for gpu in told
            for one in gpu.percents
            if one.last > since
            if not any(window.begin <= one.last <= window.until + WOKEN_SECONDS for window in own)
        ]
        gapless_seconds = until - min(gpu.since for gpu in told)
        return [
            SourceReading(
                reading.gpu,
                Source.MONITOR,
                Measure.UTILIZATION,
                percent=float(max(percents, default=0)),
                begin_seconds=max(0.0, clock_seconds - since),
                end_seconds=max(0.0, clock_seconds - until),
                coverage=max(0.0, min(1.0, gapless_seconds / (until - since))) * self._seen_share(uuid),
                is_own=not reading.shared,
            )
        ]

    def _seen_share(self, uuid: str) -> float:
        """Return the observed share of the time without gaps. Utilization rates miss some of it."""
        return max((gpu.seen_share for gpu in self.gpus.get(uuid, ())), default=0.0)

    def followed(self, clock_seconds: float, asked: Window | None) -> Followed:
        """Return the values for the next probe."""
        windows = (*self.before.windows, *([asked] if asked else ()))[-MOST_WINDOWS:]
        until = clock_seconds - LATE_SECONDS if self.told_until is None else self.told_until - SAMPLE_SECONDS
        return Followed(until, windows)


def is_monitor(line: str) -> bool:
    """Return whether this module reads a line of the probe."""
    return line.startswith("monitor ") or _COMPUTES.fullmatch(line) is not None


def asked_window(lines: Iterable[str]) -> Window | None:
    """Return the window of a probe's runs of nvidia-smi, None if unknown."""
    clocks = {match[1]: float(match[2]) for line in lines if (match := SMI_CLOCK.fullmatch(line))}
    if len(clocks) != len(Window._fields) or clocks["until"] < clocks["from"]:
        return None
    return Window(clocks["from"], clocks["until"])


def read_monitors(lines: Collection[str], clock_seconds: float, before: Followed) -> Monitors:
    """Return the monitors' reports in the lines of one probe, at this time of the script's clock."""
    told = [match for line in lines if (match := _LINE.fullmatch(line))]
    computing = {int(match[1]) for line in lines if (match := _COMPUTES.fullmatch(line))}
    gpus: dict[str, tuple[_Gpu, ...]] = {}
    until: list[float] = []
    for match in told:
        found = _document(match[3], int(match[2]), clock_seconds)
        if found is None:
            continue
        until.append(found[0])
        for uuid, gpu in found[1].items():
            gpus[uuid] = (*gpus.get(uuid, ()), gpu)
    keepers = frozenset(int(match[1]) for match in told) - computing
    return Monitors(gpus, min(until, default=None), keepers, frozenset(computing), before)


def _document(text: str, pid: int, clock_seconds: float) -> tuple[float, dict[str, _Gpu]] | None:
    """Return the end of a monitor's report and its GPUs, None if it cannot be trusted.

    A child process that inherited its parent's file has another pid.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or set(found) != _KEYS or found["begin"] != found["end"] or found["pid"] != pid:
        return None
    uptime, listed = found["uptime"], found["gpus"]
    if not _is_amount(uptime) or not -1.0 <= clock_seconds - uptime <= STALE_SECONDS:
        return None
    if not isinstance(listed, list) or len(listed) > MOST_GPUS:
        return None
    gpus = {}
    for one in listed:
        gpu = _gpu(one, uptime)
        if gpu is None:
            return None
        gpus[one["uuid"]] = gpu
    return uptime, gpus


def _gpu(found: Any, uptime: float) -> _Gpu | None:
    if not isinstance(found, dict) or not _GPU_KEYS.issubset(found) or not isinstance(found["uuid"], str):
        return None
    since, listed = found["since"], found["percents"]
    if not _is_amount(since) or since > uptime or not isinstance(listed, list) or len(listed) > MOST_PERCENTS:
        return None
    percents = [_percent(one, uptime) for one in listed]
    known = tuple(one for one in percents if one is not None)
    seen_share = RATES_SHARE if found.get("source") == "rates" else 1.0
    return _Gpu(since, known, seen_share) if len(known) == len(percents) else None


def _percent(found: Any, uptime: float) -> _Percent | None:
    if not isinstance(found, list) or len(found) != len(_Percent._fields):
        return None
    percent, seconds, last = found
    if type(percent) is not int or not 0 <= percent <= 100 or not _is_amount(seconds):  # noqa: PLR2004 - a percentage
        return None
    return _Percent(percent, float(seconds), float(last)) if _is_amount(last) and last <= uptime else None


def _is_amount(value: Any) -> bool:
    return type(value) in {int, float} and 0 <= value <= _MAX_VALUE
