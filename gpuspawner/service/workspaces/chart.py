"""The chart of a workspace: turns readings and events into shapes. Templates decide how they look.

Every length along the time axis is a percentage of its width, so that one drawing fits each screen and its text is
never scaled. Nothing is drawn between readings. Time without a reading is shown as unknown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from gpuspawner.core.events import Stopped, WarnedIdle
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.lifetimes import deciding_since
from gpuspawner.core.leases.step_results import EVIDENCE_SECONDS
from gpuspawner.core.units import show_bytes, show_cpu, show_duration
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import policy_of
from gpuspawner.service.store import AuditLine, ReadingRow
from gpuspawner.service.store.readings import RAW_SECONDS
from gpuspawner.service.workspaces.ends import SECONDS_TOLD_BELOW

PLOT_HEIGHT = 100
"""The height of a plot in its own units: 100 % is at its top."""
CHARACTER_PERCENT, FLAG_PERCENT = 0.75, 3.5
"""The width of a character of a flag, and of its icon and borders, in percent of a time axis of 1,000 pixels."""
STEPS_SECONDS = (1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600)
"""Steps in which people count time."""
MOST_STEPS = 4
"""The most times on the axis, so that a phone has room for them."""
SLACK_SECONDS = 0.5
"""Readings come slightly late, so a gap of this length between two readings is ignored. Arbitrary: shorter than any
sampling period."""


@dataclass(frozen=True)
class Band:
    """A stretch of time, in percent of the time axis."""

    left: float
    width: float

    @property
    def right(self) -> float:
        """Its end, in percent of the time axis."""
        return round(self.left + self.width, 3)


@dataclass(frozen=True)
class Bar(Band):
    """A reading's time and its height: ``y`` is in pixels from the top."""

    y: float

    @property
    def height(self) -> float:
        """Its height, in pixels."""
        return PLOT_HEIGHT - self.y


@dataclass(frozen=True)
class Flag:
    """Something that happened: its icon and words stand above the chart. Small screens show the icon alone.

    ``side`` says whether the flag begins or ends at its time. ``row`` counts from the top, so that no flag covers
    another.
    """

    at: float
    icon: str
    words: str
    left: float
    kind: str = ""
    side: str = "start"
    row: int = 0

    @property
    def width(self) -> float:
        """Its width in percent of the time axis."""
        return FLAG_PERCENT + CHARACTER_PERCENT * len(self.words)

    @property
    def span(self) -> tuple[float, float]:
        """Its beginning and its end, in percent of the time axis."""
        return (self.left, self.left + self.width) if self.side == "start" else (self.left - self.width, self.left)


def in_rows(flags: Iterable[Flag]) -> tuple[Flag, ...]:
    """Return flags, oldest first, each with its side and the first row in which it covers no other."""
    placed: list[Flag] = []
    for flag in flags:
        turned = replace(flag, side="end" if flag.left + flag.width > 100 else "start")  # noqa: PLR2004 - percent
        begin, end = turned.span
        taken = {one.row for one in placed if one.span[0] < end and begin < one.span[1]}
        placed.append(replace(turned, row=next(row for row in count() if row not in taken)))
    return tuple(placed)


@dataclass(frozen=True)
class Panel:
    """One GPU. ``known_seconds`` of the axis's time are covered by readings; ``highest_percent`` is None for none."""

    gpu: str
    used: tuple[Bar, ...]
    others: tuple[Bar, ...]
    """Use that does not count as this workspace's: a neighbour's on a shared GPU, or a high reading that is judged
    idle. ``highest_percent`` leaves a neighbour's use out."""
    memory: tuple[Bar, ...]
    unknown: tuple[Band, ...]
    highest_percent: float | None
    known_seconds: float
    active: tuple[Band, ...] = ()
    """When softer evidence was seen: a kernel, a terminal, an SSH session, an editor."""
    held_bytes: int | None = None
    """The GPU memory at its last reading."""


@dataclass(frozen=True)
class Axis:
    """The time shown, in seconds since the epoch. ``utc_offset_seconds`` is that of the clock that people read."""

    start: float
    end: float
    utc_offset_seconds: int = 0

    def left(self, at: float) -> float:
        """Return the place of a time, in percent. Times outside the axis lie on its edge."""
        span = max(self.end - self.start, 1.0)
        return round(100 * min(max((at - self.start) / span, 0.0), 1.0), 3)

    def band(self, start: float, end: float) -> Band:
        """Return a stretch of time."""
        return Band(self.left(start), round(self.left(end) - self.left(start), 3))

    def bar(self, start: float, end: float, percent: float) -> Bar:
        """Return a stretch of time with a height."""
        y = PLOT_HEIGHT * (1 - min(max(percent, 0.0), 100.0) / 100)
        return Bar(self.left(start), round(self.left(end) - self.left(start), 3), round(y, 1))

    @property
    def step_seconds(self) -> int:
        """The distance of its ticks: a round number of seconds, minutes or hours, at most four steps."""
        span = self.end - self.start
        return next((step for step in STEPS_SECONDS if span <= MOST_STEPS * step), STEPS_SECONDS[-1])

    def ticks(self) -> tuple[tuple[float, float], ...]:
        """Return round times and their places. No two times have the same words."""
        step = self.step_seconds
        first = -(-(self.start + self.utc_offset_seconds) // step) * step - self.utc_offset_seconds
        times = (first + step * i for i in range(int((self.end - first) // step) + 1))
        return tuple((at, self.left(at)) for at in times) or ((self.start, 0.0),)


def panels(rows: Sequence[ReadingRow], gpus: Iterable[str], axis: Axis, below_percent: float) -> tuple[Panel, ...]:
    """Return one panel for each GPU, in the given order. ``rows`` are of one lease, oldest first."""
    each = dict.fromkeys(gpus)
    return tuple(_panel(gpu, [row for row in rows if row.gpu == gpu], axis, below_percent) for gpu in each)


@dataclass(frozen=True)
class Curve:
    """A value of the whole workspace over time, and its words now."""

    words: str
    now: str
    kind: str
    bars: tuple[Bar, ...]


def _by_time(rows: Iterable[ReadingRow]) -> list[tuple[float, list[ReadingRow]]]:
    """Return the readings of each time, oldest first."""
    found: dict[float, list[ReadingRow]] = {}
    for row in rows:
        found.setdefault(row.at, []).append(row)
    return sorted(found.items())


def curves_of(rows: Sequence[ReadingRow], axis: Axis, cores: float | None) -> tuple[Curve, ...]:
    """Return the GPU memory and the CPU of a workspace over time. ``cores`` are the CPU cores that it has."""
    memory, cpu, held, busy_cores = [], [], "", ""
    for at, found in _by_time(rows):
        start, end = max(at - max(row.seconds for row in found), axis.start), min(at, axis.end)
        if end <= start:
            continue
        used = [row.memory_used_bytes for row in found if row.memory_used_bytes is not None]
        total = sum(row.memory_total_bytes or 0 for row in found)
        if len(used) == len(found) and total:
            memory.append(axis.bar(start, end, 100 * sum(used) / total))
            held = f"{show_bytes(sum(used))} of {show_bytes(total)}"
        used_cores = found[0].cpu_cores
        if used_cores is not None and cores:
            cpu.append(axis.bar(start, end, 100 * used_cores / cores))
            busy_cores = f"{used_cores:.1f} of {show_cpu(cores)} cores"
    curves = (Curve("GPU memory", held, "mem", tuple(memory)), Curve("CPU", busy_cores, "cpu", tuple(cpu)))
    return tuple(curve for curve in curves if curve.bars)


def idle_stretches(rows: Sequence[ReadingRow], axis: Axis, least_seconds: float) -> list[tuple[float, float]]:
    """Return the periods in which all GPUs were idle for at least ``least_seconds`` without a break."""
    idle = (
        (at - max(row.seconds for row in found), at)
        for at, found in _by_time(rows)
        if axis.start <= at <= axis.end and all(row.kind == "idle" for row in found)
    )
    joined = _joined(idle, SLACK_SECONDS)
    return [(start, end) for start, end in joined if end - start >= least_seconds]


def _panel(gpu: str, rows: Sequence[ReadingRow], axis: Axis, below_percent: float) -> Panel:
    used: list[Bar] = []
    others: list[Bar] = []
    memory, unknown, active = [], [], []
    highest: float | None = None
    known_seconds, covered_until = 0.0, axis.start
    for row in rows:
        # A reading never covers time that an earlier one has covered, nor any outside the axis.
        start, end = max(row.at - row.seconds, covered_until), min(row.at, axis.end)
        if end <= start:
            continue
        if start - covered_until <= SLACK_SECONDS:
            start = covered_until
        else:
            unknown.append((covered_until, start))
        covered_until = end
        if row.soft and any(one["active"] for one in row.soft.values()):
            active.append((start, end))
        if row.kind == "unknown" or row.utilization_percent is None:
            unknown.append((start, end))
        else:
            known_seconds += end - start
            bar = axis.bar(start, end, row.utilization_percent)
            not_counted = row.kind == "idle" and row.utilization_percent >= below_percent
            (others if not_counted else used).append(bar)
            if not (not_counted and row.shared):
                highest = max(highest or 0.0, row.utilization_percent)
        if row.memory_used_bytes is not None and row.memory_total_bytes:
            memory.append(axis.bar(start, end, 100 * row.memory_used_bytes / row.memory_total_bytes))
    if axis.end - covered_until > SLACK_SECONDS:
        unknown.append((covered_until, axis.end))
    hatched = tuple(axis.band(start, end) for start, end in _joined(unknown))
    in_use = tuple(axis.band(start, end) for start, end in _joined(active))
    held = next((row.memory_used_bytes for row in reversed(rows) if row.memory_used_bytes is not None), None)
    return Panel(gpu, tuple(used), tuple(others), tuple(memory), hatched, highest, known_seconds, in_use, held)


def _joined(stretches: Iterable[tuple[float, float]], slack_seconds: float = 0.0) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in stretches:
        if joined and start - joined[-1][1] <= slack_seconds:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


IDLE_TIMES_SHOWN = 6
"""The chart shows six times the idle minutes of the policy: three hours of the default half hour."""
LONGEST_SHOWN_SECONDS = 12 * 3600.0
ROWS_SHOWN = 60
"""The number of samples in the table. The API has all of them."""
FLAGS_SHOWN = 9
IDLE_TOLD_PART = 0.5
"""An idle stretch is an event of the chart if it lasts for this part of the idle minutes of the policy."""


@dataclass(frozen=True)
class ChartView:
    """The data that the chart's template draws.

    ``bands`` are idle stretches and grace periods. ``deciding`` is the time that led to the stop.
    """

    axis: Axis
    panels: tuple[Panel, ...]
    curves: tuple[Curve, ...]
    flags: tuple[Flag, ...]
    bands: tuple[Band, ...]
    deciding: Band | None
    below_percent: float
    samples: list[tuple[float, dict[str, ReadingRow]]]
    active_counts: bool
    """Whether the policy counts any of the soft evidence that was seen."""

    @property
    def flag_rows(self) -> int:
        """The number of rows that its flags take."""
        return max((flag.row for flag in self.flags), default=0) + 1

    @property
    def held_bytes(self) -> int | None:
        """The GPU memory at the last reading, None if it is not known for each GPU."""
        held = [panel.held_bytes for panel in self.panels if panel.held_bytes is not None]
        return sum(held) if held and len(held) == len(self.panels) else None


def chart_of(state: Parts, lease: Lease, rows: Sequence[ReadingRow], lines: Sequence[AuditLine]) -> ChartView | None:
    """Return the chart of a workspace up to now, or up to the decision to stop it.

    It is None if the workspace never ran on a GPU, and once its readings are thinned.
    """
    since = lease.running_at or lease.granted_at
    if not lease.slots or since is None or (lease.running_at is None and not rows):
        return None
    now = state.clock.now()
    idle = policy_of(state.catalog, lease, now).idle
    stopped_at = max((line.at for line in lines if isinstance(line.event, Stopped)), default=lease.ended_at)
    thinned = stopped_at is not None and stopped_at < now - RAW_SECONDS
    if thinned and not any(row.kept for row in rows):
        return None
    end = now if stopped_at is None else stopped_at
    if stopped_at is None and lease.sampled_at is not None and now - lease.sampled_at < 2 * idle.sample_seconds:
        end = lease.sampled_at  # the next sample is not late, so its time is not unknown yet
    span_seconds = min(IDLE_TIMES_SHOWN * idle.for_seconds, LONGEST_SHOWN_SECONDS)
    axis = Axis(max(since, end - span_seconds), end, time.localtime(end).tm_gmtoff)
    stretches = idle_stretches(rows, axis, IDLE_TOLD_PART * idle.for_seconds)
    graces, deciding = _graces(lines, axis), None
    if lease.reason is ExitReason.IDLE and lease.sampled_at is not None:
        deciding = axis.band(deciding_since(lease, EVIDENCE_SECONDS), end)
    return ChartView(
        axis,
        panels(rows, (slot.gpu for slot in lease.slots), axis, idle.below_percent),
        curves_of(rows, axis, lease.request.cpu_cores),
        _flags(lines, stretches, axis),
        tuple(axis.band(start, until) for start, until in _joined(sorted((*graces, *stretches)))),
        deciding,
        idle.below_percent,
        _samples(rows, axis),
        any(one["active"] and name in idle.soft_names for row in rows for name, one in (row.soft or {}).items()),
    )


def _flags(lines: Iterable[AuditLine], stretches: Iterable[tuple[float, float]], axis: Axis) -> tuple[Flag, ...]:
    """Return the flags of events and idle stretches within the chart, oldest first."""
    flags = [_flag(line, axis) for line in lines if line.event.marked and line.at >= axis.start]
    for start, end in stretches:
        words = f"Idle for {show_duration(round(end - start))}, {_clock(start, axis)}"
        flags.append(Flag(start, "pause", words, axis.left(start), "warn"))
    return in_rows(sorted(flags, key=lambda flag: flag.at)[-FLAGS_SHOWN:])


def _flag(line: AuditLine, axis: Axis) -> Flag:
    icon, kind = icon_of(line)
    return Flag(line.at, icon, f"{line.event.words} {_clock(line.at, axis)}", axis.left(line.at), kind)


def _clock(at: float, axis: Axis) -> str:
    return time.strftime("%H:%M:%S" if axis.end - axis.start < SECONDS_TOLD_BELOW else "%H:%M", time.localtime(at))


_ICONS = {
    "stop": ("stop", "bad"),
    "kept": ("exempt", ""),
    "extended": ("extend", ""),
    "grace ended": ("bolt", "good"),
    "running": ("play", ""),
    "asked": ("plus", ""),
    "granted": ("gpu", ""),
    "placed": ("gpu", ""),
    "allocated": ("gpu", ""),
    "renamed": ("edit", ""),
    "size change": ("edit", ""),
    "came": ("user", "good"),
    "parked": ("hourglass", ""),
    "requeued": ("hourglass", ""),
    "held back": ("hourglass", ""),
    "health": ("alert", "bad"),
}


def icon_of(line: AuditLine) -> tuple[str, str]:
    """Return the icon of an event, and its colour."""
    if line.event.name.startswith(("warned", "would warn", "would stop")):
        return "bell", "warn"
    return _ICONS.get(line.event.name, ("dot", ""))


def _graces(lines: Iterable[AuditLine], axis: Axis) -> list[tuple[float, float]]:
    """Return the times between an idle warning and what ended it."""
    stretches: list[tuple[float, float]] = []
    begun: float | None = None
    for line in sorted(lines, key=lambda x: x.at):
        if isinstance(line.event, WarnedIdle):
            begun = line.at
        elif begun is not None and line.event.ends_grace:
            stretches.append((begun, line.at))
            begun = None
    still = [] if begun is None else [(begun, axis.end)]
    return [(start, end) for start, end in (*stretches, *still) if end > axis.start]


def _samples(rows: Iterable[ReadingRow], axis: Axis) -> list[tuple[float, dict[str, ReadingRow]]]:
    """Return the newest samples of the chart, newest first: time, and the reading of each GPU."""
    shown = [(at, {row.gpu: row for row in found}) for at, found in _by_time(rows) if axis.start <= at <= axis.end]
    return shown[::-1][:ROWS_SHOWN]
