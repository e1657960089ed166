"""What is known of one GPU over a time: readings of sources that see more than an instant, and the intervals they give.

Three kinds of source, strongest first:

1. Sources that integrate over time: DCGM exporter's engine activity and the GPU monitor in the workspace. What they
   cover is known, busy or idle.
2. The cumulative CPU time of the processes that hold a GPU, from the probe. It has no gaps, but it does not show
   kernels that run without CPU.
3. Momentary values: the probe's readings of ``nvidia-smi`` and an exporter's utilization. They prove work. That they
   show none proves nothing of the time between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
