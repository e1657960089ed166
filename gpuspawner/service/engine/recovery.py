"""Recovery after a time without service: missing leases, orphans, the release spool, and lost time.

A server that was not requested here is adopted. The lease of a workspace that carries its document is rebuilt. A lease
whose start was given up runs again if its server runs after all.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpuspawner.core import events
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.lease import UP, Key, Lease, Phase
from gpuspawner.core.leases.observations import HubServer, Running, is_of_user
from gpuspawner.core.leases.reports import RELEASE_SPOOL, ReleaseReport
from gpuspawner.core.leases.step_results import Note, Recovery, Step
from gpuspawner.core.leases.steps import RECOVERED
from gpuspawner.core.rules import LostInterval
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.engine.allocation.start_attempts import StartAttempts
from gpuspawner.service.engine.hub_client import HubClient, seconds_of
from gpuspawner.service.engine.hub_state import ServerKey, server_key_of
from gpuspawner.service.engine.lease_documents import (
    HubIdentity,
    claimed_kind,
    claimed_slots,
    find_lost_identities,
    lease_of_server,
    rebuild_lease,
)
from gpuspawner.service.engine.registry import LeaseRegistry, wait_for_all

log = logging.getLogger("gpuspawner.engine")

MANY, MANY_SHARE = 3, 0.2
"""If there are more orphans than both of these, the service alerts and ends none of them."""
LONGEST_BYTES = 65536
"""The longest file of the release spool that is read. Arbitrary: several times the longest report in JSON."""

Processes = Callable[[Lease], Sequence[Running]]
"""Returns the processes of all attempts of a lease, as last observed."""


class LeaseRecovery:
    """Makes leases for running workspaces of the hub in ``identity``."""

    def __init__(self, allocator: Allocator, identity: HubIdentity, processes: Processes) -> None:
        """Recover nothing yet."""
        self._registry, self._allocator, self._clock = allocator.registry, allocator, allocator.clock
        self._identity, self._processes = identity, processes

    async def adopt(self, servers: Mapping[ServerKey, HubServer], leased: set[Key]) -> None:
        """Adopt ready servers that have no lease. Their GPUs are unknown, and they have no deadline.

        Args:
            servers: all servers of the hub.
            leased: the keys that had a lease before the list was requested. The list may still have servers whose
                lease has ended meanwhile.
        """
        for server in servers.values():
            key = Key(self._identity.hub_id, server.user_created, server.name)
            lease = self._registry.of_key(key)
            if lease is not None:
                if lease.user != server.user:
                    await self._registry.save(replace(lease, user=server.user))
            elif server.ready and key not in leased:
                async with self._registry.ended_lock:
                    await self._adopt(key, server)

    async def _adopt(self, key: Key, server: HubServer) -> None:
        await self._registry.stored(key)  # its end may not be stored yet
        ended = await self._registry.store.read(self._registry.store.leases.last_ended, key)
        if self._registry.of_key(key) is not None:
            return  # it was requested meanwhile
        if ended is not None and _ended_wrongly(ended, server):
            await self.recover(ended, server)
            return
        lease = self._allocator.bounds.with_rate(lease_of_server(key, server, self._clock.now()))
        await self._allocator.commits.commit(lease, Step(lease, (Note(events.Adopted("no lease")),)))

    async def rebuild(self, running: Sequence[Running]) -> None:
        """Rebuild leases that are not stored from running workspaces, each from its newest attempt."""
        now, stored = self._clock.now(), []
        failures, step = self._registry.failures, "rebuilding a lease"
        for one in reversed(running):
            if self._registry.get(one.lease_id) is not None or not failures.may_try(step, one.lease_id):
                continue
            with failures.isolating(step, one.lease_id):
                lease = rebuild_lease(one, self._identity, now)
                if lease is None or await self._registry.find(lease.id) or self._registry.of_key(lease.key):
                    continue
                lease = self._allocator.bounds.with_rate(lease)
                adopted = Note(events.Adopted("rebuilt from what runs"))
                stored.append(self._allocator.commits.commit(lease, Step(lease, (adopted,))))
        await wait_for_all(stored)

    def recovered(self, lease: Lease) -> Recovery:
        """Return the GPUs, kind and rate of a server that runs after all, without GPUs of other leases."""
        one = max(self._processes(lease), key=lambda x: x.attempt, default=None)
        attempt, slots = (lease.attempt, lease.slots) if one is None else (one.attempt, claimed_slots(one))
        free = self._allocator.observed.unheld(lease, slots)
        if len(free) < len(slots):
            log.error("%s of %s runs after all, and some of its GPUs are another's by now", lease.id, lease.user)
        given = lease.given if one is None else claimed_kind(one, lease.request)
        rate = lease.rate if given == lease.given else None  # another kind takes another rate
        rated = self._allocator.bounds.with_rate(replace(lease, given=given, rate=rate))
        return Recovery(replace(rated, slots=free), attempt)

    def recover(self, lease: Lease, server: HubServer) -> asyncio.Future[None]:
        """Make an ended lease run again whose server still runs."""
        found = self.recovered(lease)
        now = self._clock.now()
        running = transitions.recover(found.lease, server.started, found.attempt, found.lease.slots, now)
        return self._allocator.commits.commit(lease, Step(running, (Note(events.Adopted(RECOVERED)),)))


def _ended_wrongly(lease: Lease, server: HubServer) -> bool:
    """Return whether a lease ended because its server was not seen, although the server had started before."""
    started_at = seconds_of(server.started)
    in_time = started_at is not None and lease.ended_at is not None and started_at <= lease.ended_at
    return transitions.ended_by_dropped_starts(lease) and in_time


class OrphanWatch:
    """Remembers since when the hub lacks the servers of running workspaces.

    ``alert`` is the reason why no orphan is ended, "" if all is well.
    """

    def __init__(self, allocator: Allocator, hub: HubClient, identity: HubIdentity) -> None:
        """Watch the workspaces of the hub in ``identity``."""
        self._registry, self._hub, self._clock = allocator.registry, hub, allocator.clock
        self._orphan_seconds, self._identity = allocator.settings.orphan_seconds, identity
        self._absent: dict[str, Running] = {}
        self._absent_since: dict[str, float] = {}
        self._boot_id = ""
        self.due: frozenset[str] = frozenset()
        """The ids of leases whose servers were missing in the hub twice, ``orphan_seconds`` apart."""
        self.alert = ""
        self.lost_identities: tuple[str, ...] = ()
        """Sentences for administrators about workspaces that run under an identity that this hub lost."""

    def reset(self) -> None:
        """Forget since when servers are missing. The hub did not answer, and may be another process now."""
        self._absent_since, self.due = {}, frozenset()

    def update(
        self, running: Sequence[Running], servers: Mapping[ServerKey, HubServer], boot_id: str
    ) -> Iterable[Running]:
        """Return the orphans without a live lease. ``due`` has the orphans with one.

        Args:
            running: the workspaces that the backend sees.
            servers: all servers of the hub.
            boot_id: the hub process that made the last request for a lease, "" before the first request.
        """
        if boot_id != self._boot_id:
            self._boot_id = boot_id
            self.reset()
        now = self._clock.now()
        self._absent = {one.lease_id: one for one in running if self._is_absent(one, servers)}
        self._absent_since = {name: self._absent_since.get(name, now) for name in sorted(self._absent)}
        ours = {x.lease_id for x in running if x.environment.get("GPUSPAWNER_HUB_ID") == self._identity.hub_id}
        before, told = self.alert, self.lost_identities
        self.due, self.alert = find_orphans(self._absent_since, len(ours), self._orphan_seconds, now)
        known = {lease.id for lease in self._registry}
        self.lost_identities = find_lost_identities(running, known, servers, self._identity)
        for sentence in (self.alert, *self.lost_identities):
            if sentence and sentence != before and sentence not in told:
                log.error("%s", sentence)
        return [self._absent[name] for name in self.due if self._registry.get(name) is None]

    def _is_absent(self, one: Running, servers: Mapping[ServerKey, HubServer]) -> bool:
        """Return whether the server of a workspace of this hub is missing in the hub's list."""
        lease = self._registry.get(one.lease_id)
        if lease is not None:
            return lease.phase in UP | {Phase.STARTING} and server_key_of(lease) not in servers
        carried = rebuild_lease(one, self._identity, self._clock.now())
        return carried is not None and (server_key_of(carried) not in servers or self._has_lease(carried.key))

    def _has_lease(self, key: Key) -> bool:
        """Return whether a key's server belongs to a lease. The server of an adopted lease may be any process."""
        live = self._registry.of_key(key)
        return live is not None and not live.adopted

    async def forgotten_user(self, one: Running) -> str | None:
        """Ask the hub about a workspace without a lease. Return its user if the hub still has no such server.

        Raises:
            Unavailable: the hub does not answer.
        """
        carried = rebuild_lease(one, self._identity, self._clock.now())
        if carried is None or self._registry.get(one.lease_id) is not None:
            return None
        server = await self._hub.server(carried.user, carried.key.server)
        is_back = is_of_user(server, carried) and not self._has_lease(carried.key)
        return None if is_back else carried.user


def find_orphans(
    absent_since: Mapping[str, float], total: int, due_seconds: float, now: float
) -> tuple[frozenset[str], str]:
    """Return the lease ids of workspaces that the hub has forgotten, and an alert if there are implausibly many.

    All missing workspaces count for the alert, not only due ones, because a hub may forget them at different moments.

    Args:
        absent_since: since when the server of each lease is missing in the hub, by lease id.
        total: how many workspaces of this hub run.
        due_seconds: how long a server must be missing.
        now: seconds of the service's clock.
    """
    due = frozenset(name for name, since in absent_since.items() if now - since >= due_seconds)
    many = len(absent_since)
    if due and many > MANY and many > MANY_SHARE * total:
        alert = f"{many} of {total} workspaces run that the hub does not know: nothing is ended. "
        return frozenset(), f"{alert}Look at the hub's database."
    return due, ""


async def read_release_spool(data: Path, attempts: StartAttempts) -> None:
    """Read the release reports that the spawner could not deliver, the oldest first, and remove their files.

    A file that cannot be read or removed is skipped, so that it does not block other reports.

    Raises:
        Unavailable: the store does not answer. The remaining files stay for the next time.
    """
    for file in _spooled(data / RELEASE_SPOOL):
        try:
            await _read(file, attempts)
            file.unlink()
        except OSError as error:
            log.warning("a report that the hub left for this service can't be read: %s", error)


def _spooled(folder: Path) -> list[Path]:
    """Return the regular files, oldest first. Opening a pipe could block for ever."""
    found = []
    for file in folder.glob("*.json"):
        status = file.lstat()
        if stat.S_ISREG(status.st_mode):
            found.append((status.st_mtime, file))
    return [file for _, file in sorted(found)]


async def _read(file: Path, attempts: StartAttempts) -> None:
    try:
        with file.open("rb") as opened:
            release = ReleaseReport.from_json(opened.read(LONGEST_BYTES).decode())
    except ValueError as error:
        log.error("%s is no report of a workspace's end and is removed: %s", file, error)  # noqa: TRY400
    else:
        await attempts.release(release.lease, release.attempt, release.outcome, release.message, release.output)


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
