"""The startup gate: it answers requests while the service starts and the store is loaded.

A request's body is read only if it is short and its sender may use the service.
"""

from __future__ import annotations

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
from gpuspawner.service.custom_resources.relay import OPERATOR_PATH
from gpuspawner.service.loops import ALIVE, READY
from gpuspawner.service.parts import Parts
from gpuspawner.service.process.connections import LARGEST_DISCARDED_BYTES, ForwardingDelegate
from gpuspawner.service.web.base import STALE, NotFound, PageHandler

STARTING = "The GPU service is starting."
GOES_ON = "Workspaces keep running meanwhile, and nothing is lost."
TO_MEND = "Until it answers, workspaces keep running, and no workspace starts or stops. Tell an administrator."
AGAIN_SECONDS = 5
"""When clients ask again. Arbitrary: the service tries the store every second, and a page should not flicker."""
LARGEST_SHOWN_BYTES = 32 * 2**20
"""The largest report of a separate operator process: 5,000 workspaces, and those that ended. The operator is
authenticated before its report is read."""
NO_LENGTH = "Send the request with its length (Content-Length), not in chunks."


class StartupGate(Router):
    """Routes requests to the application, or to an answer with the reason while ``waits_for`` names a missing part."""

    def __init__(self, application: Application, parts: Parts) -> None:
        """Start closed. An empty ``waits_for`` opens the gate."""
        self._application, self._parts = application, parts
        self.waits_for = STARTING
        prefix = parts.prefix.rstrip("/")
        self._signed = prefix + CALLBACK_PATH
        """Requests to this path have a short, signed body."""
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
                await SenderCheck(self._application, request, parts=self._parts).check()
        except Exception as error:  # noqa: BLE001 - it becomes the answer
            unread = size is None or size > LARGEST_DISCARDED_BYTES or "Expect" in request.headers
            arguments = {"parts": self._parts, "error": error, "unread": unread}
            return self._application.get_handler_delegate(request, RefusedRequest, arguments)
        return self._lead(request)

    def _lead(self, request: HTTPServerRequest, **kwargs: Any) -> HTTPMessageDelegate:
        if not self.waits_for or request.path.startswith(self._always):
            return self._application.find_handler(request, **kwargs)
        arguments = {"parts": self._parts, "waits_for": self.waits_for}
        return self._application.get_handler_delegate(request, StartupAnswer, arguments)


def _body_bytes(headers: HTTPHeaders) -> int | None:
    """Return the announced length of a request's body, None without a length that can be trusted."""
    length = headers.get("Content-Length", "0")
    known = length.isdecimal() and len(length) <= 12 and "Transfer-Encoding" not in headers  # noqa: PLR2004
    return int(length) if known else None


def _check_size(size: int | None, largest: int) -> None:
    if size is None:
        raise HTTPError(411, reason=NO_LENGTH)
    if size > largest:
        raise TooLarge


class Admission(ForwardingDelegate):
    """Authenticates the sender of a body before it is read, and then passes the request on."""

    def __init__(self, gate: StartupGate, request: HTTPServerRequest) -> None:
        """Pass nothing on before the headers."""
        super().__init__()
        self._gate, self._request = gate, request

    async def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        """Choose the delegate that answers."""
        self._to = await self._gate.admit(self._request)
        ready = self._to.headers_received(start_line, headers)
        if ready is not None:
            await ready


class SenderCheck(BaseHandler):
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
class RefusedRequest(NotFound):
    """Any method: an error. The body is discarded.

    If the body stays ``unread``, the error is sent at once and the connection ends. Otherwise it is sent after the
    body, because clients and proxies that are still sending would miss it.
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
        """Discard a part of the body."""

    def _tell(self) -> None:
        raise self._error

    get = head = post = put = patch = delete = options = _tell


class StartupAnswer(PageHandler):
    """Any method: 503 with the reason, in JSON for programs, and as a page that reloads itself for people.

    People sign in first. So the hub's own check of a service that it starts gets a redirect. The hub does not accept a
    5xx status, and ends after 30 s (10 s before JupyterHub 6) without another answer.
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
                return  # redirected to the login page
        raise Unavailable(f"{self._waits_for} {GOES_ON if self._waits_for == STARTING else TO_MEND}")

    def _is_for_programs(self) -> bool:
        path = self.request.path.removeprefix(self.parts.prefix.rstrip("/"))
        return path.startswith(("/api/", "/internal/", "/metrics"))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Add the headers that say when to ask again."""
        if isinstance(kwargs.get("exc_info", (None, None))[1], Unavailable):
            self.set_header("Retry-After", AGAIN_SECONDS)
            if not self._is_for_programs():
                self.set_header("Refresh", AGAIN_SECONDS)
        super().write_error(status_code, **kwargs)
