"""The loops of the service, and the health probes that watch them.

Each loop repeats one step, and records when a whole round was done. An orchestrator, which does not sign in, gets two
plain answers on the service's own port, which the hub's proxy does not expose: liveness and readiness.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tornado.web import RequestHandler

from gpuspawner.core.errors import Superseded, Unavailable
from gpuspawner.service.failures import OF_ALL, Failure, Failures

HANGS_SECONDS = 120.0
"""A loop without a complete round for this time hangs, or for ten of its periods if that is longer. A loop whose rounds
all fail counts as hanging too. Arbitrary: each call in a round has a deadline of half a minute or less."""
FAILS_OFTEN = 3
"""A step that failed less often in a row may just not have been needed since. Arbitrary."""
ALIVE, READY = "/healthz", "/readyz"


class Health:
    """Knows the last round of each loop, and the part that grants still wait for."""

    def __init__(self, waits_for: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        """``waits_for`` returns the name of the missing part, "" if no part is missing."""
        self.waits_for, self._clock = waits_for, clock
        self._due: dict[str, float] = {}
        self._failed: dict[str, tuple[int, str]] = {}
        """How many rounds of a loop failed in a row, and the type of the last error."""
        self._stuck: dict[str, Callable[[], float]] = {}
        self.failures: Callable[[], list[Failure]] = list
        """Returns the steps that fail now."""

    def watch(self, what: str, stuck_seconds: Callable[[], float]) -> None:
        """Watch a part like a loop. ``stuck_seconds`` returns for how long a defect has blocked it."""
        self._stuck[what] = stuck_seconds

    def note_round(self, loop: str, period_seconds: float) -> None:
        """Note the begin of a loop, or a complete round. A round that waits for a store or a hub counts."""
        self._due[loop] = self._clock() + max(HANGS_SECONDS, 10 * period_seconds)
        self._failed.pop(loop, None)

    def note_failed_round(self, loop: str, error: BaseException) -> None:
        """Note that a round of a loop failed by a defect. It does not count as a round."""
        self._failed[loop] = (self._failed.get(loop, (0, ""))[0] + 1, type(error).__name__)

    def find_hanging(self) -> list[str]:
        """Return the loops that hang or fail, and the steps of all leases that fail, each with the reason.

        A step that fails for single leases does not count. The service retries it, and a restart would not help.
        """
        now = self._clock()
        stuck = [what for what, seconds in self._stuck.items() if seconds() > HANGS_SECONDS]
        loops = [self._with_reason(loop) for loop, due in self._due.items() if now > due]
        found = (one for one in self.failures() if not one.subject and one.count >= FAILS_OFTEN)
        failing = [one for one in found if one.since > HANGS_SECONDS]
        steps = [f"{one.step} (failed {one.count} times, last by {one.why})" for one in failing]
        return sorted([*stuck, *loops, *steps])

    def _with_reason(self, loop: str) -> str:
        count, error = self._failed.get(loop, (0, ""))
        return f"{loop} ({count} rounds failed, the last by {error})" if count else loop


class Probe(RequestHandler, ABC):
    """GET: 200 if all is well, otherwise 503 with the reason."""

    def initialize(self, health: Health) -> None:
        """Store the service's health."""
        self.health = health

    def set_default_headers(self) -> None:
        """Forbid caching."""
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Type", "text/plain; charset=UTF-8")
        self.clear_header("Server")

    def get(self) -> None:
        """Answer with one line."""
        wrong = self.problem()
        self.set_status(503 if wrong else 200)
        self.finish(f"{wrong or 'ok'}\n")

    head = get

    @abstractmethod
    def problem(self) -> str:
        """Return the reason for a 503, "" if all is well."""

    def write_error(self, status_code: int, **_kwargs: object) -> None:
        """Answer with the status only."""
        self.finish(f"{status_code}\n")


class LivenessProbe(Probe):
    """Liveness: rounds go on. A service that waits for a store, a hub or another service is alive."""

    def problem(self) -> str:
        """Return the loops that hang or fail."""
        return _hanging(self.health)


class ReadinessProbe(Probe):
    """Readiness: the service owns its store and has seen the running workspaces, so it may grant GPUs.

    A later outage of the hub or of a cluster does not count, because the service's pages must still explain it.
    """

    def problem(self) -> str:
        """Return the reason why the service is not ready, "" if it is."""
        missing = self.health.waits_for()
        return f"waits for {missing}" if missing else _hanging(self.health)


def _hanging(health: Health) -> str:
    hanging = health.find_hanging()
    return f"no whole round: {', '.join(hanging)}" if hanging else ""


ROUTES = ((ALIVE, LivenessProbe), (READY, ReadinessProbe))


LOOPS_SECONDS = 30.0
"""Loops of this period or a shorter one are watched: they observe, grant, measure and stop."""


class Loops:
    """Repeats steps for ever, and reports their rounds to ``health``."""

    def __init__(self, health: Health, failures: Failures, stop: Callable[[str], None]) -> None:
        """Run nothing yet. ``stop`` ends the service. Its argument is the reason."""
        self._health, self._failures, self._stop = health, failures, stop
        self.names: list[str] = []
        health.failures = self._failing_steps

    def _failing_steps(self) -> list[Failure]:
        """Return the steps that fail within rounds. ``health`` itself knows the last complete round of each loop."""
        return [one for one in self._failures.now() if one.step not in self.names]

    async def every(self, seconds: float, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step with a pause. A failed step is tried again, because a service that ends also ends the hub."""
        name = getattr(step, "func", step).__qualname__  # a partial has no name of its own
        watched = seconds <= LOOPS_SECONDS
        self.names.append(name)
        if watched:
            self._health.note_round(name, seconds)
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
                self._health.note_failed_round(name, error)
            else:
                self._failures.clear(name)
            if watched and not failed:
                self._health.note_round(name, seconds)
            await asyncio.sleep(seconds)


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end. Before Python 3.12, ``asyncio.wait_for`` can swallow a cancellation."""
    everything = set(tasks)
    pending = everything
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
    await asyncio.gather(*everything, return_exceptions=True)  # so that asyncio reports no unseen error
