"""Users and groups of the hub, with the hub's last answers for a moment."""

from __future__ import annotations

import asyncio

from gpuspawner.catalog.requests.visibility import MAKE_IT, NOBODY_IN_IT, missing_groups, named_groups
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import NOBODY, Owner
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.hub.client import HubClient

USER_KNOWN_SECONDS = 10.0
"""How long the hub's answer stands: several clicks ask once."""
USER_ANSWER_SECONDS = 2.0


class KnownUsers:
    """Asks the hub for users, and remembers its answers for a moment."""

    def __init__(self, hub: HubClient, clock: Clock) -> None:
        """Start without answers."""
        self._hub, self._clock = hub, clock
        self._until: dict[tuple[str, str], float] = {}

    async def has(self, user: str, created: str) -> bool:
        """Return whether the hub has a user with this name and creation time.

        True while it does not answer: a ticket is good for a minute only, and people must be able to press Keep.
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
"""How long the hub's answer is used for display: as often as an open form asks."""
GROUPS_ANSWER_SECONDS = 3.0
"""The spawner, which waits for the answer, gives up after five."""


class GroupMembers:
    """Asks the hub for the groups of a user, where the catalog names any.

    Raises:
        Unavailable: the hub does not answer, or may not tell.
    """

    def __init__(self, hub: HubClient, clock: Clock, in_force: InForce) -> None:
        """Start without answers."""
        self._hub, self._clock, self._in_force = hub, clock, in_force
        self._seen: dict[tuple[str, Owner], tuple[float, frozenset[str]]] = {}
        self._there: frozenset[str] | None = None
        self._trouble = ""

    async def now(self, user: str, owner: Owner) -> frozenset[str]:
        """Return the groups that a user is in at this moment; ``owner`` tells them from others who had the name."""
        if owner == NOBODY or not named_groups(self._in_force.catalog):
            return frozenset()
        try:
            groups = await asyncio.wait_for(self._hub.groups(user, owner.user_created), GROUPS_ANSWER_SECONDS)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise Unavailable("The hub does not answer: who is in which group can't be read now.") from error
        now = self._clock.now()
        fresh = {who: seen for who, seen in self._seen.items() if 0 <= now - seen[0] < GROUPS_KNOWN_SECONDS}
        self._seen = {**fresh, (user, owner): (now, groups)}
        return groups

    async def lately(self, user: str, owner: Owner) -> frozenset[str]:
        """Return the groups that a user was in some seconds ago: for what only shows, and is asked often."""
        at, groups = self._seen.get((user, owner), (None, frozenset()))
        if at is not None and 0 <= self._clock.now() - at < GROUPS_KNOWN_SECONDS:
            return groups
        return await self.now(user, owner)

    async def look(self) -> None:
        """Read which groups the hub has."""
        try:
            self._there, self._trouble = await self._hub.group_names(), ""
        except Unavailable as error:
            self._there, self._trouble = None, str(error)

    @property
    def there(self) -> frozenset[str]:
        """The groups that the hub has, as last read.

        Raises:
            Unavailable: they are not known.
        """
        if self._there is None:
            raise Unavailable(self._trouble or "Which groups the hub has was not read yet.")
        return self._there

    def missing(self) -> tuple[str, ...]:
        """Return, in a sentence each for administrators, which groups of the catalog the hub does not have."""
        if self._there is None:
            return (f"Which groups the hub has is not known. {self._trouble}",) if self._trouble else ()
        found = missing_groups(self._in_force.catalog, self._there)
        make_it = f"{MAKE_IT[:1].upper()}{MAKE_IT[1:]}."
        told = ((NOBODY_IN_IT.format(group=group), ".".join(map(str, entry))) for group, entry in found.items())
        return tuple(
            f"{wrong[:1].upper()}{wrong[1:]}. The catalog names it in {entry}. {make_it}" for wrong, entry in told
        )
