"""Keeps each estimate until its request starts, and the outcomes by which later estimates are adjusted."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf

from prometheus_client import Histogram
from prometheus_client.core import Metric

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.queue.calibration import MOST_OUTCOMES, Calibration, EstimateOutcome
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.registry import LeaseRegistry

log = logging.getLogger("gpuspawner.estimates")

KEPT_EVERY_SECONDS = 600.0
"""Of one request, the first estimate is kept, and then one in ten minutes."""
ERROR_BOUNDS = (10, 60, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600)


class EstimateRecords:
    """The estimates of requests that wait, and the outcomes of earlier ones."""

    def __init__(self, registry: LeaseRegistry, clock: Clock) -> None:
        """Know nothing before :meth:`load`."""
        self._registry, self._clock = registry, clock
        self.past: list[EstimateOutcome] = []
        """The outcomes of the last estimates, the oldest first."""
        self._pending: dict[str, list[tuple[float, EstimateOutcome]]] = {}
        self._errors = Histogram(
            "gpuspawner_queue_estimate_error_seconds",
            "By how much starts came earlier or later than the first estimate.",
            buckets=ERROR_BOUNDS,
            registry=None,
        )

    @property
    def calibration(self) -> Calibration:
        """The calibration by the outcomes so far."""
        return Calibration(self.past)

    async def load(self) -> None:
        """Read the outcomes of earlier estimates, and the estimates of requests that still wait."""
        store = self._registry.store
        self.past = await store.read(store.estimates.latest)
        self._pending = await store.read(store.estimates.pending)

    async def note(self, made: Mapping[str, EstimateOutcome], at: float) -> None:
        """Store estimates that are due, and forget those of requests that were withdrawn."""
        store, pending = self._registry.store, self._pending
        waiting = {lease.id for lease in self._registry if lease.phase in WAITING}
        if gone := [name for name in pending if name not in waiting]:
            await store.write(store.estimates.withdraw, gone)
            for name in gone:
                del pending[name]
        due = {
            name: one
            for name, one in made.items()
            if name in waiting
            and one.point_seconds < inf
            and (name not in pending or at - pending[name][-1][0] >= KEPT_EVERY_SECONDS)
        }
        if due:
            await store.write(store.estimates.add, due, at, due.keys() - pending.keys())
        for name, one in due.items():
            pending.setdefault(name, []).append((at, one))

    async def came(self, lease: Lease) -> None:
        """Store when a granted request started, as the outcome of its estimates."""
        made, now = self._pending.pop(lease.id, []), self._clock.now()
        if not made:
            return
        outcomes = [replace(one, actual_seconds=now - at) for at, one in made]
        self._errors.observe(abs(outcomes[0].actual_seconds - outcomes[0].point_seconds))
        self.past = [*self.past, *outcomes][-MOST_OUTCOMES:]
        try:
            await self._registry.store.write(self._registry.store.estimates.start, lease.id, now)
        except Unavailable as error:  # the grant stands
            log.warning("the outcome of an estimate is not kept: %s", error)

    def collect(self) -> Iterator[Metric]:
        """Yield the errors since the service started."""
        yield from self._errors.collect()
