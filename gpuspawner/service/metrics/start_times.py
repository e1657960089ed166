"""How long people waited since the service started: in the queue, and for a start; as Prometheus' histograms."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Histogram
from prometheus_client.core import Metric

from gpuspawner.core.leases.lease import Lease, Phase

START_BOUNDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
"""Seconds. 30 s is what a start is to take; ten minutes what it may take where a node comes first."""
WAIT_BOUNDS = (1, 10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600)


class StartTimes:
    """Hears of every change of a lease."""

    def __init__(self) -> None:
        """Start with none."""
        self._starts = Histogram(
            "gpuspawner_start_seconds",
            "From the grant to a workspace that answers.",
            buckets=START_BOUNDS,
            registry=None,
        )
        self._waits = Histogram(
            "gpuspawner_queue_wait_seconds",
            "From Start to the first grant, of workspaces that were started.",
            buckets=WAIT_BOUNDS,
            registry=None,
        )

    def note(self, before: Lease | None, after: Lease) -> None:
        """Count a finished start. Adopted workspaces did not wait here."""
        started = before is not None and before.phase is Phase.STARTING and after.phase is Phase.RUNNING
        if not started or after.adopted or after.granted_at is None or after.running_at is None:
            return
        self._starts.observe(max(0.0, after.running_at - after.granted_at))
        if after.first_granted_at is not None:  # unknown of what an older version granted
            self._waits.observe(max(0.0, after.first_granted_at - after.asked_at))

    def collect(self) -> Iterator[Metric]:
        """Yield both."""
        yield from self._starts.collect()
        yield from self._waits.collect()
