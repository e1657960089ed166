"""The API server, as little of it as is needed, over kubernetes_asyncio's connection.

Objects stay plain JSON: the client's own models cost ten times the time and memory of what is kept of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from gpuspawner.backends.kubernetes.connection import ClusterSettings, Connection
from gpuspawner.core.errors import GpuspawnerError, Unavailable, quoted
from gpuspawner.core.outages import API_SERVER

REQUEST_SECONDS = 30.0
"""A get or a delete that takes longer says nothing. A page of a list takes well under a second."""
CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 0.5
"""How long the end of an exec that was given up is waited for."""
LARGEST_EVENT_BYTES = 16 * 1024 * 1024
"""Objects have 1.5 MiB at most; as JSON with all their fields they can be some times larger."""
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
"""Forms of a patch: JSON is YAML."""
EXEC_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR = range(4)
FORBIDDEN = 403
NOT_ALLOWED = (
    ": the service needs the right pods/exec there. With the chart, the pod's name must begin as "
    "workspaces.podNamePrefix says"
)


class ApiRefused(GpuspawnerError):
    """The API server answered, and said no."""

    def __init__(self, status: int, message: str) -> None:
        """Keep the HTTP status; 410 is that a version is too old to go on from."""
        self.status = status
        super().__init__(message)


@dataclass(frozen=True)
class ExecResult:
    """What a command in a container printed and how it ended: ``code`` is None where that was not told."""

    output: str
    said: str
    code: int | None
    problem: str = ""


class Api:
    """One cluster's API server. Opened by the first call, in that call's event loop."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Reach it by ``settings``. Nothing is read or opened yet."""
        self._settings = settings
        self._opened: Connection | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, seconds: float = REQUEST_SECONDS
    ) -> dict[str, Any]:
        """Return the JSON at a path, if it is answered within so many seconds.

        Raises:
            ApiRefused: it is not there, or not for the service.
            Unavailable: no answer.
        """
        return await self._call("GET", path, query=query, seconds=seconds)

    async def listed(self, path: str) -> list[dict[str, Any]]:
        """Return all objects of a collection as they are now, read in parts. Raises as :meth:`get` does."""
        items: list[dict[str, Any]] = []
        query = {"limit": str(self._settings.page)}
        while True:
            page = await self.get(path, query)
            items += page.get("items") or ()
            if not (more := page["metadata"].get("continue")):
                return items
            query["continue"] = more

    async def delete(self, path: str, options: Mapping[str, Any]) -> None:
        """Delete the object at a path. Raises as :meth:`get` does: 404 is gone, 409 that another has its name now."""
        await self._call("DELETE", path, body=options)

    async def write(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        query: Mapping[str, str] | None = None,
        form: str = "application/json",
    ) -> dict[str, Any]:
        """Make (POST), replace (PUT) or patch an object; return it as it is now. ``form`` is the body's content type.

        Raises as :meth:`get` does: 409 is that its name is taken, or that it changed.
        """
        return await self._call(method, path, query=query, body=body, form=form)

    async def watch(self, path: str, query: Mapping[str, str], silent_seconds: float) -> AsyncGenerator[dict[str, Any]]:
        """Yield the events of a watch until the server ends it; the first thing yielded is {} once it is established.

        Raises:
            ApiRefused: the version is too old (410), or what is asked is refused.
            Unavailable: the connection broke, or nothing was heard for ``silent_seconds``.
        """
        # A proxy that takes the connection and then says nothing is neither connecting nor reading.
        timeout = aiohttp.ClientTimeout(connect=REQUEST_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=silent_seconds)
        async with self._request("GET", path, {**query, "watch": "1"}, timeout=timeout) as response:
            if response.status != 200:  # noqa: PLR2004
                raise _refusal(response.status, await response.read(), path)
            yield {}
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LARGEST_EVENT_BYTES:
                    raise Unavailable(f"the API server sent an event of {path} that is too large")
                for line in filter(None, lines):
                    yield _json(line, path)

    async def execute(
        self, namespace: str, pod: str, container: str, command: list[str], stdin: bytes, most_bytes: int
    ) -> ExecResult:
        """Run a command in a container, with ``stdin`` and then nothing more: the command must end by itself.

        Raises:
            ApiRefused: no such pod or container, not running, or not for the service.
            Unavailable: no answer.
        """
        connection = await self._connection()
        flags = {"stdin": "true", "stdout": "true", "stderr": "true", "tty": "false"}
        query = [*{"container": container, **flags}.items(), *(("command", part) for part in command)]
        url = re.sub("^http", "ws", connection.host) + f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
        parts: dict[int, list[bytes]] = {STDOUT: [], STDERR: [], ERROR: []}
        size = 0
        try:
            headers = await connection.headers()
            socket = await connection.session.ws_connect(
                url, params=query, headers=headers, protocols=EXEC_PROTOCOLS, **connection.how
            )
            try:
                await socket.send_bytes(bytes([STDIN]) + stdin)
                async for message in socket:
                    if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                        continue
                    parts.get(message.data[0], []).append(message.data[1:])
                    size += len(message.data)
                    if size > most_bytes:
                        return ExecResult("", "", None, f"it printed more than {most_bytes} bytes")
            finally:
                if not socket.closed:
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(socket.close(), CLOSE_SECONDS)  # a flood never lets it end by itself
        except aiohttp.WSServerHandshakeError as error:
            why = NOT_ALLOWED if error.status == FORBIDDEN else ""  # the answer's own words are lost by then
            raise ApiRefused(error.status, f"HTTP {error.status}{why}") from error
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            raise Unavailable(f"{API_SERVER} does not answer: {_words(error)}.", API_SERVER) from error
        output, said, ended = (b"".join(parts[channel]).decode(errors="replace") for channel in parts)
        code, problem = _exit_code(ended)
        return ExecResult(output, said, code, problem)

    async def close(self) -> None:
        """Close the connections, and give their TLS a moment to end."""
        async with self._opening:
            self._closed, opened, self._opened = True, self._opened, None
        if opened is not None:
            await opened.close()

    async def _connection(self) -> Connection:
        async with self._opening:  # a kubeconfig's own command for a token may take a moment
            if self._closed:  # a call that comes late would open what nobody closes
                raise Unavailable("The connection to the cluster is closed: the service ends.")
            if self._opened is None:
                self._opened = await Connection.opened(self._settings)
            return self._opened

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        form: str = "application/json",
        seconds: float = REQUEST_SECONDS,
    ) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        async with self._request(method, path, query or {}, body=body, timeout=timeout, form=form) as response:
            content = await response.read()
            if response.status not in {200, 201, 202}:
                raise _refusal(response.status, content, path)
            return _json(content, path)

    @contextlib.asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Mapping[str, Any] | None = None,
        timeout: aiohttp.ClientTimeout,
        form: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        connection = await self._connection()
        told = {} if body is None else {"Content-Type": form}
        try:
            async with connection.session.request(
                method,
                connection.host + path,
                params=query,
                json=body,
                headers={**await connection.headers(), **told},
                timeout=timeout,
                **connection.how,
            ) as response:
                yield response
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            raise Unavailable(f"{API_SERVER} does not answer: {_words(error)}.", API_SERVER) from error


def _json(content: bytes, path: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise Unavailable(f"The API server's answer to {path} is no JSON: {quoted(str(content[:200]))}.") from error
    return data


def _refusal(status: int, content: bytes, path: str) -> ApiRefused:
    with contextlib.suppress(ValueError, AttributeError):
        message = json.loads(content).get("message")
        if message:
            return ApiRefused(status, f"HTTP {status}: {message}")
    return ApiRefused(status, f"HTTP {status} for {path}")


def _exit_code(ended: str) -> tuple[int | None, str]:
    """Return the exit code that the error channel tells, or None and why it tells none."""
    if not ended:
        return None, "the connection ended before the command did"
    try:
        status = json.loads(ended)
        if status["status"] == "Success":
            return 0, ""
        for cause in status.get("details", {}).get("causes", ()):
            if cause.get("reason") == "ExitCode":
                return int(cause["message"]), ""
        return None, str(status.get("message", ended))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, f"how it ended is not understood: {quoted(ended)}"


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
