"""The hub as the service sees it: its list of servers, a start, a stop."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from tornado.httpclient import HTTPClientError, HTTPRequest

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.observations import HubServer
from gpuspawner.core.outages import HUB
from gpuspawner.http_client import send

PAGE = "application/jupyterhub-pagination+json"
STRICT_SINCE = 6
"""The version of JupyterHub that restricts the names of servers."""
OF_NAMES = ("named servers", "server_name")
"""In what the hub says where the name is in the way."""
OF_USER = re.compile(r"user|\w+_user")
"""The keys under which authenticators keep a user's data: oauth_user, github_user. Others are not the user's."""
LONGEST_MESSAGE = 300
"""Characters of what the hub says. Arbitrary: a sentence or two."""


@dataclass(frozen=True)
class HubUser:
    """A user of the hub. ``created`` is in the format of a lease's key."""

    name: str
    created: str
    groups: frozenset[str] = frozenset()


class HubClient:
    """JupyterHub's REST API, with the service's own token.

    Raises:
        Unavailable: the hub does not answer, or answers with an error of its own.
    """

    def __init__(self, api_url: str, token: str) -> None:
        """Talk to ``api_url`` (JUPYTERHUB_API_URL)."""
        self._api_url = api_url.rstrip("/")
        self._headers = {"Authorization": f"token {token}", "Content-Type": "application/json", "Accept": PAGE}

    async def servers(self) -> tuple[HubServer, ...]:
        """Return every server that is active or pending: a complete list, or nothing."""
        users = [user async for user in self._listed("users?state=active&")]
        return tuple(_server(user, server) for user in users for server in _servers_of(user).values())

    async def created(self, user: str) -> str | None:
        """Return when the user of this name was created, as a key has it; None where the hub has no such user."""
        try:
            model = await self._fetch("GET", f"/users/{quote(user, safe='')}")
        except _NotFoundError:
            return None
        return model.get("created") or None

    async def groups(self, user: str, user_created: str) -> frozenset[str]:
        """Return the groups of the user with this name and creation time; no groups if the hub has no such user."""
        try:
            model = await self._fetch("GET", f"/users/{quote(user, safe='')}")
        except _NotFoundError:
            return frozenset()
        if not {"groups", "created"} <= model.keys():  # JupyterHub leaves out what it may not tell
            raise Unavailable(
                "The hub does not tell who is in which group: the role of this service lacks read:users:groups."
            )
        return frozenset(model["groups"]) if model["created"] == user_created else frozenset()

    async def group_names(self) -> frozenset[str]:
        """Return the names of all groups that the hub has."""
        return frozenset([group["name"] async for group in self._listed("groups?")])

    async def all_users(self) -> list[HubUser]:
        """Return every user of the hub: a complete list, or nothing."""
        listed = [user async for user in self._listed("users?") if user.get("created")]
        return [HubUser(one["name"], one["created"], frozenset(one.get("groups") or ())) for one in listed]

    async def email(self, user: str) -> str | None:
        """Return a user's mail address as the authenticator stored it, or the name where it is one; None for none.

        The hub must keep authentication state, and the service needs the scope ``admin:auth_state``.
        """
        try:
            model = await self._fetch("GET", f"/users/{quote(user, safe='')}")
        except _NotFoundError:
            return None
        state = model.get("auth_state") or {}
        inner = [value for key, value in state.items() if OF_USER.fullmatch(key) and isinstance(value, Mapping)]
        found = [one["email"] for one in (state, *inner) if isinstance(one.get("email"), str)]
        return next((address for address in (*found, user) if "@" in address), None)

    async def name_of(self, user_created: str, last_known: str) -> str | None:
        """Return the present name of the user who had the name ``last_known``; None if the hub has deleted them."""
        if await self.created(last_known) == user_created:
            return last_known
        names = [user["name"] async for user in self._listed("users?") if user.get("created") == user_created]
        return names[0] if names else None

    async def _listed(self, what: str) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the entries of all pages of a list, for example ``users?``. Raise if one page is missing."""
        offset: int | None = 0
        while offset is not None:
            page = await self._fetch("GET", f"/{what}offset={offset}&limit=200")
            if not isinstance(page, dict) or "items" not in page:
                name = what.partition("?")[0]
                raise Unavailable(f"The hub's list of {name} has no pages: it is not a JupyterHub of 5.5 or later.")
            for item in page["items"]:
                yield item
            following = page["_pagination"]["next"]
            offset = following["offset"] if following else None

    async def server(self, user: str, name: str) -> HubServer | None:
        """Return one server; None if the hub says that it does not exist."""
        try:
            model = await self._fetch("GET", f"/users/{quote(user, safe='')}")
        except _NotFoundError:
            return None
        server = _servers_of(model).get(name)
        return _server(model, server) if server else None

    async def takes_name(self, user: str, name: str) -> bool:
        """Return whether the hub accepts a server name that JupyterHub 6 refuses for new servers.

        An older hub does, and a newer one for a server that its user has had since then.
        """
        if int(str((await self._fetch("GET", "/"))["version"]).partition(".")[0]) < STRICT_SINCE:
            return True
        try:
            model = await self._fetch("GET", f"/users/{quote(user, safe='')}?include_stopped_servers")
        except _NotFoundError:
            return False
        return name in _servers_of(model)

    async def start(self, user: str, name: str, options: Mapping[str, Any]) -> str:
        """Ask for a start with the bare options (5.x knows no other form). Read the server back to see what came of it.

        201, 202, 400-pending and a time-out all mean "look again", so they are treated alike. Return why the hub can
        have no such server for any user: it allows no named servers, no more of them, or not this name; else "".
        """
        try:
            await self._fetch("POST", _server_path(user, name), dict(options), timeout_seconds=20.0)
        except _BadRequestError as error:
            return str(error) if any(words in str(error).lower() for words in OF_NAMES) else ""
        except (_NotFoundError, Unavailable):
            pass
        return ""

    async def stop(self, user: str, name: str) -> None:
        """Ask for a stop. A server that is not there is stopped."""
        try:
            await self._fetch("DELETE", _server_path(user, name), timeout_seconds=20.0)
        except _NotFoundError:
            return

    async def _fetch(self, method: str, path: str, body: Any = None, timeout_seconds: float = 10.0) -> Any:
        request = HTTPRequest(
            self._api_url + path,
            method=method,
            headers=self._headers,
            body=None if method in {"GET", "DELETE"} else json.dumps(body),
            request_timeout=timeout_seconds,
            connect_timeout=5.0,
            allow_nonstandard_methods=True,
        )
        try:
            response = await send(request)
        except HTTPClientError as error:
            if error.code == 404:  # noqa: PLR2004 - HTTP's own number
                raise _NotFoundError from error
            if error.code == 400 and error.response is not None:  # noqa: PLR2004
                raise _BadRequestError(_message_of(error.response.body)) from error
            raise Unavailable(f"The hub answered {error.code} to {method} {path.partition('?')[0]}.") from error
        except OSError as error:
            raise Unavailable(f"The hub does not answer ({error}).", HUB) from error
        try:
            return json.loads(response.body) if response.body else None
        except ValueError as error:
            words = f"What answers {method} {path.partition('?')[0]} is not the hub: it sends no JSON."
            raise Unavailable(words) from error


class _NotFoundError(Exception):
    pass


class _BadRequestError(Unavailable):
    """The hub's own words for a request that it refuses."""


def _message_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])[:LONGEST_MESSAGE]
    except (ValueError, KeyError, TypeError):
        return "The hub answered 400."


def _server_path(user: str, name: str) -> str:
    # The default server has a path of its own: with an empty name, /servers/ would be another route.
    return f"/users/{quote(user, safe='')}/" + (f"servers/{quote(name, safe='')}" if name else "server")


def _servers_of(user: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a user's servers. JupyterHub leaves out what it may not tell, which must not look like "no servers"."""
    if not {"servers", "created"} <= user.keys():
        raise Unavailable(
            f"The hub does not show the servers of {user['name']}. Give the role of this service the scopes "
            "read:servers and read:users."
        )
    return user["servers"] or {}


def _server(user: Mapping[str, Any], server: Mapping[str, Any]) -> HubServer:
    return HubServer(
        user["name"],
        user["created"] or "",
        server["name"],
        server.get("started") or "",
        bool(server.get("ready")),
        server.get("pending"),
        server.get("url") or "",
        seconds_of(server.get("last_activity")),
    )


def seconds_of(text: Any) -> float | None:
    """Return the hub's time (ISO 8601 in UTC) in seconds since the epoch; None if the text is no time."""
    try:
        at = datetime.fromisoformat(str(text).replace("Z", "+00:00"))  # Python 3.10 knows no Z
        return at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None
