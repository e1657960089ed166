"""The ProxyCommand: ssh's bytes on standard input and output, a WebSocket's on the other side."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, WebSocketClosedError, websocket_connect

from gpuspawner.cli.errors import AwayError, RefusedError

CHUNK_BYTES = 65_536
CONNECT_SECONDS = 20.0


async def relay(address: str, token: str, scheme: str = "token") -> None:
    """Connect and pass bytes both ways until one side ends, no faster than the other side reads them.

    Raises:
        RefusedError: the workspace refused the connection.
        AwayError: the workspace did not answer.
    """
    request = HTTPRequest(
        address.replace("http", "ws", 1),
        headers={"Authorization": f"{scheme} {token}"},
        connect_timeout=CONNECT_SECONDS,
        follow_redirects=False,  # another server would get the token
    )
    try:
        socket = await websocket_connect(request)
    except HTTPClientError as error:
        raise RefusedError(f"The workspace refused the connection ({error.code}).", error.code) from error
    except (OSError, WebSocketClosedError) as error:
        raise AwayError(f"The workspace did not answer ({error}).") from error
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK_BYTES)
    source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    sink, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), sys.stdout.buffer
    )
    writer = asyncio.StreamWriter(sink, protocol, None, loop)
    both = {asyncio.create_task(_up(reader, socket)), asyncio.create_task(_down(socket, writer))}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for task in both:
        task.cancel()
    await asyncio.gather(*both, return_exceptions=True)
    socket.close()
    source.close()
    writer.close()  # what was written is still sent
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _up(reader: asyncio.StreamReader, socket: WebSocketClientConnection) -> None:
    while data := await reader.read(CHUNK_BYTES):
        await socket.write_message(data, binary=True)


async def _down(socket: WebSocketClientConnection, writer: asyncio.StreamWriter) -> None:
    while (data := await socket.read_message()) is not None:
        writer.write(data if isinstance(data, bytes) else data.encode())
        await writer.drain()
