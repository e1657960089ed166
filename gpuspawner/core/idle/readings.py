"""What one probe of one workspace measured. None always means unknown, never zero."""

from __future__ import annotations

from dataclasses import dataclass

from gpuspawner.core.idle.sources import SourceReading

PROBED = ("kernel", "terminal", "ssh", "editor")
"""Softer evidence that the probe reads beside GPUs and CPU use, by the names that a policy has for it."""


@dataclass(frozen=True)
class SoftReading:
    """One softer evidence. ``words`` say what was seen; where ``active`` is None, why it is unknown."""

    name: str
    active: bool | None
    words: str = ""


@dataclass(frozen=True)
class MonitorReading:
    """One GPU as the GPU monitor in its workspace follows it. The workspace's user may have forged it.

    ``percent`` is the highest since the sample before, 0 to 100, without what a probe may have caused itself; None
    where nothing was seen. ``gapless_seconds`` is for how long it has missed nothing, ``unseen_seconds`` how much it
    missed before. ``seconds_at`` are the (percent, seconds) that it saw, since it began. ``energy_joules`` is what the
    GPU used since then, None where the driver does not tell.
    """

    percent: float | None
    gapless_seconds: float = 0.0
    unseen_seconds: float = 0.0
    seconds_at: tuple[tuple[int, float], ...] = ()
    energy_joules: float | None = None

    def work_seconds(self, below_percent: float) -> float:
        """Return for how long it saw work, by a policy's threshold."""
        return sum(seconds for percent, seconds in self.seconds_at if percent >= below_percent)


@dataclass(frozen=True)
class GpuReading:
    """One GPU as one probe of its workspace saw it.

    ``utilization_percent`` is the highest that was read of the probe's own seconds, 0 to 100. ``buffer_percent`` is the
    highest of the driver's sample buffer where it tells of time before the probe, which may reach back beyond the
    sample before; None where there is none. ``holders`` counts the workspace's processes with the device open (the
    probe's own nvidia-smi is none), ``holders_cpu_cores`` is their CPU use averaged over the interval since the sample
    before. ``persistence`` is the GPU's persistence mode: without it, reading a GPU that nobody holds wakes it.
    ``problem`` says in words why something is unknown. ``monitor`` is what the workspace's own monitor tells of it,
    None where it has none, or none that can be believed.

    ``encoder_percent`` and ``decoder_percent`` are the highest that was read of these engines, None where the driver
    does not tell. ``possible_holders`` counts the processes whose open files can't be read: each may hold the GPU.
    ``possible_cpu_cores`` is their CPU use, None where it is unknown. ``seen_seconds`` is how much of the time since
    the sample before the readings and the buffer cover.
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
    monitor: MonitorReading | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None
    possible_holders: int = 0
    possible_cpu_cores: float | None = 0.0
    seen_seconds: float = 0.0

    @property
    def highest_percent(self) -> float | None:
        """The highest that was read of it and its video engines; None where the probe's own readings are unknown."""
        if self.utilization_percent is None:
            return None
        read = (self.utilization_percent, self.buffer_percent, self.encoder_percent, self.decoder_percent)
        return max(percent for percent in read if percent is not None)

    @property
    def may_be_woken(self) -> bool:
        """Whether the reading itself may be what it shows: nvidia-smi wakes a GPU without persistence mode.

        An idle L40S reads 100 % (``data/nvidia-smi``). What is unknown excuses nothing: a process that holds it, and
        memory in use at any of the readings, are somebody's.
        """
        return self.holders == 0 and self.memory_used_bytes == 0 and self.persistence is False


@dataclass(frozen=True)
class OutsideReading:
    """The highest utilization of a GPU since the sample before, as somebody outside of the workspace saw it.

    ``gpu`` is its name as the lease has it, "" where only the workspace is known. ``source`` says in words who saw it.
    A value of a device that others compute on too is none.
    """

    percent: float
    gpu: str
    source: str


@dataclass(frozen=True)
class Sample:
    """All that one probe told of one workspace.

    ``interval_seconds`` is the time since the sample before (monotonic; the period for the first one),
    ``age_seconds`` the time since the workspace runs. ``problem`` is set when the probe as a whole failed: then
    ``gpus`` may be empty and nothing in it may be believed. ``cpu_cores`` counts all processes of the workspace.
    ``leased`` names the GPUs that the lease holds: a sample that sees more or fewer of them is unknown.
    ``soft`` is the softer evidence: what it says nothing of is unknown. ``hub_idle_seconds`` is how long ago the hub
    last noted activity of the workspace's server, below 0 where the clocks differ. ``outside`` is what others saw of
    its GPUs: it proves work, and its absence proves nothing. ``opened`` is whether a page of it was loaded since its
    server started; None where nothing tells. ``sources`` is what sources beside the probe's readings saw: it takes the
    place of ``outside`` and of the GPUs' ``monitor``.
    """

    leased: tuple[str, ...]
    gpus: tuple[GpuReading, ...]
    interval_seconds: float
    age_seconds: float
    cpu_cores: float | None = None
    soft: tuple[SoftReading, ...] = ()
    hub_idle_seconds: float | None = None
    problem: str = ""
    outside: tuple[OutsideReading, ...] = ()
    opened: bool | None = None
    sources: tuple[SourceReading, ...] = ()
