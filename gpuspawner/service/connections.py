"""Limits on the number and duration of unauthenticated connections, so that one sender cannot use them all."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)

log = logging.getLogger("gpuspawner")

WAITING_SECONDS = 20.0
"""How long a connection may take for its next headers: longer than proxies keep an unused one, and no more."""
BODY_SECONDS = 10.0
LARGEST_HEADERS_BYTES = 32768
"""Twice what the hub's own proxy lets pass."""
LARGEST_DISCARDED_BYTES = 4 * 2**20
"""A larger body is not read, not even to throw it away: its sender may miss the answer."""
LARGEST_BUFFER_BYTES = 262144
MOST_STRANGERS = 2048
"""Half of them for the streams of open pages, whose number has a limit of its own. Others are answered soon."""
DESCRIPTORS = 8192
"""The number of open files that the service requests from the operating system. Each waiting spawner needs one."""
TOLD_SECONDS = 60.0


def raise_descriptor_limit() -> int:
    """Let this process open more files than systems allow by default; return how many it may have at least."""
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
        """Serve by ``request_callback``."""
        super().initialize(
            request_callback,
            xheaders=False,  # anybody can write them, and no bound goes by an address that they name
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
        """Count a connection before its first request, and look at the headers of each."""
        if server_conn not in self._spawners and server_conn not in self._strangers:
            if len(self._strangers) >= self._most_strangers:
                self._drop_one()
            address = server_conn.context.remote_ip
            self._strangers[server_conn] = address
            self._by_address.setdefault(address, {})[server_conn] = None
        return _Headers(super().start_request(server_conn, request_conn), partial(self._look, server_conn))

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


class _Headers(HTTPMessageDelegate):
    """Shows headers on their way."""

    def __init__(self, to: HTTPMessageDelegate, look: Callable[[HTTPHeaders], None]) -> None:
        self._to, self._look = to, look

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        self._look(headers)
        return self._to.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._to.data_received(chunk)

    def finish(self) -> None:
        self._to.finish()

    def on_connection_close(self) -> None:
        self._to.on_connection_close()
