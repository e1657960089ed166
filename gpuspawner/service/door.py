"""The service's door: open from its first moment, so that nobody meets a closed port while the store is waited for."""

from __future__ import annotations

from typing import Any

from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import Router
from tornado.web import Application

from gpuspawner.core.errors import Unavailable
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.parts import Parts
from gpuspawner.service.web.base import PageHandler

STARTING = "The GPU service is starting."
AGAIN_SECONDS = 5
"""When to ask again. Arbitrary: the store is tried every second, and a page should not flicker."""


class Door(Router):
    """Leads requests to the application, or, while ``waits_for`` says what is missing, to an answer that tells it."""

    def __init__(self, application: Application, parts: Parts) -> None:
        """Wait: an empty ``waits_for`` opens."""
        self._application, self._parts = application, parts
        self.waits_for = STARTING
        prefix = parts.prefix.rstrip("/")
        self._always = (f"{prefix}/static/", f"{prefix}/oauth_callback")

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> HTTPMessageDelegate | None:
        """Return what answers a request now."""
        if not self.waits_for or request.path.startswith(self._always):
            return self._application.find_handler(request, **kwargs)
        arguments = {"parts": self._parts, "waits_for": self.waits_for}
        return self._application.get_handler_delegate(request, Waiting, arguments)


class Waiting(PageHandler):
    """Any method: 503 with the reason, in JSON for programs, as a page that loads itself again for people.

    People sign in first, as ever. So the hub's own look at a service that it starts is answered by a redirect: it takes
    no 5xx for an answer, and after 30 s (10 s before JupyterHub 6) without one it ends itself.
    """

    def initialize(self, parts: Parts, waits_for: str = STARTING) -> None:
        """Keep what is missing."""
        super().initialize(parts)
        self._waits_for = waits_for

    async def prepare(self) -> None:
        """Tell it, whoever asks."""
        if not self._is_for_programs():
            await super().prepare()
            if self.person is None:
                return  # on the way to sign in
        raise Unavailable(f"{self._waits_for} Until then workspaces run on, and nothing is lost.")

    def _is_for_programs(self) -> bool:
        path = self.request.path.removeprefix(self.parts.prefix.rstrip("/"))
        return path.startswith(("/api/", "/internal/", "/metrics"))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Say when to ask again."""
        if isinstance(kwargs.get("exc_info", (None, None))[1], Unavailable):
            self.set_header("Retry-After", AGAIN_SECONDS)
            if not self._is_for_programs():
                self.set_header("Refresh", AGAIN_SECONDS)
        if self._is_for_programs():
            ApiHandler.write_error(self, status_code, **kwargs)  # what it uses is BaseHandler's
        else:
            super().write_error(status_code, **kwargs)
