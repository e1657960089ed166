"""An ordinary user may open 1,024 files: an event loop of a test leaves none behind."""

import asyncio
import gc
from pathlib import Path

import aiohttp

LOOPS = 20


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_an_event_loop_that_asked_over_http_leaves_no_file_open():
    async def connect():
        aiohttp.TCPConnector()  # JupyterHub's client closes none either

    asyncio.run(connect())
    before = open_files()
    for _ in range(LOOPS):
        asyncio.run(connect())
    gc.collect()
    assert open_files() - before < LOOPS
