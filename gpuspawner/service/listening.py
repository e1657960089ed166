"""The service's port: taken from an older service as soon as that one has gone."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from urllib.parse import urlparse

from tornado.httpserver import HTTPServer

from gpuspawner.backends.ports import find_listener
from gpuspawner.core.errors import NoPort

log = logging.getLogger("gpuspawner")

BIND_SECONDS = 10.0
"""How long a new service, once it owns the store, waits for its port while the old one, seeing that, goes away."""


async def listen(
    server: HTTPServer, address: str, opened_at: Callable[[], float | None], *, by_hub: bool = True
) -> None:
    """Listen at the address, an http URL, as soon as that is possible.

    The address may be one by which a cluster reaches this machine, and none of its own: then it listens on all of
    these. ``opened_at`` tells since when the service owns the store, by the loop's time; ``by_hub`` whether the hub
    starts it.

    Raises:
        NoPort: it owns the store for BIND_SECONDS, and has no port.
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
