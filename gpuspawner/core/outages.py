"""Outages and faults: parts that do not answer, and GPUs that belong in quarantine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuspawner.core.units import show_time

DATABASE, HUB, API_SERVER = "The service's database", "The hub", "The Kubernetes API server"
ETCD = "The database of the Kubernetes API server (etcd)"
GPU_SOURCE = "The source of the list of GPUs"
"""The part in an outage of a backend that does not name one."""


@dataclass(frozen=True)
class Outage:
    """A part that does not answer. ``since`` is its last answer, in seconds since the epoch.

    ``part`` begins a sentence. ``why`` is for administrators.
    """

    part: str
    since: float
    why: str = ""

    def words(self, now: float) -> str:
        """Return a sentence with the part and the time."""
        return f"{self.part} has not answered since {show_time(self.since, now)}."

    def waiting_words(self, now: float) -> str:
        """Return the sentences for a request that waits during the outage."""
        return f"{self.words(now)} Nothing new starts until it answers."


# --- the health of a GPU


FATAL_XIDS = {
    48: "an uncorrectable memory error",
    63: "a memory row was remapped",
    64: "a memory row could not be remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
}
"""NVIDIA's codes of errors after which a GPU needs a reset or a repair, and what they mean."""
GROWTH_SECONDS = 3600.0
"""Uncorrected memory errors are compared with their number up to this long ago."""


@dataclass(frozen=True)
class GpuHealth:
    """The health of a GPU, as its driver reports it.

    ``corrected_errors`` and ``uncorrected_errors`` count memory errors since the driver was loaded. ``xid`` is the code
    of the last error of the GPU, 0 without one.
    """

    celsius: float | None = None
    watts: float | None = None
    limit_watts: float | None = None
    clock_mhz: float | None = None
    corrected_errors: int | None = None
    uncorrected_errors: int | None = None
    xid: int | None = None

    @property
    def clock_hertz(self) -> float | None:
        """The clock in the unit of metrics."""
        return None if self.clock_mhz is None else self.clock_mhz * 1e6


def find_fault(now: GpuHealth, before: Iterable[GpuHealth]) -> str:
    """Return why a GPU belongs in quarantine, without a full stop, or "".

    Args:
        now: its health.
        before: its health at earlier looks of the last hour.
    """
    if now.xid in FATAL_XIDS:
        return f"Xid {now.xid}: {FATAL_XIDS[now.xid]}"
    known = [one.uncorrected_errors for one in before if one.uncorrected_errors is not None]
    least = min(known, default=now.uncorrected_errors)
    if now.uncorrected_errors is not None and least is not None and now.uncorrected_errors > least:
        return f"{now.uncorrected_errors - least} new uncorrected memory errors, {now.uncorrected_errors} in all"
    return ""
