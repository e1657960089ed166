"""The service, as one workspace may use it: the state of its own lease, Keep and Extend."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tornado.escape import url_escape
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPResponse

DEADLINE_SECONDS = 5.0
"""How long an answer may take. Arbitrary: the interval at which the page asks, so that questions never pile up."""


@dataclass(frozen=True)
class Reply:
    """What the browser is told: an HTTP status, and a JSON object.

    The object is the service's workspace document, or ``{"error": {"message": str}}`` with the service's own 4xx,
    or ``{"away": true, "message": str}`` with 200: the service's absence is no fault of this server.
    """

    status: int
    body: dict[str, Any]


class ServiceClient:
    """Asks the service about one lease.

    Args:
        url: the service's address, ``http://127.0.0.1:9470/services/gpu``.
        lease_id: the lease of this workspace.
        token: the workspace's own; sent to ``url`` alone, never logged, never returned.
        log: told once when the service goes away, and once when it is back.
    """

    def __init__(self, url: str, lease_id: str, token: str, log: logging.Logger) -> None:
        """Keep the address and the token; nothing is sent yet."""
        self._address = f"{url.rstrip('/')}/api/v1/workspaces/{url_escape(lease_id, plus=False)}"
        self._headers = {"Authorization": f"token {token}", "Accept": "application/json"}
        self._log = log
        self._away = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], log: logging.Logger) -> ServiceClient | None:
        """Return the client that the spawner's variables describe, None where one of them is missing."""
        url = environ.get("GPUSPAWNER_SERVICE_URL")
        lease_id = environ.get("GPUSPAWNER_LEASE_ID")
        token = environ.get("GPUSPAWNER_WORKSPACE_TOKEN")
        return cls(url, lease_id, token, log) if url and lease_id and token else None

    async def state(self) -> Reply:
        """Return the workspace document."""
        return await self._ask("GET", self._address)

    async def act(self, action: str) -> Reply:
        """Carry out ``keep`` or ``extend``; return the service's answer."""
        return await self._ask("POST", f"{self._address}/{action}")

    async def tell_lacking(self, lacks: list[str]) -> Reply:
        """Tell what can't be opened here of what a template may open."""
        return await self._ask("POST", f"{self._address}/lacking", json.dumps({"lacks": lacks}))

    async def check_ssh_ticket(self, ticket: str) -> Reply:
        """Return whose ticket for SSH it is, as ``user``; 403 where it is none of this workspace."""
        return await self._ask("POST", f"{self._address}/ssh/check", json.dumps({"ticket": ticket}))

    async def _ask(self, method: str, address: str, body: str = "") -> Reply:
        try:
            # A client of its own: a shared one queues behind whatever else this server fetches.
            response = await AsyncHTTPClient(force_instance=True).fetch(
                address,
                raise_error=False,
                method=method,
                headers=self._headers,
                body=body if method == "POST" else None,
                connect_timeout=DEADLINE_SECONDS,
                request_timeout=DEADLINE_SECONDS,
                follow_redirects=False,  # the token goes to the service's own address only
            )
            reply = _reply(response)
        except (HTTPClientError, OSError, ValueError) as error:  # ValueError: an address that is none
            reply = _away(f"no answer from it ({error})")
        self._note(reply)
        return reply

    def _note(self, reply: Reply) -> None:
        away = "away" in reply.body
        if away and not self._away:
            self._log.warning("The GPU service is away: %s", reply.body["message"])
        elif self._away and not away:
            self._log.info("The GPU service is back")
        self._away = away


def _reply(response: HTTPResponse) -> Reply:
    try:
        body = json.loads(response.body)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        return _away(f"HTTP {response.code} and no JSON object, as from a proxy in between")
    if 200 <= response.code < 300:  # noqa: PLR2004 - HTTP's own classes of status
        return Reply(200, body)
    error = body.get("error")
    message = str(error.get("message", "")) if isinstance(error, dict) else ""
    if 400 <= response.code < 500:  # noqa: PLR2004
        return Reply(response.code, {"error": {"message": message or f"refused with HTTP {response.code}"}})
    return _away(message or f"HTTP {response.code}")


def _away(message: str) -> Reply:
    return Reply(200, {"away": True, "message": message})
