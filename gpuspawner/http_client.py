"""HTTP requests of hub and service, each by a client of its own."""

from __future__ import annotations

from typing import Any

from tornado.httpclient import HTTPRequest, HTTPResponse
from tornado.simple_httpclient import SimpleAsyncHTTPClient


async def send(request: HTTPRequest, *, most_bytes: int | None = None, raise_error: bool = True) -> HTTPResponse:
    """Return the answer to a request. Requests that wait long would fill the ten places of Tornado's shared client.

    Args:
        request: the request with its time limits.
        most_bytes: the size of the largest accepted answer, None for Tornado's 100 MB.
        raise_error: whether an answer other than 2xx is an error.

    Raises:
        HTTPClientError: no answer in time (599), or a refusal with ``raise_error``.
        OSError: no connection.
    """
    size: dict[str, Any] = {} if most_bytes is None else {"max_body_size": most_bytes, "max_buffer_size": most_bytes}
    client = SimpleAsyncHTTPClient(force_instance=True, **size)
    try:
        return await client.fetch(request, raise_error=raise_error)
    finally:
        client.close()
