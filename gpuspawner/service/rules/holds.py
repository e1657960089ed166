"""Tells those whose workspaces run into the time of a class, and bounds what extends into it. It ends nothing."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

from gpuspawner.core.leases import events
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.leases.lifetimes import LEAST_NOTICE_SECONDS
from gpuspawner.core.queue.class_holds import HeldGpus, extension_bound, leases_reaching_into_holds
from gpuspawner.core.rules import LatestEnd
from gpuspawner.core.units import show_time
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocator import Allocator
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.failures import step_each
from gpuspawner.service.rules.policies import policy_of

LOOK_SECONDS = 30.0
"""How often it is looked who runs into a hold. Arbitrary: people are told an hour before, as a rule."""


class Holds:
    """What follows from the holds of the catalog for what runs."""

    def __init__(self, registry: LeaseRegistry, allocator: Allocator, clock: Clock) -> None:
        """Look at nothing yet."""
        self._registry, self._allocator, self._clock = registry, allocator, clock
        self._looked_at = -math.inf

    async def look(self) -> None:
        """Tell who runs into a hold, as long before as of a deadline, once; and take that back where it is over."""
        now = self._clock.now()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        seen = self._allocator.observed.snapshot()
        reaching = leases_reaching_into_holds(seen) if seen.rules.holds else {}

        def look_at(lease: Lease) -> asyncio.Future[None] | None:
            held = reaching.get(lease.id)
            if held is not None and lease.phase in UP and self._is_time(lease, held):
                return self._tell(lease, held)
            if held is None and lease.reaches_into is not None:
                return self._registry.save(replace(lease, reaches_into=None))
            return None

        step = "looking who runs into a class"
        if (away := await step_each(step, self._registry, look_at, self._registry.failures)) is not None:
            raise away

    def bound_of(self, lease: Lease, until: float) -> LatestEnd | None:
        """Return the bound on an extension until then; None where no hold lacks GPUs for it."""
        seen = self._allocator.observed.snapshot()
        held = extension_bound(lease, until, seen) if seen.rules.holds else None
        if held is None:
            return None
        begins = show_time(held.opening.opens_at, seen.now)
        words = f"can't run beyond {begins} by an extension, when {held.are_held}"
        return replace(held.bound(seen.now), words=words)

    def _is_time(self, lease: Lease, held: HeldGpus) -> bool:
        warn = policy_of(self._allocator.catalog, lease, self._clock.now()).extend.warn_seconds
        return held.opening.opens_at - self._clock.now() <= max(warn, default=LEAST_NOTICE_SECONDS)

    def _tell(self, lease: Lease, held: HeldGpus) -> asyncio.Future[None] | None:
        known, at = lease.reaches_into, held.opening.opens_at
        if known is not None and (known.at, known.name) == (at, held.hold.group):
            return None
        hold = replace(held.bound(self._clock.now()), words=held.words(self._clock.now()))
        told = replace(lease, reaches_into=hold)
        return self._registry.save(
            told, audit=[self._allocator.commits.line(told, "gpuspawner", events.ReachesInto(hold.words))]
        )
