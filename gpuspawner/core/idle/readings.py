"""The measurements of one workspace at one sample. None always means unknown, not zero.

There are three kinds of source, strongest first:

1. Sources that integrate over time: the engine activity of DCGM exporter and the GPU monitor in the workspace. The time
   that they cover is known to be busy or idle.
2. The cumulative CPU time of the processes that hold a GPU, from the probe. It has no gaps, but it does not show
   kernels that run without CPU.
3. Momentary values: the probe's readings of ``nvidia-smi`` and an exporter's utilization. They prove work. A low value
   proves nothing about the time between two readings.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# --- sources


class Source(str, Enum):
    """The source of a reading, with its name for display."""

    EXPORTER = "DCGM exporter"
    MONITOR = "the workspace's monitor"
    PROBE = "nvidia-smi"
    PROCESSES = "its processes"


class Measure(str, Enum):
    """The quantity that a reading measures."""

    ENGINE = "engine"
    """The average share of time in which the graphics and compute engine was active, by DCGM
    (DCGM_FI_PROF_GR_ENGINE_ACTIVE) or by GPM in the monitor. Any value above 0 is work."""
    UTILIZATION = "utilization"
    """The highest sample of NVML's utilization of a GPU, its encoder or its decoder. 1 % and more is work."""


@dataclass(frozen=True)
class SourceReading:
    """The reading of a GPU by another source than the probe since the last sample.

    A source gives one reading for each GPU, measure and sample, also if the GPU was idle. A source that could not look
    gives no reading. If its values are rarer than samples, it gives the newest value again, and ``end_seconds`` tells
    its age.

    Attributes:
        gpu: the GPU's name as the lease has it, or "" if only the workspace is known (a pod's label).
        source: the source.
        measure: the quantity of ``percent``.
        percent: the highest value of this time, 0 to 100.
        begin_seconds: the beginning of this time, in seconds before the sample.
        end_seconds: the end of this time, in seconds before the sample: the delay of the source.
        coverage: the part of this time that the source saw, 0 to 1. An average over all of it has 1, a momentary value
            every 30 s about 0.03. A known gap lowers it.
        is_own: the value is of this workspace's work alone. False for a device that others use too.
        engine: "" for the whole GPU, or ``encoder`` or ``decoder``.
    """

    gpu: str
    source: Source
    measure: Measure
    percent: float
    begin_seconds: float
    end_seconds: float = 0.0
    coverage: float = 0.0
    is_own: bool = True
    engine: str = ""


class GpuState(str, Enum):
    """The state of one GPU in one interval."""

    BUSY = "busy"
    IDLE = "idle"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Interval:
    """The judgement of one source about one GPU, from ``begin_seconds`` to ``end_seconds`` before the sample.

    Attributes:
        coverage: the part of the interval that the source saw, 0 to 1. A busy interval counts with any coverage. An
            idle one says nothing about the time that was not seen.
        words: the reason for display: ``GPU 0 at 12 % by DCGM exporter``.
        saw_work: the source saw work, of this workspace or of others.
    """

    gpu: str
    begin_seconds: float
    end_seconds: float
    state: GpuState
    source: Source
    coverage: float
    words: str
    saw_work: bool = False


# --- samples


PROBED = ("kernel", "terminal", "ssh", "editor")
"""Soft evidence that the probe reads, by its names in a policy."""
CPU = "cpu"
"""The soft evidence that is ``Sample.cpu_cores``."""
SOFT_EVIDENCE = (CPU, *PROBED)
"""All soft evidence that a policy may count."""
CONTEXT_BYTES = 100 * 1024**2
"""The CUDA context of a process that computes on a GPU takes more memory than this."""


@dataclass(frozen=True)
class SoftReading:
    """One kind of soft evidence. ``active`` None means unknown. ``words`` say what was seen, or why it is unknown."""

    name: str
    active: bool | None
    words: str = ""


@dataclass(frozen=True)
class GpuReading:
    """One GPU as seen by one run of the probe.

    Attributes:
        utilization_percent: the highest reading of the probe's run, 0 to 100.
        encoder_percent: the same for the video encoder, None if the driver does not report it.
        decoder_percent: the same for the video decoder.
        buffer_percent: the highest value of the driver's sample buffer, if it covers time before the probe.
        seen_seconds: how much of the time since the last sample the readings and the buffer cover.
        holders: the number of the workspace's processes that have the device open, without those that only measure.
        holders_cpu_cores: their CPU use, averaged over the policy's period or a longer time since the last sample.
        possible_holders: the number of processes whose open files cannot be read. Each may hold the GPU.
        possible_cpu_cores: their CPU use, averaged in the same way.
        shared: others use the device too (time-slicing, MPS), or it is a part of a device (MIG). The values are of the
            whole device, or missing.
        persistence: the GPU's persistence mode. Without it, reading a GPU without a process wakes it.
        problem: why a value is unknown, for display.
    """

    gpu: str
    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    holders: int | None = None
    holders_cpu_cores: float | None = None
    shared: bool = False
    problem: str = ""
    buffer_percent: float | None = None
    persistence: bool | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None
    possible_holders: int = 0
    possible_cpu_cores: float | None = 0.0
    seen_seconds: float = 0.0

    @property
    def highest_percent(self) -> float | None:
        """The highest value, or None if the utilization is unknown."""
        if self.utilization_percent is None:
            return None
        read = (self.utilization_percent, self.buffer_percent, self.encoder_percent, self.decoder_percent)
        return max(percent for percent in read if percent is not None)

    @property
    def is_unheld(self) -> bool:
        """Whether it is certain that no process computes on it: no process has it open, and no memory is in use.

        Memory in use shows processes that cannot be read, and those of other containers. On a shared GPU it is the
        memory of all users.
        """
        if self.holders != 0:
            return False
        if self.shared or self.memory_used_bytes is None:
            return self.possible_holders == 0
        return self.memory_used_bytes <= CONTEXT_BYTES

    @property
    def has_unknown_holders(self) -> bool:
        """Whether an unseen process may compute on it: its holders are unknown, and memory may be in use."""
        return self.holders is None and (self.memory_used_bytes is None or self.memory_used_bytes > CONTEXT_BYTES)

    @property
    def may_be_woken(self) -> bool:
        """Whether the reading may show only itself: ``nvidia-smi`` wakes a GPU without persistence mode.

        An idle L40S then reads 100 %. Memory in use at any of the readings belongs to a process.
        """
        return self.holders == 0 and self.memory_used_bytes == 0 and self.persistence is False

    @property
    def cpu_cores(self) -> float | None:
        """The CPU use of all processes that hold it or may hold it, or None if it is unknown."""
        possible_cores = self.possible_cpu_cores if self.possible_holders else 0.0
        if self.holders_cpu_cores is None or possible_cores is None:
            return None
        return self.holders_cpu_cores + possible_cores


@dataclass(frozen=True)
class Sample:
    """All measurements of one workspace at one time.

    Attributes:
        leased: the GPUs of the lease. A sample that sees more or fewer of them is unknown.
        interval_seconds: the time since the last sample (monotonic; the period for the first one).
        age_seconds: how long the workspace has been running.
        cpu_cores: the CPU use of all processes of the workspace, averaged as that of holders.
        ended_cpu_cores: the part of it by processes that have ended since, or None if it is unknown.
        soft: the soft evidence. A kind without a reading is unknown.
        hub_idle_seconds: the time since the hub's last recorded activity, below 0 if the clocks differ.
        problem: why the probe failed. Then none of its values count.
        opened: whether a page of it was loaded since its server started, or None if unknown.
        sources: the readings of other sources.
        memory_kills: the number of processes killed because the container was out of memory, or None if unknown.
        host_memory_bytes: the host memory that the workspace uses, without file caches, or None if unknown.
        kernels: the names of its running kernels, mostly of notebooks, or None if unknown.
    """

    leased: tuple[str, ...]
    gpus: tuple[GpuReading, ...]
    interval_seconds: float
    age_seconds: float
    cpu_cores: float | None = None
    soft: tuple[SoftReading, ...] = ()
    hub_idle_seconds: float | None = None
    problem: str = ""
    opened: bool | None = None
    sources: tuple[SourceReading, ...] = ()
    ended_cpu_cores: float | None = None
    memory_kills: int | None = None
    host_memory_bytes: int | None = None
    kernels: tuple[str, ...] | None = None
