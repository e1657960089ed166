"""Carries out what follows where a workspace came while its user was away: it waits, is claimed, or is given back."""

from __future__ import annotations

import logging
from dataclasses import replace

from gpuspawner.core.errors import Conflict
from gpuspawner.core.idle.evidence import Evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.verdicts import (
    ArrivalStep,
    advance_arrival,
    arrival_sign,
    credited_seconds,
    reset_idle_time,
    resume_arrival,
)
from gpuspawner.core.leases import events, exits
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.units import show_duration, show_time
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocator import Allocator
from gpuspawner.service.engine.reclaimer import Reclaimer
from gpuspawner.service.store import AuditLine

log = logging.getLogger("gpuspawner.lifecycle")


class Arrivals:
    """Judges each sample of such a workspace before its idleness is."""

    def __init__(self, allocator: Allocator, reclaimer: Reclaimer, clock: Clock) -> None:
        """Act through ``reclaimer``."""
        self._allocator, self._reclaimer, self._clock = allocator, reclaimer, clock

    def see(
        self, lease: Lease, evidence: Evidence, policy: IdlePolicy, mode: Mode
    ) -> tuple[Lease, list[AuditLine], ArrivalStep | None]:
        """Return the lease after a sample, what to audit, and what follows. It is saved by the caller.

        None follows for a workspace that nobody has to come to. An end is none of it: that is :meth:`give_back`, once
        the sample is stored.
        """
        if lease.arrival is None:
            return lease, [], None
        could_come = self._allocator.observed.hub_answers and self._clock.now() >= (lease.ready_at or 0.0)
        credit_seconds = credited_seconds(evidence, policy) if could_come else 0.0
        sign = arrival_sign(evidence)
        arrival, turn = advance_arrival(lease.arrival, sign, credit_seconds, policy, mode)
        after = replace(lease, arrival=arrival)
        if turn is ArrivalStep.CAME:
            return (
                self._anew(replace(after, claimed_at=self._clock.now())),
                [self._line(after, events.Came(sign.words))],
                turn,
            )
        if self._allocator.restrictions.exempt_until(lease) is not None:
            words = "An administrator exempts it from idleness: nobody has to come."
            return self._anew(after), [self._line(after, events.NobodyCameYet(words))], ArrivalStep.OVER
        if turn is ArrivalStep.OVER:
            words = f"Within {show_duration(arrival.claim_seconds)} nobody was seen. Idle time counts from here on."
            missed = replace(self._anew(after), unclaimed=arrival.absent_seconds > 0 and arrival.is_known(policy))
            return missed, [self._line(after, events.NobodyCameYet(words))], turn
        if turn is ArrivalStep.WARN:
            return after, [self._line(after, self.warning(after))], turn
        return after, [], turn

    def warning(self, lease: Lease) -> events.WarnedNobodyCame:
        """Return what is recorded of the warning: until when somebody has to come."""
        left = 0.0 if lease.arrival is None else lease.arrival.left_seconds
        now = self._clock.now()
        return events.WarnedNobodyCame(f"Nobody has come to it yet; somebody has to by {show_time(now + left, now)}.")

    def resumed(self, lease: Lease, policy: IdlePolicy) -> tuple[Lease, AuditLine | None]:
        """Return a lease as a service goes on with it that was away, and the warning that may not have been sent."""
        if lease.arrival is None or lease.phase not in UP:
            return lease, None
        after = replace(lease, arrival=resume_arrival(lease.arrival, policy))
        told = lease.arrival.warned_after_seconds is not None
        return after, self._line(after, self.warning(after)) if told else None

    async def come(self, lease: Lease, by: str, words: str, where: str) -> None:
        """Take a workspace for claimed; ``words`` say how. Repeating it is harmless."""
        if lease.arrival is not None and lease.phase in UP:
            line = self._allocator.commits.line(lease, by, events.Came(words), where)
            came = self._anew(replace(lease, claimed_at=self._clock.now()))
            await self._allocator.registry.save(came, audit=[line])

    async def give_back(self, lease: Lease) -> None:
        """Have a workspace ended to which nobody came, unless anything changed since."""
        if lease.arrival is None:
            return

        def still_nobody(newest: Lease) -> bool:
            return (
                newest.phase in UP
                and self._allocator.observed.hub_answers  # else nobody could have come, and it can't be stopped
                and newest.server_started == lease.server_started
                and newest.sampled_at == lease.sampled_at
                and newest.arrival == lease.arrival
            )

        try:
            await self._reclaimer.mark(lease.id, exits.nobody_came(lease.arrival.claim_seconds), still_nobody)
        except Conflict as error:
            log.info("%s is not given back: %s", lease.id, error)

    @staticmethod
    def _anew(lease: Lease) -> Lease:
        """Return a lease that is judged as every workspace from here on, as if it had started now."""
        return replace(lease, arrival=None, streak=replace(reset_idle_time(lease.streak), since_busy_seconds=0.0))

    def _line(self, lease: Lease, event: events.Event) -> AuditLine:
        return self._allocator.commits.line(lease, "gpuspawner", event)
