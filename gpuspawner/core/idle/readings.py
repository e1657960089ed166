"""What was measured of one workspace at one sample. None always means unknown, never zero."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# --- sources


class Source(str, Enum):
    """Where a reading comes from, in words for people."""

    EXPORTER = "DCGM exporter"
    MONITOR = "the workspace's monitor"
    PROBE = "nvidia-smi"
    PROCESSES = "its processes"


class Measure(str, Enum):
    """What a reading of a source measures."""

    ENGINE = "engine"
    """Part of the time in which the graphics and compute engine was active, averaged. It is what
    ``DCGM_FI_PROF_GR_ENGINE_ACTIVE`` tells, or energy above that of an idle GPU. Any value above 0 is work."""
    UTILIZATION = "utilization"
    """NVML's utilization of a GPU, its encoder or its decoder: the highest of the samples. Work from 1 % on."""


@dataclass(frozen=True)
class SourceReading:
    """What one source beside the probe's own readings saw of a GPU since the sample before.

    A source gives one reading for each GPU, measure and sample. It also gives readings of 0 %: they say that a GPU was
    idle. A source that could not look gives no reading. One whose values come more rarely than samples gives the newest
    again: ``end_seconds`` tells how old it is.

    Attributes:
        gpu: the GPU's name as the lease has it; "" where only the workspace is known (a pod's label).
        source: who saw it.
        measure: what ``percent`` is.
        percent: the highest value of this time, 0 to 100.
        begin_seconds: the time begins so many seconds before the sample.
        end_seconds: the time ends so many seconds before the sample: how late the source is.
        coverage: the part of this time that the source saw, 0 to 1. An average over all of it has 1, a value of an
            instant every 30 s has about 0.03. A gap that a source knows of lowers it.
        is_own: the value is of this workspace's work alone. False for the value of a device that others compute on too.
        engine: "" for the whole GPU, else the part that was measured: ``encoder``, ``decoder``.
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
    """What is known of one GPU in one interval."""

    BUSY = "busy"
    IDLE = "idle"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Interval:
    """What one source says of one GPU, from ``begin_seconds`` to ``end_seconds`` before the sample.

    Attributes:
        coverage: the part of the interval that the source saw, 0 to 1. A busy interval counts whatever it is. An idle
            one says nothing of the time that was not seen.
        words: why, in words for people: ``GPU 0 at 12 % by DCGM exporter``.
        saw_work: the source saw work, whether it was this workspace's or that of others.
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
"""Soft evidence that the probe reads beside GPUs and CPU use, by the names that a policy has for it."""
CPU = "cpu"
"""The soft evidence that is measured by ``Sample.cpu_cores``."""
SOFT_EVIDENCE = (CPU, *PROBED)
"""All soft evidence that a policy may count."""
CONTEXT_BYTES = 100 * 1024**2
"""A process that computes on a GPU takes more memory than this for its CUDA context alone."""


@dataclass(frozen=True)
class SoftReading:
    """One kind of soft evidence. ``words`` say what was seen, or why it is unknown where ``active`` is None."""

    name: str
    active: bool | None
    words: str = ""


@dataclass(frozen=True)
class GpuReading:
    """One GPU as one run of the probe saw it.

    Attributes:
        utilization_percent: the highest reading of the probe's own seconds, 0 to 100.
        encoder_percent: the same for the video encoder, None where the driver does not tell.
        decoder_percent: the same for the video decoder.
        buffer_percent: the highest of the driver's sample buffer where it tells of time before the probe; else None.
        seen_seconds: how much of the time since the sample before the readings and the buffer cover.
        holders: how many of the workspace's processes have the device open, without those that only measure.
        holders_cpu_cores: their CPU use, averaged over the policy's period or a longer time since the sample before.
        possible_holders: how many processes have open files that can't be read. Each may hold the GPU.
        possible_cpu_cores: their CPU use, averaged in the same way.
        shared: others use the device too (time-slicing, MPS), or this is a part of it (MIG). The values are of the
            whole device, or missing.
        persistence: the GPU's persistence mode. Without it, reading a GPU that no process holds wakes it.
        problem: why something of it is unknown, in words.
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
        """The highest value that was read of it; None where the utilization is unknown."""
        if self.utilization_percent is None:
            return None
        read = (self.utilization_percent, self.buffer_percent, self.encoder_percent, self.decoder_percent)
        return max(percent for percent in read if percent is not None)

    @property
    def is_unheld(self) -> bool:
        """Whether it is known that no process computes on it: none has it open, and no memory is in use.

        The memory tells of processes that can't be read, and of those of another container. Of a shared GPU it is the
        memory of all users.
        """
        if self.holders != 0:
            return False
        if self.shared or self.memory_used_bytes is None:
            return self.possible_holders == 0
        return self.memory_used_bytes <= CONTEXT_BYTES

    @property
    def has_unknown_holders(self) -> bool:
        """Whether a process that nobody saw may compute on it: its holders are unknown, and memory may be in use."""
        return self.holders is None and (self.memory_used_bytes is None or self.memory_used_bytes > CONTEXT_BYTES)

    @property
    def may_be_woken(self) -> bool:
        """Whether the reading itself may be what it shows: ``nvidia-smi`` wakes a GPU without persistence mode.

        An idle L40S reads 100 %. Memory that is in use at any of the readings belongs to a process.
        """
        return self.holders == 0 and self.memory_used_bytes == 0 and self.persistence is False

    @property
    def cpu_cores(self) -> float | None:
        """The CPU use of all processes that hold it or may hold it; None where that is unknown."""
        possible_cores = self.possible_cpu_cores if self.possible_holders else 0.0
        if self.holders_cpu_cores is None or possible_cores is None:
            return None
        return self.holders_cpu_cores + possible_cores


@dataclass(frozen=True)
class Sample:
    """All that was measured of one workspace at one time.

    Attributes:
        leased: the GPUs that the lease holds. A sample that sees more or fewer of them is unknown.
        interval_seconds: the time since the sample before (monotonic; the period for the first one).
        age_seconds: the time since the workspace runs.
        cpu_cores: the CPU use of all processes of the workspace, averaged in the same way as that of holders.
        ended_cpu_cores: the part of it that processes used which have ended since; None where that is unknown.
        soft: the soft evidence. What it says nothing of is unknown.
        hub_idle_seconds: how long ago the hub last noted activity of the server, below 0 where the clocks differ.
        problem: why the probe as a whole failed. Then nothing that it told is believed.
        opened: whether a page of it was loaded since its server started; None where nothing tells.
        sources: what sources beside the probe's own readings saw of its GPUs.
        memory_kills: how many processes of its container were killed for want of memory; None where nothing tells.
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
