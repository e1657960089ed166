"""Workspaces of which DCGM exporter and the probe tell different things for hours: one of both is wrong.

An exporter that is frozen shows work for ever, and a forged nvidia-smi shows none. Work that only one of them saw
counts all the same; an administrator finds out which is right. It is kept in memory: after a restart it is told later.
"""

from __future__ import annotations

from gpuspawner.core.idle.evidence import Evidence
from gpuspawner.core.idle.readings import GpuState, Measure, Sample, Source
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.units import show_duration
from gpuspawner.service.engine.sampling.dcgm_values import SOURCE

TOLD_SECONDS = 2 * 3600.0
"""How long they may differ. A shorter difference is no fault: each looks at other moments."""


class SourceDisagreements:
    """Since when, by workspace, only DCGM exporter has seen work."""

    def __init__(self) -> None:
        """Start without a disagreement."""
        self._since: dict[str, tuple[float, str]] = {}

    def see(self, lease: Lease, evidence: Evidence, at: float) -> None:
        """Take note of a sample: who saw work in it."""
        if evidence.problem:
            return
        intervals = [one for gpu in evidence.gpus for one in gpu.intervals if one.state is GpuState.BUSY]
        if intervals and all(one.source is Source.EXPORTER for one in intervals):
            self._since.setdefault(lease.id, (at, lease.user))
        else:
            self.forget(lease.id)

    def forget(self, lease_id: str) -> None:
        """Forget a workspace that has ended, or whose sources agree."""
        self._since.pop(lease_id, None)

    def sentences(self, now: float) -> tuple[str, ...]:
        """Return, in a sentence each for administrators, of which workspaces they have differed for hours."""
        return tuple(
            f"{SOURCE} sees work in the workspace {lease_id} of {user}, and nvidia-smi in it has seen none for "
            f"{show_duration(now - since)}. One of both is wrong: look whether the exporter still renews its values, "
            "and whether the workspace has an nvidia-smi of its own."
            for lease_id, (since, user) in self._since.items()
            if now - since >= TOLD_SECONDS
        )


SAMPLES = 3
"""After this many samples without the monitor it does not run: a Jupyter server takes a minute to start."""


class MonitorWatch:
    """Remembers, for each workspace, how many samples in a row nothing saw all of the time."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._without: dict[str, int] = {}
        self._with: set[str] = set()

    def see(self, lease_id: str, sample: Sample) -> None:
        """Record the sources of a sample."""
        if sample.problem or not sample.gpus:
            return
        has_monitor = any(one.source is Source.MONITOR for one in sample.sources)
        is_averaged = any(one.measure is Measure.ENGINE for one in sample.sources)
        (self._with.add if has_monitor else self._with.discard)(lease_id)
        self._without[lease_id] = 0 if has_monitor or is_averaged else self._without.get(lease_id, 0) + 1

    def forget(self, lease_id: str) -> None:
        """Forget a workspace that has ended."""
        self._without.pop(lease_id, None)
        self._with.discard(lease_id)

    def runs(self, lease_id: str) -> bool | None:
        """Return whether the monitor runs. None: not known yet, or not needed because DCGM exporter tells activity."""
        if lease_id in self._with:
            return True
        return False if self._without.get(lease_id, 0) >= SAMPLES else None
