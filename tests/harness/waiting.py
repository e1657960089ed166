"""Wait for a condition with a time limit, in another process or in an event loop."""

import asyncio
import inspect
import time

import requests

LOOK_SECONDS = 0.01
NOT_YET = (requests.RequestException, LookupError)
"""Exceptions of a condition that is not met yet: the service does not answer, or an item is missing in its answer."""


def eventually(condition, bound_seconds=60.0, what=""):
    """Return the first true value of ``condition``. Fail after ``bound_seconds`` and name ``what`` did not happen."""
    begun = time.monotonic()
    last = None
    while (waited := time.monotonic() - begun) < bound_seconds:
        try:
            if last := condition():
                return last
        except NOT_YET as error:
            last = error
        # Each look costs the observed process CPU time, so a long wait looks less often.
        time.sleep(min(0.5, 0.05 + waited / 20))
    raise AssertionError(f"not within {bound_seconds} s: {what or condition}; last: {last!r}")


async def until(condition, bound_seconds=60.0, what=""):
    """Do as `eventually` for a ``condition`` that is a function or a coroutine function."""
    ends_at = time.monotonic() + bound_seconds
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < ends_at, f"not within {bound_seconds} s: {what or condition}; last: {found!r}"
        await asyncio.sleep(LOOK_SECONDS)
