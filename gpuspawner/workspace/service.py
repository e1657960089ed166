"""The service for one workspace: the state of its own lease, Keep and Extend, and the programs that the image lacks.

The service does not offer missing programs, or says why they are missing. An image without nvidia-ml-py lacks the GPU
monitor.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tornado.escape import url_escape
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPResponse

DEADLINE_SECONDS = 5.0
"""Time limit of an answer. Arbitrary: the interval of the page's requests, so that they never pile up."""


@dataclass(frozen=True)
class Reply:
    """The answer for the browser: an HTTP status and a JSON object.

    The object is the service's workspace document, or ``{"error": {"message": str}}`` with the service's own 4xx,
    or ``{"away": true, "message": str}`` with 200: the service's absence is no fault of this server.
    """

    status: int
    body: dict[str, Any]


class ServiceClient:
    """Calls the service about one lease.

    Args:
        url: The service's address, ``http://127.0.0.1:9470/services/gpu``.
        lease_id: The lease of this workspace.
        token: The workspace's own token. It is sent only to ``url``, never logged, never returned.
        log: The log: one line when the service goes away and one when it is back.
    """

    def __init__(self, url: str, lease_id: str, token: str, log: logging.Logger) -> None:
        """Keep the address and the token. Nothing is sent yet."""
        self._address = f"{url.rstrip('/')}/api/v1/workspaces/{url_escape(lease_id, plus=False)}"
        self._headers = {"Authorization": f"token {token}", "Accept": "application/json"}
        self._log = log
        self._away = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], log: logging.Logger) -> ServiceClient | None:
        """Return the client from the spawner's variables, or None if one is missing."""
        url = environ.get("GPUSPAWNER_SERVICE_URL")
        lease_id = environ.get("GPUSPAWNER_LEASE_ID")
        token = environ.get("GPUSPAWNER_WORKSPACE_TOKEN")
        return cls(url, lease_id, token, log) if url and lease_id and token else None

    async def state(self) -> Reply:
        """Return the workspace document."""
        return await self._ask("GET", self._address)

    async def act(self, action: str) -> Reply:
        """Carry out ``keep`` or ``extend``. Return the service's answer."""
        return await self._ask("POST", f"{self._address}/{action}")

    async def report_missing(self, lacks: list[str]) -> Reply:
        """Report the programs that the image lacks for the tools of a template."""
        return await self._ask("POST", f"{self._address}/lacking", json.dumps({"lacks": lacks}))

    async def secrets(self) -> Reply:
        """Return the ``values`` of the user's secrets by name, and the names of ``unreadable`` ones."""
        return await self._ask("POST", f"{self._address}/secrets")

    async def check_ssh_ticket(self, ticket: str) -> Reply:
        """Return the ``user`` of an SSH ticket. 403 if it is not for this workspace."""
        return await self._ask("POST", f"{self._address}/ssh/check", json.dumps({"ticket": ticket}))

    async def _ask(self, method: str, address: str, body: str = "") -> Reply:
        try:
            # A separate client: a shared client queues behind other requests of this server.
            response = await AsyncHTTPClient(force_instance=True).fetch(
                address,
                raise_error=False,
                method=method,
                headers=self._headers,
                body=body if method == "POST" else None,
                connect_timeout=DEADLINE_SECONDS,
                request_timeout=DEADLINE_SECONDS,
                follow_redirects=False,  # the token is sent only to the service's own address
            )
            reply = _reply(response)
        except (HTTPClientError, OSError, ValueError) as error:  # ValueError: an invalid address
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
    if HTTPStatus.OK <= response.code < HTTPStatus.MULTIPLE_CHOICES:
        return Reply(200, body)
    error = body.get("error")
    message = str(error.get("message", "")) if isinstance(error, dict) else ""
    if HTTPStatus.BAD_REQUEST <= response.code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return Reply(response.code, {"error": {"message": message or f"refused with HTTP {response.code}"}})
    return _away(message or f"HTTP {response.code}")


def _away(message: str) -> Reply:
    return Reply(200, {"away": True, "message": message})


SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")
"""Folders of sshd, which are seldom on a user's PATH."""
TRIES, AGAIN_SECONDS = 5, 30.0
"""Number of reports while the service is away. Arbitrary: usually it is back within minutes."""


def find_missing_parts(environ: Mapping[str, str]) -> list[str]:
    """Return missing parts: ``monitor``, and tools by their names in a template's ``opens``."""
    path = os.pathsep.join((environ.get("PATH", os.defpath), *SBIN))
    proxy = importlib.util.find_spec("jupyter_vscode_proxy")
    has = {
        "vscode": proxy is not None and shutil.which("code-server", path=path) is not None,
        "ssh": all(shutil.which(name, path=path) for name in ("sshd", "ssh-keygen")),
        "monitor": importlib.util.find_spec("pynvml") is not None,
    }
    return [name for name, there in has.items() if not there]


async def report_missing(client: ServiceClient, environ: Mapping[str, str]) -> None:
    """Report missing parts to the service, if there are any."""
    found = find_missing_parts(environ)
    for _ in range(TRIES if found else 0):
        if "away" not in (await client.report_missing(found)).body:
            return
        await asyncio.sleep(AGAIN_SECONDS)
