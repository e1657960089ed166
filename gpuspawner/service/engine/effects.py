"""Carries out the effects of steps: starts, stops, questions to the hub. A failed effect pauses and is tried again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from gpuspawner.backends.base import (
    ON_STOP_MARGIN_SECONDS,
    TERMINATED,
    Backend,
    OnStopResult,
    on_stop_script,
    read_on_stop,
)
from gpuspawner.catalog.template_models import OnStop
from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.leases import exits
from gpuspawner.core.leases.exits import Exit
from gpuspawner.core.leases.lease import Lease, Owner, Phase
from gpuspawner.core.leases.observations import Effect, HubServer, Outcome
from gpuspawner.core.leases.reports import mask_output
from gpuspawner.core.units import show_duration
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.engine.allocation.requests import options_of
from gpuspawner.service.engine.hub_client import HubClient
from gpuspawner.service.engine.hub_state import GroupMembers, HubServers
from gpuspawner.service.loops import cancel_all
from gpuspawner.service.store.idempotency import context_without_act
from gpuspawner.service.store.readings import OutputRow

log = logging.getLogger("gpuspawner.work")

Step = Callable[[], Coroutine[Any, Any, None]]

FIRST_PAUSE_SECONDS = 1.0
MOST_PAUSE_SECONDS = 30.0
"""A key whose task failed pauses for the first time, then twice as long each time, up to the second. Arbitrary: a
period of the rounds, and the longest wait of a user after an outage."""


class KeyedExecutor:
    """Runs offered steps in tasks of their own. It is level-triggered: pending work is offered again.

    Keys wait in the order of their first offer, so that no key starves.
    """

    def __init__(self, at_once: int, now: Callable[[], float]) -> None:
        """Run at most ``at_once`` tasks. ``now`` returns the time in seconds."""
        self._at_once, self._now = at_once, now
        self._waiting: dict[Hashable, Step] = {}
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._begun: dict[Hashable, float] = {}
        self._pauses: dict[Hashable, tuple[float, float]] = {}
        """The length and the end of the pause of each key."""
        self._said: dict[Hashable, str] = {}
        """The last logged reason of each waiting key."""

    def offer(self, key: Hashable, step: Step) -> None:
        """Queue a step. Nothing happens while a step of this key runs, or while the key pauses.

        A waiting step of the same key is replaced, and keeps its position.
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
        if isinstance(error, Unavailable) and error.part:  # an outage of a part has two lines of its own
            log.debug("%s waits: %s", _named(key), error)
        elif isinstance(error, (Unavailable, Conflict)):
            if self._said.get(key) != str(error):
                log.warning("%s waits: %s", _named(key), error)
            self._said[key] = str(error)
        else:
            log.error("the step of %s failed and is tried again", _named(key), exc_info=error)
        self._pauses = {key: x for key, x in self._pauses.items() if now < x[1] + MOST_PAUSE_SECONDS}
        self._said = {one: why for one, why in self._said.items() if one in self._pauses or one == key}
        pause = min(MOST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * before))
        self._pauses[key] = (pause, now + pause)

    def longest_seconds(self) -> float:
        """Return how long the oldest running task has run; 0 if no task runs."""
        return self._now() - min(self._begun.values(), default=self._now())

    async def idle(self) -> None:
        """Return once all steps have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def close(self) -> None:
        """Cancel all steps. Each of them can be repeated."""
        self._waiting.clear()
        await cancel_all(self._tasks.values())


def _named(key: Hashable) -> str:
    """Return the name of a key in the log: the first of its parts."""
    return str(key[0] if isinstance(key, tuple) else key)


AT_ONCE_SECONDS = 2.0
"""The service waits for an on-stop command for this time. Arbitrary: an exec takes about a second."""
ON_STOP_OF_A_USER = 16
"""On-stop commands of one user that run at the same time. A backend runs a bounded number for all users, 64 on
Kubernetes. A user who stops a hundred workspaces must not hold up others. Arbitrary: a quarter of them."""


class EffectRunner:
    """Carries out one effect of one lease at a time. Repeating an effect is harmless."""

    def __init__(
        self, allocator: Allocator, hub: HubClient, servers: HubServers, members: GroupMembers, backend: Backend
    ) -> None:
        """Start and stop servers through ``hub``, and end the remaining processes through ``backend``."""
        self._registry, self._allocator, self._clock = allocator.registry, allocator, allocator.clock
        self._hub, self._servers, self._members, self._backend = hub, servers, members, backend
        self.start_sent: set[tuple[str, float | None]] = set()
        """The grants whose start was sent to the hub, by lease id and time of the grant."""
        self.on_stop_done: set[str] = set()
        """The ids of leases whose on-stop command has run, until the stop is sent."""
        self._on_stop: dict[str, asyncio.Task[None]] = {}
        """The on-stop commands under way, by lease id. They may take minutes."""
        self._wrote: dict[str, str] = {}
        """The output of on-stop commands, by lease id, until the stop is sent."""
        self._turns: WeakValueDictionary[Owner, asyncio.Semaphore] = WeakValueDictionary()

    async def carry_out(self, lease: Lease, effect: Effect) -> Outcome | None:  # noqa: PLR0911 - one for each effect
        """Carry out an effect. Return its outcome, None if no step follows now.

        Raises:
            Conflict, Unavailable: it failed, and may be tried again.
        """
        if effect is Effect.ASK_SERVER:
            return Outcome(effect, await self._ask(lease))
        if effect is Effect.START_SERVER:
            return Outcome(effect, await self._start(lease))
        if effect is Effect.ASK_EXTENSION:
            return await self._ask_extension(lease)
        if effect is Effect.RUN_ON_STOP:
            return Outcome(effect, None) if await self._run_on_stop(lease) else None
        if effect is Effect.STOP_SERVER:
            await self._stop_server(lease)
        elif effect is Effect.END_OLDER:
            if not await self.end_older_attempts(lease):
                log.warning("processes of an earlier start of %s outlived their end; its GPUs stay taken", lease.id)
        elif effect is Effect.END_ATTEMPT:
            return Outcome(effect, await self._backend.end(lease.id, frozenset({lease.attempt}), lease.slots))
        else:
            return Outcome(effect, await self._end_all(lease))
        return None

    async def _ask(self, lease: Lease) -> HubServer | None:
        if lease.phase is Phase.STOPPING:  # a stop does not wait behind other questions
            return await self._hub.server(lease.user, lease.key.server)
        return await self._servers.ask(lease)

    async def _start(self, lease: Lease) -> Exit | None:
        """Start a parked workspace. Its user may have another name now. Return the refusal, None without one."""
        name = await self._hub.name_of(lease.key.user_created, lease.user)
        if name is None:
            log.warning("the hub has no user %s any more, who asked for %s: it is not started", lease.user, lease.id)
            return None
        groups = await self._members.fetch(name, lease.key.owner)
        newest = self._registry.get(lease.id)
        if newest is None or newest.phase is not Phase.RESERVED or newest.granted_at != lease.granted_at:
            return None  # withdrawn or lapsed while the hub was asked
        if group := self._allocator.resolver.lost_group(newest, groups):
            return exits.not_allowed(group)
        self.start_sent.add((lease.id, lease.granted_at))
        log.info("starting the parked workspace of %s", name)
        why = await self._hub.start(name, lease.key.server, options_of(lease))
        return exits.refused_by_hub(why) if why else None

    async def _ask_extension(self, lease: Lease) -> Outcome | None:
        """Ask the scheduler to restore the extension that an administrator granted before the workspace came back."""
        extension = self._allocator.bounds.earlier_extension(lease)
        if extension is None:
            return None
        await self._allocator.scheduler.extend(lease, extension.end)
        return Outcome(Effect.ASK_EXTENSION, extension)

    async def _stop_server(self, lease: Lease) -> None:
        self._forget_on_stop(lease.id)
        self._allocator.observed.note_stop_request(lease.key)
        try:
            await self._hub.stop(lease.user, lease.key.server)
        finally:
            self._allocator.observed.note_stop_answer(lease.key)

    async def _end_all(self, lease: Lease) -> bool:
        """End all processes of a lease whose server the hub no longer has."""
        if (task := self._on_stop.pop(lease.id, None)) is not None:
            task.cancel()  # its workspace is gone
        if not await self._backend.end(lease.id, None, lease.slots):
            log.warning("processes of %s outlived their end; its GPUs stay taken", lease.id)
            return False
        self._forget_on_stop(lease.id)
        return True

    async def end_older_attempts(self, lease: Lease) -> bool:
        """End the processes of earlier attempts of a live lease. Return whether all of them have ended."""
        await self._registry.stored(lease.id)
        running = await self._backend.workspaces()
        older = frozenset(one.attempt for one in running if one.lease_id == lease.id and one.attempt < lease.attempt)
        return not older or await self._backend.end(lease.id, older, lease.slots)

    # On-stop commands

    async def _run_on_stop(self, lease: Lease) -> bool:
        """Run the template's commands before a stop, in a task of their own. Return whether they have run."""
        task = self._on_stop.get(lease.id)
        if task is None:
            running = self._run_and_keep_output(lease)
            task = self._on_stop[lease.id] = context_without_act().run(asyncio.create_task, running)
            await asyncio.wait({task}, timeout=AT_ONCE_SECONDS)
        if not task.done():
            return False
        self._on_stop.pop(lease.id, None)
        task.result()
        self.on_stop_done.add(lease.id)
        return True

    def _forget_on_stop(self, lease_id: str) -> None:
        self._wrote.pop(lease_id, None)
        self.on_stop_done.discard(lease_id)

    async def _run_and_keep_output(self, lease: Lease) -> None:
        """Run the commands and store their output.

        They run once, even if the store does not take the output for long. A service that restarts meanwhile runs them
        again, because a checkpoint that is written twice is better than a lost one.
        """
        if lease.id not in self._wrote:
            async with self._turns.setdefault(lease.key.owner, asyncio.Semaphore(ON_STOP_OF_A_USER)):
                self._wrote[lease.id] = await self._on_stop_output(lease)
        if text := self._wrote[lease.id]:
            row = OutputRow(lease.id, self._clock.now(), text)
            await self._registry.store.write(self._registry.store.outputs.save, row)

    async def _on_stop_output(self, lease: Lease) -> str:
        """Return how the commands ended, and their output; "" without commands."""
        template = self._allocator.catalog.templates.get(lease.request.template)
        on_stop = template.on_stop if template else OnStop()
        seconds = on_stop.timeout_seconds
        script = on_stop_script(on_stop.command, seconds, lease.reason.value if lease.reason else "")
        result = await self._backend.run_script(lease.id, lease.attempt, script, seconds + ON_STOP_MARGIN_SECONDS)
        ran = OnStopResult(problem=result.problem) if result.problem else read_on_stop(result.text)
        if ran.problem:
            log.warning("the on-stop command of %s did not run: %s", lease.id, ran.problem)
        if ran.code is None:
            return ""
        ended = f"ended with exit code {ran.code}"
        how = ended if ran.code != TERMINATED else f"was ended after {show_duration(seconds)}"
        return mask_output(f"What was to run before the end {how}.\n{ran.output}", {})
