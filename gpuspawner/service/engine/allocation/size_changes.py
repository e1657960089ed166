"""Carries out changes of size: restarts a running workspace once the GPUs of its new size are free.

The workspace runs on until then. Its user is told before it restarts. From then on its lease also holds the GPUs that
its new size needs. The lease that continues it gets these before anything else is granted. So a restart of the service
at any time loses neither.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from dataclasses import replace
from math import inf

from gpuspawner.core import events
from gpuspawner.core.errors import RequestRefused, Unavailable
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.leases import exits, successors
from gpuspawner.core.leases.lease import UP, WAITING, Key, Lease
from gpuspawner.core.leases.request import Request, SizeChange
from gpuspawner.core.leases.step_results import Note, Step
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.schedulers.base import Preview, Scheduler
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocation.grants import GrantWriter
from gpuspawner.service.engine.allocation.observed_state import ObservedState
from gpuspawner.service.engine.commits import LeaseCommits
from gpuspawner.service.engine.registry import LeaseRegistry, wait_for_all

LOOK_SECONDS = 5.0
"""Waiting changes are checked again after this time even if nothing changed. The GPUs are observed as often."""
NOTICE_SECONDS = 600.0
"""How long before the restart the user is warned. The additional GPUs are unused meanwhile. Arbitrary: long enough to
write a checkpoint."""
SOONER_SECONDS = 60.0
"""A change waits if the new size would have to end earlier than the workspace by more than this time."""


def claim_of_change(lease: Lease, change: SizeChange) -> Claim:
    """Return the claim of a new size, without substitutes, because its user asks for this size."""
    request = replace(change.after.request, substitutes=())
    return Claim(
        successors.successor_id(lease),
        lease.key.user_created,
        request,
        change.asked_at,
        attended=False,
        user=lease.user,
        waiting_since=change.asked_at,
        replaces=lease.id,
    )


class SizeChanges:
    """Begins the changes that can start now, and grants the GPUs that are held for begun changes."""

    def __init__(
        self,
        registry: LeaseRegistry,
        scheduler: Scheduler,
        observed: ObservedState,
        granting: GrantWriter,
        commits: LeaseCommits,
        clock: Clock,
        check: Callable[[Request, Key], None],
    ) -> None:
        """Change nothing yet. ``check`` raises RequestRefused for a request that may not be made."""
        self._registry, self._scheduler, self._observed = registry, scheduler, observed
        self._granting, self._commits, self._clock, self._check = granting, commits, clock, check
        self._looked_at = -inf
        self._changes, self._basis = 0, tuple[object, ...]()
        self.previews: dict[str, Preview] = {}
        """The last preview of each waiting change, by the id of the running lease."""

    def keeps_running(self, request: Request) -> bool:
        """Return whether a workspace can run on until this size is free. Only gpuspawner's queue can hold its GPUs."""
        capabilities = self._scheduler.capabilities_of(request.gpu)
        return not capabilities.owns_queue and capabilities.pod_waits_seconds is None

    def ask(self) -> None:
        """Check the changes at the next sync, even if nothing else changed."""
        self._looked_at = -inf

    async def look(self) -> None:
        """Begin or grant what is possible now. An error in one change does not affect others."""
        waiting = [lease for lease in self._registry if lease.assigned and lease.phase in WAITING]
        changing = [lease for lease in self._registry if lease.size_change is not None and lease.phase in UP]
        self.previews = {lease.id: self.previews[lease.id] for lease in changing if lease.id in self.previews}
        if not (waiting or changing) or not (self._observed.hub_answers and self._observed.processes_known):
            return
        failures = self._registry.failures
        stored: list[asyncio.Future[None] | None] = []
        for lease in waiting:
            with failures.isolating("granting a new size", lease.id):
                stored.append(self._granting.assign(lease))
        if self._is_due():
            for lease in sorted(changing, key=lambda one: one.size_change.asked_at if one.size_change else 0.0):
                with failures.isolating("changing the size", lease.id, raises=()):
                    stored.append(await self._begin(lease))
        await wait_for_all(stored)

    def _is_due(self) -> bool:
        """Return whether something changed since the last check, or that was long ago."""
        now, basis = self._clock.now(), (self._scheduler.fleet, self._scheduler.room)
        is_same = self._changes == self._registry.changes and all(map(operator.is_, basis, self._basis))
        if is_same and 0 <= now - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at, self._changes, self._basis = now, self._registry.changes, basis
        return True

    async def _begin(self, lease: Lease) -> asyncio.Future[None] | None:
        """Check whether a new size can start, and take the next step. Return None without a step."""
        change = lease.size_change
        assert change is not None, "only leases with a change of size are checked"
        try:
            self._check(change.after.request, lease.key)
        except RequestRefused as error:
            dropped = replace(lease, size_change=None, assigned=())
            return self._commits.commit(lease, Step(dropped, (Note(events.SizeChangeRefused(str(error))),)))
        if change.restarts_at is not None and change.after.slots:
            return self._keep_announcement(lease, change, change.restarts_at)
        changes = self._registry.changes
        try:
            found = await self.preview(lease, change)
        except Unavailable:
            return None  # pages show the outage
        self.previews[lease.id] = found
        if self._registry.changes != changes:
            return None
        if (newest := self._registry.get(lease.id)) is None or newest.size_change != change or newest.phase not in UP:
            return None
        return self._advance(newest, change, found)

    def _advance(self, lease: Lease, change: SizeChange, found: Preview) -> asyncio.Future[None] | None:
        """Announce, begin or postpone a restart. Return None before its time."""
        if not starts_now(lease, found):
            return self._postpone(lease, change)
        if change.restarts_at is None:
            return self._announce(lease, change, found)
        return self._stop(lease, change, found.slots or ()) if self._clock.now() >= change.restarts_at else None

    def _keep_announcement(self, lease: Lease, change: SizeChange, at: float) -> asyncio.Future[None] | None:
        """Begin an announced restart when it is time, whoever asked meanwhile, if the new size still gets its GPUs."""
        slots, kind = change.after.slots, self._observed.kinds.get(change.after.request.gpu or "")
        if self._observed.fleet.outage_of_kind(kind) is not None:
            return None  # nothing is granted until the GPUs are seen again
        if not self._granting.could_assign(lease, claim_of_change(lease, change), slots):
            return self._postpone(lease, change)
        return self._stop(lease, change, slots) if self._clock.now() >= at else None

    async def preview(self, lease: Lease, change: SizeChange) -> Preview:
        """Return the scheduler's preview of a new size. GPUs that are held for it count as free.

        Raises:
            Unavailable: the scheduler does not answer.
        """
        others = self._observed.others_without(lease.id)
        return await self._scheduler.offers(
            replace(self._observed.snapshot(), others=others), claim_of_change(lease, change)
        )

    def _announce(self, lease: Lease, change: SizeChange, found: Preview) -> asyncio.Future[None]:
        """Hold the GPUs of the new size, and tell the user when the workspace restarts."""
        seconds = NOTICE_SECONDS / self._observed.snapshot().fast
        slots = found.slots or ()
        after = replace(change.after, slots=slots)
        announced = replace(change, after=after, restarts_at=self._clock.now() + seconds)
        held = successors.additional_slots(lease.slots, slots)
        holding = replace(lease, size_change=announced, assigned=held)
        return self._commits.commit(lease, Step(holding, (Note(events.SizeChangeNear(seconds)),)))

    def _postpone(self, lease: Lease, change: SizeChange) -> asyncio.Future[None] | None:
        """Release the GPUs of an announced restart, because they are no longer free for it."""
        if change.restarts_at is None:
            return None
        waiting = replace(change, after=replace(change.after, slots=()), restarts_at=None)
        after = replace(lease, size_change=waiting, assigned=())
        return self._commits.commit(lease, Step(after, (Note(events.SizeChangePostponed()),)))

    def _stop(self, lease: Lease, change: SizeChange, slots: tuple[Slot, ...]) -> asyncio.Future[None]:
        holding = successors.begin_size_change(lease, slots, self._clock.now())
        how = exits.goes_on(change.actor, change.where, size_words(change.after.request, self._scheduler))
        return self._commits.finish(holding, how)


def starts_now(lease: Lease, found: Preview) -> bool:
    """Return whether a new size can start now, and run as long as the workspace would."""
    latest, deadline_at = found.latest_end, lease.deadline_at
    ends_sooner = latest is not None and deadline_at is not None and latest.at < deadline_at - SOONER_SECONDS
    return found.slots is not None and not ends_sooner


def size_words(request: Request, scheduler: Scheduler) -> str:
    """Return the GPUs of a size in words."""
    kind = scheduler.kinds.get(request.gpu or "")
    return f"{request.count} {kind.title}" if kind is not None else "no GPU"
