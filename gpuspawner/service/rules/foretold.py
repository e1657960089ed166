"""What people who wait were told of when they start, and how that came: kept, so that ranges hold what they claim."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

from prometheus_client import Histogram
from prometheus_client.core import Metric

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.queue.estimates import MOST_ERRORS, Outcome, Place, range_of, right_words
from gpuspawner.core.rules import Estimate
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.registry import LeaseRegistry

log = logging.getLogger("gpuspawner.allocator")

NOTED_SECONDS = 5.0
"""So often it is looked whether somebody has no estimate yet: as often as the GPUs are looked at."""
ERROR_BOUNDS = (10, 60, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600)


class EstimateRecords:
    """Notes the first estimate of each who waits, and what came of it."""

    def __init__(self, registry: LeaseRegistry, clock: Clock) -> None:
        """Know nothing before :meth:`load`."""
        self._book, self._clock = registry, clock
        self.past: list[Outcome] = []
        """What came of the last estimates."""
        self._noted_at = float("-inf")
        self._errors = Histogram(
            "gpuspawner_queue_estimate_error_seconds",
            "By how much starts came earlier or later than the first estimate said was likely.",
            buckets=ERROR_BOUNDS,
            registry=None,
        )

    async def load(self) -> None:
        """Read what came of earlier ones."""
        self.past = await self._book.store.read(self._book.store.estimates.latest)

    def is_due(self) -> bool:
        """Whether somebody has no estimate yet who could have one."""
        now = self._clock.now()
        return now - self._noted_at >= NOTED_SECONDS and any(self._is_new(lease) for lease in self._book)

    async def note(self, places: Mapping[str, Place]) -> None:
        """Note for each who has none what the places say."""
        now = self._noted_at = self._clock.now()
        noted = []
        for lease in self._book:
            place = places.get(lease.id)
            if not self._is_new(lease) or place is None or not place.unchanged_seconds:
                continue
            likely = place.unchanged_seconds if place.likely_seconds is None else place.likely_seconds
            begin, end = range_of(likely, place.unchanged_seconds, self.past)
            told = Estimate(now, now + likely, now + place.unchanged_seconds, now + begin, now + end)
            noted.append(replace(lease, estimate=told))
        if noted:
            await self._book.save(*noted)

    async def came(self, lease: Lease) -> None:
        """Keep how a lease that is granted now came, beside what was told."""
        told, now = lease.estimate, self._clock.now()
        times = None if told is None else (told.likely_at, told.latest_at, told.from_at, told.to_at)
        if told is None or times is None or None in times:
            return
        likely, latest, begin, end = (at - told.told_at for at in times if at is not None)
        outcome = Outcome(likely, latest, begin, end, now - told.told_at)
        self._errors.observe(abs(outcome.actual_seconds - outcome.likely_seconds))
        self.past = [*self.past, outcome][-MOST_ERRORS:]
        try:
            await self._book.store.write(self._book.store.estimates.add, outcome, now)
        except Unavailable as error:  # the grant stands
            log.warning("what came of an estimate is not kept: %s", error)

    def words(self, place: Place) -> tuple[float, float, str] | None:
        """Return the range to tell of a place, and how often such were right; None where it is too early to say."""
        right = right_words(self.past)
        if not right or place.unchanged_seconds is None:
            return None
        likely = place.unchanged_seconds if place.likely_seconds is None else place.likely_seconds
        return (*range_of(likely, place.unchanged_seconds, self.past), right)

    def collect(self) -> Iterator[Metric]:
        """Yield the errors since the service started."""
        yield from self._errors.collect()

    @staticmethod
    def _is_new(lease: Lease) -> bool:
        return lease.phase in WAITING and lease.estimate is None and lease.held_back is None
