"""Two services on one store, each a process of its own: one works, the other waits until that one has ended.

Whoever works counts beats in the store. Whoever waits sees by its own clock how long there was none: the clocks of two
machines are never compared. A service that was only slow is superseded then, and its next write tells it so.
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
"""Each is a small write to the disk."""
SILENT_SECONDS = 6.0
"""A service without a beat for so long has ended: with what opening a store takes, another works within 10 s."""
LOOK_SECONDS = 0.5
SLOWER = 3.0
"""A beat takes so much longer than a look at most: on a database that is slow, silence lasts longer."""
WAITS = (
    "Another GPU service works on this store (epoch {epoch}, as its log says). This one stands by: it takes over once "
    "that one has ended, or was silent for {seconds:.0f} s."
)


async def stand_by(store: Store, tell: Callable[[str], None], stopped: asyncio.Event) -> int:
    """Return once no other service works on the store, or this one is stopped: the epoch of the one that has ended.

    ``tell`` is told why it waits.

    Raises:
        Unavailable: the store does not answer.
    """
    seen, took, told = *await _look(store), False
    since = time.monotonic()
    # Where looking is slow, so is beating, which takes more than one step.
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
    """Return who works on the store, and how many seconds it took to see that."""
    began = time.monotonic()
    return await store.read(store.seen_owner), time.monotonic() - began


class Heart:
    """Beats for a service that others may stand by for."""

    def __init__(self, store: Store) -> None:
        """Beat at once when asked first."""
        self._store, self._at = store, -BEAT_SECONDS

    async def beat(self) -> None:
        """Beat where it is time. Raises what the store raises."""
        if time.monotonic() - self._at >= BEAT_SECONDS:
            await self._store.write(self._store.beat)
            self._at = time.monotonic()

    async def stop(self) -> None:
        """Let others take over at once. Where the store does not answer, they see the silence."""
        with contextlib.suppress(GpuspawnerError):
            await self._store.write(self._store.leave)
