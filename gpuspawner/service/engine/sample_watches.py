"""Workspaces of which DCGM exporter and the probe tell different things for hours: one of both is wrong.

An exporter that is frozen shows work for ever, and a forged nvidia-smi shows none. Work that only one of them saw
counts all the same; an administrator finds out which is right. It is kept in memory: after a restart it is told later.
"""

from __future__ import annotations

from gpuspawner.core.idle.evidence import Evidence
from gpuspawner.core.idle.readings import GpuState, Source
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.units import show_duration
from gpuspawner.service.engine.dcgm_values import SOURCE

TOLD_SECONDS = 2 * 3600.0
"""So long they may differ: what one sees between two looks of the other is no fault."""


class SourceDisagreements:
    """Since when, by workspace, only DCGM exporter has seen work."""

    def __init__(self) -> None:
        """Doubt nobody."""
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
        """Forget a workspace: both see the same, or it has ended."""
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
