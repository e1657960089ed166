"""Softer evidence of one sample: what holds an idle GPU for a while, and what keeps a workspace without one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuspawner.core.idle.policy import IdlePolicy
from gpuspawner.core.idle.readings import PROBED, Sample, SoftReading
from gpuspawner.core.units import show_duration

CPU = "cpu"
"""The evidence that is measured by ``Sample.cpu_cores``."""
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
"""How each is called where it cannot be read."""


@dataclass(frozen=True)
class Counted:
    """Readings in words for people, by what they say."""

    active: tuple[str, ...]
    unknown: tuple[str, ...]
    quiet: tuple[str, ...]


def counted(sample: Sample, policy: IdlePolicy, names: Iterable[str], since_busy_seconds: float) -> Counted:
    """Sort the evidence of these names. What the sample says nothing of is unknown.

    Args:
        sample: what the probe told.
        policy: the bound of CPU use.
        names: which evidence is asked for.
        since_busy_seconds: the time between the last busy sample (or the workspace's start) and this one.
    """
    read = {reading.name: reading for reading in sample.soft}
    read |= {CPU: _cpu(sample, policy), HUB: _hub(sample, since_busy_seconds)}
    found = [read.get(name, SoftReading(name, None)) for name in names]
    return Counted(
        tuple(one.words for one in found if one.active),
        tuple(_unreadable(one) for one in found if one.active is None),
        tuple(one.words for one in found if one.active is False and one.words),
    )


def spent(sample: Sample, names: Iterable[str]) -> list[str]:
    """Return what is active without counting any more, in words."""
    over = set(names)
    return [f"{one.words} (counts no longer)" for one in sample.soft if one.active and one.name in over]


def everything() -> tuple[str, ...]:
    """Return the names of all that a workspace without a GPU is judged by."""
    return (*PROBED, CPU, HUB)


def cores_words(cores: float) -> str:
    """Return a CPU use in words."""
    return f"{round(cores, 2):g} cores"


def _cpu(sample: Sample, policy: IdlePolicy) -> SoftReading:
    cores = sample.cpu_cores
    if cores is None or not cores >= 0:  # NaN is no measurement
        return SoftReading(CPU, None)
    return SoftReading(CPU, cores > policy.cpu_bound_cores, f"CPU at {cores_words(cores)}")


def _hub(sample: Sample, since_busy_seconds: float) -> SoftReading:
    """Judge the hub's record. It comes minutes late: what counts is whether it is newer than the last use known."""
    seconds = sample.hub_idle_seconds
    if seconds is None:
        return SoftReading(HUB, None)
    active = seconds < since_busy_seconds
    words = "the hub saw activity" if active else f"no activity at the hub for {show_duration(round(seconds))}"
    return SoftReading(HUB, active, words)


def _unreadable(reading: SoftReading) -> str:
    why = f" ({reading.words})" if reading.words else ""
    return f"{TITLES[reading.name]} can't be read{why}"
