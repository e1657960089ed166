"""Official fakes for tests: a hub in memory, and a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.observations import HubServer
from gpuspawner.service.engine.hub_client import HubClient, HubUser


@dataclass
class HandClock:
    """A clock that stands until it is advanced. ``at`` is in seconds since the epoch.

    ``wall_ahead_seconds`` is how far the wall clock jumped, or the machine slept, since the creation of the clock.
    """

    at: float = 1_800_000_000.0
    wall_ahead_seconds: float = 0.0
    awake_since_at: float = 0.0

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return self.at

    def wall(self) -> float:
        """Return the simulated wall time."""
        return self.at + self.wall_ahead_seconds

    def awake_since(self) -> float:
        """Return when the process last came back from a break."""
        return self.awake_since_at

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        self.at += seconds

    def stop_for(self, seconds: float) -> None:
        """Advance the time as if the process did not run meanwhile."""
        self.at += seconds
        self.awake_since_at = self.at


async def _nothing(_server: HubServer) -> None:
    """Do nothing after a start or a stop."""


@dataclass
class FakeHub(HubClient):
    """A hub with the servers that a test gives it, by (user, server name).

    A user is created at the first use of the name. ``users`` has the ``created`` of each user, and a test may rename or
    delete them. ``members`` has the groups of each user. ``asked_for_groups`` lists the users whose groups were
    requested. If ``unreachable`` is set, every call raises Unavailable. ``stop`` removes a server. With
    ``stops_slowly`` it only makes it pending. ``on_start`` and ``on_stop`` are awaited with the server, like a spawner.
    ``calls`` records each start and stop with the server's ``started``.
    """

    clock: HandClock
    users: dict[str, str] = field(default_factory=dict)
    emails: dict[str, str] = field(default_factory=dict)
    members: dict[str, set[str]] = field(default_factory=dict)
    asked_for_groups: list[str] = field(default_factory=list)
    listed: dict[tuple[str, str], HubServer] = field(default_factory=dict)
    unreachable: str = ""
    named_servers: bool = True
    stops_slowly: bool = False
    on_start: Callable[[HubServer], Awaitable[None]] = _nothing
    on_stop: Callable[[HubServer], Awaitable[None]] = _nothing
    calls: list[tuple[str, str, str]] = field(default_factory=list)

    def put(self, user: str, name: str = "", *, ready: bool = False, pending: str | None = "spawn") -> HubServer:
        """List a server that starts now, or one that answers (``ready``)."""
        started = datetime.fromtimestamp(self.clock.now(), timezone.utc).isoformat()
        pending, now = None if ready else pending, self.clock.now()
        server = HubServer(user, self.add(user), name, started, ready, pending, f"/user/{user}/", now)
        self.listed[user, name] = server
        return server

    def answer(self, user: str, name: str = "") -> None:
        """Make a starting server answer."""
        self.listed[user, name] = replace(self.listed[user, name], ready=True, pending=None)

    def touch(self, user: str, name: str = "") -> None:
        """Note activity of a server."""
        self.listed[user, name] = replace(self.listed[user, name], last_activity=self.clock.now())

    def forget(self, user: str, name: str = "") -> None:
        """Remove a server, as in a hub that was restored from an old database."""
        self.listed.pop((user, name), None)

    def add(self, user: str) -> str:
        """Create a user, unless there is one of that name. Return when they were created."""
        return self.users.setdefault(user, f"{user} born")

    def rename(self, user: str, new: str) -> None:
        """Give a user another name, and keep the servers."""
        self.users[new] = self.users.pop(user)
        for owner, name in [key for key in self.listed if key[0] == user]:
            self.listed[new, name] = replace(self.listed.pop((owner, name)), user=new)

    async def created(self, user: str) -> str | None:
        """Return when a user was created, or raise Unavailable."""
        self._must_answer()
        return self.users.get(user)

    async def groups(self, user: str, user_created: str) -> frozenset[str]:
        """Return a user's groups, or raise Unavailable."""
        self._must_answer()
        self.asked_for_groups.append(user)
        return frozenset(self.members.get(user, ()) if self.users.get(user) == user_created else ())

    async def group_names(self) -> frozenset[str]:
        """Return all groups with members, or raise Unavailable."""
        self._must_answer()
        return frozenset().union(*self.members.values())

    async def all_users(self) -> list[HubUser]:
        """Return every user, or raise Unavailable."""
        self._must_answer()
        return [HubUser(name, born, frozenset(self.members.get(name, ()))) for name, born in self.users.items()]

    async def email(self, user: str) -> str | None:
        """Return a user's mail address, or raise Unavailable."""
        self._must_answer()
        return self.emails.get(user)

    async def name_of(self, user_created: str, last_known: str) -> str | None:
        """Return a user's current name, or raise Unavailable."""
        self._must_answer()
        if self.users.get(last_known) == user_created:
            return last_known
        return next((name for name, created in self.users.items() if created == user_created), None)

    async def servers(self) -> tuple[HubServer, ...]:
        """Return every server, or raise Unavailable."""
        self._must_answer()
        return tuple(self.listed.values())

    async def server(self, user: str, name: str) -> HubServer | None:
        """Return one server, or raise Unavailable."""
        self._must_answer()
        return self.listed.get((user, name))

    async def accepts_name(self, user: str, name: str) -> bool:
        """Return whether a server that was made before JupyterHub 6 has the name, or raise Unavailable."""
        self._must_answer()
        return (user, name) in self.listed

    async def has_named_servers(self, user: str) -> bool:  # noqa: ARG002 - the hub's signature
        """Return whether the hub has named servers."""
        return self.named_servers

    async def start(self, user: str, name: str, options: Mapping[str, Any]) -> str:  # noqa: ARG002 - the hub's signature
        """Start a server unless it exists already. A hub that does not answer starts none."""
        if self.unreachable or (user, name) in self.listed:
            return ""
        server = self.put(user, name)
        self.calls.append(("start", user, server.started))
        await self.on_start(server)
        return ""

    async def stop(self, user: str, name: str) -> None:
        """Stop a server, or raise Unavailable."""
        self._must_answer()
        server = self.listed.get((user, name))
        if server is None:
            return
        self.calls.append(("stop", user, server.started))
        if self.stops_slowly:
            self.listed[user, name] = replace(server, ready=False, pending="stop")
            return
        del self.listed[user, name]
        await self.on_stop(server)

    def _must_answer(self) -> None:
        if self.unreachable:
            raise Unavailable(self.unreachable)
