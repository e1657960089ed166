"""Soft evidence: what shows that somebody works, though not on a GPU. It holds an idle GPU for a while."""

from __future__ import annotations

from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.readings import CPU, PROBED, Sample, SoftReading
from gpuspawner.core.units import show_duration

HUB = "hub"
"""The evidence that is the hub's own: traffic through its proxy, and what the server reports to it."""
TITLES = {
    CPU: "the workspace's CPU use",
    "kernel": "the state of its kernels",
    "terminal": "the use of its terminals",
    "ssh": "its SSH sessions",
    "editor": "its VS Code windows",
    HUB: "the hub's record of its activity",
}
"""How each is called where it can't be read."""


def soft_readings(sample: Sample, policy: IdlePolicy) -> tuple[SoftReading, ...]:
    """Return the soft evidence that a policy counts. A workspace without a GPU is judged by all of it."""
    read = {reading.name: reading for reading in (*sample.soft, _cpu(sample, policy))}
    names = (*PROBED, CPU) if policy.by_activity else policy.soft_names
    return tuple(read.get(name, SoftReading(name, None)) for name in names)


def hub_reading(hub_idle_seconds: float | None, since_busy_seconds: float) -> SoftReading:
    """Judge the hub's record. It comes minutes late: it counts if it is newer than the last use that is known."""
    if hub_idle_seconds is None:
        return SoftReading(HUB, None)
    active = hub_idle_seconds < since_busy_seconds
    words = "the hub saw activity" if active else f"no activity at the hub for {show_duration(round(hub_idle_seconds))}"
    return SoftReading(HUB, active, words)


def show_cores(cores: float) -> str:
    """Return a CPU use in words."""
    return f"{round(cores, 2):g} cores"


def unreadable(reading: SoftReading) -> str:
    """Return in words that this evidence can't be read, and why."""
    why = f" ({reading.words})" if reading.words else ""
    return f"{TITLES[reading.name]} can't be read{why}"


def _cpu(sample: Sample, policy: IdlePolicy) -> SoftReading:
    cores = sample.cpu_cores
    if cores is None or not cores >= 0:  # NaN is no measurement
        return SoftReading(CPU, None)
    return SoftReading(CPU, cores > policy.cpu_bound_cores, f"CPU at {show_cores(cores)}")
