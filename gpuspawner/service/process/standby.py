"""Standby: two services share one store, each in its own process. One waits until the other has ended.

The active service counts heartbeats in the store. The standby service measures the time without a heartbeat by its own
clock. So the clocks of two machines are never compared. An active service that was only slow is superseded too. Its
next write fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from gpuspawner.core.errors import GpuspawnerError
from gpuspawner.service.store import Store

log = logging.getLogger("gpuspawner")

BEAT_SECONDS = 1.5
"""The interval of heartbeats. Each is a small write to the disk."""
SILENT_SECONDS = 6.0
"""A service without a heartbeat for this time has ended. With the time to open a store, another works within 10 s."""
LOOK_SECONDS = 0.5
SLOWER = 3.0
"""The longest duration of a heartbeat, in durations of a look. On a slow database, the allowed silence is longer."""
WAITS = (
    "Another GPU service works on this store (epoch {epoch}, as its log says). This one stands by. It takes over when "
    "the other one has ended, or was silent for {seconds:.0f} s."
)


async def stand_by(store: Store, tell: Callable[[str], None], stopped: asyncio.Event) -> int:
    """Wait until no other service works on the store, or this one is stopped. Return the epoch of the ended service.

    ``tell`` is called with the reason of the wait.

    Raises:
        Unavailable: the store does not answer.
    """
    seen, took, told = *await _look(store), False
    since = time.monotonic()
    # On a database with slow reads, heartbeats are slow too.
    while seen[1] and time.monotonic() - since < SILENT_SECONDS + SLOWER * took and not stopped.is_set():
        if not told:
            words = WAITS.format(epoch=seen[0], seconds=SILENT_SECONDS)
            log.warning(words)
            tell(words)
            told = True
        await asyncio.sleep(LOOK_SECONDS)
        now, took = await _look(store)
        if now != seen:
            seen, since = now, time.monotonic()
    if told and not stopped.is_set():
        log.warning("The other GPU service has ended: this one takes over.")
    return seen[0]


async def _look(store: Store) -> tuple[tuple[int, int], float]:
    """Return the owner of the store with its heartbeat count, and the seconds that the read took."""
    began = time.monotonic()
    return await store.read(store.seen_owner), time.monotonic() - began


class Heartbeat:
    """Writes heartbeats for standby services."""

    def __init__(self, store: Store) -> None:
        """Write the first heartbeat at the first call."""
        self._store, self._at = store, -BEAT_SECONDS

    async def beat(self) -> None:
        """Write a heartbeat if it is due. Raises what the store raises."""
        if time.monotonic() - self._at >= BEAT_SECONDS:
            await self._store.write(self._store.beat)
            self._at = time.monotonic()

    async def stop(self) -> None:
        """Let others take over at once. If the store does not answer, they notice the missing heartbeats."""
        with contextlib.suppress(GpuspawnerError):
            await self._store.write(self._store.leave)
