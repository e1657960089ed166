"""The service's port, taken once an older service has ended, and limits on unauthenticated connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import urlparse

from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from gpuspawner.backends.machine import find_listener
from gpuspawner.core.errors import NoPort

log = logging.getLogger("gpuspawner")

WAITING_SECONDS = 20.0
"""How long a connection may take to send its next headers. Proxies keep an unused connection less long."""
BODY_SECONDS = 10.0
LARGEST_HEADERS_BYTES = 32768
"""Twice the limit of the hub's own proxy."""
LARGEST_DISCARDED_BYTES = 4 * 2**20
"""A larger body is not even read to discard it, so its sender may miss the answer."""
LARGEST_BUFFER_BYTES = 262144
MOST_STRANGERS = 2048
"""Half of them are for the streams of open pages, which have a limit of their own. Other requests end soon."""
DESCRIPTORS = 8192
"""The number of open files that the service requests from the operating system. Each waiting spawner needs one."""
TOLD_SECONDS = 60.0


def raise_descriptor_limit() -> int:
    """Raise the number of files that this process may open. Return how many it may open at least."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


class PublicServer(HTTPServer):
    """Serves a port that is open to all.

    A connection is unauthenticated until it sends headers that ``is_spawner`` accepts. At the limit of unauthenticated
    connections, a new one closes the oldest of the address with the most connections. So a new user can always connect,
    even if all users connect through one proxy. A flood closes its own connections. Connections of the spawner are
    never closed.
    """

    def initialize(  # type: ignore[override]
        self,
        request_callback: HTTPServerConnectionDelegate,
        is_spawner: Callable[[HTTPHeaders], bool],
        most_strangers: int,
    ) -> None:
        """Let ``request_callback`` answer requests."""
        super().initialize(
            request_callback,
            xheaders=False,  # any client can write them, so no limit depends on them
            idle_connection_timeout=WAITING_SECONDS,
            body_timeout=BODY_SECONDS,
            max_header_size=LARGEST_HEADERS_BYTES,
            max_body_size=LARGEST_DISCARDED_BYTES,
            max_buffer_size=LARGEST_BUFFER_BYTES,
        )
        self._is_spawner, self._most_strangers = is_spawner, most_strangers
        self._spawners: set[object] = set()
        self._strangers: dict[object, str] = {}
        self._by_address: dict[str, dict[object, None]] = {}  # the oldest first
        self._told_at = -TOLD_SECONDS

    def start_request(self, server_conn: Any, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Count a connection before its first request, and look at the headers of each request."""
        if server_conn not in self._spawners and server_conn not in self._strangers:
            if len(self._strangers) >= self._most_strangers:
                self._drop_one()
            address = server_conn.context.remote_ip
            self._strangers[server_conn] = address
            self._by_address.setdefault(address, {})[server_conn] = None
        return _HeadersWatch(super().start_request(server_conn, request_conn), partial(self._look, server_conn))

    def on_close(self, server_conn: object) -> None:
        """Forget a connection."""
        self._forget(server_conn)
        self._spawners.discard(server_conn)
        super().on_close(server_conn)

    def _look(self, connection: object, headers: HTTPHeaders) -> None:
        if self._is_spawner(headers):
            self._forget(connection)
            self._spawners.add(connection)

    def _forget(self, connection: object) -> None:
        address = self._strangers.pop(connection, None)
        if address is not None:
            of_address = self._by_address[address]
            del of_address[connection]
            if not of_address:
                del self._by_address[address]

    def _drop_one(self) -> None:
        address, connections = max(self._by_address.items(), key=lambda item: len(item[1]))
        if time.monotonic() - self._told_at >= TOLD_SECONDS:
            self._told_at = time.monotonic()
            counts = len(self._strangers), len(connections)
            log.warning("%s connections at once, %s of them from %s: new ones end its oldest", *counts, address)
        oldest: Any = next(iter(connections))
        self._forget(oldest)
        oldest.stream.close()


class ForwardingDelegate(HTTPMessageDelegate):
    """Passes the events of a request on to another delegate, if it has one."""

    def __init__(self, to: HTTPMessageDelegate | None = None) -> None:
        """Pass on to ``to``."""
        self._to = to

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Pass a part of the body on."""
        return self._to.data_received(chunk) if self._to is not None else None

    def finish(self) -> None:
        """Pass the end of the request on."""
        if self._to is not None:
            self._to.finish()

    def on_connection_close(self) -> None:
        """Pass the end of the connection on."""
        if self._to is not None:
            self._to.on_connection_close()


class _HeadersWatch(ForwardingDelegate):
    """Shows the headers of each request to a function."""

    def __init__(self, to: HTTPMessageDelegate, look: Callable[[HTTPHeaders], None]) -> None:
        super().__init__(to)
        self._look = look

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        self._look(headers)
        return self._to.headers_received(start_line, headers) if self._to is not None else None


BIND_SECONDS = 10.0
"""How long a new service that owns the store waits for its port, which the old service leaves."""


async def listen(
    server: HTTPServer, address: str, opened_at: Callable[[], float | None], *, by_hub: bool = True
) -> None:
    """Listen at the address, an http URL, as soon as possible.

    If it is no address of this machine, but one by which a cluster reaches it, listen on all addresses.
    ``opened_at`` returns since when the service owns the store, by the loop's time. ``by_hub`` is whether the hub
    starts the service.

    Raises:
        NoPort: the service has owned the store for BIND_SECONDS, and has no port.
    """
    url = urlparse(address)
    host, port = url.hostname or "127.0.0.1", url.port or 80
    while True:
        try:
            server.listen(port, host)
        except OSError as error:
            since = opened_at()
            if error.errno == errno.EADDRNOTAVAIL and host:
                log.info("%s is no address of this machine: listening on all that it has", host)
                host = ""
            elif since is not None and asyncio.get_running_loop().time() - since > BIND_SECONDS:
                raise _no_port(port, error, by_hub=by_hub) from error
            await asyncio.sleep(0.1)
        else:
            return


def _no_port(port: int, error: OSError, *, by_hub: bool) -> NoPort:
    taken = error.errno == errno.EADDRINUSE
    wrong = f"is taken by {find_listener(port).words}" if taken else f"can't be listened on ({error.strerror})"
    if not by_hub:
        return NoPort(f"port {port} {wrong}. Free it, or name another by --listen and by configure(service_url=...).")
    return NoPort(
        f"port {port} {wrong}. This hub's GPU service ends, and the hub starts it again: without its port it gives no "
        "GPU and measures none. Free the port, or write another, configure(c, ..., port=...), and restart the hub."
    )
