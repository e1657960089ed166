"""Forwards a port of this machine to one of a pod: `python -m demo.forward PORT ADDRESS PORT_THERE`, until it is ended.

`kubectl port-forward` does so on any cluster, but ends with the first connection that breaks.
"""

from __future__ import annotations

import asyncio
import sys

from demo.ports import HOST

CHUNK_BYTES = 1 << 16


async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Pass on what comes until either side ends, and tell the other."""
    try:
        while data := await source.read(CHUNK_BYTES):
            sink.write(data)
            await sink.drain()
        sink.write_eof()
    except OSError:
        sink.close()


async def serve(port: int, address: str, port_there: int) -> None:
    """Forward each connection for as long as this process lives."""
    connections = set()  # asyncio keeps only weak references to the tasks

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there = await asyncio.open_connection(address, port_there)
        except OSError:  # not there yet, or gone
            writer.close()
            return
        task = asyncio.current_task()
        connections.add(task)
        await asyncio.gather(copy(reader, there), copy(there_reader, writer))
        connections.discard(task)
        there.close()
        writer.close()

    server = await asyncio.start_server(forward, HOST, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
