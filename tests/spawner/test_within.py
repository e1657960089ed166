import asyncio

import pytest

from gpuspawner.spawner import servers
from gpuspawner.spawner.servers import with_time_limit


async def test_a_start_that_is_cancelled_as_a_connection_is_refused_does_not_go_on(monkeypatch):
    refused = asyncio.Event()

    async def refuse(*_place):
        await refused.wait()
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", refuse)
    looking = asyncio.create_task(servers.listens("http://127.0.0.1:1"))
    await asyncio.sleep(0.01)
    refused.set()
    await asyncio.sleep(0)  # the connection has failed, and who waits for it was not told yet
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking


async def test_a_slow_call_is_ended_before_its_timeout_is_reported():
    ended = []

    async def hang():
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("hang")

    with pytest.raises(asyncio.TimeoutError):
        await with_time_limit(hang(), 0.01)
    assert ended == ["hang"]


async def test_a_result_in_time_is_returned_or_raised_unchanged():
    async def fail():
        raise OSError("no")

    assert await with_time_limit(asyncio.sleep(0, "done"), 1.0) == "done"
    with pytest.raises(OSError, match="no"):
        await with_time_limit(fail(), 1.0)
