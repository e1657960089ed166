"""The last answers of the hub: users, groups, servers, whether it answers, and the actors of stops."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

from gpuspawner.backends.base import OutageLog
from gpuspawner.catalog.requests.visibility import MAKE_IT, NOBODY_IN_IT, missing_groups, named_groups
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.events import StopperNamed
from gpuspawner.core.leases.exits import Exit, named
from gpuspawner.core.leases.lease import NOBODY, UP, Key, Lease, Owner, Phase
from gpuspawner.core.leases.observations import HubServer
from gpuspawner.core.outages import HUB
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocation.observed_state import ObservedState
from gpuspawner.service.engine.hub_client import HubClient
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.settings import Settings
from gpuspawner.service.store import AuditLine

USER_KNOWN_SECONDS = 10.0
"""How long the hub's answer is used, so that several clicks need one request."""
USER_ANSWER_SECONDS = 2.0


class KnownUsers:
    """Asks the hub for users, and remembers its answers for a moment."""

    def __init__(self, hub: HubClient, clock: Clock) -> None:
        """Start without answers."""
        self._hub, self._clock = hub, clock
        self._until: dict[tuple[str, str], float] = {}

    async def has_user(self, user: str, created: str) -> bool:
        """Return whether the hub has a user with this name and creation time.

        True while the hub does not answer. A ticket is valid for a minute only, and people must be able to press Keep.
        """
        if self._is_known(user, created):
            return True
        try:
            found = await asyncio.wait_for(self._hub.created(user), USER_ANSWER_SECONDS)
        except (Unavailable, TimeoutError, asyncio.TimeoutError):
            return True
        if found == created:
            self._note(user, created)
        return found == created

    async def name_of(self, user: str, created: str) -> str | None:
        """Return the present name of the user with this creation time and former name; None if they were deleted.

        Raises:
            Unavailable: the hub does not answer.
        """
        if self._is_known(user, created):
            return user
        name = await self._hub.name_of(created, user)
        if name is not None:
            self._note(name, created)
        return name

    def _is_known(self, user: str, created: str) -> bool:
        return self._until.get((user, created), 0.0) > self._clock.now()

    def _note(self, user: str, created: str) -> None:
        now = self._clock.now()
        fresh = {who: until for who, until in self._until.items() if until > now}
        self._until = {**fresh, (user, created): now + USER_KNOWN_SECONDS}


GROUPS_KNOWN_SECONDS = 5.0
"""How long the hub's answer is used for display. An open form asks as often."""
GROUPS_ANSWER_SECONDS = 3.0
"""The spawner waits for the answer for five seconds."""


class GroupMembers:
    """Asks the hub for the groups of a user, if the catalog names any.

    Raises:
        Unavailable: the hub does not answer, or may not tell.
    """

    def __init__(self, hub: HubClient, clock: Clock, in_force: InForce) -> None:
        """Start without answers."""
        self._hub, self._clock, self._in_force = hub, clock, in_force
        self._seen: dict[tuple[str, Owner], tuple[float, frozenset[str]]] = {}
        self._there: frozenset[str] | None = None
        self._trouble = ""

    async def fetch(self, user: str, owner: Owner) -> frozenset[str]:
        """Return the present groups of a user. ``owner`` distinguishes users who had the same name."""
        if owner == NOBODY or not named_groups(self._in_force.catalog):
            return frozenset()
        try:
            groups = await asyncio.wait_for(self._hub.groups(user, owner.user_created), GROUPS_ANSWER_SECONDS)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise Unavailable("The hub does not answer, so the groups of its users are not known now.") from error
        now = self._clock.now()
        fresh = {who: seen for who, seen in self._seen.items() if 0 <= now - seen[0] < GROUPS_KNOWN_SECONDS}
        self._seen = {**fresh, (user, owner): (now, groups)}
        return groups

    async def fetch_recent(self, user: str, owner: Owner) -> frozenset[str]:
        """Return the groups of a user, which may be some seconds old. Pages that show groups use it."""
        at, groups = self._seen.get((user, owner), (None, frozenset()))
        if at is not None and 0 <= self._clock.now() - at < GROUPS_KNOWN_SECONDS:
            return groups
        return await self.fetch(user, owner)

    async def read_names(self) -> None:
        """Read which groups the hub has."""
        try:
            self._there, self._trouble = await self._hub.group_names(), ""
        except Unavailable as error:
            self._there, self._trouble = None, str(error)

    @property
    def names(self) -> frozenset[str]:
        """The groups that the hub has, as last read.

        Raises:
            Unavailable: they are not known.
        """
        if self._there is None:
            raise Unavailable(self._trouble or "Which groups the hub has was not read yet.")
        return self._there

    def find_missing(self) -> tuple[str, ...]:
        """Return a sentence for administrators about each group of the catalog that the hub does not have."""
        if self._there is None:
            return (f"Which groups the hub has is not known. {self._trouble}",) if self._trouble else ()
        found = missing_groups(self._in_force.catalog, self._there)
        make_it = f"{MAKE_IT[:1].upper()}{MAKE_IT[1:]}."
        told = ((NOBODY_IN_IT.format(group=group), ".".join(map(str, entry))) for group, entry in found.items())
        return tuple(
            f"{wrong[:1].upper()}{wrong[1:]}. The catalog names it in {entry}. {make_it}" for wrong, entry in told
        )


HUB_AWAY_SECONDS = 2.0
"""A hub that does not answer is asked for its list again after this time. Arbitrary: short for people who wait, and
long for a hub that starts."""

ServerKey = tuple[str, str]
"""The hub's key of a server: its user's ``created``, and its name."""


def server_key_of(lease: Lease) -> ServerKey:
    """Return the hub's key of a lease's server."""
    return lease.key.user_created, lease.key.server


class HubServers:
    """The last list of servers. ``servers`` is None while the hub is away.

    ``in_doubt`` is true from the first question that the hub does not answer until its next list.
    """

    def __init__(self, hub: HubClient, observed: ObservedState, clock: Clock, settings: Settings) -> None:
        """Start before the hub is read. ``observed`` records whether the hub answers."""
        self._hub, self._observed, self._clock, self._settings = hub, observed, clock, settings
        self._listed_at = -math.inf
        self._outages = OutageLog()
        self._answered_at: float | None = None
        self.servers: dict[ServerKey, HubServer] | None = None
        self.in_doubt = False

    def is_due(self) -> bool:
        """Return whether it is time to ask for the list."""
        due_seconds = self._settings.hub_seconds if self._observed.hub_answers else HUB_AWAY_SECONDS
        return self._clock.now() - self._listed_at >= due_seconds

    async def list_servers(self) -> bool:
        """Ask for the list. Return whether the hub answered."""
        self._listed_at = self._clock.now()
        try:
            servers = await self._hub.servers()
        except Unavailable as error:
            self._outages.begin(HUB, str(error), self._clock.now(), self._answered_at)
            self._observed.hub_outage = self._outages.outage
            self._observed.hub_answers, self.in_doubt = False, True
            self.servers = None
            return False
        self._answered_at = self._clock.now()
        self._outages.end(self._answered_at)
        self._observed.hub_outage = None
        self._observed.hub_answers, self.in_doubt = True, False
        self.servers = {(one.user_created, one.name): one for one in servers}
        return True

    def server_of(self, lease: Lease) -> HubServer | None:
        """Return the server of a lease's key as last listed."""
        return (self.servers or {}).get(server_key_of(lease))

    async def ask(self, lease: Lease) -> HubServer | None:
        """Ask the hub about one server. A hub that failed to answer is asked nothing else until its next list.

        Raises:
            Unavailable: the hub does not answer.
        """
        if self.in_doubt:  # it began to fail while this question waited for its turn
            raise Unavailable("The hub does not answer.", HUB)
        try:
            return await self._hub.server(lease.user, lease.key.server)
        except Unavailable:
            self.in_doubt = True
            self._listed_at = -math.inf
            raise


LATE_SECONDS = 60.0
"""How long after an end its actor is accepted. The actor comes at the end of the same request."""
AHEAD_SECONDS = 600.0
"""How long before an end its actor is accepted. The hub answers a long stop before the server has ended."""
LOOKED_AT = 5
"""The number of ended workspaces of a user that are searched for the stopped one."""


class StopActors:
    """Adds the actor to ends of workspaces, whether the actor is known before the end or after it."""

    def __init__(self, registry: LeaseRegistry, clock: Clock) -> None:
        """Start without actors."""
        self._registry, self._clock = registry, clock
        self._ahead: dict[tuple[str, int], tuple[str, float]] = {}  # by lease and attempt: a server that ran once

    def of(self, lease: Lease) -> str:
        """Return the actor of the stop of a lease that ends now, "" if the actor is not known.

        The actor stays known, because an end that can't be stored is reported again.
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
        async with self._registry.ended_lock:
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
