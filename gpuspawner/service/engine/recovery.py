"""Leases of what runs without one: of servers, of workspaces that carry one, of starts that were given up wrongly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpuspawner.backends.base import Running
from gpuspawner.core.leases import events, transitions
from gpuspawner.core.leases.lease import Key, Lease
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocator import Allocator
from gpuspawner.service.engine.hub import HubServer
from gpuspawner.service.engine.hub_view import ended_wrongly
from gpuspawner.service.engine.lease_documents import (
    HubIdentity,
    adopted_server,
    claimed_kind,
    claimed_slots,
    rebuilt_lease,
)
from gpuspawner.service.engine.registry import LeaseRegistry, all_stored

log = logging.getLogger("gpuspawner.reconciler")

Processes = Callable[[Lease], Sequence[Running]]
"""Returns what is seen to run for a lease, of all attempts."""


class LeaseRecovery:
    """Makes them, of the hub that ``identity`` names."""

    def __init__(self, registry: LeaseRegistry, allocator: Allocator, clock: Clock, identity: HubIdentity) -> None:
        """Adopt nothing yet."""
        self._book, self._allocator, self._clock, self._identity = registry, allocator, clock, identity

    async def adopt(self, servers: Mapping[tuple[str, str], HubServer], leased: set[Key], processes: Processes) -> None:
        """Adopt ready servers that have no lease: no GPU is known of them, and no deadline stands.

        Args:
            servers: the hub's, all of them, by their user's ``created`` and their name.
            leased: the keys that had a lease before the list was asked for: it may still show what ended meanwhile.
            processes: what runs.
        """
        for server in servers.values():
            key = Key(self._identity.hub_id, server.user_created, server.name)
            lease = self._book.of_key(key)
            if lease is not None:
                if lease.user != server.user:
                    await self._book.save(replace(lease, user=server.user))
            elif server.ready and key not in leased:
                await self._adopt(key, server, processes)

    async def _adopt(self, key: Key, server: HubServer, processes: Processes) -> None:
        async with self._book.of_ended:
            await self._book.stored(key)  # its end may be on its way
            ended = await self._book.store.read(self._book.store.leases.last_ended, key)
            if self._book.of_key(key) is not None:
                return  # it was asked for meanwhile
            if ended is not None and ended_wrongly(ended, server):
                await self.found(ended, server, processes(ended))
                return
            lease = self._allocator.bounds.rated(adopted_server(key, server, self._clock.now()))
            await self._book.save(lease, audit=[self._allocator.line(lease, "gpuspawner", events.Adopted("no lease"))])

    async def rebuild(self, seen: Sequence[Running]) -> None:
        """Rebuild leases that the store does not know from what runs, each from its newest attempt."""
        now, stored = self._clock.now(), []
        failures, step = self._book.failures, "rebuilding a lease"
        for running in reversed(seen):
            if self._book.get(running.lease_id) is not None or not failures.may_try(step, running.lease_id):
                continue
            with failures.isolating(step, running.lease_id):
                lease = rebuilt_lease(running, self._identity, now)
                if lease is None or await self._book.find(lease.id) or self._book.of_key(lease.key):
                    continue
                lease = self._allocator.bounds.rated(lease)
                line = self._allocator.line(lease, "gpuspawner", events.Adopted("rebuilt from what runs"))
                stored.append(self._book.save(lease, audit=[line]))
        await all_stored(stored)

    def found(self, lease: Lease, server: HubServer, processes: Sequence[Running]) -> asyncio.Future[None]:
        """Let a lease run whose server does: that its start was dropped, or that it ended for it, was wrong."""
        one = max(processes, key=lambda x: x.attempt, default=None)
        attempt, slots = (lease.attempt, lease.slots) if one is None else (one.attempt, claimed_slots(one))
        free = self._allocator.observed.not_held(lease, slots)
        if len(free) < len(slots):
            log.error("%s of %s runs after all, and some of its GPUs are another's by now", lease.id, lease.user)
        given = lease.given if one is None else claimed_kind(one, lease.request)
        rate = lease.rate if given == lease.given else None  # another kind takes another rate
        rated = self._allocator.bounds.rated(replace(lease, given=given, rate=rate))
        found = transitions.recover(rated, server.started, attempt, free, self._clock.now())
        why = "its server runs: that its start was given up was wrong"
        return self._book.save(found, audit=[self._allocator.line(found, "gpuspawner", events.Adopted(why))])
