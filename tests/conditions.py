"""Waiting in an event loop for something that happens in it, or in another thread or process."""

import asyncio
import time

LOOK_SECONDS = 0.01


async def until(condition, bound_seconds=60.0, what=""):
    """Return the first true value of ``condition``. Fail after ``bound_seconds`` and name ``what`` did not happen."""
    ends_at = time.monotonic() + bound_seconds
    while not (found := condition()):
        assert time.monotonic() < ends_at, f"not within {bound_seconds} s: {what or condition}"
        await asyncio.sleep(LOOK_SECONDS)
    return found
