"""Estimate the starts of waiting requests from the history of ended workspaces, in a thread of its own.

The thread works on a snapshot of its own. No grant waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from prometheus_client import Histogram
from prometheus_client.core import Metric

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.queue.estimates import (
    MOST_DAYS,
    MOST_ERRORS,
    EstimateOutcome,
    QueuePosition,
    StartEstimate,
    accuracy_text,
    estimate_starts,
    later_requests,
    shown_range,
)
from gpuspawner.core.queue.forecasts import MOST_FORECAST, MOST_RUNS, RunTimes, past_run
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.core.rules import Estimate
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.registry import LeaseRegistry

log = logging.getLogger("gpuspawner.estimates")

EVERY_SECONDS = 120.0
"""Estimates are made this often while requests wait."""
MOST_PART = 0.1
"""Upper bound on the share of the time that goes into estimates of new requests."""
READ_AT_ONCE = 200
"""Number of ended workspaces that are read before each estimate. More end in two minutes nowhere."""


class Estimator:
    """Keeps the estimates of all waiting requests."""

    def __init__(
        self,
        registry: LeaseRegistry,
        clock: Clock,
        snapshot: Callable[[], Snapshot],
        owns_queue: Callable[[Lease], bool],
    ) -> None:
        """Read the history with the first estimate. ``owns_queue`` tells whether another scheduler has the queue."""
        self._registry, self._clock, self._snapshot, self._owns_queue = registry, clock, snapshot, owns_queue
        self._run_times = RunTimes()
        self._requests: dict[str, Claim] = {}
        """The requests of ended workspaces of the last days, by lease id."""
        self._last_end: tuple[float, str] = (-inf, "")
        self._estimates: Mapping[str, StartEstimate] = {}
        self._made_at = -inf
        self._took_seconds = 0.0
        self._running: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Begin to make estimates if they are due."""
        if self._is_due() and (self._running is None or self._running.done()):
            self._running = asyncio.create_task(self._make())

    async def close(self) -> None:
        """Wait until the thread has ended."""
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    def wait_seconds(self, lease_id: str, now: float) -> float | None:
        """Return in how many seconds a request probably starts; None if it has no estimate."""
        estimate = self._estimates.get(lease_id)
        if estimate is None or estimate.point_seconds is None:
            return None
        return max(0.0, self._made_at + estimate.point_seconds - now)

    def _is_due(self) -> bool:
        waiting = [lease.id for lease in self._registry if self._is_estimated(lease)]
        passed = self._clock.now() - self._made_at
        if not waiting or passed < self._took_seconds / MOST_PART:
            return False
        return passed >= EVERY_SECONDS or any(name not in self._estimates for name in waiting)

    def _is_estimated(self, lease: Lease) -> bool:
        """Return whether a request is estimated: not if a rule holds it back, or if its queue is not ours."""
        return lease.phase in WAITING and lease.wait_reason is None and not self._owns_queue(lease)

    async def _make(self) -> None:
        try:
            await self._learn(READ_AT_ONCE if self._run_times.is_known else MOST_RUNS)
        except Unavailable as error:
            log.warning("estimates go by an older history: %s", error)
        if not self._run_times.is_known:
            self._made_at = self._clock.now()
            return
        seen = self._snapshot()
        own = {lease.id for lease in seen.leases if self._is_estimated(lease)}
        claims = [claim for claim in seen.claims if claim.id in own][:MOST_FORECAST]
        found, self._took_seconds = await asyncio.to_thread(_estimate, seen, claims, self._run_times, self._past(seen))
        self._estimates, self._made_at = found, seen.now

    async def _learn(self, count: int) -> None:
        """Read the last workspaces that ended, and learn from those that are new."""
        leases = await self._registry.store.read(self._registry.store.leases.ended, None, count)
        new = [lease for lease in reversed(leases) if _end_of(lease) > self._last_end]
        for lease in new:
            self._run_times.add(past_run(lease, lease.ended_at or 0.0))
            self._requests[lease.id] = claim_of(lease)
            self._last_end = max(self._last_end, _end_of(lease))
        since = self._clock.now() - (MOST_DAYS + 1) * 86400
        self._requests = {name: claim for name, claim in self._requests.items() if claim.asked_at >= since}

    def _past(self, seen: Snapshot) -> list[Claim]:
        """Return the requests of the last days, the oldest first."""
        live = {lease.id: claim_of(lease) for lease in seen.leases}
        return sorted({**self._requests, **live}.values(), key=lambda claim: claim.asked_at)


def _end_of(lease: Lease) -> tuple[float, str]:
    return lease.ended_at or 0.0, lease.id


def _estimate(
    seen: Snapshot, claims: Sequence[Claim], run_times: RunTimes, past: Sequence[Claim]
) -> tuple[dict[str, StartEstimate], float]:
    """Return the estimates, and the CPU seconds that they took."""
    began = time.thread_time()
    found = estimate_starts(seen, Index(seen), claims, run_times, partial(later_requests, past, seen.now))
    return found, time.thread_time() - began


log = logging.getLogger("gpuspawner.allocator")

NOTED_SECONDS = 5.0
"""How often requests without an estimate are looked for: as often as the GPUs are observed."""
ERROR_BOUNDS = (10, 60, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600)


class EstimateRecords:
    """Notes the first estimate of each who waits, and what came of it."""

    def __init__(self, registry: LeaseRegistry, clock: Clock) -> None:
        """Know nothing before :meth:`load`."""
        self._registry, self._clock = registry, clock
        self.past: list[EstimateOutcome] = []
        """The outcomes of the last estimates."""
        self._noted_at = float("-inf")
        self._errors = Histogram(
            "gpuspawner_queue_estimate_error_seconds",
            "By how much starts came earlier or later than the first estimate said was likely.",
            buckets=ERROR_BOUNDS,
            registry=None,
        )

    async def load(self) -> None:
        """Read the outcomes of earlier estimates."""
        self.past = await self._registry.store.read(self._registry.store.estimates.latest)

    def is_due(self) -> bool:
        """Return whether a waiting request has no estimate yet."""
        now = self._clock.now()
        return now - self._noted_at >= NOTED_SECONDS and any(self._is_new(lease) for lease in self._registry)

    async def note(self, places: Mapping[str, QueuePosition]) -> None:
        """Store the first estimate of each new request."""
        now = self._noted_at = self._clock.now()
        noted = []
        for lease in self._registry:
            place = places.get(lease.id)
            if not self._is_new(lease) or place is None or not place.unchanged_seconds:
                continue
            likely = place.unchanged_seconds if place.likely_seconds is None else place.likely_seconds
            begin, end = shown_range(likely, place.unchanged_seconds, self.past)
            told = Estimate(now, now + likely, now + place.unchanged_seconds, now + begin, now + end)
            noted.append(replace(lease, estimate=told))
        if noted:
            await self._registry.save(*noted)

    async def came(self, lease: Lease) -> None:
        """Store when a granted lease came, together with its estimate."""
        told, now = lease.estimate, self._clock.now()
        times = None if told is None else (told.likely_at, told.latest_at, told.from_at, told.to_at)
        if told is None or times is None or None in times:
            return
        likely, latest, begin, end = (at - told.told_at for at in times if at is not None)
        outcome = EstimateOutcome(likely, latest, begin, end, now - told.told_at)
        self._errors.observe(abs(outcome.actual_seconds - outcome.likely_seconds))
        self.past = [*self.past, outcome][-MOST_ERRORS:]
        try:
            await self._registry.store.write(self._registry.store.estimates.add, outcome, now)
        except Unavailable as error:  # the grant stands
            log.warning("what came of an estimate is not kept: %s", error)

    def words(self, place: QueuePosition) -> tuple[float, float, str] | None:
        """Return the range to show for a position and the accuracy of past ranges; None if it is not known yet."""
        right = accuracy_text(self.past)
        if not right or place.unchanged_seconds is None:
            return None
        likely = place.unchanged_seconds if place.likely_seconds is None else place.likely_seconds
        return (*shown_range(likely, place.unchanged_seconds, self.past), right)

    def collect(self) -> Iterator[Metric]:
        """Yield the errors since the service started."""
        yield from self._errors.collect()

    @staticmethod
    def _is_new(lease: Lease) -> bool:
        return lease.phase in WAITING and lease.estimate is None and lease.wait_reason is None
