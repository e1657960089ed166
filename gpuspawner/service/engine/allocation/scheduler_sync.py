"""Syncs claims with the scheduler, one call at a time. Requests during a call are merged into the next one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from gpuspawner.backends.base import OutageLog
from gpuspawner.core.errors import Superseded, Unavailable
from gpuspawner.core.outages import Outage
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.schedulers.base import Answer, Scheduler
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.failures import OF_ALL
from gpuspawner.service.store.idempotency import context_without_act

ERRORS = ("not seen", "no answer", "failed")
"""The GPUs could not be observed; the scheduler did not answer; its answer could not be applied."""

STEP = "taking what the scheduler answers"

T = TypeVar("T")


def run_without_waiting(step: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, and return its result. Raise RuntimeError if it waits."""
    try:
        step.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    step.close()
    raise RuntimeError("It declares that it answers at once, and waits.")


class SchedulerSync:
    """Keeps the scheduler's side equal to the leases.

    The service waits for a scheduler that answers at once, so that a free GPU is granted within the request for it. The
    answer of another scheduler counts when it arrives, if it still fits.
    """

    def __init__(
        self,
        registry: LeaseRegistry,
        scheduler: Scheduler,
        snapshot: Callable[[], Snapshot],
        take: Callable[[Answer], Awaitable[None]],
        begin: Callable[[], Awaitable[None]],
    ) -> None:
        """Ask nothing yet. ``take`` applies an answer, and checks each grant against the present claim.

        ``begin`` is awaited before each sync. The registry's store tells whether this service still owns it.
        """
        self._failures, self._store = registry.failures, registry.store
        self._scheduler, self._snapshot, self._take, self._begin = scheduler, snapshot, take, begin
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._asked: list[asyncio.Future[None]] = []
        """Futures that are done at the end of the next sync."""
        self.answer: Answer | None = None
        """The last answer."""
        self._outages = OutageLog()
        self.errors: Counter[str] = Counter()
        """How often the scheduler failed, by one of ERRORS."""
        self.news_count = 0
        """How often a slow scheduler sent news, or stopped answering."""

    @property
    def outage(self) -> Outage | None:
        """Why the scheduler does not answer now."""
        return self._outages.outage

    def request(self) -> None:
        """Request a sync of all claims with the scheduler."""
        self._again = True
        if self._task is None:
            self._task = context_without_act().run(asyncio.create_task, self._run())

    def sync_now(self) -> asyncio.Future[None]:
        """Request a sync.

        Returns:
            A future. If the scheduler answers at once, it is done when the grants of this answer are stored. Otherwise
            it is done already.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._scheduler.capabilities.answers_at_once:
            self._asked.append(done)
        else:
            done.set_result(None)
        self.request()
        return asyncio.shield(done)

    def current_answer(self, snapshot: Snapshot) -> Answer | None:
        """Return the present answer without making grants. For a slow scheduler that is its last answer."""
        if not self._scheduler.capabilities.answers_at_once:
            return self.answer
        return run_without_waiting(self._scheduler.sync(snapshot))

    async def close(self) -> None:
        """End the running sync."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._again:
                self._again = False
                asked, self._asked = self._asked, []
                error = await self._error_of_sync()
                for done in asked:
                    if error is None:
                        done.set_result(None)
                    else:
                        done.set_exception(error)
                        done.exception()  # callers need not await it
        finally:
            self._task = None

    async def _error_of_sync(self) -> BaseException | None:
        try:
            await self._sync()
        except (Unavailable, Superseded) as error:
            self._failures.note_wait(STEP, OF_ALL, error)
            return error
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - recorded, and raised where the answer is awaited
            self.errors["failed"] += 1
            self._failures.note(STEP, OF_ALL, error)
            return error
        self._failures.clear(STEP)
        return None

    async def _sync(self) -> None:
        if not self._scheduler.capabilities.answers_at_once:
            # A replaced service, which does not know all claims, must not withdraw those of its successor.
            await self._store.read(self._store.check_epoch)
        await self._begin()
        snapshot = self._snapshot()
        if not snapshot.processes_known:
            return  # a process from before a crash may use a GPU that no lease holds
        try:
            answer = await self._scheduler.sync(snapshot)
        except Unavailable as error:
            self.errors["no answer"] += 1
            self.news_count += self.outage is None
            self._outages.begin(self._scheduler.capabilities.title or "The scheduler", str(error), snapshot.now)
            return
        if not self._scheduler.capabilities.answers_at_once:
            before = self.answer
            self.news_count += before is None or self.outage is not None or answer.last_changed != before.last_changed
            self.answer = answer
        self._outages.end(snapshot.now)
        await self._take(answer)
