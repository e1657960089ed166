"""A keyed work queue: one task of a key at a time, a bounded number at once, and a pause for a key that failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any

from gpuspawner.core.errors import Conflict, GpuspawnerError, Unavailable

log = logging.getLogger("gpuspawner.work")

Step = Callable[[], Coroutine[Any, Any, None]]

FIRST_PAUSE_SECONDS = 1.0
MOST_PAUSE_SECONDS = 30.0
"""A key whose task failed pauses for the first, then for twice as long each time, up to the second. Arbitrary: a
period of the rounds, and what a user may have to wait after the trouble is over."""


class KeyedExecutor:
    """Runs offered steps in tasks of their own. It is level-triggered: work that is still to be done is offered again.

    Keys wait in the order in which they were first offered, so that none starves.
    """

    def __init__(self, at_once: int, now: Callable[[], float]) -> None:
        """Run at most ``at_once`` tasks; ``now`` tells the time in seconds."""
        self._at_once, self._now = at_once, now
        self._waiting: dict[Hashable, Step] = {}
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._begun: dict[Hashable, float] = {}
        self._pauses: dict[Hashable, tuple[float, float]] = {}
        """By key: for how long it pauses, and until when."""
        self._said: dict[Hashable, str] = {}
        """Why a key waits, as the log says it: once for each reason."""

    def offer(self, key: Hashable, step: Step) -> None:
        """Queue a step. Nothing happens while a step of this key runs, or while the key pauses.

        A step that still waits is replaced by the new one, at its place.
        """
        _, until = self._pauses.get(key, (0.0, 0.0))
        if key in self._tasks or self._now() < until:
            return
        self._waiting[key] = step
        self._begin()

    def _begin(self) -> None:
        while self._waiting and len(self._tasks) < self._at_once:
            key = next(iter(self._waiting))
            task = asyncio.create_task(self._waiting.pop(key)())
            self._tasks[key], self._begun[key] = task, self._now()
            task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: Hashable, task: asyncio.Task[None]) -> None:
        del self._tasks[key], self._begun[key]
        if not task.cancelled():
            self._note_end(key, task.exception())
        self._begin()

    def _note_end(self, key: Hashable, error: BaseException | None) -> None:
        """Pause a key whose task failed. Forget keys that failed long ago and were not offered since."""
        now = self._now()
        before, _ = self._pauses.pop(key, (0.0, 0.0))
        if error is None:
            self._said.pop(key, None)
            return
        if isinstance(error, (Unavailable, Conflict)):
            self._log_wait(key, error)
        else:
            log.error("the step of %s failed and is tried again", _named(key), exc_info=error)
        self._pauses = {key: x for key, x in self._pauses.items() if now < x[1] + MOST_PAUSE_SECONDS}
        self._said = {one: why for one, why in self._said.items() if one in self._pauses or one == key}
        pause = min(MOST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * before))
        self._pauses[key] = (pause, now + pause)

    def _log_wait(self, key: Hashable, error: GpuspawnerError) -> None:
        """Log once why a key waits. A part that is away has two lines of its own."""
        if isinstance(error, Unavailable) and error.part:
            log.debug("%s waits: %s", _named(key), error)
        elif self._said.get(key) != str(error):
            self._said[key] = str(error)
            log.warning("%s waits: %s", _named(key), error)

    def longest_seconds(self) -> float:
        """Return how long the oldest running task has run; 0 if no task runs."""
        return self._now() - min(self._begun.values(), default=self._now())

    async def idle(self) -> None:
        """Return once nothing waits or is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def close(self) -> None:
        """Cancel everything: every step can be taken again."""
        self._waiting.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _named(key: Hashable) -> str:
    """Return how the log calls a key: one of several parts begins with what it is about."""
    return str(key[0] if isinstance(key, tuple) else key)
