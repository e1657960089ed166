"""How tasks are ended when the service ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """End tasks for certain: before Python 3.12, ``asyncio.wait_for`` can swallow a cancellation."""
    everything = set(tasks)
    pending = everything
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
    await asyncio.gather(*everything, return_exceptions=True)  # so that no error of theirs counts as unseen
