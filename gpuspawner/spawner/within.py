"""``asyncio.wait_for`` as Python 3.12 has it: in 3.10 and 3.11 it can swallow a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(step: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return what ``step`` returns, ended after so many seconds. A cancellation goes through, whatever came of it.

    A start that the hub cancels would otherwise go on where a step ended in the same moment.

    Raises:
        asyncio.TimeoutError: it took longer.
    """
    task = asyncio.ensure_future(step)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen, also where nobody takes it any more
    return task.result()
