"""The reference scheduler in a thread of its own, for tests over HTTP."""

import asyncio
import threading
from contextlib import contextmanager

from demo.ports import pick_free
from demo.scheduler.inventory import DEFAULT, Inventory
from demo.scheduler.life import Server
from demo.scheduler.records import Settings
from demo.scheduler.server import listen

TOKEN = "a-token-of-the-tests"


@contextmanager
def reference_server(text=DEFAULT, token=TOKEN, **settings):
    """Serve during the block. Yield the address and the server."""
    started, made = threading.Event(), {}
    (port,) = pick_free(1)

    async def serve():
        server = Server(Inventory.read(text), Settings(**{"settle_seconds": 0, **settings}), token)
        http = listen(server, port)
        living = asyncio.ensure_future(server.live())
        made.update(server=server, end=living.cancel, loop=asyncio.get_running_loop())
        started.set()
        await asyncio.wait([living])
        http.stop()
        await http.close_all_connections()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(30)
    try:
        yield f"http://127.0.0.1:{port}", made["server"]
    finally:
        made["loop"].call_soon_threadsafe(made["end"])
        thread.join(30)
