"""Leases of what runs without one: of servers, of workspaces that carry one, of starts that were given up wrongly."""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpuspawner.core.leases import events, transitions
from gpuspawner.core.leases.lease import Key, Lease
from gpuspawner.core.leases.observations import HubServer, Running
from gpuspawner.core.leases.reports import RELEASE_SPOOL, ReleaseReport
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocator import Allocator
from gpuspawner.service.engine.hub_servers import ended_wrongly
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
        self._registry, self._allocator, self._clock, self._identity = registry, allocator, clock, identity

    async def adopt(self, servers: Mapping[tuple[str, str], HubServer], leased: set[Key], processes: Processes) -> None:
        """Adopt ready servers that have no lease: no GPU is known of them, and no deadline stands.

        Args:
            servers: the hub's, all of them, by their user's ``created`` and their name.
            leased: the keys that had a lease before the list was asked for: it may still show what ended meanwhile.
            processes: what runs.
        """
        for server in servers.values():
            key = Key(self._identity.hub_id, server.user_created, server.name)
            lease = self._registry.of_key(key)
            if lease is not None:
                if lease.user != server.user:
                    await self._registry.save(replace(lease, user=server.user))
            elif server.ready and key not in leased:
                await self._adopt(key, server, processes)

    async def _adopt(self, key: Key, server: HubServer, processes: Processes) -> None:
        async with self._registry.of_ended:
            await self._registry.stored(key)  # its end may be on its way
            ended = await self._registry.store.read(self._registry.store.leases.last_ended, key)
            if self._registry.of_key(key) is not None:
                return  # it was asked for meanwhile
            if ended is not None and ended_wrongly(ended, server):
                await self.found(ended, server, processes(ended))
                return
            lease = self._allocator.bounds.rated(adopted_server(key, server, self._clock.now()))
            await self._registry.save(
                lease, audit=[self._allocator.commits.line(lease, "gpuspawner", events.Adopted("no lease"))]
            )

    async def rebuild(self, seen: Sequence[Running]) -> None:
        """Rebuild leases that the store does not know from what runs, each from its newest attempt."""
        now, stored = self._clock.now(), []
        failures, step = self._registry.failures, "rebuilding a lease"
        for running in reversed(seen):
            if self._registry.get(running.lease_id) is not None or not failures.may_try(step, running.lease_id):
                continue
            with failures.isolating(step, running.lease_id):
                lease = rebuilt_lease(running, self._identity, now)
                if lease is None or await self._registry.find(lease.id) or self._registry.of_key(lease.key):
                    continue
                lease = self._allocator.bounds.rated(lease)
                line = self._allocator.commits.line(lease, "gpuspawner", events.Adopted("rebuilt from what runs"))
                stored.append(self._registry.save(lease, audit=[line]))
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
        return self._registry.save(
            found, audit=[self._allocator.commits.line(found, "gpuspawner", events.Adopted(why))]
        )


log = logging.getLogger("gpuspawner")

LONGEST_BYTES = 65536
"""Of a file. Arbitrary: several times what the longest message takes in JSON."""


async def read_release_spool(data: Path, allocator: Allocator) -> None:
    """Note every release that lies beside the service's data, the oldest first, and remove its file.

    What can't be read or removed is passed over: it keeps nobody else's end from being heard.

    Raises:
        Unavailable: the store does not answer; what is not noted stays for the next time.
    """
    for file in _left(data / RELEASE_SPOOL):
        try:
            await _hear(file, allocator)
            file.unlink()
        except OSError as error:
            log.warning("what the hub left for this service can't be read: %s", error)


def _left(folder: Path) -> list[Path]:
    """Return the files, the oldest first. Pipes, links and folders nobody left: to open one may take for ever."""
    found = []
    for file in folder.glob("*.json"):
        status = file.lstat()
        if stat.S_ISREG(status.st_mode):
            found.append((status.st_mtime, file))
    return [file for _, file in sorted(found)]


async def _hear(file: Path, allocator: Allocator) -> None:
    try:
        with file.open("rb") as opened:
            release = ReleaseReport.from_json(opened.read(LONGEST_BYTES).decode())
    except ValueError as error:
        log.error("%s says nothing of a workspace's end and is removed: %s", file, error)  # noqa: TRY400
    else:
        await allocator.release(release.lease, release.attempt, release.outcome, release.message, release.output)
