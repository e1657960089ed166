"""Applies a scheduler's answer to leases: refusals, grants, and the rules that hold requests back."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf

from gpuspawner.catalog import Catalog
from gpuspawner.core import events
from gpuspawner.core.events import Passed
from gpuspawner.core.gpus.fleet import GpuKind, Slot
from gpuspawner.core.gpus.placement import is_grantable, used_shares
from gpuspawner.core.leases import exits, transitions
from gpuspawner.core.leases.lease import UP, WAITING, Lease, Phase
from gpuspawner.core.leases.running_steps import spare, warn_of_claim
from gpuspawner.core.leases.step_results import Step
from gpuspawner.core.leases.steps import note_wait_reason
from gpuspawner.core.queue.decisions import BlockingRule
from gpuspawner.core.queue.fair_share import FairShareUsage
from gpuspawner.core.queue.order import QueueOrder, longest_waiting, passed_requests
from gpuspawner.core.queue.preemption import is_charged_to
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.core.quotas.usage import QuotaTally
from gpuspawner.core.rules import EndNotice
from gpuspawner.schedulers.base import SCHEDULER, Answer, Grant, Preempted
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocation.estimates import EstimateRecords
from gpuspawner.service.engine.allocation.observed_state import ObservedState
from gpuspawner.service.engine.commits import LeaseCommits
from gpuspawner.service.engine.registry import LeaseRegistry, wait_for_all
from gpuspawner.service.failures import Failures, begin_each, end_each
from gpuspawner.service.rules.budget_bounds import BudgetBounds
from gpuspawner.service.rules.policies import policy_of
from gpuspawner.service.store import AuditLine

log = logging.getLogger("gpuspawner.allocator")

GPUSPAWNER = "gpuspawner"
HELD_BACK, PREEMPTED = "noting what holds it back", "noting that its scheduler ends it"


class GrantWriter:
    """Makes the grants of an answer that still count: the claim is unchanged, its GPUs are free, and quotas allow it.

    Other grants are ignored. At the next sync their claims still wait, and the scheduler takes the grants back.
    """

    def __init__(
        self,
        registry: LeaseRegistry,
        observed: ObservedState,
        bounds: BudgetBounds,
        estimate_records: EstimateRecords,
        catalog: Callable[[], Catalog],
        clock: Clock,
        commits: LeaseCommits,
    ) -> None:
        """Grant nothing yet. ``bounds`` are set by budgets."""
        self._estimate_records = estimate_records
        self._registry, self._observed, self._bounds = registry, observed, bounds
        self._catalog, self._clock, self._commits = catalog, clock, commits
        self._expiries: dict[str, float] = {}
        """When the grants of reserved leases expire, by lease id."""
        self.substitutions: Counter[tuple[str, str]] = Counter()
        """How many substitutes were granted since this service started, by the requested and the granted kind."""

    async def take(self, answer: Answer) -> None:
        """Apply an answer, all at once, and return when it is stored."""
        failures, begun = self._registry.failures, dict[str, dict[str, asyncio.Future[None]]]()
        stored = [
            self._commits.finish(lease, exits.refused(refusal.why))
            for refusal in answer.refused
            if (lease := self._as_claimed(refusal.claim)) is not None
        ]
        granted: list[Lease] = []
        if self._observed.processes_known:
            if grants := answer.grants():
                seen = self._observed.snapshot()
                used, tally = (
                    dict(used_shares(seen.leases, seen.others)),
                    QuotaTally(seen, self._observed.holdings(seen)),
                )
                for grant in grants:
                    before = self._registry.get(grant.claim.id)
                    if before is None or not failures.may_try("grant", before.id):
                        continue
                    done = None
                    with failures.isolating("grant", before.id):
                        done = self._grant(grant, seen, used, tally)
                    if done is not None:
                        stored.append(done)
                        granted.append(before)
                with failures.isolating("noting who goes first"):
                    stored += self._note_passed(granted, seen)
            held = answer.wait_reasons()
            begun[HELD_BACK] = begin_each(
                HELD_BACK, self._registry, lambda x: self._hold_back(held.get(x.id), x), failures
            )
        taken = {one.lease_id: one for one in answer.preempted}
        begun[PREEMPTED] = begin_each(PREEMPTED, self._registry, lambda x: self._preempt(taken.get(x.id), x), failures)
        stored += [asyncio.ensure_future(_all_ended(begun, failures))]
        await wait_for_all(stored)
        for lease in granted:
            await self._estimate_records.note_start(lease)

    def assign(self, lease: Lease) -> asyncio.Future[None] | None:
        """Grant a waiting request the GPUs that are held for it. Return None while processes use them, or one failed.

        If it does not get them in time, it waits like other requests.
        """
        seen = self._observed.snapshot()
        used = dict(used_shares(seen.leases, self._observed.others_without(lease.id)))
        tally = QuotaTally(seen, self._observed.holdings(seen))
        grant, granted = Grant(claim_of(lease), lease.assigned), None
        if _are_grantable(lease.assigned, seen):
            granted = self._grant(grant, seen, used, tally)
        if granted is None and self._clock.now() >= lease.not_before:
            return self._registry.save(replace(lease, assigned=()))
        return granted

    def could_assign(self, lease: Lease, claim: Claim, slots: Sequence[Slot]) -> bool:
        """Return whether the claim of a running workspace's new size would get these GPUs if the workspace ended."""
        seen = self._observed.snapshot()
        others = self._observed.others_without(lease.id)
        rest = replace(seen, leases=tuple(one for one in seen.leases if one.id != lease.id), others=others)
        used, grant = used_shares(rest.leases, others), Grant(claim, tuple(slots))
        return _are_grantable(slots, seen) and self._counts(grant, lease, rest, used, QuotaTally(rest))

    async def lapse_expired(self) -> None:
        """Return leases to the queue whose grant expired before a start took it."""
        now, lapsing = self._clock.now(), list[tuple[Lease, float]]()
        for lease_id, expires_at in list(self._expiries.items()):
            lease = self._registry.get(lease_id)
            if lease is None or lease.phase is not Phase.RESERVED:
                del self._expiries[lease_id]
            elif expires_at <= now:
                lapsing.append((lease, expires_at))
        await asyncio.gather(*(self._lapse(lease, expires_at, now) for lease, expires_at in lapsing))

    async def _lapse(self, lease: Lease, expires_at: float, now: float) -> None:
        lapsed = transitions.lapse(lease, now)
        del self._expiries[lease.id]
        try:
            await self._registry.save(lapsed, audit=[self._line(lapsed, events.Requeued("expired"))])
        except BaseException:
            self._expiries.setdefault(lease.id, expires_at)  # the grant still counts, or the next call forgets it
            raise

    def _grant(
        self, grant: Grant, seen: Snapshot, used: dict[str, Fraction], tally: QuotaTally
    ) -> asyncio.Future[None] | None:
        """Make a grant. Return None if it no longer counts."""
        now, lease = self._clock.now(), self._as_claimed(grant.claim)
        if lease is None or not self._counts(grant, lease, seen, used, tally):
            log.info("a grant to %s came too late", grant.claim.id)
            return None
        terms = policy_of(self._catalog(), replace(lease, terms=None), now).terms
        granted = replace(transitions.grant(lease, grant.slots, now, given=grant.kind), terms=terms)
        bound = self._bounds.with_grant_bound(granted, grant.latest_end)
        if bound is None:
            log.debug("a budget leaves too little for %s: it goes on waiting", lease.id)
            return None
        for slot in grant.slots:
            used[slot.gpu] = used.get(slot.gpu, Fraction(0)) + slot.share
        tally.take(grant.claim, self._kind_of(grant))
        if grant.kind:
            self.substitutions[lease.request.gpu or "", grant.kind] += 1
        self._expiries[lease.id] = inf if grant.expires_at is None else grant.expires_at
        return self._registry.save(bound, audit=[self._line(bound, event) for event in _events(grant, bound)])

    def _counts(
        self, grant: Grant, lease: Lease, seen: Snapshot, used: Mapping[str, Fraction], tally: QuotaTally
    ) -> bool:
        """Return whether the GPUs of a grant are free for a lease, and no rule holds it back."""
        kept, kind = self._kept_from(lease), self._kind_of(grant)
        asked = used_shares((), grant.slots)  # a grant may have a GPU twice
        fits = all(used.get(gpu, 0) + kept.get(gpu, 0) + share <= 1 for gpu, share in asked.items())
        over = tally.find_block(grant.claim, kind) is not None
        closed = _is_closed(grant, seen) or seen.fleet.outage_of_kind(kind) is not None
        expired = grant.expires_at is not None and grant.expires_at <= seen.now
        return fits and not over and not closed and not expired

    def _kind_of(self, grant: Grant) -> GpuKind | None:
        return self._observed.kinds.get(grant.kind or grant.claim.request.gpu or "")

    def _note_passed(self, granted: Sequence[Lease], seen: Snapshot) -> list[asyncio.Future[None]]:
        """Store for earlier requests which grants went before them, and by which rule of the order."""
        ours = [claim_of(lease) for lease in granted if self._observed.is_queue_ours(lease)]
        if not ours:
            return []
        standing = QueueOrder(seen, QuotaTally(seen, self._observed.holdings(seen)), FairShareUsage(seen))
        told: dict[str, list[str]] = {}
        waiting = longest_waiting(seen, ours)
        for claim in ours:
            for name, why in passed_requests(claim, waiting, seen, standing):
                told.setdefault(name, []).append(why)
        newest = ((self._registry.get(name), reasons) for name, reasons in told.items())
        return [
            self._registry.save(lease, audit=[self._line(lease, Passed(why)) for why in reasons])
            for lease, reasons in newest
            if lease is not None
        ]

    def _kept_from(self, lease: Lease) -> Mapping[str, Fraction]:
        """Return the share of each GPU that is reserved for stronger claims of others."""
        theirs = (x for x in self._observed.kept() if x.account is None or not is_charged_to(lease, x.account))
        return used_shares((), (slot for kept in theirs for slot in kept.slots))

    def _as_claimed(self, claim: Claim) -> Lease | None:
        """Return the waiting lease of a claim, None if it changed since."""
        lease = self._registry.get(claim.id)
        if lease is None or lease.phase not in WAITING or claim_of(lease).revision != claim.revision:
            return None
        return lease

    def _hold_back(self, by: BlockingRule | None, lease: Lease) -> asyncio.Future[None] | None:
        """Store which rule holds a request back, if it changed."""
        rule, words = ("", "") if by is None else (by.rule, by.words)
        return self._written(lease, note_wait_reason(lease, rule, words, self._clock.now()))

    def _preempt(self, one: Preempted | None, lease: Lease) -> asyncio.Future[None] | None:
        """Warn a user that a scheduler with its own queue ends their workspace, or that it no longer does."""
        now, notice = self._clock.now(), lease.notice
        if lease.phase not in UP:
            return None
        by = self._observed.queue_owner(lease)
        if one is None and notice is not None and notice.preemption == SCHEDULER:
            return self._written(lease, spare(lease, by))
        if one is not None and (notice is None or notice.preemption != SCHEDULER or notice.at != one.at):
            late = one.at <= now
            untold = f" {by} told of it when its time was over: there was no notice." if late else ""
            notice = EndNotice(SCHEDULER, one.at, f"{one.why}{untold}", by)
            return self._written(lease, warn_of_claim(lease, notice, late=late))
        return None

    def _written(self, lease: Lease, step: Step | None) -> asyncio.Future[None] | None:
        return None if step is None else self._commits.commit(lease, step)

    def _line(self, lease: Lease, event: events.Event) -> AuditLine:
        return self._commits.line(lease, GPUSPAWNER, event)


async def _all_ended(begun: Mapping[str, Mapping[str, asyncio.Future[None]]], failures: Failures) -> None:
    """Await the writes of each step. Raises Unavailable if some of them could not be stored."""
    for step, futures in begun.items():
        await end_each(step, futures, failures)


def _is_closed(grant: Grant, seen: Snapshot) -> bool:
    """Return whether an administrator closed the GPUs of a grant after it was decided."""
    gpus = (seen.fleet.by_id.get(slot.gpu) for slot in grant.slots)
    paused = seen.paused_words(grant.kind or grant.claim.request.gpu)
    return bool(paused) or any(gpu is not None and gpu.closed for gpu in gpus)


def _are_grantable(slots: Sequence[Slot], seen: Snapshot) -> bool:
    """Return whether these GPUs work and nobody else uses them. A node that is coming starts for its pod."""
    gpus = {gpu.id: gpu for gpu in seen.placement_fleet.gpus}
    return all(slot.is_coming or (slot.gpu in gpus and is_grantable(gpus[slot.gpu])) for slot in slots)


def _events(grant: Grant, lease: Lease) -> list[events.Event]:
    """Return the events of a grant: the GPUs, a substitute kind, and a bound on its end."""
    found: list[events.Event] = [events.Granted(tuple(slot.gpu for slot in grant.slots))]
    if grant.kind:
        found.append(events.Substituted(lease.request.gpu or "", grant.kind))
    if (bound := lease.latest_end) is not None:
        found.append(events.Bounded(bound.rule, bound.words))
    return found
