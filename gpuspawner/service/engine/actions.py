"""The actions of people on a running workspace: keep it, extend it, open it, and end it for good."""

from __future__ import annotations

from dataclasses import replace

from gpuspawner.core import events
from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases import lifetimes, transitions
from gpuspawner.core.leases.exits import Exit
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.leases.running_steps import come, kept_until
from gpuspawner.core.leases.step_results import Note, Step
from gpuspawner.core.queue.class_holds import extension_bound
from gpuspawner.core.rules import LatestEnd
from gpuspawner.core.units import show_time
from gpuspawner.schedulers.base import SCHEDULER
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.rules.policies import policy_of

DOUBLE_CLICK_SHARE = 0.9
"""While more than this share of a Keep is left, another Keep counts as the same click. Arbitrary."""


class LeaseActions:
    """Carries out the actions of users and administrators on running workspaces."""

    def __init__(self, allocator: Allocator) -> None:
        """Change the leases of the allocator's registry."""
        self._registry, self._allocator, self._clock = allocator.registry, allocator, allocator.clock

    def kept_until(self, lease: Lease) -> float | None:
        """Return the time until which idle time does not count, by Keep or by an exemption; None without either."""
        return kept_until(lease, self._allocator.restrictions.exempt_until(lease))

    async def keep(self, lease: Lease, actor: str, where: str = "") -> Lease:
        """Keep an idle workspace for its policy's time, and return it.

        Soon after another Keep this changes nothing, because a second click must not use up another Keep.

        Raises:
            Conflict: no Keep is left, or the workspace does not run.
        """
        now = self._clock.now()
        policy = policy_of(self._allocator.catalog, lease, now).keep
        if lease.kept_until is not None and lease.kept_until - now > DOUBLE_CLICK_SHARE * policy.each_seconds:
            await self._registry.stored(lease.id)
            return lease
        kept = transitions.keep(lease, lifetimes.keep(lease.keeps_used, policy, now), now)
        await self._commit(lease, Step(kept, (Note(events.Kept(policy.each_seconds), actor, where),)))
        return kept

    async def extend(self, lease: Lease, actor: str, where: str = "") -> Lease:
        """Move the deadline by its policy's step, and return the lease.

        Raises:
            Conflict: no time is left, there is no deadline, or the scheduler refuses. The message is the reason.
            Unavailable: the scheduler that must agree does not answer.
        """
        longer, seconds = self._longer(lease)
        owner = self._allocator.scheduler.capabilities_of(lease.request.gpu)
        if owner.owns_queue and longer.deadline_at is not None:
            await self._allocator.scheduler.extend(lease, longer.deadline_at)
            newest = self._registry.get(lease.id)
            if newest is None or (newest.deadline_at, newest.phase) != (lease.deadline_at, lease.phase):
                raise Conflict("This workspace changed while its scheduler was asked. Press Extend again.")
            lease = newest
            longer, seconds = self._longer(lease)
        await self._commit(lease, Step(longer, (Note(events.Extended(seconds), actor, where),)))
        return longer

    def _longer(self, lease: Lease) -> tuple[Lease, float]:
        """Return a lease with its end moved by its policy's step, and the seconds. Raise Conflict if it can't be moved.

        A bound that a scheduler with its own queue set at the grant no longer applies, because it is asked each time.
        """
        allocator, now = self._allocator, self._clock.now()
        if lease.fixed_end is not None and lease.fixed_end.rule == SCHEDULER:
            lease = replace(lease, fixed_end=None)
        if lease.phase not in UP or lease.deadline_at is None:
            raise Conflict("This workspace does not run, or has no end. There is nothing to extend.")
        if why := allocator.bounds.reason_not_to_extend(lease):
            raise Conflict(why)
        policy = policy_of(allocator.catalog, lease, now).extend
        latest = allocator.bounds.of_extension(lease, policy.each_seconds)
        hold = self._class_hold_bound(lease, lease.deadline_at + policy.each_seconds)
        bound = min((one for one in (latest, hold) if one is not None), key=lambda one: one.at, default=None)
        deadline_at, extended = lifetimes.extend(lease.deadline_at, lease.extended_seconds, policy, now, bound)
        if latest is not None and latest.at > deadline_at:
            latest = lease.fixed_end  # the budget allows more than this step
        longer = replace(
            lease, deadline_at=deadline_at, extended_seconds=extended, warned_seconds=(), latest_end=latest
        )
        return longer, extended - lease.extended_seconds

    def _class_hold_bound(self, lease: Lease, until: float) -> LatestEnd | None:
        """Return the bound that a class hold sets on an extension until then, None without a bound."""
        seen = self._allocator.observed.snapshot()
        held = extension_bound(lease, until, seen) if seen.rules.holds else None
        if held is None:
            return None
        begins = show_time(held.opening.opens_at, seen.now)
        words = f"can't run beyond {begins} by an extension, when {held.are_held}"
        return replace(held.bound(seen.now), words=words)

    async def note_arrival(self, lease: Lease, actor: str, words: str, where: str) -> None:
        """Note that the user opened the workspace, and how. It may be repeated."""
        if lease.arrival is not None and lease.phase in UP:
            await self._commit(lease, come(lease, Note(events.Came(words), actor, where), self._clock.now()))

    async def end_for_good(self, lease: Lease, how: Exit) -> None:
        """End a lease that was to start again, because its user stopped it meanwhile."""
        current = self._registry.get(lease.id)
        if current is not None and (after := transitions.end_for_good(current, how)) is not current:
            stopped = Note(events.Stopped(how.reason.value, how.message), how.by, how.where)
            await self._commit(current, Step(after, (stopped,)))

    async def _commit(self, lease: Lease, step: Step) -> None:
        await self._allocator.commits.commit(lease, step)
