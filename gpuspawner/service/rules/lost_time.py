"""Time that workspaces lose by no fault of their users: it is noted on their leases, and not charged.

This service was away for more than a minute: nobody could stop, keep or extend anything. GPUs failed. A node did not
answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from fractions import Fraction

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.rules import LostInterval
from gpuspawner.schedulers.base import Scheduler
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.failures import step_each

AWAY_SECONDS = 60.0
"""A service that is away for less hinders nobody for long."""
NOTED_SECONDS = 20.0
"""How often it is stored that this service serves. Arbitrary: a third of AWAY_SECONDS."""
AWAY = "The GPU service was away: the workspace could be neither stopped nor extended."
NODE = "Its node did not answer."


class LostTime:
    """Notes it as it begins and ends."""

    def __init__(self, registry: LeaseRegistry, scheduler: Scheduler, clock: Clock) -> None:
        """Look at nothing yet."""
        self._registry, self._scheduler, self._clock = registry, scheduler, clock
        self._noted_at: float | None = None
        self._looked_at: float | None = None
        self._unstored_since: float | None = None

    async def resume(self) -> None:
        """After a restart: note how long no service was there."""
        noted_at, now = await self._registry.store.read(self._registry.store.last_alive_at), self._clock.now()
        if noted_at is not None:
            await self._away(noted_at, now)
        await self._note(now)
        self._looked_at = now

    async def look(self) -> None:
        """Note what began or ended since the last look. To be called every second or so.

        Raises:
            Unavailable: the store does not answer; that is time lost too.
        """
        now, looked_at = self._clock.now(), self._looked_at
        if looked_at is not None and self._clock.awake_since() > looked_at:  # this process stood still
            await self._away(looked_at, self._clock.awake_since())
        self._looked_at = now
        if self._noted_at is None or self._unstored_since is not None or now - self._noted_at >= NOTED_SECONDS:
            try:
                await self._note(now)
            except Unavailable:
                self._unstored_since = self._unstored_since or self._noted_at or now
                raise
            if self._unstored_since is not None:
                await self._away(self._unstored_since, now)
                self._unstored_since = None
        now = self._clock.now()

        def note(lease: Lease) -> asyncio.Future[None] | None:
            after = self._seen(lease, now)
            return None if after is lease else self._registry.save(after)

        if (away := await step_each("noting lost time", self._charged(), note, self._registry.failures)) is not None:
            raise away

    async def _note(self, now: float) -> None:
        await self._registry.store.write(self._registry.store.note_alive, now)
        self._noted_at = now

    async def _away(self, since: float, until: float) -> None:
        if until - since <= AWAY_SECONDS:
            return
        lost = LostInterval(since, until, AWAY)
        if changed := [replace(lease, lost=(*lease.lost, lost)) for lease in self._charged()]:
            await self._registry.save(*changed)

    def _charged(self) -> list[Lease]:
        return [lease for lease in self._registry if lease.phase in UP and lease.rate is not None]

    def _seen(self, lease: Lease, now: float) -> Lease:
        """Return a lease with what is lost of it now; itself where nothing changed."""
        going_on = {(one.why, one.share) for one in lease.lost if one.until is None}
        due = self._failed(lease) | self._unreachable(lease, going_on)
        if due == going_on:
            return lease
        kept = tuple(
            replace(one, until=now) if one.until is None and (one.why, one.share) not in due else one
            for one in lease.lost
        )
        begun = (LostInterval(now, None, why, share) for why, share in sorted(due - going_on))
        return replace(lease, lost=(*kept, *begun))

    @staticmethod
    def _failed(lease: Lease) -> set[tuple[str, Fraction]]:
        if not lease.unhealthy or not lease.slots:
            return set()
        names = ", ".join(lease.unhealthy)
        return {
            (f"{names} was reported unhealthy.", min(Fraction(1), Fraction(len(lease.unhealthy), len(lease.slots))))
        }

    def _unreachable(self, lease: Lease, going_on: set[tuple[str, Fraction]]) -> set[tuple[str, Fraction]]:
        fleet = self._scheduler.fleet
        known = [fleet.by_id[slot.gpu] for slot in lease.slots if slot.gpu in fleet.by_id]
        if not fleet.complete or not known:
            return {one for one in going_on if one[0] == NODE}  # it is not known to answer again
        away = sum(not gpu.reachable for gpu in known)
        return {(NODE, Fraction(away, len(lease.slots)))} if away else set()
