"""Notes when the service did not run or its store did not answer. Users lose that time, and it is not charged."""

from __future__ import annotations

from dataclasses import replace

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import UP
from gpuspawner.core.rules import LostInterval
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.registry import LeaseRegistry

AWAY_SECONDS = 60.0
"""A shorter absence of the service does not count as lost time."""
NOTED_SECONDS = 20.0
"""How often the service stores that it runs. Arbitrary: a third of AWAY_SECONDS."""
AWAY = "The GPU service was away: the workspace could be neither stopped nor extended."


class Availability:
    """Stores from time to time that the service runs, and adds lost time to each charged lease."""

    def __init__(self, registry: LeaseRegistry, clock: Clock) -> None:
        """Note nothing yet."""
        self._registry, self._clock = registry, clock
        self._noted_at: float | None = None
        self._looked_at: float | None = None
        self._unstored_since: float | None = None

    async def resume(self) -> None:
        """After a restart, note the time without a service."""
        store, now = self._registry.store, self._clock.now()
        noted_at = await store.read(store.last_alive_at)
        if noted_at is not None:
            await self._note_away(noted_at, now)
        await self._note_alive(now)
        self._looked_at = now

    async def look(self) -> None:
        """Note time that was lost since the last call. Call this about every second.

        Raises:
            Unavailable: the store does not answer. This time is lost too.
        """
        now, looked_at = self._clock.now(), self._looked_at
        if looked_at is not None and self._clock.awake_since() > looked_at:  # the process did not run
            await self._note_away(looked_at, self._clock.awake_since())
        self._looked_at = now
        if self._noted_at is not None and self._unstored_since is None and now - self._noted_at < NOTED_SECONDS:
            return
        try:
            await self._note_alive(now)
        except Unavailable:
            self._unstored_since = self._unstored_since or self._noted_at or now
            raise
        if self._unstored_since is not None:
            await self._note_away(self._unstored_since, now)
            self._unstored_since = None

    async def _note_alive(self, now: float) -> None:
        await self._registry.store.write(self._registry.store.note_alive, now)
        self._noted_at = now

    async def _note_away(self, since: float, until: float) -> None:
        if until - since <= AWAY_SECONDS:
            return
        lost = LostInterval(since, until, AWAY)
        charged = [lease for lease in self._registry if lease.phase in UP and lease.rate is not None]
        if charged:
            await self._registry.save(*(replace(lease, lost=(*lease.lost, lost)) for lease in charged))
