"""Estimates of the starts of waiting requests, from the history of ended workspaces, and the records of their outcome.

They are made in a thread, from a snapshot of its own. No grant waits for it. Outcomes adjust later estimates.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf

from prometheus_client import Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from gpuspawner.core import events
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import UP, WAITING, Lease
from gpuspawner.core.leases.step_results import Note, Step
from gpuspawner.core.leases.steps import note_near_start
from gpuspawner.core.queue.calibration import (
    MOST_OUTCOMES,
    Accuracy,
    Calibration,
    EstimateOutcome,
    ShownStart,
    accuracies,
    shown_start,
)
from gpuspawner.core.queue.estimates import (
    MOST_DAYS,
    MOST_ESTIMATED,
    QueueState,
    estimate_starts,
    explain_move,
    first_in_line,
    later_requests,
    queue_state,
)
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.run_times import MOST_RUNS, TRACE_SECONDS, RunTimes, extend_trace, past_run
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocation.observed_state import ObservedState
from gpuspawner.service.engine.commits import LeaseCommits
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.failures import step_each

log = logging.getLogger("gpuspawner.estimates")

KEPT_EVERY_SECONDS = 600.0
"""The first estimate of a request is kept, and then one in ten minutes."""
REPORT_SECONDS = 30 * 86400.0
"""The report covers the outcomes of this period."""
REPORTED_EVERY_SECONDS = 600.0
"""The interval of a new report. Arbitrary: one start changes little in the report of a month."""
ERROR_BOUNDS = (10, 60, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600)


@contextmanager
def _logged_outage(effect: str) -> Iterator[None]:
    """Log that the store does not answer, and the effect, instead of raising it."""
    try:
        yield
    except Unavailable as error:
        log.warning("%s: %s", effect, error)


class EstimateRecords:
    """The estimates of waiting requests, and the outcomes of earlier estimates."""

    def __init__(self, registry: LeaseRegistry, clock: Clock) -> None:
        """Start empty. :meth:`load` reads the stored records."""
        self._registry, self._clock = registry, clock
        self.past: list[EstimateOutcome] = []
        """The outcomes of the last estimates, oldest first."""
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

    async def note_start(self, lease: Lease) -> None:
        """Store when a granted request started, as the outcome of its estimates."""
        made, now = self._pending.pop(lease.id, []), self._clock.now()
        if not made:
            return
        outcomes = [replace(one, actual_seconds=now - at) for at, one in made]
        self._errors.observe(abs(outcomes[0].actual_seconds - outcomes[0].point_seconds))
        self.past = [*self.past, *outcomes][-MOST_OUTCOMES:]
        with _logged_outage("the outcome of an estimate is not kept"):  # the grant stays
            await self._registry.store.write(self._registry.store.estimates.start, lease.id, now)

    @property
    def is_report_due(self) -> bool:
        """Whether a new report is due."""
        return self._clock.now() >= self._reported_at + REPORTED_EVERY_SECONDS

    async def make_report(self) -> None:
        """Count the outcomes of the last 30 days, in a thread. Requests that are overdue now count as misses."""
        store, now = self._registry.store, self._clock.now()
        self._reported_at = now
        with _logged_outage("the report of estimates is older"):
            outcomes = await store.read(store.estimates.outcomes, now - REPORT_SECONDS, now)
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


EVERY_SECONDS = 120.0
"""How often estimates are made while requests wait."""
MOST_PART = 0.1
"""Upper bound on the share of the time that goes into estimates of new requests."""
READ_AT_ONCE = 200
"""Number of ended workspaces that are read before each estimate. Fewer end in two minutes."""


class Estimator:
    """Keeps the estimates of all waiting requests."""

    def __init__(
        self,
        registry: LeaseRegistry,
        clock: Clock,
        observed: ObservedState,
        records: EstimateRecords,
        commits: LeaseCommits,
    ) -> None:
        """Read the history with the first estimate."""
        self._commits = commits
        self._registry, self._clock, self._observed = registry, clock, observed
        self._records = records
        self._run_times = RunTimes()
        self._requests: dict[str, Claim] = {}
        """The requests of ended workspaces of the last days, by lease id."""
        self._last_end: tuple[float, str] = (-inf, "")
        self._estimates: Mapping[str, EstimateOutcome] = {}
        self._considered: frozenset[str] = frozenset()
        """The requests of the last round, also those that were too far behind in line."""
        self._made_at = -inf
        self._took_seconds = 0.0
        self._running: asyncio.Task[None] | None = None
        self._idle: dict[str, list[float]] = {}
        """The idle time of each running workspace at each ten minutes of its age, by lease id."""
        self._noted_at = -inf
        self._told: dict[str, QueueState] = {}
        """The state of the queue at the last estimate that the user knows, by lease id."""

    async def load(self) -> None:
        """Read the idle times of running workspaces."""
        store, names = self._registry.store, [lease.id for lease in self._registry]
        self._idle = {name: list(idle) for name, idle in (await store.read(store.idle_traces.of, names)).items()}

    async def look(self) -> None:
        """Note idle times, and begin to make estimates and their report if they are due."""
        if self._clock.now() >= self._noted_at + TRACE_SECONDS:
            self._noted_at = self._clock.now()
            await self._note_idle_times()
        is_due = self._records.is_report_due or self._is_due()
        if is_due and (self._running is None or self._running.done()):
            self._running = asyncio.create_task(self._make_due())

    async def _make_due(self) -> None:
        if self._records.is_report_due:
            await self._records.make_report()
        if self._is_due():
            await self._make()

    async def _note_idle_times(self) -> None:
        now, store, noted = self._clock.now(), self._registry.store, list[tuple[Lease, list[float]]]()
        for lease in self._registry:
            if lease.phase in UP and lease.running_at is not None and lease.slots:
                idle = self._idle.setdefault(lease.id, [])
                extend_trace(idle, now - lease.running_at, lease.streak.idle_seconds)
                noted.append((lease, idle))
        if noted:
            await store.write(store.idle_traces.save, noted, now)

    async def close(self) -> None:
        """Wait until the thread has ended."""
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    def shown(self, lease_id: str) -> ShownStart | None:
        """Return the start of a request as it is shown now, None without an estimate."""
        estimate = self._estimates.get(lease_id)
        return None if estimate is None else shown_start(estimate).after(self._clock.now() - self._made_at)

    @property
    def has_history(self) -> bool:
        """Whether enough ended workspaces are known for estimates."""
        return self._run_times.is_known

    def is_considered(self, lease_id: str) -> bool:
        """Return whether a request waited in the last round of estimates."""
        return lease_id in self._considered

    def _is_due(self) -> bool:
        waiting = [lease.id for lease in self._registry if self._is_estimated(lease)]
        passed = self._clock.now() - self._made_at
        if not waiting or passed < self._took_seconds / MOST_PART:
            return False
        return passed >= EVERY_SECONDS or any(name not in self._considered for name in waiting)

    def _is_estimated(self, lease: Lease) -> bool:
        """Return whether a request gets estimates: no rule holds it back, and gpuspawner owns its queue."""
        return lease.phase in WAITING and lease.wait_reason is None and self._observed.is_queue_ours(lease)

    async def _make(self) -> None:
        with _logged_outage("estimates use an older history"):
            await self._learn(READ_AT_ONCE if self._run_times.is_known else MOST_RUNS)
        if not self._run_times.is_known:
            self._made_at = self._clock.now()
            return
        seen = self._observed.snapshot()
        own = {lease.id for lease in seen.leases if self._is_estimated(lease)}
        claims = [claim for claim in seen.claims if claim.id in own]
        found, states, self._took_seconds = await asyncio.to_thread(
            compute_estimates, seen, claims, self._run_times, self._past(seen), self._records.calibration
        )
        self._estimates, self._considered, self._made_at = found, frozenset(own), seen.now
        with _logged_outage("estimates are not kept"):
            await self._records.note(found, seen.now)
        await self._tell_users(states)

    async def _tell_users(self, states: Mapping[str, QueueState]) -> None:
        """Tell the users of waiting requests that their start is near, or that it moved and why."""
        self._told = {name: state for name, state in self._told.items() if name in self._estimates}
        tell_if_moved = partial(self._tell_if_moved, states)
        for step, tell in (("telling of a near start", self._tell_if_near), ("telling of a move", tell_if_moved)):
            waiting = [lease for lease in self._registry if lease.id in self._estimates and lease.phase in WAITING]
            with _logged_outage("users are told later of their estimated start"):
                await step_each(step, waiting, tell, self._registry.failures)

    def _tell_if_moved(self, states: Mapping[str, QueueState], lease: Lease) -> asyncio.Future[None] | None:
        state = states.get(lease.id)
        moved = None if state is None else explain_move(self._told.setdefault(lease.id, state), state)
        if state is None or moved is None:
            return None
        self._told[lease.id] = state
        return self._commits.commit(lease, Step(lease, (Note(events.EstimateMoved(*moved)),)))

    def _tell_if_near(self, lease: Lease) -> asyncio.Future[None] | None:
        shown = self.shown(lease.id)
        if shown is None:
            return None
        in_seconds = shown.to_seconds if shown.seconds is None else shown.seconds
        step = note_near_start(lease, in_seconds, self._clock.now())
        return None if step is None else self._commits.commit(lease, step)

    async def _learn(self, count: int) -> None:
        """Read the last ended workspaces, and learn from the new ones."""
        leases = await self._registry.store.read(self._registry.store.leases.ended, None, count)
        new = [lease for lease in reversed(leases) if _end_of(lease) > self._last_end]
        idle = await self._registry.store.read(self._registry.store.idle_traces.of, [lease.id for lease in new])
        runs = [past_run(lease, lease.ended_at or 0.0, idle.get(lease.id, ())) for lease in new]
        await asyncio.to_thread(self._run_times.add_all, runs)  # half a second for 5,000 after a start
        for lease in new:
            self._idle.pop(lease.id, None)
            self._requests[lease.id] = claim_of(lease)
            self._last_end = max(self._last_end, _end_of(lease))
        since = self._clock.now() - (2 * MOST_DAYS + 1) * 86400
        self._requests = {name: claim for name, claim in self._requests.items() if claim.asked_at >= since}

    def _past(self, seen: Snapshot) -> list[Claim]:
        """Return the requests of the last days, oldest first."""
        live = {lease.id: claim_of(lease) for lease in seen.leases}
        return sorted({**self._requests, **live}.values(), key=lambda claim: claim.asked_at)


def _end_of(lease: Lease) -> tuple[float, str]:
    return lease.ended_at or 0.0, lease.id


def compute_estimates(
    seen: Snapshot, claims: Sequence[Claim], run_times: RunTimes, past: Sequence[Claim], calibration: Calibration
) -> tuple[dict[str, EstimateOutcome], dict[str, QueueState], float]:
    """Return the estimates of the first requests in line, the state of the queue for each, and the CPU seconds.

    Args:
        seen: the queue and the cluster now.
        claims: the waiting requests.
        run_times: how long workspaces ran so far.
        past: the requests of the last days, the oldest first.
        calibration: the outcomes of earlier estimates.
    """
    began = time.thread_time()
    index = Index(seen)
    claims = first_in_line(seen, index, claims, MOST_ESTIMATED)
    found = estimate_starts(seen, index, claims, run_times, partial(later_requests, past, seen.now))
    estimates = {
        name: calibration.estimate(inf if point is None else point, *drawn) for name, (point, *drawn) in found.items()
    }
    states = {
        claim.id: queue_state(claim, seen.now + estimates[claim.id].point_seconds, seen)
        for claim in claims
        if claim.id in estimates and estimates[claim.id].point_seconds < inf
    }
    return estimates, states, time.thread_time() - began
