"""The scheduler of one cluster of several, asked beside our own queue: one question at a time, each for a moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from gpuspawner.backends.outages import OutageLog
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import WAITING
from gpuspawner.core.queue.decisions import Held
from gpuspawner.core.queue.estimates import Place
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.schedulers.base import SCHEDULER, Answer, Preempted, Scheduler

log = logging.getLogger("gpuspawner.scheduler")

PATIENCE_SECONDS = 1.0
"""So long grants elsewhere wait for it, where it answered before. Arbitrary: a few times what an answer takes."""


class ClusterScheduler(Scheduler, Protocol):
    """One that owns the queue of a cluster."""

    async def meet(self) -> None:
        """See that it can be used. Raises Unavailable: the words say why not."""
        ...

    async def close(self) -> None:
        """Ask no more."""
        ...


class Asked:
    """A cluster's scheduler, and what it answered last.

    Whatever is wrong with it is wrong in its cluster alone: nothing is granted there, and what stood, stands.
    """

    def __init__(self, title: str, scheduler: ClusterScheduler) -> None:
        """Ask nothing yet. ``title`` is what people call the cluster."""
        self._title, self.scheduler = title, scheduler
        self._outages = OutageLog()
        self._answer: Answer | None = None
        self._late_answer: Answer | None = None
        """The last one, while nobody has heard it."""
        self._task: asyncio.Task[None] | None = None
        self.heard: tuple[str, float | None] = ("", None)
        """Another where what stands has changed by its own doing: why it is away, and of when it answered."""
        self._met = self._is_late = self._again = False
        self._told: Callable[[], None] = lambda: None

    @property
    def away(self) -> str:
        """Why it does not answer, in sentences; "" while it does."""
        outage = self._outages.outage
        return "" if outage is None else f"{outage.part} does not answer: {outage.why}"

    @property
    def unseen(self) -> tuple[str, ...]:
        """What is wrong with it, in sentences for the administrator."""
        told = self.scheduler.unseen
        return (*([self.away] if self.away else []), *(f"Cluster {self._title}: {words}" for words in told))

    def listen(self, told: Callable[[], None]) -> None:
        """Have ``told`` called whenever what stands may have changed."""
        self._told = told
        self.scheduler.listen(told)

    async def close(self) -> None:
        """Ask no more."""
        self._told = lambda: None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.scheduler.close()

    async def standing(self, seen: Snapshot) -> Answer:
        """Ask, and return what stands; of one that is not heard in time what stood: it tells when it answers.

        What it told too late counts the next time it is late: so one that always takes long is heard as well.
        """
        if self._task is not None:
            self._again = True
            return self._noted(None, seen)
        self._is_late = self._again = False
        late, self._late_answer = self._late_answer, None
        patience = 0.0 if self.away else PATIENCE_SECONDS
        task = self._task = asyncio.create_task(self._ask(seen))
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait({task}, timeout=patience)
        finally:
            self._is_late = not task.done()
        answer = late if self._is_late else self._answer
        return self._noted(None if self.away else answer, seen)

    def _noted(self, answer: Answer | None, seen: Snapshot) -> Answer:
        """Return an answer, or what stood for None. Of one that answers at once it is made of the snapshot alone."""
        last, at_once = answer or self._answer, self.scheduler.capabilities.answers_at_once
        self.heard = self.away, None if last is None or at_once else last.as_of
        return self._stood(seen) if answer is None else answer

    async def _ask(self, seen: Snapshot) -> None:
        before, was_away = self._as_of, self.away
        try:
            if not self._met:
                await self.scheduler.meet()
                self._met = True
            self._answer = await self.scheduler.sync(seen)
            self._outages.end(seen.now)
        except Unavailable as error:
            self._be_away(str(error), seen.now)
        except Exception as error:
            log.exception("what the scheduler of cluster %s answered could not be taken", self._title)
            self._be_away(f"{type(error).__name__}: the service's log says where.", seen.now)
        self._again |= (was_away, before) != (self.away, self._as_of)

    @property
    def _as_of(self) -> float | None:
        return None if self._answer is None else self._answer.as_of

    def _be_away(self, why: str, now: float) -> None:
        self._outages.begin(f"The scheduler of cluster {self._title}", why, now)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._task = None
        if self._is_late and not self.away:
            self._late_answer = self._answer
        if self._is_late and self._again:
            self._told()

    def _stood(self, seen: Snapshot) -> Answer:
        """Return what stood: nothing new is granted, no notice is taken back, and who is held back stays so."""
        outage, name = self._outages.outage, self.scheduler.capabilities.title
        says = outage.waiting_words(seen.now) if outage else f"{name} in {self._title} has not answered yet."
        places = {x.id: Place(None, None, None, None, says=says) for x in seen.leases if x.phase in WAITING}
        if not self.away and self._answer is not None:
            places |= {lease: place for lease, place in self._answer.places().items() if lease in places}
        held = {x.id: Held(x.held_back.rule, x.held_back.words) for x in seen.leases if x.held_back is not None}
        notices = ((x.id, x.notice) for x in seen.leases if x.notice and x.notice.preemption == SCHEDULER)
        preempted = tuple(Preempted(lease, notice.at, notice.why) for lease, notice in notices)
        return Answer(seen.now, tuple, lambda: places, lambda: held, preempted=preempted)
