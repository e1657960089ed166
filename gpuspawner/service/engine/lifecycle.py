"""Carries verdicts and deadlines out: begins and ends grace, warns, and asks the reclaimer to stop."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.verdicts import LEAST_GRACE_SECONDS, Verdict, is_grace_valid, reset_idle_time, resume_streak
from gpuspawner.core.leases import events, exits, lifetimes, transitions
from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.core.leases.running_steps import fingerprint, measured
from gpuspawner.core.quotas.ledger import BUDGET_RULE
from gpuspawner.core.rules import EndNotice
from gpuspawner.schedulers.base import SCHEDULER
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocator import Allocator
from gpuspawner.service.engine.arrivals import Arrivals
from gpuspawner.service.engine.reclaimer import Reclaimer
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.failures import OF_ALL, step_each
from gpuspawner.service.rules.holds import Holds
from gpuspawner.service.rules.policies import idle_policy_of, policy_of
from gpuspawner.service.store import AuditLine

log = logging.getLogger("gpuspawner.lifecycle")

CHANGED = "its policy has changed"

DOUBLE_CLICK_SHARE = 0.9
"""With more than this of a Keep still to go, another one is taken for the same click. Arbitrary."""


class Lifecycle:
    """What happens to a running workspace, by its policy; and what its user may do about it."""

    def __init__(self, registry: LeaseRegistry, allocator: Allocator, reclaimer: Reclaimer, clock: Clock) -> None:
        """Act on the leases of ``registry``."""
        self._registry, self._allocator, self._reclaimer, self._clock = registry, allocator, reclaimer, clock
        self._holds = Holds(registry, allocator, clock)
        self.arrivals = Arrivals(allocator, reclaimer, clock)
        self._hub_silent_since: float | None = None

    async def catch_up(self) -> None:
        """To be called before samples are judged: where store or hub were away, nobody could press Keep meanwhile.

        It is as after a restart then. A hub that is silent for less than a minute hinders nobody for long.
        """
        now, since = self._clock.now(), self._hub_silent_since
        if not self._allocator.observed.hub_answers:
            self._hub_silent_since = now if since is None else since
        else:
            self._hub_silent_since = None
        hub_was_away = self._allocator.observed.hub_answers and since is not None and now - since >= LEAST_GRACE_SECONDS
        if self._registry.failed_to_write or hub_was_away:
            self._registry.failed_to_write = False  # true again where this fails
            await self.resume()

    async def resume(self) -> None:
        """After a restart: enough of a grace that ran is left for its user to object, and none passed meanwhile."""
        failures = self._registry.failures
        if (away := await step_each("going on after a restart", self._registry, self._resume, failures)) is not None:
            raise away

    def _resume(self, lease: Lease) -> asyncio.Future[None] | None:
        """Let the grace or the arrival of a lease go on. Its user is told again: the end has moved."""
        now, stored = self._clock.now(), None
        policy = idle_policy_of(self._allocator.catalog, lease, now)
        if lease.arrival is not None and policy is not None:
            awaited, arrived = self.arrivals.resumed(lease, policy)
            stored = self._registry.save(awaited, tells=[] if arrived is None else [arrived])
        if lease.phase is not Phase.RECLAIMING:
            return stored
        if policy is None:  # the catalog judges it no more
            return self._registry.save(transitions.end_grace(replace(lease, streak=reset_idle_time(lease.streak)), now))
        mode = policy_of(self._allocator.catalog, lease, now).mode
        if not is_grace_valid(lease.streak, policy, mode):
            streak = replace(lease.streak, mode=mode, countdown_seconds=None)
            line = self._allocator.commits.line(lease, "gpuspawner", events.GraceEnded(CHANGED))
            return self._registry.save(transitions.end_grace(replace(lease, streak=streak), now), audit=[line])
        resumed = replace(lease, streak=resume_streak(lease.streak, policy), sampled_at=now)
        told = events.WarnedIdle(measured(resumed, policy))
        return self._registry.save(resumed, tells=[self._allocator.commits.line(resumed, "gpuspawner", told)])

    async def follow(self) -> None:
        """Judge by the catalog in force what another one judged: after a full idle period from now on."""
        now = self._clock.now()

        def judged_anew(lease: Lease) -> asyncio.Future[None] | None:
            policy, mode = self._judges(lease)
            anew, lines = self.under(lease, policy, mode, now)
            return None if anew == lease else self._registry.save(anew, audit=lines)

        up = [lease for lease in self._registry if lease.phase in UP]
        away = await step_each("following the catalog", up, judged_anew, self._registry.failures)
        if away is not None:
            raise away

    def _judges(self, lease: Lease) -> tuple[IdlePolicy | None, Mode]:
        catalog, now = self._allocator.catalog, self._clock.now()
        return idle_policy_of(catalog, lease, now), policy_of(catalog, lease, now).mode

    def under(self, lease: Lease, policy: IdlePolicy | None, mode: Mode, at: float) -> tuple[Lease, list[AuditLine]]:
        """Return the lease as it is judged from now on, and what to audit. It is saved by the caller.

        Where hours or the catalog changed what judges it, its idle time begins anew: nobody is ended by a policy before
        a full idle period of it has passed. What was sampled ``at`` tells of the time before.
        """
        judged = fingerprint(policy, mode)
        if judged == lease.judged:
            return lease, []
        if not lease.judged:  # its first sample, or that of an older version
            return replace(lease, judged=judged), []
        anew = replace(lease, judged=judged, streak=replace(reset_idle_time(lease.streak), mode=mode), sampled_at=at)
        told = lease.streak.grace_left_seconds is not None
        lines = [self._allocator.commits.line(lease, "gpuspawner", events.GraceEnded(CHANGED))] if told else []
        return (transitions.end_grace(anew, self._clock.now()) if lease.phase is Phase.RECLAIMING else anew), lines

    def apply(self, lease: Lease, verdict: Verdict) -> tuple[Lease, list[AuditLine]]:
        """Return the lease after the verdict on its newest sample, and what to audit. It is saved by the caller.

        A stop is none of it: that is :meth:`reclaim`, once the sample is stored.
        """
        now, in_force = self._clock.now(), lease.streak.mode is Mode.ENFORCE
        if verdict is Verdict.BEGIN_GRACE:
            # In mode warn the workspace goes on running: nothing will be reclaimed.
            warned = transitions.begin_grace(lease, now) if in_force else lease
            return warned, [self._allocator.commits.line(lease, "gpuspawner", events.WarnedIdle(self._measured(lease)))]
        if verdict is Verdict.END_GRACE and lease.phase is Phase.RECLAIMING:
            line = self._allocator.commits.line(lease, "gpuspawner", events.GraceEnded(lease.streak.because))
            return transitions.end_grace(lease, now), [line]
        if verdict in {Verdict.WOULD_BEGIN_GRACE, Verdict.WOULD_RECLAIM}:
            would = events.WouldWarn if verdict is Verdict.WOULD_BEGIN_GRACE else events.WouldStop
            return lease, [self._allocator.commits.line(lease, "gpuspawner", would(self._measured(lease)))]
        return lease, []

    def _measured(self, lease: Lease) -> str:
        return measured(lease, idle_policy_of(self._allocator.catalog, lease, self._clock.now()))

    async def reclaim(self, lease: Lease) -> None:
        """Have an idle workspace stopped whose grace has passed, unless anything changed since."""
        policy = idle_policy_of(self._allocator.catalog, lease, self._clock.now())
        if policy is None:  # the catalog judges it no more
            return
        how = exits.idle(measured(lease, policy), policy.grace_seconds)

        def still_idle(newest: Lease) -> bool:
            """Nothing changed since the verdict: same server, newest sample, still in its grace, not kept."""
            return (
                newest.phase is Phase.RECLAIMING
                and self._allocator.observed.hub_answers  # else it could neither be stopped nor kept
                and newest.server_started == lease.server_started
                and newest.sampled_at == lease.sampled_at
                and newest.streak.grace_left_seconds == 0
                and (self.kept_until(newest) or 0.0) <= self._clock.now()
            )

        try:
            await self._reclaimer.mark(lease.id, how, still_idle)
        except Conflict as error:
            log.info("%s is not reclaimed: %s", lease.id, error)

    async def deadlines(self) -> None:
        """Tell and carry out what the deadlines say. Expiry acts in every mode. Note what time was lost."""
        now, failures = self._clock.now(), self._registry.failures
        up = [lease for lease in self._registry if lease.phase in UP]
        await step_each("deadline", up, lambda lease: self._due(lease, now), failures)
        for lease in self._registry:
            until = lease.granted_until or 0.0
            if lease.phase not in UP or lease.deadline_at is None or lease.deadline_at >= until:
                continue
            if failures.may_try("extending again", lease.id):
                with failures.isolating("extending again", lease.id):
                    await self._extend_again(lease, lease.deadline_at, until)
        for what, look in (
            ("looking who runs into a class", self._holds.look),
            ("noting lost time", self._allocator.lost_time.look),
            ("giving back what a budget cut", self._allocator.bounds.catch_up),
        ):
            if not failures.may_try(what):
                continue
            try:
                with failures.isolating(what):
                    await look()
            except Unavailable as error:
                failures.note_wait(what, OF_ALL, error)

    def _due(self, lease: Lease, now: float) -> asyncio.Future[None] | None:
        """Carry out what is due for a running workspace."""
        notice = lease.notice
        if notice is not None and not notice.preemption and notice.at <= now:
            return self._announced(lease, notice)
        return None if lease.deadline_at is None else self._deadline(lease, lease.deadline_at, now)

    def _deadline(self, lease: Lease, deadline_at: float, now: float) -> asyncio.Future[None] | None:
        extend = policy_of(self._allocator.catalog, lease, now).extend
        lifetime_seconds = lease.request.lifetime_seconds + lease.extended_seconds
        if lease.latest_end is not None and lease.running_at is not None:
            lifetime_seconds = min(lifetime_seconds, deadline_at - lease.running_at)
        due = lifetimes.due_warnings(deadline_at, lease.warned_seconds, extend, lifetime_seconds, now)
        if due is not None:
            told = (*lease.warned_seconds, *due.thresholds)
            line = self._allocator.commits.line(lease, "gpuspawner", events.WarnedOfEnd(max(0.0, due.deadline - now)))
            return self._registry.save(replace(lease, deadline_at=due.deadline, warned_seconds=told), audit=[line])
        if lifetimes.is_expired(deadline_at, lease.warned_seconds, now):
            bounds, how = self._allocator.bounds, exits.expired(lifetime_seconds)
            if lease.latest_end is not None and lease.latest_end.rule == BUDGET_RULE:
                how = exits.budget_used_up(bounds.used_up(lease))
            return self._reclaimer.mark(lease.id, how, lambda newest: newest.deadline_at == deadline_at)
        return None

    async def _extend_again(self, lease: Lease, deadline_at: float, until: float) -> None:
        """Have what came back run until an administrator's extension of it ends, as far as budgets leave it."""
        latest = self._allocator.bounds.of_extension(lease, until - deadline_at)
        end = until if latest is None else min(until, latest.at)
        if end <= deadline_at:
            return
        try:
            await self._allocator.scheduler.extend(lease, end)
            newest = self._registry.get(lease.id)
            if newest is None or newest.phase not in UP or newest.deadline_at != deadline_at:
                return
            extended = newest.extended_seconds + end - deadline_at
            longer = replace(newest, deadline_at=end, extended_seconds=extended, warned_seconds=(), latest_end=latest)
            event = events.Extended(end - deadline_at, "as an administrator had extended it before")
            await self._registry.save(longer, audit=[self._allocator.commits.line(longer, "gpuspawner", event)])
        except (Conflict, Unavailable) as error:
            self._registry.failures.note_wait("extending again", lease.id, error)

    def kept_until(self, lease: Lease) -> float | None:
        """Return until when no idle time counts: its user keeps it, or an administrator exempts it; None for never."""
        found = (lease.kept_until, self._allocator.restrictions.exempt_until(lease))
        return max((at for at in found if at is not None), default=None)

    def _announced(self, lease: Lease, notice: EndNotice) -> asyncio.Future[None] | None:
        """Have a workspace ended at the time that an administrator announced, if it still is the same one."""
        if not self._allocator.observed.hub_answers:
            return None  # it could not be stopped

        def still(newest: Lease) -> bool:
            return newest.notice == notice and newest.server_started == lease.server_started

        how = (exits.moved_by if notice.moves else exits.stopped_by)(notice.by, notice.where, notice.why)
        return self._reclaimer.mark(lease.id, how, still)

    async def keep(self, lease: Lease, by: str, where: str = "") -> Lease:
        """Keep an idle workspace for its policy's time. Raises Conflict where none is left, or it does not run.

        Soon after another Keep it changes nothing: a second click, or a second page, must not use one up.
        """
        now = self._clock.now()
        policy = policy_of(self._allocator.catalog, lease, now)
        if lease.kept_until is not None and lease.kept_until - now > DOUBLE_CLICK_SHARE * policy.keep.each_seconds:
            await self._registry.stored(lease.id)
            return lease
        until = lifetimes.keep(lease.keeps_used, policy.keep, now)
        reset_idle_time = transitions.keep(lease, until, now)
        line = self._allocator.commits.line(reset_idle_time, by, events.Kept(policy.keep.each_seconds), where)
        await self._registry.save(reset_idle_time, audit=[line])
        return reset_idle_time

    async def extend(self, lease: Lease, by: str, where: str = "") -> Lease:
        """Move the deadline by its policy's step.

        Raises:
            Conflict: nothing is left, there is no deadline, or the scheduler refuses, in its words.
            Unavailable: the scheduler that must agree does not answer.
        """
        longer, seconds = self._longer(lease)
        owner = self._allocator.scheduler.capabilities_of(lease.request.gpu)
        if owner.owns_queue and longer.deadline_at is not None:
            await self._allocator.scheduler.extend(lease, longer.deadline_at)
            newest = self._registry.get(lease.id)
            if newest is None or (newest.deadline_at, newest.phase) != (lease.deadline_at, lease.phase):
                raise Conflict("This workspace changed while its scheduler was asked. Press Extend again.")
            longer, seconds = self._longer(newest)
        line = self._allocator.commits.line(longer, by, events.Extended(seconds), where)
        await self._registry.save(longer, audit=[line])
        return longer

    def _longer(self, lease: Lease) -> tuple[Lease, float]:
        """Return a lease whose end is moved by its policy's step, and by how much. Raises Conflict.

        What a scheduler that owns the queue fixed at the grant binds no longer: it is asked each time.
        """
        if lease.fixed_end is not None and lease.fixed_end.rule == SCHEDULER:
            lease = replace(lease, fixed_end=None)
        if lease.phase not in UP or lease.deadline_at is None:
            raise Conflict("This workspace has no running lifetime to extend.")
        if why := self._allocator.bounds.left_to_others(lease):
            raise Conflict(why)
        policy = policy_of(self._allocator.catalog, lease, self._clock.now())
        latest = self._allocator.bounds.of_extension(lease, policy.extend.each_seconds)
        hold = self._holds.bound_of(lease, lease.deadline_at + policy.extend.each_seconds)
        bound = min((one for one in (latest, hold) if one is not None), key=lambda one: one.at, default=None)
        deadline_at, extended = lifetimes.extend(
            lease.deadline_at, lease.extended_seconds, policy.extend, self._clock.now(), bound
        )
        if latest is not None and latest.at > deadline_at:
            latest = lease.fixed_end  # the budget leaves more than this step
        changed = replace(
            lease, deadline_at=deadline_at, extended_seconds=extended, warned_seconds=(), latest_end=latest
        )
        return changed, extended - lease.extended_seconds
