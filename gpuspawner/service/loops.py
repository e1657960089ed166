"""The loops of the service: each repeats one step, and records when a whole round was done. How its tasks end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from gpuspawner.core.errors import Superseded, Unavailable
from gpuspawner.service.failures import OF_ALL, Failure, Failures
from gpuspawner.service.health import Health

LOOPS_SECONDS = 30.0
"""Loops of this period or a shorter one must go on: all that watches, gives, measures and stops."""


class Loops:
    """Runs steps for ever, and tells ``health`` of their rounds."""

    def __init__(self, health: Health, failures: Failures, stop: Callable[[str], None]) -> None:
        """Run nothing yet. ``stop`` ends the service, and takes the reason."""
        self._health, self._failures, self._stop = health, failures, stop
        self.names: list[str] = []
        health.failures = self._failing_steps

    def _failing_steps(self) -> list[Failure]:
        """Return the steps that fail within rounds. ``health`` itself knows the last complete round of each loop."""
        return [one for one in self._failures.now() if one.step not in self.names]

    async def every(self, seconds: float, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step with a pause. A step that fails is tried again: ending here would take the hub with it."""
        name = getattr(step, "func", step).__qualname__  # a partial has no name of its own
        watched = seconds <= LOOPS_SECONDS
        self.names.append(name)
        if watched:
            self._health.went_round(name, seconds)
        while True:
            failed = False
            try:
                await step()
            except Superseded as error:
                self._stop(str(error))
            except Unavailable as error:
                self._failures.note_wait(name, OF_ALL, error)
            except Exception as error:  # noqa: BLE001 - recorded, with its traceback
                failed = True
                self._failures.note(name, OF_ALL, error)
                self._health.failed_round(name, error)
            else:
                self._failures.clear(name)
            if watched and not failed:
                self._health.went_round(name, seconds)
            await asyncio.sleep(seconds)


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """End tasks for certain: before Python 3.12, ``asyncio.wait_for`` can swallow a cancellation."""
    everything = set(tasks)
    pending = everything
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
    await asyncio.gather(*everything, return_exceptions=True)  # so that no error of theirs counts as unseen
