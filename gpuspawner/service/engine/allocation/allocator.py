"""Acquire, acknowledge, release: the lease protocol as the spawner speaks it, and the grants."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import uuid
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuspawner.catalog import Catalog, completed, resolve, without_lost_consent
from gpuspawner.catalog.titles import gpus_asked
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core import events
from gpuspawner.core.errors import Conflict, Gone, RequestRefused
from gpuspawner.core.leases import exits, steps, transitions
from gpuspawner.core.leases.exits import EXIT_KINDS, Exit, ExitReason, QueueReturn
from gpuspawner.core.leases.lease import HOLDING, JOINABLE, UP, WAITING, Key, Lease, Phase
from gpuspawner.core.leases.lifetimes import last_moment, move_back
from gpuspawner.core.leases.reports import bounded, storable
from gpuspawner.core.leases.request import Request
from gpuspawner.core.leases.step_results import Step
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.core.quotas.usage import check_quotas
from gpuspawner.core.units import show_duration
from gpuspawner.schedulers.base import Offer, Scheduler
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocation.estimates import Estimator
from gpuspawner.service.engine.allocation.feasibility import Feasibility
from gpuspawner.service.engine.allocation.grants import GrantWriter
from gpuspawner.service.engine.allocation.observed_state import ObservedState
from gpuspawner.service.engine.allocation.requests import RequestResolver, options_of
from gpuspawner.service.engine.allocation.scheduler_sync import SchedulerSync
from gpuspawner.service.engine.commits import LeaseCommits
from gpuspawner.service.engine.estimate_records import EstimateRecords
from gpuspawner.service.engine.hub.stop_actors import StopActors
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.failures import step_each
from gpuspawner.service.lease_log import refusals_logged
from gpuspawner.service.rules.accounting import Accounting
from gpuspawner.service.rules.budget_bounds import BudgetBounds
from gpuspawner.service.rules.policies import policy_of
from gpuspawner.service.rules.restrictions import Restrictions
from gpuspawner.service.settings import Settings
from gpuspawner.service.store import OutputRow

log = logging.getLogger("gpuspawner.allocator")

WORKSPACE_TOKEN_PREFIX = "gpuws-"  # noqa: S105 - it marks a kind of token


@dataclass(frozen=True)
class StartRequest:
    """One ``start()`` for ``user``: ``start_id`` is its own, ``boot_id`` the hub process that runs it.

    ``by`` is the person who asks, if it is not the user. ``unattended``: no start waits in the hub, and the service
    starts the granted workspace. ``where`` is from where it is requested. Its user comes at ``ready_at`` or later.
    """

    key: Key
    user: str
    request: Request
    options: Mapping[str, Any]
    start_id: str
    boot_id: str
    by: str = ""
    unattended: bool = False
    where: str = "the hub"
    lease_id: str = ""
    ready_at: float | None = None


def hash_token(token: str) -> str:
    """Return the stored hash of a workspace's token."""
    return hashlib.sha256(token.encode()).hexdigest()


class Allocator:
    """The one place that makes leases and grants GPUs."""

    def __init__(
        self, registry: LeaseRegistry, scheduler: Scheduler, in_force: InForce, clock: Clock, settings: Settings
    ) -> None:
        """Serve from ``scheduler``. Nothing is granted before the engine has looked at what runs."""
        self.registry, self.scheduler, self.clock, self.settings = registry, scheduler, clock, settings
        self._in_force = in_force
        self.accounting = Accounting(registry, clock, lambda: self.catalog, self._node_of)
        self.bounds = BudgetBounds(registry, clock, lambda: self.catalog, self.accounting)
        self.asking = RequestResolver(registry, in_force, self.dismiss)
        self.restrictions = Restrictions(registry.store, clock, lambda: self.catalog)
        self.observed = ObservedState(
            registry, scheduler, lambda: self.catalog, self.accounting, clock, settings, self.restrictions
        )
        self.commits = LeaseCommits(registry, self.observed, clock)
        self.prospects = Feasibility(registry, scheduler, in_force, clock, self.commits)
        self.estimate_records = EstimateRecords(registry, clock)
        self.estimator = Estimator(
            registry,
            clock,
            self.observed.snapshot,
            lambda lease: scheduler.capabilities_of(lease.request.gpu).owns_queue,
            self.estimate_records,
        )
        self.granting = GrantWriter(
            registry, self.observed, self.bounds, self.estimate_records, lambda: self.catalog, clock, self.commits
        )
        self.syncs = SchedulerSync(
            scheduler, self.observed.snapshot, self.granting.take, registry.store, registry.failures
        )
        self.stoppers = StopActors(registry, clock)
        self._counted_of: tuple[object, ...] = ()
        self._counted: list[Offer] = []

    def _node_of(self, gpu_id: str) -> str:
        return self.scheduler.fleet.node_of(gpu_id)

    @property
    def catalog(self) -> Catalog:
        """The catalog in force."""
        return self._in_force.catalog

    async def resume(self, known_at: float = 0.0) -> float:
        """After a restart: park waiting requests until their next heartbeat, and count silence from now.

        A waiting start may have died with its hub, and its GPU would be reserved in vain. If the wall clock went back
        meanwhile, all stored times move back with it: deadlines stay as far ahead, and the order of the queue stays.
        Return by how many seconds the clock went back, judged by the leases and by ``known_at``, another past moment.
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
        await self.prospects.load()
        await self.end_what_is_not_offered()
        for lease in self.registry:
            if lease.phase is not Phase.QUEUED:
                self.registry.note_heard(lease.id, now)

        def resume(lease: Lease) -> asyncio.Future[None] | None:
            after = self._resumed(lease, now)
            return None if after is lease else self.registry.save(after)

        if (
            away := await step_each("going on after a restart", self.registry, resume, self.registry.failures)
        ) is not None:
            raise away
        return ahead_seconds

    def _resumed(self, lease: Lease, now: float) -> Lease:
        whole = completed(self.catalog, lease.request) if lease.phase in JOINABLE else lease.request
        after = lease if whole == lease.request else replace(lease, request=whole)
        if lease.phase in HOLDING:
            after = self.bounds.rated(after)  # an older version may have granted it
        return transitions.park(after, now) if lease.phase is Phase.QUEUED else after

    async def end_what_is_not_offered(self) -> None:
        """End waiting requests that the present catalog never grants: also those that came back to their place.

        Consent to what may no longer be given instead is dropped, and the place kept.
        """
        waiting = [lease for lease in self.registry if lease.phase in WAITING]
        step = "looking whether it is still offered"
        if (away := await step_each(step, waiting, self._end_if_not_offered, self.registry.failures)) is not None:
            raise away

    def _end_if_not_offered(self, lease: Lease) -> asyncio.Future[None] | None:
        stored, request = None, without_lost_consent(self.catalog, lease.request)
        if request != lease.request:
            options = {**lease.options, "substitutes": ",".join(request.substitutes)}
            lease = replace(lease, request=request, options=options)
            stored = self.registry.save(lease)
        why = self.offered_no_more(lease)
        return self.commits.finish(lease, exits.not_offered(why)) if why else stored

    def offered_no_more(self, lease: Lease) -> str:
        """Return why a request can never be granted by the present catalog; "" where it can.

        Whether its user may have it is checked at its grant.
        """
        options = {**options_of(lease), "team": ""}
        try:
            resolve(self.catalog, options, lease.user, groups=None)  # as its start will
        except RequestRefused as error:
            return str(error)
        return ""

    async def acquire(self, ask: StartRequest) -> Lease:
        """Return the lease of this start: a new one, or the live one of its key with a new attempt. Idempotent.

        It is written together with what is granted at once.

        Raises:
            RequestRefused: over the hard quota, more than a budget leaves, or more than the fleet or its cluster's
                limits could ever give.
            Conflict: an earlier workspace of this key still ends; ask again in a second.
        """
        now, self.observed.boot_id = self.clock.now(), ask.boot_id or self.observed.boot_id
        lease = self.registry.of_key(ask.key)
        if lease is None or lease.phase not in JOINABLE or lease.request != ask.request:
            with refusals_logged(ask.user, ask.key.server, ask.request.gpu):
                self.check(ask.request, ask.key)  # what has its place keeps it, also when its last node goes
        if lease is None:
            lease = Lease(
                ask.lease_id or uuid.uuid4().hex,
                ask.key,
                ask.user,
                ask.request,
                ask.options,
                asked_at=now,
                phase_since=now,
                start_id=ask.start_id,
                boot_id=ask.boot_id,
                heard_at=now,
                phase=Phase.PARKED if ask.unattended else Phase.QUEUED,
                unattended=ask.unattended,
                ready_at=ask.ready_at,
            )
            line = self.commits.line(lease, ask.by or ask.user, events.Asked(self._asked(ask.request)), ask.where)
            stored = self.registry.save(lease, audit=[line])
        elif lease.phase in JOINABLE:
            joined = transitions.join(
                lease, ask.request, ask.options, start_id=ask.start_id, boot_id=ask.boot_id, now=now
            )
            stored = self.registry.save(joined)
            if joined.phase not in HOLDING:
                self.observed.give_back(lease)
        else:
            if lease.phase in UP and lease.start_id != ask.start_id:
                # The hub starts it again, so it does not know the running server any more.
                await self.commits.finish(lease, exits.STARTED_AGAIN, gone=True)
            raise Conflict("Your previous workspace is still ending; this start waits for it.")
        await asyncio.gather(stored, self.give())
        return await self._as_stored(lease)

    async def _as_stored(self, lease: Lease) -> Lease:
        """Return a lease as it is now, once that is stored."""
        await self.registry.stored(lease.id)
        return self.registry.get(lease.id) or lease

    def check(self, request: Request, key: Key) -> None:
        """Raise what :meth:`acquire` would raise for this request, without asking for anything."""
        lease = self.registry.of_key(key)
        claim = Claim("" if lease is None else lease.id, key.user_created, request, self.clock.now(), user=request.user)
        if any(quota.limits for quota in self.catalog.rules.quotas):
            seen = self.observed.snapshot()
            check_quotas(claim, seen, self.observed.holdings(seen))
        self.bounds.check(request, key)
        self.prospects.check(request, self._offers())

    async def look_ahead(self) -> None:
        """Check which waiting requests cannot start as things are, and make and store estimates."""
        await self.prospects.look(self._offers())
        await self.estimator.look()

    def _offers(self) -> list[Offer]:
        """Return the offer of every kind, as of the last look at the GPUs.

        Counting a large fleet for each request would take most of its time.
        """
        sources = (self.scheduler.fleet, self.scheduler.kinds, self.scheduler.room)
        if not all(x is y for x, y in zip(sources, self._counted_of, strict=False)) or not self._counted_of:
            self._counted_of, self._counted = sources, self.scheduler.stock(self.observed.snapshot())
        return self._counted

    def _asked(self, request: Request) -> str:
        offer = next((o for o in self._offers() if o.kind == request.gpu), None)
        template = self.catalog.templates[request.template].title
        gpus = gpus_asked(request, self.catalog, simulated=offer is not None and offer.simulated)
        return f"{template}, {gpus}, {show_duration(request.lifetime_seconds)}"

    def give(self) -> Awaitable[None]:
        """Make every grant that is possible now. If the scheduler answers at once, the grants are stored then."""
        return self.syncs.answered()

    async def lapse_expired(self) -> None:
        """Have those wait again whose grant expired before a start took it."""
        await self.granting.lapse_expired()

    async def current(self, lease_id: str, attempt: int) -> Lease:
        """Return the live lease for a message of ``attempt``, as it is stored.

        Raises:
            Gone: it ends or has ended, or a newer attempt took over: the sender must stop.
        """
        await self.registry.stored(lease_id)  # it may be told of it
        lease = self.registry.get(lease_id)
        if lease is None:
            ended = await self.registry.store.read(self.registry.store.leases.get, lease_id)
            raise Gone(ended.message if ended is not None and ended.message else "This start is over.")
        if attempt != lease.attempt:
            raise Gone("A newer start took this one over.")
        if lease.phase is Phase.STOPPING:
            raise Gone(lease.message)
        return lease

    async def hear(self, lease_id: str, attempt: int) -> Lease:
        """Note that the sender of this attempt lives. Return its lease, as it is stored."""
        lease = await self.current(lease_id, attempt)
        now = self.clock.now()
        heard = transitions.note_heard(lease, now) if lease.phase in JOINABLE else lease
        if heard.phase is not lease.phase or heard.unattended != lease.unattended:
            await asyncio.gather(self.registry.save(heard), self.give())
        else:
            self.registry.note_heard(lease_id, now)
        return await self._as_stored(lease)

    async def acknowledge(self, lease_id: str, attempt: int) -> tuple[Lease, str]:
        """Reserved → starting. Return the lease and a fresh token for its workspace, which is stored hashed."""
        token = WORKSPACE_TOKEN_PREFIX + secrets.token_urlsafe(32)
        await self.lapse_expired()
        current = await self.current(lease_id, attempt)
        lease = transitions.acknowledge(current, hash_token(token), self.clock.now())
        await self.registry.save(lease)
        if not self.scheduler.capabilities.answers_at_once:
            self.syncs.ask()  # that it was taken is told before the grant expires
        return lease, token

    async def park(self, lease_id: str, attempt: int) -> Lease:
        """Park a waiting lease: its start stops waiting, its place stays. A grant made meanwhile is kept."""
        lease = await self.current(lease_id, attempt)
        if lease.phase in WAITING:
            lease = transitions.park(lease, self.clock.now())
            await self.registry.save(lease)
        return lease

    async def requeue(self, lease_id: str, attempt: int, why: str, node: str = "") -> Lease:
        """A start whose grant could not be had goes back to its place, and others pass for a while.

        Nothing of it may be left where it was to run. ``node`` is where it found no room; "" where that has no part.

        Raises:
            Gone: as :meth:`current` does.
            Conflict: it is not starting.
        """
        lease = await self.current(lease_id, attempt)
        back = steps.requeue(lease, why, node, self.settings.no_room_wait_seconds, self.clock.now())
        await self.commits.commit(lease, back)
        return back.lease

    async def release(self, lease_id: str, attempt: int, outcome: str, message: str, output: str = "") -> None:
        """The spawner tells how a start or a server ended. An older attempt is ignored, a repeated message harmless.

        ``outcome`` is one of ``core.leases.release.OUTCOMES``; ``output`` the last that its server wrote.
        """
        if output and self._is_of(lease_id, attempt):
            row = OutputRow(lease_id, self.clock.now(), bounded(output))
            await self.registry.store.write(self.registry.store.outputs.save, row)
        await self.registry.stored(lease_id)  # else what is lost would have been heard
        lease, now = self.registry.get(lease_id), self.clock.now()
        if lease is None or lease.attempt != attempt:
            return
        if outcome == "cancelled" and lease.phase in JOINABLE and self.observed.stopped_lately(lease.key):
            # Our stop of the earlier workspace hit this start, which goes back to its place.
            back = transitions.drop_start if lease.phase is Phase.STARTING else transitions.park
            await self.commits.commit(lease, Step(replace(back(lease, now), not_before=now)))
            return
        lease = transitions.stopped_in_hub(lease, outcome)
        up = lease.phase in UP
        stopper = self.stoppers.of(lease) if outcome == "stopped" and up else ""
        how = exits.released(outcome, user=lease.user, up=up, disruption=lease.disruption, stopper=stopper)
        await self.dismiss(lease, replace(how, message=storable(message) or how.message), gone=True)

    def _is_of(self, lease_id: str, attempt: int) -> bool:
        lease = self.registry.get(lease_id)
        return lease is not None and lease.attempt == attempt

    async def forget(self, key: Key) -> None:
        """End a waiting request whose server or user the hub deletes, or whose start it cancels."""
        await self.registry.stored(key)
        lease = self.registry.of_key(key)
        if lease is None or lease.phase not in WAITING | {Phase.RESERVED}:
            return
        await self.dismiss(lease, exits.FORGOTTEN, gone=True)

    async def dismiss(self, lease: Lease, how: Exit, *, gone: bool = False) -> None:
        """End a lease as :meth:`finish` does, and give what it held to who waits."""
        await asyncio.gather(self.commits.finish(lease, how, gone=gone), self.give())

    def returns(self, lease: Lease) -> bool:
        """Whether a workspace goes back in the queue: by the reason of its end, or if the backend ended it now.

        By its policy, and where the catalog still offers what it had.
        """
        returns = EXIT_KINDS[lease.reason or ExitReason.PREEMPTED].returns
        if (
            returns is QueueReturn.BY_POLICY
            and not policy_of(self.catalog, lease, self.clock.now()).preemption.back_in_queue
        ):
            return False
        asked_by_user = returns is not QueueReturn.NEVER and bool(lease.request.template)
        return asked_by_user and not self.offered_no_more(transitions.with_next_request(lease))
