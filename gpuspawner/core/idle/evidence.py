"""The evidence of one sample: intervals from all sources, joined for each GPU. No history is used.

A GPU is busy if any source saw work. It is idle if no source saw work and the time is covered. Soft evidence shows that
a person works, but not on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.readings import (
    CPU,
    PROBED,
    GpuReading,
    GpuState,
    Interval,
    Measure,
    Sample,
    SoftReading,
    Source,
    SourceReading,
)
from gpuspawner.core.units import show_duration

INTEGRATING = frozenset({Source.EXPORTER, Source.MONITOR})
"""Sources that see all of the time that they cover."""
UTILIZATION_PERCENT = 1.0
"""A GPU is in use from this utilization on, if the source reports the highest of all samples."""
LATEST_SECONDS = 180.0
"""A source does not cover the sample if its newest value is older. Prometheus is a minute or two late."""


@dataclass(frozen=True)
class GpuEvidence:
    """The evidence about one GPU.

    Attributes:
        state: busy, idle or unknown.
        words: the reason, for display.
        may_work: the workspace may have used it all the same. Work may have been missed between two readings of an idle
            GPU, and work on a shared GPU may have been its own.
        closer_seconds: how long before a stop a closer look helps. 0: never. None: as long as the pauses of this
            workspace.
        intervals: the judgement of each source.
    """

    gpu: str
    state: GpuState
    words: str
    may_work: bool = False
    closer_seconds: float | None = 0.0
    intervals: tuple[Interval, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """The evidence about one workspace.

    Attributes:
        interval_seconds: the time since the last sample.
        gpus: one entry for each leased GPU, and for each GPU that was seen without being leased.
        soft: the soft evidence that the policy counts, or all of it for a workspace without a GPU.
        probed: all soft evidence of the probe.
        hub_idle_seconds: the time since the hub's last recorded activity, or None if it is unknown or does not count.
        unknown: why nothing is known about the workspace as a whole.
        peak_percent: the highest utilization of the exclusive GPUs, or None if it is unknown.
        problem: why the probe failed.
        opened: whether a page of it was loaded.
    """

    interval_seconds: float
    gpus: tuple[GpuEvidence, ...] = ()
    soft: tuple[SoftReading, ...] = ()
    probed: tuple[SoftReading, ...] = ()
    hub_idle_seconds: float | None = None
    unknown: str = ""
    peak_percent: float | None = None
    problem: str = ""
    opened: bool | None = None

    @property
    def busy(self) -> tuple[GpuEvidence, ...]:
        """The GPUs that are in use."""
        return tuple(gpu for gpu in self.gpus if gpu.state is GpuState.BUSY)

    def may_work(self, state: GpuState) -> bool:
        """Return whether the workspace may have used a GPU in this state."""
        return any(gpu.may_work and gpu.state is state for gpu in self.gpus)


def read_evidence(sample: Sample, policy: IdlePolicy) -> Evidence:
    """Return the evidence of a sample by a policy's thresholds."""
    readings = () if sample.problem else sample.gpus
    percents = [one.highest_percent for one in readings if not one.shared and one.highest_percent is not None]
    return Evidence(
        interval_seconds=sample.interval_seconds,
        gpus=tuple(_gpus(sample, readings, policy)),
        soft=() if sample.problem else soft_readings(sample, policy),
        probed=() if sample.problem else sample.soft,
        hub_idle_seconds=sample.hub_idle_seconds,
        unknown=_unknown(sample, policy),
        peak_percent=max(percents, default=None),
        problem=sample.problem,
        opened=sample.opened,
    )


def _unknown(sample: Sample, policy: IdlePolicy) -> str:
    if not sample.leased and not policy.by_activity:
        return "no GPU is leased"
    if sample.problem:
        return f"the workspace can't be read ({sample.problem})"
    if sample.age_seconds < policy.start_up_seconds:
        return f"it started less than {show_duration(policy.start_up_seconds)} ago"
    return ""


def _gpus(sample: Sample, readings: Sequence[GpuReading], policy: IdlePolicy) -> Iterator[GpuEvidence]:
    leased = tuple(dict.fromkeys(sample.leased))  # two shares of one device are one device
    # A source may know only the workspace. If it saw no work, no GPU of the workspace worked. If it saw work, any of
    # several GPUs may have worked.
    on_any = [one for one in sample.sources if not one.gpu and len(leased) > 1 and _is_work(one, policy)]
    for number, gpu in enumerate(leased):
        own = [one for one in readings if one.gpu == gpu]
        reading = own[0] if len(own) == 1 else GpuReading(gpu, problem=sample.problem or _not_once(own))
        sources = [one for one in sample.sources if one.gpu in {gpu, ""} and one not in on_any]
        yield _judge_gpu(reading, sources, f"GPU {number}", sample, policy)
    for one in on_any:
        if one.is_own:
            seen = _by_source(one, "a GPU", policy, is_held=True)
            yield GpuEvidence("", GpuState.BUSY, seen.words, intervals=(seen,))
    for gpu in sorted({one.gpu for one in readings} - set(leased)):
        yield GpuEvidence(gpu, GpuState.UNKNOWN, f"{gpu} is seen, not leased")


def _not_once(own: Sequence[GpuReading]) -> str:
    return "it is listed twice" if own else "it is not listed"


def _judge_gpu(
    reading: GpuReading, sources: Sequence[SourceReading], name: str, sample: Sample, policy: IdlePolicy
) -> GpuEvidence:
    """Join the intervals that all sources give for one GPU.

    1. Busy, if any source saw work.
    2. Idle, if a source that integrates over time covers it.
    3. Unknown, if it could not be read, or if others may have done what was seen. Unknown holders of an exclusive GPU
       do not matter if the driver's buffer covers the time.
    4. Idle. Work may have been missed, unless the CPU time of its processes or the driver's buffer covers the time.
    """
    # A process that has ended since the sample before may have held it.
    ended_cores = sample.cpu_cores if sample.ended_cpu_cores is None else sample.ended_cpu_cores
    is_held = not reading.is_unheld or (ended_cores or 0.0) > policy.held_bound_cores
    by_sources = [_by_source(one, name, policy, is_held=is_held) for one in sources]
    by_probe = _by_probe(reading, name, sample, policy, is_held=is_held)
    by_processes = _by_processes(reading, name, sample, policy, is_held=is_held)
    intervals = (*by_sources, by_probe, by_processes)

    def found(
        state: GpuState, words: str, *, may_work: bool = False, closer_seconds: float | None = 0.0
    ) -> GpuEvidence:
        return GpuEvidence(reading.gpu, state, words, may_work, closer_seconds, intervals)

    if busy := [one for one in intervals if one.state is GpuState.BUSY]:
        return found(GpuState.BUSY, busy[-1].words)
    idle = [one for one in intervals if one.state is GpuState.IDLE and one.coverage >= policy.coverage]
    if seen := [one for one in idle if one.source in INTEGRATING]:
        return found(GpuState.IDLE, seen[0].words, closer_seconds=min(one.end_seconds for one in seen))
    needed = (*by_sources, by_probe) if idle and not reading.shared else intervals
    if unknown := [one for one in needed if one.state is GpuState.UNKNOWN]:
        return found(GpuState.UNKNOWN, unknown[0].words, may_work=any(one.saw_work for one in unknown))
    may_work = not idle or by_probe.saw_work
    words = by_processes.words if reading.shared else by_probe.words
    if may_work and not reading.shared:
        words = f"{words}, but {by_processes.words}"
    # nvidia-smi has no reading of a MIG device, so a closer look would see no more.
    closer_seconds = 0.0 if reading.highest_percent is None else None
    return found(GpuState.IDLE, words, may_work=may_work, closer_seconds=closer_seconds)


# Intervals


def _by_source(one: SourceReading, name: str, policy: IdlePolicy, *, is_held: bool) -> Interval:
    words = f"{name}{one.engine and f' ({one.engine})'} at {one.percent:.3g} % by {one.source.value}"
    state, saw_work = GpuState.IDLE, _is_work(one, policy)
    if saw_work:
        state = GpuState.BUSY
        if not one.is_own:
            state = GpuState.UNKNOWN if is_held else GpuState.IDLE
            words += ", perhaps by others"
    # An idle decoder says nothing about the other engines. An old value says nothing about this sample. On a device
    # that others use too, a process that has ended by now may have worked since the newest value.
    covers = one.is_own and not one.engine and one.end_seconds <= LATEST_SECONDS
    coverage = one.coverage if covers else 0.0
    return Interval(one.gpu, one.begin_seconds, one.end_seconds, state, one.source, coverage, words, saw_work)


def _is_work(one: SourceReading, policy: IdlePolicy) -> bool:
    least = 0.0 if one.measure is Measure.ENGINE else min(UTILIZATION_PERCENT, policy.below_percent)
    return least <= one.percent <= 100 and one.percent > 0  # noqa: PLR2004 - a percentage; NaN is no work


def _by_probe(reading: GpuReading, name: str, sample: Sample, policy: IdlePolicy, *, is_held: bool) -> Interval:
    def found(state: GpuState, words: str, coverage: float = 0.0, *, saw_work: bool = False) -> Interval:
        return Interval(reading.gpu, sample.interval_seconds, 0.0, state, Source.PROBE, coverage, words, saw_work)

    percent = reading.highest_percent
    if percent is None or not 0 <= percent <= 100:  # noqa: PLR2004 - a percentage, not NaN
        # A part of a device has no reading. Its processes decide.
        problem = reading.problem or "no utilization"
        return found(GpuState.IDLE if reading.shared else GpuState.UNKNOWN, f"{name} can't be read ({problem})")
    coverage = min(1.0, reading.seen_seconds / max(sample.interval_seconds, 1e-9))
    if percent < policy.below_percent:
        return found(GpuState.IDLE, f"{name} at {percent:g} %", coverage)
    if reading.shared:
        state = GpuState.UNKNOWN if is_held else GpuState.IDLE
        return found(state, f"{name} at {percent:g} %, perhaps by others", saw_work=is_held)
    if reading.may_be_woken and (reading.buffer_percent or 0.0) >= policy.below_percent:
        # A process that has ended used it, or the probe before this one woke it.
        return found(GpuState.IDLE, f"{name} at {percent:g} % before it was read", saw_work=True)
    if reading.may_be_woken:
        return found(GpuState.IDLE, f"{name} at {percent:g} %, but held by no process: nvidia-smi itself wakes it")
    return found(GpuState.BUSY, f"{name} at {percent:g} %", saw_work=True)


def _by_processes(reading: GpuReading, name: str, sample: Sample, policy: IdlePolicy, *, is_held: bool) -> Interval:
    """Judge the CPU time of the processes that hold a GPU, or may hold it. It has no gaps.

    On an exclusive GPU little CPU time shows that nothing worked, and much CPU time shows nothing. On a shared GPU only
    the CPU time tells the workspace's work from that of others. If the holders are unknown, the GPU is unknown, unless
    none of its memory is in use.
    """

    def found(state: GpuState, words: str, coverage: float = 0.0, *, saw_work: bool = False) -> Interval:
        return Interval(reading.gpu, sample.interval_seconds, 0.0, state, Source.PROCESSES, coverage, words, saw_work)

    without = GpuState.UNKNOWN if reading.shared else GpuState.IDLE
    if reading.is_unheld and is_held:
        return found(without, f"processes that have ended may have used {name}", saw_work=reading.shared)
    if reading.is_unheld:
        return found(GpuState.IDLE, f"{name} held by no process", 1.0)
    if reading.holders == 0 and not reading.possible_holders:
        return found(GpuState.IDLE, "a process of another container uses its memory")
    cores = reading.cpu_cores
    if reading.holders is None or cores is None or not cores >= 0:  # NaN is no measurement
        why = "its processes are unknown" if reading.holders is None else "the CPU use of its processes is unknown"
        state = GpuState.UNKNOWN if reading.has_unknown_holders else without
        return found(state, f"{name} can't be read ({reading.problem or why})")
    words = f"the processes of {name} at {show_cores(cores)}"
    if cores <= policy.held_bound_cores:
        return found(GpuState.IDLE, words, 1.0)
    return found(GpuState.BUSY if reading.shared else GpuState.IDLE, words, saw_work=reading.shared)


# --- soft evidence


HUB_EVIDENCE = "hub"
"""The hub's record of activity: traffic through its proxy, and the reports of the server."""
SOFT_EVIDENCE_TITLES = {
    CPU: "the workspace's CPU use",
    "kernel": "the state of its kernels",
    "terminal": "the use of its terminals",
    "ssh": "its SSH sessions",
    "editor": "its VS Code windows",
    HUB_EVIDENCE: "the hub's record of its activity",
}
"""Names of soft evidence for display."""


def soft_readings(sample: Sample, policy: IdlePolicy) -> tuple[SoftReading, ...]:
    """Return the soft evidence that a policy counts. A workspace without a GPU is judged by all of it."""
    read = {reading.name: reading for reading in (*sample.soft, _cpu(sample, policy))}
    names = (*PROBED, CPU) if policy.by_activity else policy.soft_names
    return tuple(read.get(name, SoftReading(name, None)) for name in names)


def judge_hub_activity(hub_idle_seconds: float | None, since_busy_seconds: float) -> SoftReading:
    """Judge the hub's record. It is minutes late, so it counts only if it is newer than the last known use."""
    if hub_idle_seconds is None:
        return SoftReading(HUB_EVIDENCE, None)
    active = hub_idle_seconds < since_busy_seconds
    words = "the hub saw activity" if active else f"no activity at the hub for {show_duration(round(hub_idle_seconds))}"
    return SoftReading(HUB_EVIDENCE, active, words)


def show_cores(cores: float) -> str:
    """Return a CPU use for display."""
    return f"{round(cores, 2):g} cores"


def describe_unreadable(reading: SoftReading) -> str:
    """Return a sentence part that this evidence cannot be read, and why."""
    why = f" ({reading.words})" if reading.words else ""
    return f"{SOFT_EVIDENCE_TITLES[reading.name]} can't be read{why}"


def _cpu(sample: Sample, policy: IdlePolicy) -> SoftReading:
    cores = sample.cpu_cores
    if cores is None or not cores >= 0:  # NaN is no measurement
        return SoftReading(CPU, None)
    return SoftReading(CPU, cores > policy.cpu_bound_cores, f"CPU at {show_cores(cores)}")
