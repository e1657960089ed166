"""Keeps each estimate until its request starts, and the outcomes by which later estimates are adjusted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from prometheus_client import Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.queue.calibration import MOST_OUTCOMES, Accuracy, Calibration, EstimateOutcome, accuracies
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.registry import LeaseRegistry

log = logging.getLogger("gpuspawner.estimates")

KEPT_EVERY_SECONDS = 600.0
"""Of one request, the first estimate is kept, and then one in ten minutes."""
REPORT_SECONDS = 30 * 86400.0
"""The period of which outcomes are reported."""
REPORTED_EVERY_SECONDS = 600.0
"""The interval of a new report. Arbitrary: one start changes little in the report of a month."""
ERROR_BOUNDS = (10, 60, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600)


class EstimateRecords:
    """The estimates of requests that wait, and the outcomes of earlier ones."""

    def __init__(self, registry: LeaseRegistry, clock: Clock) -> None:
        """Know nothing before :meth:`load`."""
        self._registry, self._clock = registry, clock
        self.past: list[EstimateOutcome] = []
        """The outcomes of the last estimates, the oldest first."""
        self._pending: dict[str, list[tuple[float, EstimateOutcome]]] = {}
        self.report: Sequence[Accuracy] = ()
        """How often the estimates of the last 30 days were right, by horizon. Empty before the first report."""
        self._reported_at = -inf
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

    @property
    def is_report_due(self) -> bool:
        """Whether a new report is due."""
        return self._clock.now() >= self._reported_at + REPORTED_EVERY_SECONDS

    async def make_report(self) -> None:
        """Count the outcomes of the last 30 days, in a thread. Requests that are overdue now count as misses."""
        store, now = self._registry.store, self._clock.now()
        self._reported_at = now
        try:
            outcomes = await store.read(store.estimates.outcomes, now - REPORT_SECONDS, now)
        except Unavailable as error:
            log.warning("the report of estimates is older: %s", error)
            return
        self.report = await asyncio.to_thread(accuracies, outcomes)

    def collect(self) -> Iterator[Metric]:
        """Yield the errors since the service started, and the report of the last 30 days."""
        yield from self._errors.collect()
        counts = GaugeMetricFamily(
            "gpuspawner_queue_estimates",
            "Estimates of the last 30 days by what was shown, upper end of the estimated wait, and outcome.",
            labels=["shown", "upto_seconds", "outcome"],
        )
        for one in self.report:
            upto = "+Inf" if one.upto_seconds == inf else f"{one.upto_seconds:g}"
            for shown, count, right in (("time", one.shown, one.shown_near), ("range", one.ranges, one.within)):
                counts.add_metric([shown, upto, "right"], right)
                counts.add_metric([shown, upto, "wrong"], count - right)
        yield counts
