"""Waiting for a condition with a bound: in another process, or in an event loop."""

import asyncio
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
    """Return the first true value of ``condition``. Fail after ``bound_seconds`` and name ``what`` did not happen."""
    ends_at = time.monotonic() + bound_seconds
    while not (found := condition()):
        assert time.monotonic() < ends_at, f"not within {bound_seconds} s: {what or condition}"
        await asyncio.sleep(LOOK_SECONDS)
    return found
