"""Talks to the scheduler: each question bounded in time and size, the token read from its file each time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ValidationError
from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.iostream import IOStream
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from tornado.tcpclient import TCPClient

from gpuspawner.catalog import HttpSchedulerAddress
from gpuspawner.core.errors import GpuspawnerError, Unavailable
from gpuspawner.schedulers.base import Unfit
from gpuspawner.schedulers.http.models import Capabilities, Claims, Error, Offers, State, StockList

T = TypeVar("T", bound=BaseModel)

LONGEST_ANSWER_BYTES = 16 * 1024 * 1024
"""Arbitrary: ten thousand claims' states."""
LONGEST_TOKEN_BYTES = 8192
AT_ONCE = 16
"""So many questions are under way. Arbitrary: enough for a few hundred claims in a second, and no flood."""
CONTRACT = "1"
"""The version of the contract that this speaks: its first number."""
LEAST_HOLD_SECONDS = 40.0
"""A grant is reserved for 30 s, and its taking told within ten."""


class TurnedDown(GpuspawnerError):
    """The scheduler refused one request, with a code for programs and words for people."""

    def __init__(self, status: int, code: str, words: str) -> None:
        """Keep all three."""
        super().__init__(words)
        self.status, self.code, self.words = status, code, words


class _Connections(TCPClient):
    """Closes what it opened, too: a question that is given up would leave its connection to the scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: list[IOStream] = []
        self._closed = False

    async def connect(self, *where: Any, **how: Any) -> IOStream:
        """Open a connection."""
        stream = await super().connect(*where, **how)
        if self._closed:  # it was given up meanwhile
            stream.close()
        self._opened.append(stream)
        return stream

    def close(self) -> None:
        """Close all of them."""
        self._closed = True
        for stream in self._opened:
            stream.close()
        super().close()


class Client:
    """The contract's requests. Each raises Unavailable where no answer comes, or none that the contract knows."""

    def __init__(self, address: HttpSchedulerAddress, hub_id: str) -> None:
        """Ask nothing yet. ``hub_id`` names our claims."""
        self.address = address
        self.name = "The scheduler"
        """What pages call it; its own name once it told that."""
        self._hub = f"/v1/hubs/{quote(hub_id, safe='')}"
        self._turns, self._forms = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE // 2)

    async def capabilities(self) -> Capabilities:
        """Ask what it is. Raises Unfit where it is none that can be used."""
        told = await self._ask(Capabilities, "GET", "/v1/capabilities")
        self.name = told.name
        if why := unfit(told):
            raise Unfit(why)
        return told

    async def stock(self) -> StockList:
        """Ask what there is of each kind."""
        return await self._ask(StockList, "GET", "/v1/stock")

    async def offers(self, claim: Mapping[str, Any]) -> Offers:
        """Ask what a claim would get. Raises TurnedDown. Many open forms take half the turns at most from claims."""
        async with self._forms:
            return await self._ask(Offers, "POST", "/v1/offers", claim)

    async def claims(self, cursor: str | None, wait_seconds: float = 0.0) -> Claims:
        """Ask what changed since a cursor, or without one, for all. Raises TurnedDown (410) for an unknown cursor."""
        query = {} if cursor is None else {"cursor": cursor, "wait_seconds": f"{wait_seconds:g}"}
        path = f"{self._hub}/claims{'?' if query else ''}{urlencode(query)}"
        return await self._ask(Claims, "GET", path, more_seconds=wait_seconds)

    async def claim(self, name: str, claim: Mapping[str, Any], key: str) -> State:
        """Say what a workspace wants. Raises TurnedDown."""
        return await self._ask(State, "PUT", self._of(name), claim, {"Idempotency-Key": key})

    async def release(self, name: str) -> None:
        """Release a claim; one that is not there is none the less."""
        await self._fetch("DELETE", self._of(name))

    async def extend(self, name: str, until: str) -> State:
        """Ask whether it may run until then. Raises TurnedDown."""
        return await self._ask(State, "POST", f"{self._of(name)}/extend", {"until": until})

    async def acknowledge(self, name: str) -> State:
        """Say that its user was told of a preemption. Raises TurnedDown."""
        return await self._ask(State, "POST", f"{self._of(name)}/preemption/acknowledge")

    async def callback(self, url: str) -> None:
        """Say where changes are to be sent. Raises TurnedDown."""
        await self._fetch("PUT", f"{self._hub}/callback", {"url": url})

    async def token(self) -> str:
        """Return the token as its file has it now; "" for none."""
        path = self.address.token_file
        return await asyncio.to_thread(_token, path) if path else ""

    def _of(self, name: str) -> str:
        return f"{self._hub}/claims/{quote(name, safe='')}"

    async def _ask(
        self,
        shape: type[T],
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        more_seconds: float = 0.0,
    ) -> T:
        answer = await self._fetch(method, path, body, headers, more_seconds)
        try:
            return shape.model_validate_json(answer.body)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the answer"
            raise Unavailable(
                f"{self.name} answered {method} {path} not as agreed: {where}: {first['msg']}."
            ) from error

    async def _fetch(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        more_seconds: float = 0.0,
    ) -> HTTPResponse:
        token, limit = await self.token(), self.address.timeout_seconds
        asked = HTTPRequest(
            self.address.url + path,
            method=method,
            body=None if body is None and method != "POST" else json.dumps(body or {}) if body is not None else "",
            headers={
                **({"Authorization": f"Bearer {token}"} if token else {}),
                "Accept": "application/json",
                **({"Content-Type": "application/json"} if body is not None else {}),
                **(headers or {}),
            },
            request_timeout=limit + more_seconds,
            connect_timeout=limit,
            follow_redirects=False,
        )
        size: dict[str, Any] = {"max_body_size": LONGEST_ANSWER_BYTES, "max_buffer_size": LONGEST_ANSWER_BYTES}
        if more_seconds:  # a question that waits must not take a turn from those that do not
            return await self._fetched(asked, size)
        async with self._turns:
            return await self._fetched(asked, size)

    async def _fetched(self, asked: HTTPRequest, size: Mapping[str, Any]) -> HTTPResponse:
        client = SimpleAsyncHTTPClient(force_instance=True, **size)
        client.tcp_client = _Connections()
        answer = client.fetch(asked)
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be there to hear it
        try:
            return await asyncio.shield(answer)
        except HTTPClientError as error:
            raise self._refusal(error) from None  # what it came from holds the token
        except (OSError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise Unavailable(f"{self.name} does not answer at {self.address.url} ({reason}).") from None
        finally:
            client.close()

    def _refusal(self, error: HTTPClientError) -> GpuspawnerError:
        told: Error | None = None
        if error.response is not None and error.response.body:
            try:
                told = Error.model_validate_json(error.response.body)
            except ValidationError:
                told = None
        if told is not None and error.code in {400, 404, 409, 410, 422}:
            return TurnedDown(error.code, told.error, told.words)
        words = f" It says: {told.words}" if told is not None else ""
        if error.code == 599:  # noqa: PLR2004 - tornado's own, of a time-out or a cut connection
            return Unavailable(f"{self.name} does not answer at {self.address.url} ({error.message}).")
        return Unavailable(f"{self.name} answered {error.code} at {self.address.url}.{words}")


def unfit(told: Capabilities) -> str:
    """Return why a scheduler can't be used, in sentences; "" where it can."""
    if told.contract.partition(".")[0] != CONTRACT:
        return (
            f"{told.name} {told.version} speaks the contract {told.contract}, and gpuspawner {CONTRACT}.x: nothing is "
            "granted. Use a version of it that speaks ours (docs/scheduler.openapi.yaml)."
        )
    if told.hold_seconds < LEAST_HOLD_SECONDS:
        return (
            f"{told.name} {told.version} holds a grant for {told.hold_seconds:g} s, and a start needs "
            f"{LEAST_HOLD_SECONDS:g} s to take it: nothing is granted. Have it hold grants for longer."
        )
    return ""


def _token(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            token = file.read(LONGEST_TOKEN_BYTES).strip()
    except (OSError, ValueError) as error:
        raise Unavailable(f"The scheduler's token can't be read from {path} ({type(error).__name__}).") from None
    if not token or not token.isascii() or not token.isprintable():
        raise Unavailable(f"What stands in {path} is no token.")
    return token
