"""HTTP requests to the scheduler, limited in time and size, and the check of its callbacks' signatures."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
from collections import OrderedDict
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
from gpuspawner.schedulers.base import UnusableScheduler
from gpuspawner.schedulers.http.models import Capabilities, Claims, Offers, Problem, State, StockList

T = TypeVar("T", bound=BaseModel)

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Arbitrary: the states of ten thousand claims."""
MAX_TOKEN_BYTES = 8192
MAX_CONCURRENT = 16
"""Requests at the same time. Arbitrary: a few hundred claims in a second."""
CONTRACT = "1"
"""Major version of the contract."""
MIN_HOLD_SECONDS = 40.0
"""A grant is reserved for 30 s, and its confirmation takes up to 10 s."""


class RequestRejected(GpuspawnerError):
    """The scheduler refused one request, with a code for programs and a sentence for people."""

    def __init__(self, status: int, code: str, words: str) -> None:
        super().__init__(words)
        self.status, self.code, self.words = status, code, words


class _Connections(TCPClient):
    """Also closes its connections: a cancelled request would leave its connection open."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: list[IOStream] = []
        self._closed = False

    async def connect(self, *where: Any, **how: Any) -> IOStream:
        stream = await super().connect(*where, **how)
        if self._closed:  # The request was cancelled meanwhile.
            stream.close()
        self._opened.append(stream)
        return stream

    def close(self) -> None:
        self._closed = True
        for stream in self._opened:
            stream.close()
        super().close()


class SchedulerClient:
    """The contract's requests. Each raises Unavailable without an answer, or with one outside of the contract."""

    def __init__(self, address: HttpSchedulerAddress, hub_id: str) -> None:
        """``hub_id`` is part of the path of our claims."""
        self.address = address
        self.name = "The scheduler"
        """The name on pages: the scheduler's own name, once it reported one."""
        self._hub = f"/v1/hubs/{quote(hub_id, safe='')}"
        self._turns, self._offer_turns = asyncio.Semaphore(MAX_CONCURRENT), asyncio.Semaphore(MAX_CONCURRENT // 2)

    async def capabilities(self) -> Capabilities:
        """Fetch the scheduler's abilities. Raises UnusableScheduler."""
        found = await self._request(Capabilities, "GET", "/v1/capabilities")
        self.name = found.name
        if why := explain_unusable(found):
            raise UnusableScheduler(why)
        return found

    async def stock(self) -> StockList:
        """Return the GPUs of each kind."""
        return await self._request(StockList, "GET", "/v1/stock")

    async def offers(self, claim: Mapping[str, Any]) -> Offers:
        """Preview a claim. Open forms use at most half of the requests. Raises RequestRejected."""
        async with self._offer_turns:
            return await self._request(Offers, "POST", "/v1/offers", claim)

    async def claims(self, cursor: str | None, wait_seconds: float = 0.0) -> Claims:
        """Return changes since a cursor, or all claims. Raises RequestRejected (410) for an unknown cursor."""
        query = {} if cursor is None else {"cursor": cursor, "wait_seconds": f"{wait_seconds:g}"}
        path = f"{self._hub}/claims{'?' if query else ''}{urlencode(query)}"
        return await self._request(Claims, "GET", path, more_seconds=wait_seconds)

    async def claim(self, name: str, claim: Mapping[str, Any], key: str) -> State:
        """Create or change a claim. Raises RequestRejected."""
        return await self._request(State, "PUT", self._path(name), claim, {"Idempotency-Key": key})

    async def release(self, name: str) -> None:
        """Release a claim, which may be gone already."""
        await self._fetch("DELETE", self._path(name))

    async def extend(self, name: str, until: str) -> State:
        """Ask the scheduler to move the end of a workspace to ``until``. Raises RequestRejected."""
        return await self._request(State, "POST", f"{self._path(name)}/extend", {"until": until})

    async def acknowledge(self, name: str) -> State:
        """Confirm that the user was told of a preemption. Raises RequestRejected."""
        return await self._request(State, "POST", f"{self._path(name)}/preemption/acknowledge")

    async def callback(self, url: str) -> None:
        """Register the address for changes. Raises RequestRejected."""
        await self._fetch("PUT", f"{self._hub}/callback", {"url": url})

    async def token(self) -> str:
        """Return the current token from its file, "" without a file."""
        path = self.address.token_file
        return await asyncio.to_thread(_read_token, path) if path else ""

    def _path(self, name: str) -> str:
        return f"{self._hub}/claims/{quote(name, safe='')}"

    async def _request(
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
                f"{self.name} answered {method} {path} outside of the contract: {where}: {first['msg']}."
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
        request = HTTPRequest(
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
        size: dict[str, Any] = {"max_body_size": MAX_ANSWER_BYTES, "max_buffer_size": MAX_ANSWER_BYTES}
        if more_seconds:  # A long poll must not take a turn from other requests.
            return await self._send(request, size)
        async with self._turns:
            return await self._send(request, size)

    async def _send(self, request: HTTPRequest, size: Mapping[str, Any]) -> HTTPResponse:
        client = SimpleAsyncHTTPClient(force_instance=True, **size)
        client.tcp_client = _Connections()
        answer = client.fetch(request)
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may never be awaited
        try:
            return await asyncio.shield(answer)
        except HTTPClientError as error:
            raise self._to_error(error) from None  # The original error contains the token.
        except (OSError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise Unavailable(f"{self.name} does not answer at {self.address.url} ({reason}).") from None
        finally:
            client.close()

    def _to_error(self, error: HTTPClientError) -> GpuspawnerError:
        problem: Problem | None = None
        if error.response is not None and error.response.body:
            try:
                problem = Problem.model_validate_json(error.response.body)
            except ValidationError:
                problem = None
        if problem is not None and error.code in {400, 404, 409, 410, 422}:
            return RequestRejected(error.code, problem.error, problem.words)
        words = f" It says: {problem.words}" if problem is not None else ""
        if error.code == 599:  # noqa: PLR2004 - Tornado's own code for a timeout or a cut connection
            return Unavailable(f"{self.name} does not answer at {self.address.url} ({error.message}).")
        return Unavailable(f"{self.name} answered {error.code} at {self.address.url}.{words}")


def explain_unusable(found: Capabilities) -> str:
    """Return why a scheduler cannot be used, in sentences. "" if it can."""
    if found.contract.partition(".")[0] != CONTRACT:
        return (
            f"{found.name} {found.version} speaks the contract {found.contract}, and gpuspawner {CONTRACT}.x. Nothing "
            "is granted. Use a version that speaks ours (docs/scheduler.openapi.yaml)."
        )
    if found.hold_seconds < MIN_HOLD_SECONDS:
        return (
            f"{found.name} {found.version} holds a grant for {found.hold_seconds:g} s, but a start needs "
            f"{MIN_HOLD_SECONDS:g} s to take it. Nothing is granted. Configure it to hold grants for longer."
        )
    return ""


def _read_token(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            token = file.read(MAX_TOKEN_BYTES).strip()
    except (OSError, ValueError) as error:
        raise Unavailable(f"The scheduler's token can't be read from {path} ({type(error).__name__}).") from None
    if not token or not token.isascii() or not token.isprintable():
        raise Unavailable(f"{path} contains no valid token.")
    return token


MAX_AGE_SECONDS = 300.0
"""Callbacks signed longer ago, or this far in the future, are refused."""
MAX_DELIVERIES = 10_000
"""Callbacks within five minutes. Arbitrary: 33 in a second."""

_SIGNATURE = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")
_DELIVERY = re.compile(r"[!-~]{8,100}")


def signature(token: str, at: int, body: bytes) -> str:
    """Return the ``X-Signature`` of a body, signed at a time in seconds since the epoch."""
    digest = hmac.new(token.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


class CallbackVerifier:
    """Checks callbacks, and remembers those of the last minutes so that none counts twice."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, float] = OrderedDict()

    def why_refused(self, token: str, signed: str, delivery: str, body: bytes, now: float) -> str:
        """Return why a callback is refused, in a sentence. "" if it is accepted, which happens once."""
        found = _SIGNATURE.fullmatch(signed)
        if not token or found is None or not _DELIVERY.fullmatch(delivery):
            return "Send X-Signature (t=SECONDS,v1=HEX) and X-Delivery (8 to 100 characters)."
        if not hmac.compare_digest(signature(token, int(found[1]), body), signed):
            return "The signature does not match this body and the shared token."
        if abs(now - int(found[1])) > MAX_AGE_SECONDS:
            return f"It was signed more than {MAX_AGE_SECONDS:g} s ago, or the two clocks differ by that much."
        while self._known and next(iter(self._known.values())) < now - 2 * MAX_AGE_SECONDS:
            self._known.popitem(last=False)
        names = delivery, signed  # The delivery's name is not signed: a replay may use another one.
        if any(name in self._known for name in names):
            return "This delivery was received before."
        if len(self._known) >= len(names) * MAX_DELIVERIES:
            return f"More than {MAX_DELIVERIES} deliveries came within {2 * MAX_AGE_SECONDS:g} s."
        self._known.update(dict.fromkeys(names, now))
        return ""
