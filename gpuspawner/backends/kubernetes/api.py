"""A small client of the API server, over kubernetes_asyncio's connection.

Objects stay plain JSON: the client's own models take ten times the time and memory of the fields that are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config.incluster_config import SERVICE_HOST_ENV_NAME as SERVICE_HOST

from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.errors import GpuspawnerError, Unavailable, quoted
from gpuspawner.core.outages import API_SERVER

TLS_END_SECONDS = 0.25
"""Wait after closing connections. aiohttp does not tell when TLS has ended, and an open transport would be reported
when the event loop ends."""
READ_BUFFER_BYTES = 2 * 1024 * 1024
"""Events of large objects exceed aiohttp's default. This is kubernetes_asyncio's value."""
OTHER_CONNECTIONS = 16
"""Connections for watches, ends and all other calls except execs."""
TOKEN_SECONDS = 30.0
"""Time limit for a kubeconfig's command that returns a token."""
RENEW_SECONDS = 60.0
"""Interval between checks of the token's age, as in kubernetes_asyncio. A kubeconfig's command runs again five minutes
before its token ends."""
NO_KUBECONFIG = (
    "There is no connection to a cluster: no kubeconfig ($KUBECONFIG, ~/.kube/config) exists, and this is not a pod."
)


@dataclass(frozen=True)
class Connection:
    """A connection to the API server at ``host``. ``options`` are passed to each request."""

    host: str
    session: aiohttp.ClientSession
    options: dict[str, Any]
    client: ApiClient
    renew: Callable[[], Awaitable[None]]

    @classmethod
    async def open(cls, settings: ClusterSettings) -> Connection:
        """Return a connection. Nothing is requested yet.

        Raises:
            Unavailable: The configuration cannot be read.
        """
        configuration = Configuration()
        configuration.connection_pool_maxsize = (
            2 * settings.probes_at_once + settings.scripts_at_once + OTHER_CONNECTIONS
        )
        try:
            renew = await _load_configuration(settings, configuration)
            host = str(configuration.host)
            proxy = _check_proxy(str(configuration.proxy)) if configuration.proxy else find_proxy(host)
            client = ApiClient(configuration)
        except Exception as error:  # kubernetes_asyncio raises anything for a wrong file
            raise _to_unavailable(settings, error) from error
        # The client's own session would look for a proxy and in ~/.netrc at each request, in a thread, which takes a
        # quarter of an exec's CPU. The environment's proxy is always the same, and the kubeconfig has the credentials.
        session = aiohttp.ClientSession(
            connector=client.rest_client.pool_manager.connector, connector_owner=False, read_bufsize=READ_BUFFER_BYTES
        )
        options = {"proxy": proxy, "server_hostname": configuration.tls_server_name}
        return cls(host, session, options, client, renew)

    async def headers(self) -> dict[str, str]:
        """Return the headers of a request. A token is renewed before it ends.

        Raises:
            Unavailable: The token cannot be renewed.
        """
        headers = {"User-Agent": "gpuspawner"}  # An exec is refused to a client that accepts only JSON.
        await self.renew()
        await self.client.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    async def close(self) -> None:
        """Close the connections and wait for the end of TLS."""
        await self.session.close()
        await self.client.close()
        await asyncio.sleep(TLS_END_SECONDS)


def find_proxy(host: str) -> str | None:
    """Return the proxy for a URL from ``HTTPS_PROXY``, ``NO_PROXY`` and so on.

    Raises:
        ValueError: The proxy cannot be used.
    """
    parts = urlsplit(host)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    named = urllib.request.getproxies().get(parts.scheme, "")
    proxy = named if "://" in named or not named else f"http://{named}"  # as curl and kubectl do
    # A proxy with TLS is ignored, as in KubeSpawner, because the cluster's authority did not sign its certificate.
    return None if not proxy or proxy.startswith("https:") else _check_proxy(proxy)


def _check_proxy(proxy: str) -> str:
    scheme = urlsplit(proxy).scheme
    if scheme not in {"http", "https"}:  # aiohttp would speak HTTP to any proxy
        raise ValueError(f"the proxy has {scheme or 'no scheme'}://, but only an http:// proxy can be used")
    return proxy


async def _load_configuration(settings: ClusterSettings, configuration: Configuration) -> Callable[[], Awaitable[None]]:
    """Fill in ``configuration`` and return a function that renews its token."""
    if not settings.kubeconfig:
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        return partial(asyncio.sleep, 0)  # kubernetes_asyncio reads the token again itself
    loading = config.load_kube_config(settings.kubeconfig, settings.context or None, configuration)
    loader = await asyncio.wait_for(loading, TOKEN_SECONDS)
    renewed_at = time.monotonic()

    async def renew() -> None:
        nonlocal renewed_at
        if time.monotonic() - renewed_at < RENEW_SECONDS:
            return
        renewed_at = time.monotonic()  # Other requests use the old token meanwhile, so only one command runs.
        try:
            await asyncio.wait_for(loader.load_and_set(configuration), TOKEN_SECONDS)
        except Exception as error:
            raise _to_unavailable(settings, error) from error

    return renew


def _to_unavailable(settings: ClusterSettings, error: Exception) -> Unavailable:
    if not settings.kubeconfig and SERVICE_HOST not in os.environ:
        return Unavailable(NO_KUBECONFIG)
    source = f"the kubeconfig {settings.kubeconfig}" if settings.kubeconfig else "the pod's service account"
    is_invalid = settings.kubeconfig and isinstance(error, TypeError | AttributeError | KeyError)
    words = "it is not a kubeconfig" if is_invalid else str(error).rstrip(".") or type(error).__name__
    return Unavailable(f"The connection to the cluster cannot be read from {source}: {words}.")


REQUEST_SECONDS = 30.0
"""Time limit of a get or a delete. A page of a list takes well under a second."""
CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 0.5
"""Time limit for closing a cancelled exec."""
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Objects have at most 1.5 MiB. As JSON with all fields they can be several times larger."""
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
"""Content types of a patch. JSON is valid YAML."""
EXEC_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR = range(4)
NOT_ALLOWED = (
    ": the service needs the right pods/exec there. With the chart, the pod's name must begin with "
    "workspaces.podNamePrefix"
)


class ApiRefused(GpuspawnerError):
    """The API server refused a request."""

    def __init__(self, status: int, message: str) -> None:
        """``status`` is the HTTP status. 410 means that a version is too old to continue a watch."""
        self.status = status
        super().__init__(message)


@dataclass(frozen=True)
class ExecResult:
    """Output, error output and exit code of a command in a container. ``code`` is None if unknown."""

    output: str
    error_output: str
    code: int | None
    problem: str = ""


class Api:
    """One cluster's API server. The first call opens the connection, in its event loop."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._opened: Connection | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, seconds: float = REQUEST_SECONDS
    ) -> dict[str, Any]:
        """Return the JSON at a path.

        Raises:
            ApiRefused: It does not exist, or the service has no right to read it.
            Unavailable: No answer came within ``seconds``.
        """
        return await self._call("GET", path, query=query, seconds=seconds)

    async def list_all(self, path: str) -> list[dict[str, Any]]:
        """Return all objects of a collection, read in pages. Raises like :meth:`get`."""
        items: list[dict[str, Any]] = []
        query = {"limit": str(self._settings.page)}
        while True:
            page = await self.get(path, query)
            items += page.get("items") or ()
            if not (more := page["metadata"].get("continue")):
                return items
            query["continue"] = more

    async def delete(self, path: str, options: Mapping[str, Any]) -> None:
        """Delete an object. Raises like :meth:`get`: 404 if it is gone, 409 if another object has its name now."""
        await self._call("DELETE", path, body=options)

    async def write(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """Create (POST), replace (PUT) or patch an object and return it.

        Raises like :meth:`get`: 409 if its name is taken or it changed meanwhile.
        """
        return await self._call(method, path, query=query, body=body, content_type=content_type)

    async def watch(self, path: str, query: Mapping[str, str], silent_seconds: float) -> AsyncGenerator[dict[str, Any]]:
        """Yield the events of a watch until the server ends it. {} comes first, once the watch is established.

        Raises:
            ApiRefused: The version is too old (410), or the request is refused.
            Unavailable: The connection broke, or nothing came for ``silent_seconds``.
        """
        # A proxy that accepts the connection and stays silent is neither connecting nor reading.
        timeout = aiohttp.ClientTimeout(connect=REQUEST_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=silent_seconds)
        async with self._request("GET", path, {**query, "watch": "1"}, timeout=timeout) as response:
            if response.status != HTTPStatus.OK:
                raise _to_refusal(response.status, await response.read(), path)
            yield {}
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_EVENT_BYTES:
                    raise Unavailable(f"the API server sent an event of {path} that is too large")
                for line in filter(None, lines):
                    yield _json(line, path)

    async def execute(
        self, namespace: str, pod: str, container: str, command: list[str], stdin: bytes, most_bytes: int
    ) -> ExecResult:
        """Run a command in a container with ``stdin``, which is never closed: the command must end itself.

        Raises:
            ApiRefused: The pod or container does not exist or does not run, or the service has no right to it.
            Unavailable: No answer came.
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
                url, params=query, headers=headers, protocols=EXEC_PROTOCOLS, **connection.options
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
                        await asyncio.wait_for(socket.close(), CLOSE_SECONDS)  # endless output would never let it end
        except aiohttp.WSServerHandshakeError as error:
            why = (
                NOT_ALLOWED if error.status == HTTPStatus.FORBIDDEN else ""
            )  # the answer's own message is lost by then
            raise ApiRefused(error.status, f"HTTP {error.status}{why}") from error
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            raise _to_no_answer(error) from error
        output, error_output, ended = (b"".join(parts[channel]).decode(errors="replace") for channel in parts)
        code, problem = _exit_code(ended)
        return ExecResult(output, error_output, code, problem)

    async def close(self) -> None:
        """Close the connections and wait for the end of TLS."""
        async with self._opening:
            self._closed, opened, self._opened = True, self._opened, None
        if opened is not None:
            await opened.close()

    async def _connection(self) -> Connection:
        async with self._opening:  # a kubeconfig's command for a token may take a moment
            if self._closed:  # a late call would open a connection that is never closed
                raise Unavailable("The connection to the cluster is closed because the service ends.")
            if self._opened is None:
                self._opened = await Connection.open(self._settings)
            return self._opened

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        seconds: float = REQUEST_SECONDS,
    ) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        async with self._request(
            method, path, query or {}, body=body, timeout=timeout, content_type=content_type
        ) as response:
            content = await response.read()
            if response.status not in {HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED}:
                raise _to_refusal(response.status, content, path)
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
        content_type: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        connection = await self._connection()
        header = {} if body is None else {"Content-Type": content_type}
        try:
            async with connection.session.request(
                method,
                connection.host + path,
                params=query,
                json=body,
                headers={**await connection.headers(), **header},
                timeout=timeout,
                **connection.options,
            ) as response:
                yield response
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            raise _to_no_answer(error) from error


def _json(content: bytes, path: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise Unavailable(f"The API server's answer to {path} is not JSON: {quoted(str(content[:200]))}.") from error
    return data


def _to_refusal(status: int, content: bytes, path: str) -> ApiRefused:
    with contextlib.suppress(ValueError, AttributeError):
        message = json.loads(content).get("message")
        if message:
            return ApiRefused(status, f"HTTP {status}: {message}")
    return ApiRefused(status, f"HTTP {status} for {path}")


def _exit_code(ended: str) -> tuple[int | None, str]:
    """Return the exit code from the error channel, or None and a reason."""
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
        return None, f"its end is not understood: {quoted(ended)}"


def _to_no_answer(error: BaseException) -> Unavailable:
    return Unavailable(f"{API_SERVER} does not answer: {error or type(error).__name__}.", API_SERVER)
