"""The spawner's client of the service, and the files of reports that the service did not receive.

A service that shares no folder with the hub receives these files from the hub. Another reads them in its next round.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse

from gpuspawner.backends.machine import write_whole
from gpuspawner.core.authentication import (
    PROOF_HEADER,
    RequestTarget,
    new_nonce,
    proofs_match,
    prove_answer,
    request_headers,
)
from gpuspawner.core.errors import Conflict, Gone, RequestRefused, Unavailable
from gpuspawner.core.leases.reports import RELEASE_SPOOL, ReleaseReport
from gpuspawner.http_client import send

AWAY = "The GPU service does not answer."
NOT_OURS = "The server at the GPU service's address is not this hub's GPU service. Tell your administrator."
STOP_PATH_SECONDS = 2.0
"""Deadline of calls in stop paths: at its shutdown the hub ends the service before the servers."""
CONNECT_SECONDS = 3.0
OPERATE_SECONDS = 60.0
"""1,000 requests at once need only a part of it."""


@dataclass(frozen=True)
class LeaseClient:
    """Calls ``url`` (the service with its prefix) as the hub's spawner. The secret signs calls and is never sent.

    ``wall`` returns the signing time in seconds since the epoch.

    Each method raises RequestRefused for a 4xx with its reason, Gone for a 410 and Conflict for a 409. It raises
    Unavailable if the service does not answer, does not prove that it is this hub's service, or fails.
    """

    url: str
    secret: bytes
    wall: Callable[[], float] = time.time

    async def acquire(self, ask: Mapping[str, Any]) -> dict[str, Any]:
        """Request the lease of a start. Repeated calls are harmless."""
        return await self._call("POST", "/internal/acquire", body=ask)

    async def wait(self, lease: str, attempt: int, known_place: int | None, seconds: float) -> dict[str, Any]:
        """Wait for a change of the lease, at most ``seconds`` and at most ten. Each call keeps the start waiting."""
        known = "" if known_place is None else str(known_place)
        arguments = {"attempt": attempt, "known": known, "seconds": f"{max(0.0, seconds):.1f}"}
        return await self._call("GET", f"/internal/leases/{lease}", arguments, seconds=20.0)

    async def acknowledge(self, lease: str, attempt: int) -> dict[str, Any]:
        """Take the grant: returns the patch and the workspace's token. Conflict while leftovers are ending."""
        return await self._call("POST", f"/internal/leases/{lease}/acknowledge", {"attempt": attempt}, seconds=30.0)

    async def heartbeat(self, lease: str, attempt: int) -> dict[str, Any]:
        """Report that the start is in progress."""
        return await self._call("POST", f"/internal/leases/{lease}/heartbeat", {"attempt": attempt})

    async def park(self, lease: str, attempt: int) -> dict[str, Any]:
        """Stop waiting and keep the place in the queue."""
        return await self._call("POST", f"/internal/leases/{lease}/park", {"attempt": attempt})

    async def requeue(self, lease: str, attempt: int, why: str, node: str) -> dict[str, Any]:
        """Give back a grant without room, for the reason ``why``. The place in the queue is kept.

        ``node`` is the node without room, or "".
        """
        path, body = f"/internal/leases/{lease}/requeue", {"why": why, "node": node}
        return await self._call("POST", path, {"attempt": attempt}, body)

    async def release(self, release: ReleaseReport) -> None:
        """Report how a start or a server ended."""
        arguments = {"attempt": release.attempt, "outcome": release.outcome}
        path = f"/internal/leases/{release.lease}/release"
        await self._call(
            "POST", path, arguments, {"message": release.message, "output": release.output}, seconds=STOP_PATH_SECONDS
        )

    async def forget(self, key: Mapping[str, str]) -> None:
        """Report that the hub deletes the server of a key (``hub``, ``user_created``, ``server``)."""
        await self._call("POST", "/internal/forget", body=key, seconds=STOP_PATH_SECONDS)

    async def added(self, known: str) -> dict[str, Any]:
        """Return the entries that custom resources add to the catalog, unless ``known`` is their current version."""
        return await self._call("POST", "/internal/added", body={"known": known}, seconds=STOP_PATH_SECONDS)

    async def name_stopper(self, told: Mapping[str, str]) -> None:
        """Name the user (``by``) whose request stopped the server of a key, before or after its end is reported."""
        await self._call("POST", "/internal/stopper", body=told)

    async def operate(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Send the observations of a separate operator. Returns the objects to write. Conflict if another one leads."""
        return await self._call("POST", "/internal/operator", body=seen, seconds=OPERATE_SECONDS)

    async def _call(
        self,
        method: str,
        path: str,
        arguments: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        seconds: float = 5.0,
    ) -> dict[str, Any]:
        url, nonce = f"{self.url}{path}{'?' if arguments else ''}{urlencode(arguments or {})}", new_nonce()
        sent = json.dumps(body or {}) if method == "POST" else None
        headers = request_headers(
            self.secret, nonce, self.wall(), RequestTarget(method, target_of(url)), (sent or "").encode()
        )
        response = await ask_service(self.secret, method, url, nonce, headers, sent, seconds)
        answer: dict[str, Any] = json.loads(response.body)
        if response.code != HTTPStatus.OK:
            raise _to_error(response.code, answer["error"])
        return answer


async def ask_service(
    secret: bytes, method: str, url: str, nonce: str, headers: Mapping[str, str], body: str | None, seconds: float
) -> HTTPResponse:
    """Return the answer of the service with this secret, including refusals. The hub calls it only here.

    Raises:
        Unavailable: It does not answer in time, or does not prove that it is this hub's service.
    """
    request = HTTPRequest(
        url,
        method=method,
        headers={"Content-Type": "application/json", **headers},
        body=body,
        follow_redirects=False,
        request_timeout=seconds,
        connect_timeout=min(seconds, CONNECT_SECONDS),
    )
    try:
        response = await send(request, raise_error=False)
    except (OSError, HTTPClientError) as error:
        raise Unavailable(AWAY) from error
    if not is_proven(response, secret, nonce, RequestTarget(method, target_of(url))):
        raise Unavailable(AWAY if response.code >= HTTPStatus.INTERNAL_SERVER_ERROR else NOT_OURS)
    return response


def target_of(url: str) -> str:
    """Return path and query of an address, as sent."""
    return f"/{url.split('/', 3)[3]}"


def is_proven(response: HTTPResponse, secret: bytes, nonce: str, asked: RequestTarget) -> bool:
    """Return whether the service with this secret wrote the answer to this request."""
    due = prove_answer(secret, nonce, asked, response.code, response.body)
    return proofs_match(response.headers.get(PROOF_HEADER, ""), due)


def _to_error(status: int, error: Mapping[str, Any]) -> Exception:
    message = error["message"]
    if status == HTTPStatus.GONE:
        return Gone(message)
    if status == HTTPStatus.CONFLICT:
        return Conflict(message)
    if {"field", "asked", "limit", "remedy"} <= set(error):
        return RequestRefused(error["field"], error["asked"], error["limit"], error["remedy"], status=status)
    return Unavailable(message)


log = logging.getLogger("gpuspawner.spawner")

AGAIN_SECONDS = 3.0
_senders: dict[Path, asyncio.Task[None]] = {}
"""The tasks that send spooled reports to the service, one for each folder."""


def spool_release(data: Path, release: ReleaseReport) -> None:
    """Write a report whole or not at all, as a file that only this user may read. Raises OSError."""
    folder = data / RELEASE_SPOOL
    folder.mkdir(mode=0o700, exist_ok=True)
    write_whole(folder / f"{uuid.uuid4().hex}.json", release.to_json().encode())


def send_spooled_later(data: Path, client: LeaseClient) -> None:
    """Send the spooled reports once the service answers, for a service that shares no folder with the hub."""
    if data not in _senders and any((data / RELEASE_SPOOL).glob("*.json")):
        task = asyncio.get_running_loop().create_task(_send_spooled(data / RELEASE_SPOOL, client))
        _senders[data] = task
        task.add_done_callback(lambda _: _senders.pop(data, None))


async def _send_spooled(folder: Path, client: LeaseClient) -> None:
    try:
        while left := _spooled_files(folder):
            try:
                for file in left:
                    await _send_one(file, client)
                    file.unlink(missing_ok=True)
            except Unavailable:
                await asyncio.sleep(AGAIN_SECONDS)
    except OSError as error:
        log.warning("Reports that the GPU service did not receive cannot be read: %s", error)


def _spooled_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)


async def _send_one(file: Path, client: LeaseClient) -> None:
    try:
        release = ReleaseReport.from_json(await asyncio.to_thread(file.read_text, "utf-8", "replace"))
        await client.release(release)
    except (Conflict, RequestRefused, ValueError) as error:
        log.warning("The report %s, which the GPU service did not receive, is dropped: %s", file.name, error)


def hub_shuts_down() -> bool:
    """Return whether the hub is ending. Its task is the only sign, and the service may have ended before."""
    names = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return any(name.endswith(".shutdown_cancel_tasks") for name in names)
