"""The connection to the workspace's sshd: ``/gpuspawner/ssh`` takes public keys, ``/gpuspawner/ssh/connect`` connects.

Both accept users of the Jupyter server whose authorizer allows terminals. Other users get no shell. They also accept a
ticket that the GPU service gave to the workspace's user, who signed in there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from asyncio.subprocess import PIPE, Process
from typing import Any

from jupyter_server.auth import User
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import ensure_async
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from gpuspawner.workspace.service import ServiceClient
from gpuspawner.workspace.sshd import BadKeyError, NoSshdError, Sshd

CHUNK_BYTES = 65_536
END_SECONDS = 10.0
"""Time limit of an sshd's end after its connection ended. Arbitrary: it needs milliseconds."""
RESOURCE = "terminals"
OK = 200


class Ticketed(JupyterHandler):
    """Accepts a ticket of the GPU service if one is sent. Otherwise the Jupyter server decides."""

    by_ticket = False

    def initialize(self, sshd: Sshd | None, client: ServiceClient | None) -> None:
        """Keep the sshd, None without SSH in the template, and the client of the service, or None."""
        self.sshd, self.client = sshd, client

    async def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Identify the user."""
        ticket = self._ticket()
        if not ticket:
            await ensure_async(super().prepare(*args, **kwargs))
            return
        if not self.check_host() or self.client is None:
            raise web.HTTPError(403)
        reply = await self.client.check_ssh_ticket(ticket)
        if "away" in reply.body:
            raise web.HTTPError(503, reply.body["message"])
        if reply.status != OK:
            raise web.HTTPError(403, str(reply.body["error"]["message"]))
        self.by_ticket = True
        self.current_user = self._jupyter_current_user = User(str(reply.body["user"]))

    def check_xsrf_cookie(self) -> None:
        """Require no cookie with a ticket: no page of another site can send one."""
        if not self._ticket():
            super().check_xsrf_cookie()

    async def must_be_allowed(self) -> None:
        """Raise 403 if the user may open no terminal."""
        user = self.current_user
        if not user:
            raise web.HTTPError(403)
        if not self.by_ticket and not await ensure_async(
            self.authorizer.is_authorized(self, user, "execute", RESOURCE)
        ):
            raise web.HTTPError(403)

    def _ticket(self) -> str:
        scheme, _, ticket = self.request.headers.get("Authorization", "").partition(" ")
        return ticket if scheme.lower() == "ticket" else ""


class KeysHandler(Ticketed, APIHandler):
    """POST ``{"keys": [...]}``: authorize these keys. Returns the user's name and the server's host key."""

    auth_resource = RESOURCE

    @web.authenticated
    async def post(self) -> None:
        """Authorize the keys until this server ends."""
        await self.must_be_allowed()
        body = self.get_json_body()
        keys = body.get("keys") if isinstance(body, dict) else None
        if self.sshd is None:
            self._refuse(404, "SSH is not on in this workspace: its template does not open it.")
            return
        try:
            self.sshd.authorize(keys if isinstance(keys, list) else [])
        except BadKeyError as error:
            self._refuse(400, str(error))
        except NoSshdError as error:
            self._refuse(404, str(error))
        else:
            self.finish(json.dumps({"user": self.sshd.user(), "host_key": self.sshd.host_key}))

    def _refuse(self, status: int, message: str) -> None:
        self.set_status(status)
        self.finish(json.dumps({"error": {"message": message}}))


class ConnectHandler(Ticketed, WebSocketMixin, WebSocketHandler, JupyterHandler):
    """A WebSocket to its own sshd. Its bytes are those of the SSH connection."""

    auth_resource = RESOURCE

    def initialize(self, sshd: Sshd | None, client: ServiceClient | None) -> None:
        """Keep the sshd and the client of the service."""
        super().initialize(sshd, client)
        self._process: Process | None = None
        self._pump: asyncio.Task[None] | None = None

    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Connect an accepted user whose key was sent."""
        await self.must_be_allowed()
        if self.sshd is None or not self.sshd.command:
            raise web.HTTPError(404)
        await ensure_async(super().get(*args, **kwargs))

    async def open(self, *args: Any, **kwargs: Any) -> None:
        """Start sshd. Its messages about a connection go to this server's log."""
        super().open(*args, **kwargs)
        self.set_nodelay(True)
        assert self.sshd is not None
        self._process = await asyncio.create_subprocess_exec(*self.sshd.command, stdin=PIPE, stdout=PIPE)
        self._pump = asyncio.create_task(self._send())

    async def on_message(self, message: str | bytes) -> None:
        """Pass bytes on. The next message is read when there is room for it."""
        assert self._process is not None
        assert self._process.stdin is not None
        if isinstance(message, str):
            self.close(1003, "SSH is bytes")
            return
        with contextlib.suppress(ConnectionError):  # it has ended: the pump closes
            self._process.stdin.write(message)
            await self._process.stdin.drain()

    async def _send(self) -> None:
        """Send sshd's output until it ends, also after the connection is lost, so that it can end."""
        assert self._process is not None
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(CHUNK_BYTES):
            with contextlib.suppress(WebSocketClosedError):
                await self.write_message(data, binary=True)
        self.close()

    def on_close(self) -> None:
        """End sshd and its child processes, as a lost connection does."""
        super().on_close()
        if self._process is not None and self._pump is not None:
            self._end = asyncio.create_task(_end(self._process, self._pump))


async def _end(process: Process, pump: asyncio.Task[None]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(pump, END_SECONDS)
    except asyncio.TimeoutError:
        process.kill()
    await process.wait()
