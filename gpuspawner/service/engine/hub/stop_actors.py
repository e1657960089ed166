"""The actors of stops in the hub. The hub reports a stop first, and its actor afterwards."""

from __future__ import annotations

from dataclasses import replace

from gpuspawner.core.events import StopperNamed
from gpuspawner.core.leases.exits import Exit, named
from gpuspawner.core.leases.lease import UP, Key, Lease, Phase
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.store import AuditLine

LATE_SECONDS = 60.0
"""How long after its end a name is still taken for it: it comes at the end of the same request."""
AHEAD_SECONDS = 600.0
"""How long before its end: the hub answers a stop that takes long before it is done."""
LOOKED_AT = 5
"""Ended workspaces of its user among which the one is looked for."""


class StopActors:
    """Gives ends their names: of those that are known already, and of those that come."""

    def __init__(self, registry: LeaseRegistry, clock: Clock) -> None:
        """Know of no stop."""
        self._registry, self._clock = registry, clock
        self._ahead: dict[tuple[str, int], tuple[str, float]] = {}  # by lease and attempt: a server that ran once

    def of(self, lease: Lease) -> str:
        """Return the actor of the stop of a lease that ends now; "" if that is not known.

        It stays known: an end that can't be stored is told again.
        """
        by, at = self._ahead.get((lease.id, lease.attempt), ("", 0.0))
        return by if self._clock.now() - at <= AHEAD_SECONDS else ""

    async def name(self, key: Key, by: str) -> None:
        """Note that ``by`` asked the hub to stop the server of a key. Repeating it is harmless."""
        lease, now = self._registry.of_key(key), self._clock.now()
        if lease is not None and lease.phase in UP:
            self._ahead = {which: told for which, told in self._ahead.items() if now - told[1] <= AHEAD_SECONDS}
            self._ahead[lease.id, lease.attempt] = (by, now)
            return
        async with self._registry.of_ended:
            await self._name_ended(key, by)

    async def _name_ended(self, key: Key, by: str) -> None:
        await self._registry.stored(key)  # its end may be on its way
        lease, now = self._registry.of_key(key), self._clock.now()
        if lease is None or lease.phase is not Phase.STOPPING:
            ended = await self._registry.store.read(self._registry.store.leases.ended, key.owner, LOOKED_AT)
            lease = next((x for x in ended if x.key == key and now - (x.ended_at or 0.0) <= LATE_SECONDS), None)
        if lease is None or lease.reason is None:
            return
        how = named(Exit(lease.reason, lease.ended_by, lease.message), lease.user, by)
        if how is not None:
            told = replace(lease, ended_by=how.by, message=how.message)
            await self._registry.save(told, audit=[AuditLine(now, lease.id, lease.user, by, StopperNamed(how.message))])
