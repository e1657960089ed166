"""What runs although the hub has forgotten it: ended through the reclaimer, unless it is too much to be believed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.leases.exits import ORPHANED
from gpuspawner.core.leases.lease import UP, Key, Lease, Phase
from gpuspawner.core.leases.observations import HubServer, Running
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.hub import HubClient
from gpuspawner.service.engine.lease_documents import HubIdentity, rebuilt_lease
from gpuspawner.service.engine.reclaimer import Reclaimer
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.settings import Settings

log = logging.getLogger("gpuspawner.orphans")

MANY, MANY_SHARE = 3, 0.2
"""More than both at once is no accident of a few servers: alert, and end nothing (design, section 6)."""


class Orphans:
    """Remembers since when the hub lacks what runs. ``alert`` says why nothing is ended, "" where all is well."""

    def __init__(
        self,
        registry: LeaseRegistry,
        reclaimer: Reclaimer,
        hub: HubClient,
        clock: Clock,
        settings: Settings,
        drop: Callable[[Lease, float], Awaitable[None]],
        identity: HubIdentity,
    ) -> None:
        """Judge what belongs to this hub; ``drop`` gives a start that never came up back to its place."""
        self._registry, self._reclaimer, self._hub, self._clock, self._settings = (
            registry,
            reclaimer,
            hub,
            clock,
            settings,
        )
        self._drop, self._identity = drop, identity
        self._servers: Mapping[tuple[str, str], HubServer] = {}
        self._absent_since: dict[str, float] = {}
        self._boot_id = ""
        self.alert = ""

    def begin_anew(self) -> None:
        """Forget since when servers are absent: the hub was away, and may be another process when it answers again."""
        self._absent_since = {}

    async def round(
        self, running: Sequence[Running], servers: Mapping[tuple[str, str], HubServer], boot_id: str
    ) -> None:
        """End what complete lists of one hub process lacked twice, ``orphan_seconds`` apart.

        Args:
            running: what the backend sees.
            servers: the hub's, all of them, by their user's ``created`` and their name.
            boot_id: the hub process that asked for a lease last, "" before any did.
        """
        if boot_id != self._boot_id:
            self._boot_id = boot_id
            self.begin_anew()
        self._servers = servers
        now = self._clock.now()
        absent = {one.lease_id: one for one in running if self._is_absent(one)}
        self._absent_since = {i: self._absent_since.get(i, now) for i in sorted(absent)}
        due = [i for i, since in self._absent_since.items() if now - since >= self._settings.orphan_seconds]
        total = len({one.lease_id for one in running if self._is_ours(one)})
        # All that are absent count, not only those that are due: a hub that forgets them need not do so at once.
        if due and len(absent) > MANY and len(absent) > MANY_SHARE * total:
            alert = f"{len(absent)} of {total} workspaces run that the hub does not know: nothing is ended. "
            alert += "Look at the hub's database."
            if alert != self.alert:
                log.error("%s", alert)
            self.alert = alert
            return
        self.alert = ""
        for lease_id in due:
            try:
                await self._end_orphan(absent[lease_id])
            except (Unavailable, Conflict) as error:
                log.warning("the orphan %s waits: %s", lease_id, error)

    def _is_ours(self, running: Running) -> bool:
        """Whether it belongs to this hub: another one's on the same machine do not make ours fewer."""
        return running.environment.get("GPUSPAWNER_HUB_ID") == self._identity.hub_id

    def _is_absent(self, running: Running) -> bool:
        """Whether the hub's list lacks the server of what runs. Another hub's, or nobody's, is not ours to judge."""
        lease = self._registry.get(running.lease_id)
        if lease is not None:
            return lease.phase in UP | {Phase.STARTING} and self._server(lease) is None
        carried = rebuilt_lease(running, self._identity, self._clock.now())
        return carried is not None and (self._server(carried) is None or self._is_another_lease_s(carried.key))

    def _is_another_lease_s(self, key: Key) -> bool:
        """Whether the key's server belongs to a lease. An adopted one says nothing: its server may be any process."""
        live = self._registry.of_key(key)
        return live is not None and not live.adopted

    async def _end_orphan(self, running: Running) -> None:
        lease = self._registry.get(running.lease_id)
        carried = lease or rebuilt_lease(running, self._identity, self._clock.now())
        assert carried is not None, "only what tells its lease is an orphan"
        server = await self._hub.server(carried.user, carried.key.server)
        is_back = server is not None and server.user_created == carried.key.user_created
        if lease is not None and not is_back and lease.phase is Phase.STARTING:
            # It never came up: it goes back to its place, and what the hub began and forgot is left over.
            await self._drop(lease, self._clock.now())
        elif lease is not None and not is_back:
            still = partial(_is_same_start, lease)
            await self._reclaimer.mark(lease.id, ORPHANED, still)
        elif lease is None and (not is_back or self._is_another_lease_s(carried.key)):
            await self._reclaimer.end_unknown(running.lease_id, carried.user, ORPHANED.message)

    def _server(self, lease: Lease) -> HubServer | None:
        return self._servers.get((lease.key.user_created, lease.key.server))


def _is_same_start(lease: Lease, newest: Lease) -> bool:
    return newest.phase in UP | {Phase.STARTING} and newest.attempt == lease.attempt
