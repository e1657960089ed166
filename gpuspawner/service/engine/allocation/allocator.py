"""The allocator: checks requests, grants GPUs, and applies a restart or a changed catalog to requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import replace

from gpuspawner.catalog import Catalog, resolve, without_lost_consent
from gpuspawner.catalog.requests.visibility import gpus_asked
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core import events
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.leases import exits, successors, transitions
from gpuspawner.core.leases.exits import EXIT_KINDS, Exit, ExitReason, QueueReturn
from gpuspawner.core.leases.lease import WAITING, Key, Lease, Phase
from gpuspawner.core.leases.lifetimes import last_moment, move_back
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.core.quotas.usage import check_quotas
from gpuspawner.core.units import show_duration
from gpuspawner.schedulers.base import Offer, Scheduler
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocation.estimates import EstimateRecords, Estimator
from gpuspawner.service.engine.allocation.grants import GrantWriter
from gpuspawner.service.engine.allocation.observed_state import ObservedState
from gpuspawner.service.engine.allocation.requests import Feasibility, RequestResolver, options_of
from gpuspawner.service.engine.allocation.scheduler_sync import SchedulerSync
from gpuspawner.service.engine.allocation.size_changes import SizeChanges
from gpuspawner.service.engine.commits import LeaseCommits
from gpuspawner.service.engine.hub_state import StopActors
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.failures import step_each
from gpuspawner.service.rules.accounting import Accounting
from gpuspawner.service.rules.budget_bounds import BudgetBounds
from gpuspawner.service.rules.policies import policy_of
from gpuspawner.service.rules.restrictions import Restrictions
from gpuspawner.service.settings import Settings

log = logging.getLogger("gpuspawner.allocator")


class Allocator:
    """Checks requests, and grants GPUs through its parts."""

    def __init__(
        self, registry: LeaseRegistry, scheduler: Scheduler, in_force: InForce, clock: Clock, settings: Settings
    ) -> None:
        """Grant from ``scheduler``. Nothing is granted before the engine has observed the running workspaces."""
        self.registry, self.scheduler, self.clock, self.settings = registry, scheduler, clock, settings
        self.in_force = in_force
        self.accounting = Accounting(registry, clock, lambda: self.catalog, self._node_of)
        self.bounds = BudgetBounds(registry, clock, lambda: self.catalog, self.accounting)
        self.resolver = RequestResolver(registry, in_force, self.dismiss)
        self.restrictions = Restrictions(registry.store, clock, lambda: self.catalog)
        self.observed = ObservedState(
            registry, scheduler, lambda: self.catalog, self.accounting, clock, settings, self.restrictions
        )
        self.commits = LeaseCommits(registry, self.observed, clock)
        self.feasibility = Feasibility(registry, scheduler, in_force, clock, self.commits)
        self.estimate_records = EstimateRecords(registry, clock)
        self.estimator = Estimator(registry, clock, self.observed, self.estimate_records, self.commits)
        self.granting = GrantWriter(
            registry, self.observed, self.bounds, self.estimate_records, lambda: self.catalog, clock, self.commits
        )
        self.size_changes = SizeChanges(
            registry, scheduler, self.observed, self.granting, self.commits, clock, self.check
        )
        self.syncs = SchedulerSync(
            registry, scheduler, self.observed.snapshot, self.granting.take, self.size_changes.look
        )
        self.stoppers = StopActors(registry, clock)
        self._counted_of: tuple[object, ...] = ()
        self._counted: list[Offer] = []

    def _node_of(self, gpu_id: str) -> str:
        return self.scheduler.fleet.node_of(gpu_id)

    @property
    def catalog(self) -> Catalog:
        """The catalog in force."""
        return self.in_force.catalog

    async def resume(self, known_at: float = 0.0) -> float:
        """After a restart, park waiting requests until their next heartbeat, and count silence from now.

        A waiting start may have ended with its hub, and would reserve its GPU in vain. If the wall clock went back
        meanwhile, all stored times move back with it, so that deadlines stay as far ahead, and the queue keeps its
        order. Return by how many seconds the clock went back, by the leases and by ``known_at``, another past time.
        """
        now = self.clock.now()
        ahead_seconds = max([known_at, now, *map(last_moment, self.registry)]) - now
        if ahead_seconds > 0:
            log.warning("the clock went back by %s or more since the last service", show_duration(ahead_seconds))
            await self.registry.save(*(move_back(lease, ahead_seconds) for lease in self.registry))
        await self.accounting.load()
        await self.restrictions.load()
        await self.estimate_records.load()
        await self.estimator.load()
        await self.feasibility.load()
        await self.end_what_is_not_offered()
        for lease in self.registry:
            if lease.phase is not Phase.QUEUED:
                self.registry.note_heard(lease.id, now)
        queued = [transitions.park(lease, now) for lease in self.registry if lease.phase is Phase.QUEUED]
        if queued:
            await self.registry.save(*queued)
        return ahead_seconds

    async def end_what_is_not_offered(self) -> None:
        """End waiting requests that the present catalog never grants, also those that returned to the queue.

        Consent to substitutes that are no longer offered is dropped, and the position is kept.
        """
        waiting = [lease for lease in self.registry if lease.phase in WAITING]
        step = "looking whether it is still offered"
        await step_each(step, waiting, self._end_if_not_offered, self.registry.failures)

    def _end_if_not_offered(self, lease: Lease) -> asyncio.Future[None] | None:
        stored, request = None, without_lost_consent(self.catalog, lease.request)
        if request != lease.request:
            options = {**lease.options, "substitutes": ",".join(request.substitutes)}
            lease = replace(lease, request=request, options=options)
            stored = self.registry.save(lease)
        why = self.offered_no_more(lease)
        return self.commits.finish(lease, exits.not_offered(why)) if why else stored

    def offered_no_more(self, lease: Lease, catalog: Catalog | None = None) -> str:
        """Return why a request can never be granted by a catalog, "" if it can. Default: the catalog in force.

        Whether its user may have it is checked at its grant.
        """
        options = {**options_of(lease), "team": ""}
        try:
            resolve(catalog or self.catalog, options, lease.user, groups=None)  # as its start will do
        except RequestRefused as error:
            return str(error)
        return ""

    def check(self, request: Request, key: Key) -> None:
        """Raise what ``StartAttempts.acquire`` would raise for this request, without making it."""
        lease = self.registry.of_key(key)
        claim = Claim("" if lease is None else lease.id, key.user_created, request, self.clock.now(), user=request.user)
        if any(quota.limits for quota in self.catalog.rules.quotas):
            seen = self.observed.snapshot()
            check_quotas(claim, seen, self.observed.holdings(seen))
        self.bounds.check(request, key)
        self.feasibility.check(request, self._offers())

    async def look_ahead(self) -> None:
        """Check which waiting requests cannot start with the present GPUs, and make and store estimates."""
        await self.feasibility.look(self._offers())
        await self.estimator.look()

    def _offers(self) -> list[Offer]:
        """Return the offer of every kind, as of the last observation of the GPUs.

        To count a large fleet for each request would take most of its time.
        """
        sources = (self.scheduler.fleet, self.scheduler.kinds, self.scheduler.room)
        if not all(x is y for x, y in zip(sources, self._counted_of, strict=False)) or not self._counted_of:
            self._counted_of, self._counted = sources, self.scheduler.stock(self.observed.snapshot())
        return self._counted

    def event_of_request(self, request: Request) -> events.Asked:
        """Return the event of a new request."""
        offer = next((o for o in self._offers() if o.kind == request.gpu), None)
        template = self.catalog.templates[request.template].title
        gpus = gpus_asked(request, self.catalog, simulated=offer is not None and offer.simulated)
        return events.Asked(template, gpus, float(request.lifetime_seconds))

    def grant_waiting(self) -> Awaitable[None]:
        """Make every grant that is possible now. If the scheduler answers at once, they are stored at the end."""
        return self.syncs.sync_now()

    async def dismiss(self, lease: Lease, how: Exit, *, gone: bool = False) -> None:
        """End a lease as ``LeaseCommits.finish``, and grant its GPUs to waiting requests."""
        await asyncio.gather(self.commits.finish(lease, how, gone=gone), self.grant_waiting())

    def returns(self, lease: Lease) -> bool:
        """Return whether a workspace returns to the queue when it ends, or if the backend ended it now.

        Its policy decides. The catalog must still offer its request.
        """
        returns = EXIT_KINDS[lease.reason or ExitReason.PREEMPTED].returns
        if (
            returns is QueueReturn.BY_POLICY
            and not policy_of(self.catalog, lease, self.clock.now()).preemption.back_in_queue
        ):
            return False
        asked_by_user = returns is not QueueReturn.NEVER and bool(lease.request.template)
        return asked_by_user and not self.offered_no_more(successors.with_next_request(lease))
