"""Results that all readers share, computed again after a change, within a bounded share of the CPU time.

The positions of a long queue take longer to compute than anything else, and in a busy cluster something always changes.
Pages show the last result meanwhile, so that everything else goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("gpuspawner.queue")

SHARE, OWN_SHARE = 0.05, 0.2
"""Upper bounds on the share of CPU time spent on a result: for all readers, and for a user whose own request changed.
Arbitrary: a queue of a thousand is computed within a second."""
SHORT_SECONDS = 0.01
"""A computation that takes less is repeated at each change."""
BETWEEN_SECONDS = 0.2
"""The pause between two long computations, so that a page waits for one of them only. Arbitrary."""
TURN_SECONDS = 0.005
"""The time between two turns of other tasks. Arbitrary."""
LONGEST_SECONDS = 60.0
"""The longest time for which an old result is shown while a new one is computed. Arbitrary."""


@dataclass
class TimedResult:
    """A result that was computed from the state ``of``. It took ``seconds`` of CPU time until ``ended_at``."""

    of: object
    seconds: float
    ended_at: float

    def is_due(self, share: float) -> bool:
        """Return whether another result may be computed within this share of the CPU time."""
        return self.seconds < SHORT_SECONDS or self.due_seconds(share) <= 0

    def due_seconds(self, share: float) -> float:
        """Return in how many seconds another result may be computed."""
        return max(0.0, self.ended_at + self.seconds / share - time.monotonic())


@dataclass
class _SharedValue(TimedResult):
    value: Any


class SharedResults:
    """Computes values by name. A slow value may be some seconds old."""

    def __init__(self) -> None:
        """Compute nothing yet."""
        self._values: dict[str, _SharedValue] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._long_until = -inf
        """The end of the last long computation."""

    def is_due(self, last: TimedResult) -> bool:
        """Return whether another result may be computed for all readers."""
        if last.seconds >= SHORT_SECONDS and time.monotonic() < self._long_until + BETWEEN_SECONDS:
            return False
        return last.is_due(SHARE)

    def note_long(self, made: TimedResult) -> None:
        """Note the end of a computation, after which others pause if it was long."""
        if made.seconds >= SHORT_SECONDS:
            self._long_until = made.ended_at

    def compute_seldom(self, state: object, name: str, make: Callable[[], T]) -> T:
        """Return the value of this state, or an older one if there is no time for it now."""
        last = self._values.get(name)
        if last is None or (last.of is not state and self.is_due(last)):
            began, value = time.thread_time(), make()
            last = self._keep(state, name, began, value)
            self.note_long(last)
        result: T = last.value
        return result

    async def compute_in_background(self, state: object, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """Return, as :meth:`compute_seldom`, a value that takes too long for a page. ``make`` yields to other tasks.

        The previous value is returned while a new one is made. The call waits only if the value is missing or old,
        or if a new one is made quickly.
        """
        last, task = self._values.get(name), self._tasks.get(name)
        if task is None and (last is None or (last.of is not state and last.is_due(SHARE))):
            task = self._tasks[name] = asyncio.create_task(self._make(state, name, make))
            task.add_done_callback(partial(self._end, name))
        if task is not None and (last is None or time.monotonic() - last.ended_at > LONGEST_SECONDS):
            await asyncio.shield(task)
        elif task is not None and last is not None and last.seconds < SHORT_SECONDS:
            await asyncio.wait((task,))
        result: T = self._values[name].value
        return result

    async def _make(self, state: object, name: str, make: Callable[[], Awaitable[Any]]) -> None:
        began, value = time.thread_time(), await make()
        self._keep(state, name, began, value)

    def _keep(self, state: object, name: str, began: float, value: Any) -> _SharedValue:
        kept = self._values[name] = _SharedValue(state, time.thread_time() - began, time.monotonic(), value)
        return kept

    def _end(self, name: str, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        if not task.cancelled() and task.exception() is not None:
            log.error("%s could not be made", name, exc_info=task.exception())


async def yield_to_others() -> None:
    """Let other tasks run during a long computation, also threads that read the store and need a turn for each row."""
    await asyncio.sleep(TURN_SECONDS)
