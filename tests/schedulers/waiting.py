"""What tests here wait for."""

import asyncio

LONGEST_SECONDS, LOOK_SECONDS = 10, 0.02


async def until(is_so):
    """Return once ``is_so`` says that it is; fail where it does not."""
    for _ in range(int(LONGEST_SECONDS / LOOK_SECONDS)):
        if is_so():
            return
        await asyncio.sleep(LOOK_SECONDS)
    raise AssertionError(f"not within {LONGEST_SECONDS} s")
