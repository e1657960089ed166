"""The startup gate: it answers requests from the start of the service, while the store is still loaded.

A request's body is read only if it is short and its sender may use the service.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from tornado.http1connection import HTTP1Connection
from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerRequest,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.routing import Router
from tornado.web import Application, HTTPError, stream_request_body

from gpuspawner.core.errors import LARGEST_REQUEST_BYTES, TooLarge, Unavailable
from gpuspawner.service.api.base import BaseHandler, is_spawner
from gpuspawner.service.api.internal import CALLBACK_PATH
from gpuspawner.service.connections import LARGEST_DISCARDED_BYTES
from gpuspawner.service.custom_resources.relay import OPERATOR_PATH
from gpuspawner.service.health import ALIVE, READY
from gpuspawner.service.parts import Parts
from gpuspawner.service.web.base import STALE, NotFound, PageHandler

STARTING = "The GPU service is starting."
GOES_ON = "Workspaces keep running meanwhile, and nothing is lost."
TO_MEND = "Until it answers, workspaces keep running, and none is started or stopped. Tell an administrator."
AGAIN_SECONDS = 5
"""When to ask again. Arbitrary: the store is tried every second, and a page should not flicker."""
LARGEST_SHOWN_BYTES = 32 * 2**20
"""The largest report of a separate operator process: 5,000 workspaces, and those that ended. The operator is
authenticated before its report is read."""
NO_LENGTH = "Send the request with its length (Content-Length), not in chunks."


class StartupGate(Router):
    """Leads requests to the application, or, while ``waits_for`` says what is missing, to an answer that tells it."""

    def __init__(self, application: Application, parts: Parts) -> None:
        """Wait: an empty ``waits_for`` opens."""
        self._application, self._parts = application, parts
        self.waits_for = STARTING
        prefix = parts.prefix.rstrip("/")
        self._signed = prefix + CALLBACK_PATH
        """Senders to this path sign the body, which is short."""
        self._operator = prefix + OPERATOR_PATH
        """The operator process sends all resources of a cluster to this path."""
        self._always = (f"{prefix}/static/", f"{prefix}/oauth_callback", ALIVE, READY)

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> HTTPMessageDelegate | None:
        """Return the delegate that answers a request. A body is admitted first."""
        if _body_bytes(request.headers) == 0:
            return self._lead(request, **kwargs)
        return Admission(self, request)

    async def admit(self, request: HTTPServerRequest) -> HTTPMessageDelegate:
        """Return the delegate that answers a request with a body."""
        size = _body_bytes(request.headers)
        large = request.path == self._operator and is_spawner(self._parts.secret, request.headers)
        largest = LARGEST_SHOWN_BYTES if large else LARGEST_REQUEST_BYTES
        try:
            _check_size(size, largest)
            if large and isinstance(request.connection, HTTP1Connection):
                request.connection.set_max_body_size(largest)
            if not self.waits_for and request.path != self._signed:
                await Sender(self._application, request, parts=self._parts).check()
        except Exception as error:  # noqa: BLE001 - told as the answer
            unread = size is None or size > LARGEST_DISCARDED_BYTES or "Expect" in request.headers
            arguments = {"parts": self._parts, "error": error, "unread": unread}
            return self._application.get_handler_delegate(request, Refused, arguments)
        return self._lead(request)

    def _lead(self, request: HTTPServerRequest, **kwargs: Any) -> HTTPMessageDelegate:
        if not self.waits_for or request.path.startswith(self._always):
            return self._application.find_handler(request, **kwargs)
        arguments = {"parts": self._parts, "waits_for": self.waits_for}
        return self._application.get_handler_delegate(request, Waiting, arguments)


def _body_bytes(headers: HTTPHeaders) -> int | None:
    """Return how long a request's body is to be; None where it says so in no way that can be trusted."""
    length = headers.get("Content-Length", "0")
    known = length.isdecimal() and len(length) <= 12 and "Transfer-Encoding" not in headers  # noqa: PLR2004
    return int(length) if known else None


def _check_size(size: int | None, largest: int) -> None:
    if size is None:
        raise HTTPError(411, reason=NO_LENGTH)
    if size > largest:
        raise TooLarge


class Admission(HTTPMessageDelegate):
    """Finds out who sends a body before it is read; then leads to what answers."""

    def __init__(self, gate: StartupGate, request: HTTPServerRequest) -> None:
        """Nothing is asked yet."""
        self._gate, self._request = gate, request
        self._to: HTTPMessageDelegate | None = None

    async def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        """Choose who answers."""
        self._to = await self._gate.admit(self._request)
        ready = self._to.headers_received(start_line, headers)
        if ready is not None:
            await ready

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Pass it on."""
        return self._to.data_received(chunk) if self._to is not None else None

    def finish(self) -> None:
        """Pass it on."""
        if self._to is not None:
            self._to.finish()

    def on_connection_close(self) -> None:
        """Pass it on."""
        if self._to is not None:
            self._to.on_connection_close()


class Sender(BaseHandler):
    """Authenticates the sender of a body. It sends no answer.

    The handler of the request checks the permission and the token of a form.
    """

    serves_forms = True

    async def check(self) -> None:
        """Authenticate the sender.

        Raises:
            HTTPError: 403, the sender is not signed in.
            Unavailable: the hub does not answer.
        """
        if is_spawner(self.parts.secret, self.request.headers):
            return
        cookie = None if self._authorization()[0] else self.hub_auth.get_token(self)
        if not cookie:
            self.person = await self.find_person()
            self.must()
        else:
            session = self.hub_auth.get_session_id(self)
            known = self.hub_auth.user_for_token(cookie, session_id=session, sync=False)
            if await self.asked_of_hub(known) is None:
                raise HTTPError(403, reason=STALE)


@stream_request_body
class Refused(NotFound):
    """Any method: an error, without keeping what is sent.

    At once where the body is to stay ``unread``, which ends the connection. Else after the body, which goes nowhere:
    clients and proxies that are still sending would miss an answer.
    """

    def initialize(self, parts: Parts, error: Exception, *, unread: bool) -> None:  # type: ignore[override]
        """Store the error."""
        super().initialize(parts)
        self._error, self._unread = error, unread

    async def prepare(self) -> None:
        """Raise the error at once if the body stays unread. Otherwise it is raised after the body."""
        if self._unread:
            raise self._error

    def data_received(self, chunk: bytes) -> None:
        """Keep nothing."""

    def _tell(self) -> None:
        raise self._error

    get = head = post = put = patch = delete = options = _tell


class Waiting(PageHandler):
    """Any method: 503 with the reason, in JSON for programs, as a page that loads itself again for people.

    People sign in first, as ever. So the hub's own look at a service that it starts is answered by a redirect: it takes
    no 5xx for an answer, and after 30 s (10 s before JupyterHub 6) without one it ends itself.
    """

    def initialize(self, parts: Parts, waits_for: str = STARTING) -> None:
        """Store what is missing."""
        super().initialize(parts)
        self._waits_for = waits_for

    async def prepare(self) -> None:
        """Answer 503 with the reason. Visitors of a page sign in first."""
        if not self._is_for_programs():
            await super().prepare()
            if self.person is None:
                return  # on the way to sign in
        raise Unavailable(f"{self._waits_for} {GOES_ON if self._waits_for == STARTING else TO_MEND}")

    def _is_for_programs(self) -> bool:
        path = self.request.path.removeprefix(self.parts.prefix.rstrip("/"))
        return path.startswith(("/api/", "/internal/", "/metrics"))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Say when to ask again."""
        if isinstance(kwargs.get("exc_info", (None, None))[1], Unavailable):
            self.set_header("Retry-After", AGAIN_SECONDS)
            if not self._is_for_programs():
                self.set_header("Refresh", AGAIN_SECONDS)
        super().write_error(status_code, **kwargs)
