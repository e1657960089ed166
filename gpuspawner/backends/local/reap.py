"""Ends a tool that was started here, with all that it started: nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

REAP_SECONDS = 5.0
"""How long a killed tool may take to go: one that waits inside the driver goes when the driver lets it."""


async def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of the process group that ``process`` leads, wait for it, and close its pipes.

    What left the group may hold the pipes open for as long as it likes, so asyncio would never close its end: this
    does, by the only way there is to it.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), REAP_SECONDS)
    finally:
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001
        await asyncio.sleep(0)  # the pipes close in the loop's next turn
