"""Whether the GPU monitor runs in each workspace, as its samples show. Kept in memory: a restart asks again."""

from __future__ import annotations

from gpuspawner.core.idle.readings import Measure, Sample, Source

SAMPLES = 3
"""So many samples in a row without the monitor show that it does not run: a Jupyter server takes a minute to start."""


class MonitorWatch:
    """Remembers, for each workspace, how many samples in a row nothing saw all of the time."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._without: dict[str, int] = {}
        self._with: set[str] = set()

    def see(self, lease_id: str, sample: Sample) -> None:
        """Note which sources a sample has."""
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
