"""The forwarder of make run-cluster delivers all bytes in both directions, however a connection ends."""

import asyncio
import contextlib
import socket
import struct

import pytest
from harness.waiting import until

from demo import forward, ports

PATIENCE_SECONDS = 60


@pytest.fixture
async def forwarded():
    """The port of a forwarder, and that of the server behind it, which sends back what it gets in capitals."""

    async def answer(reader, writer):
        with contextlib.suppress(OSError):
            writer.write((await reader.read()).upper())
        writer.close()

    here, there = ports.pick_free(2)
    async with await asyncio.start_server(answer, ports.HOST, there) as server:
        task = asyncio.create_task(forward.serve(here, ports.HOST, there))
        try:
            await until(lambda: not ports.is_free(here))
            yield here, server
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def ask(port, text):
    reader, writer = await asyncio.open_connection(ports.HOST, port)
    writer.write(text)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_request_sent_before_its_end_is_answered_after_it(forwarded):
    port, _ = forwarded
    text = b"a" * (3 << 20)
    assert await asyncio.gather(*(ask(port, text) for _ in range(3))) == [text.upper()] * 3


async def test_a_connection_that_breaks_leaves_the_others(forwarded):
    port, _ = forwarded
    broken = socket.create_connection((ports.HOST, port))
    broken.sendall(b"half")
    broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends by a reset
    broken.close()
    assert await ask(port, b"whole") == b"WHOLE"


async def test_while_nothing_listens_there_connections_end_and_later_ones_arrive(forwarded):
    port, server = forwarded
    there = server.sockets[0].getsockname()[1]
    server.close()
    assert await ask(port, b"early") == b""

    async def answer(reader, writer):
        writer.write(b"late")
        writer.close()

    async with await asyncio.start_server(answer, ports.HOST, there):
        assert await ask(port, b"") == b"late"
