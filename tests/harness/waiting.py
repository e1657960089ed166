"""Waiting for something that happens in another process."""

import asyncio
import time

import requests

NOT_YET = (requests.RequestException, LookupError)
"""What a condition may raise until it is met: the service does not answer, or what it answers is not there."""


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


async def eventually_async(condition, bound_seconds=60.0, what=""):
    """Return the first true value of ``condition``, while the loop goes on. It runs in this process: looks are cheap.

    Fail after ``bound_seconds`` and name ``what`` did not happen.
    """
    begun = time.monotonic()
    while not (found := condition()):
        if time.monotonic() - begun > bound_seconds:
            raise AssertionError(f"not within {bound_seconds} s: {what or condition}")
        await asyncio.sleep(0.01)
    return found
