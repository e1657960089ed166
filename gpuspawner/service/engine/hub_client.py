"""JupyterHub's REST API: users, groups, and the list, start and stop of servers."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from tornado.httpclient import HTTPClientError, HTTPRequest

from gpuspawner.core.errors import RequestRefused, Unavailable, quoted
from gpuspawner.core.leases.observations import HubServer
from gpuspawner.core.outages import HUB
from gpuspawner.http_client import send

PAGE = "application/jupyterhub-pagination+json"
STRICT_SINCE = 6
"""The version of JupyterHub that restricts the names of servers."""
OF_NAMES = ("named servers", "server_name")
"""The words of the hub's message if it refuses the name of a server."""
OF_USER = re.compile(r"user|\w+_user")
"""The keys under which authenticators keep a user's data: oauth_user, github_user. Others are not the user's."""
LONGEST_NAME = 30
SLUG = re.compile(r"[a-z](-?[a-z0-9])*")
"""The names that JupyterHub 6 accepts for new servers."""
LONGEST_OLD_NAME = 60
"""The longest name of a server from an older hub. Arbitrary: it becomes part of addresses and of pod names."""
NAME_RULE = f"at most {LONGEST_NAME} lower-case letters, digits and single hyphens, a letter first, no hyphen last"
UNNAMED = "Leave the name out, or ask your administrator to allow named servers."
LONGEST_MESSAGE = 300
"""Characters of a message of the hub. Arbitrary: a sentence or two."""


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
        self._has_named_servers = False
        self._headers = {"Authorization": f"token {token}", "Content-Type": "application/json", "Accept": PAGE}

    async def servers(self) -> tuple[HubServer, ...]:
        """Return every server that is active or pending: a complete list, or nothing."""
        users = [user async for user in self._listed("users?state=active&")]
        return tuple(_server(user, server) for user in users for server in _servers_of(user).values())

    async def created(self, user: str) -> str | None:
        """Return when a user was created, in the format of a lease's key; None if the hub has no such user."""
        model = await self._user(user)
        return (model.get("created") or None) if model is not None else None

    async def groups(self, user: str, user_created: str) -> frozenset[str]:
        """Return the groups of the user with this name and creation time; no groups if the hub has no such user."""
        model = await self._user(user)
        if model is None:
            return frozenset()
        if not {"groups", "created"} <= model.keys():  # JupyterHub leaves out fields that a token may not read
            raise Unavailable(
                f"The hub does not show the groups of {user}. "
                "Give the role of this service the scope read:users:groups."
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
        """Return a user's mail address as the authenticator stored it, or a name that is an address, else None.

        The hub must keep authentication state, and the service needs the scope ``admin:auth_state``.
        """
        model = await self._user(user)
        if model is None:
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
        model = await self._user(user)
        server = None if model is None else _servers_of(model).get(name)
        return _server(model, server) if model is not None and server else None

    async def check_server_name(self, user: str, name: object) -> str:
        """Return the name of a user's server after a check.

        Raises:
            RequestRefused: the hub does not accept this name, or it has no named servers.
            Unavailable: the hub does not say whether a server from before JupyterHub 6 has this name.
        """
        if name == "":
            return ""
        fits = isinstance(name, str) and len(name) <= LONGEST_NAME and bool(SLUG.fullmatch(name))
        may_be_old = isinstance(name, str) and len(name) <= LONGEST_OLD_NAME and name.isprintable() and "/" not in name
        if not (fits or (may_be_old and await self.accepts_name(user, str(name)))):
            raise RequestRefused("server", quoted(name), NAME_RULE, "Choose another name, or leave it out.")
        if not await self.has_named_servers(user):
            raise RequestRefused("server", quoted(name), "no name, because this hub has no named servers", UNNAMED)
        return str(name)

    async def has_named_servers(self, user: str) -> bool:
        """Return whether users may have servers with names, True while the hub does not answer.

        No part of JupyterHub's API says so. It refuses to delete a server that does not exist by a 400 if it has no
        named servers, else by a 404. A hub that has them is not asked again.
        """
        if not self._has_named_servers:
            try:
                await self._fetch("DELETE", _server_path(user, f"no-{uuid.uuid4().hex}"))
            except _BadRequestError as error:
                return not any(words in str(error).lower() for words in OF_NAMES)
            except _NotFoundError:
                self._has_named_servers = True
            except Unavailable:
                return True
        return True

    async def accepts_name(self, user: str, name: str) -> bool:
        """Return whether the hub accepts a server name that JupyterHub 6 refuses for new servers.

        An older hub accepts it. A newer hub accepts it for a server that the user has had since before the upgrade.
        """
        if int(str((await self._fetch("GET", "/"))["version"]).partition(".")[0]) < STRICT_SINCE:
            return True
        model = await self._user(user, "?include_stopped_servers")
        return model is not None and name in _servers_of(model)

    async def start(self, user: str, name: str, options: Mapping[str, Any]) -> str:
        """Ask for a start with the bare options, the only form that 5.x knows. Read the server later to see the result.

        201, 202, 400 for a pending server and a time-out all mean "look again", so they are treated alike. Return why
        the hub refuses such a server for every user: no named servers, no more of them, or not this name; else "".
        """
        try:
            await self._fetch("POST", _server_path(user, name), dict(options), timeout_seconds=20.0)
        except _BadRequestError as error:
            return str(error) if any(words in str(error).lower() for words in OF_NAMES) else ""
        except (_NotFoundError, Unavailable):
            pass
        return ""

    async def stop(self, user: str, name: str) -> None:
        """Ask for a stop. Treat 404 as already stopped."""
        with suppress(_NotFoundError):
            await self._fetch("DELETE", _server_path(user, name), timeout_seconds=20.0)

    async def _user(self, name: str, query: str = "") -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = await self._fetch("GET", f"/users/{quote(name, safe='')}{query}")
        except _NotFoundError:
            return None
        return found

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
    """The hub refuses a request. The message is the hub's own."""


def _message_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])[:LONGEST_MESSAGE]
    except (ValueError, KeyError, TypeError):
        return "The hub answered 400."


def _server_path(user: str, name: str) -> str:
    # The default server has a path of its own: with an empty name, /servers/ would be another route.
    return f"/users/{quote(user, safe='')}/" + (f"servers/{quote(name, safe='')}" if name else "server")


def _servers_of(user: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a user's servers. JupyterHub leaves them out if a token may not read them, which must not mean "none"."""
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
