"""The only part that stops workspaces. Marks first, validates again, then stops, then sees that nothing is left."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakValueDictionary

from gpuspawner.backends.base import (
    ON_STOP_MARGIN_SECONDS,
    TERMINATED,
    Backend,
    OnStopResult,
    on_stop_script,
    read_on_stop,
)
from gpuspawner.catalog.models import OnStop
from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.events import Returned, Stopped
from gpuspawner.core.leases.exits import Exit, ExitReason
from gpuspawner.core.leases.lease import Lease, Owner, Phase
from gpuspawner.core.leases.observations import HubServer
from gpuspawner.core.leases.reports import mask_output
from gpuspawner.core.units import show_duration
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocator import Allocator
from gpuspawner.service.engine.hub import HubClient
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.settings import Settings
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.idempotency import context_without_act
from gpuspawner.service.store.readings import OutputRow

log = logging.getLogger("gpuspawner.reclaimer")

AT_ONCE_SECONDS = 2.0
"""What runs before an end, and is over sooner, is waited for. Arbitrary: an exec takes about a second."""
ON_STOP_OF_A_USER = 16
"""So many workspaces of one user run at once what is to run before their end: a backend runs a bounded number of all
users' at once, 64 on Kubernetes, and whoever stops a hundred must not hold up others. Arbitrary: a quarter of them."""
EVIDENCE_SECONDS = 3 * 3600.0
"""Readings of at least this long before a stop are kept with it: an idle time, a grace, and what came before."""


class Reclaimer:
    """Stops workspaces in steps that each survive a crash: a stop that began is carried on by whoever runs next."""

    def __init__(
        self,
        registry: LeaseRegistry,
        allocator: Allocator,
        hub: HubClient,
        backend: Backend,
        clock: Clock,
        settings: Settings,
    ) -> None:
        """Stop servers through ``hub`` and what is left of them through ``backend``."""
        self._registry, self._allocator, self._hub, self._backend = registry, allocator, hub, backend
        self._clock, self._settings = clock, settings
        self._driving: set[tuple[str, bool]] = set()
        self._wrote: dict[str, str] = {}
        """What was run before the end of those that are being stopped wrote, until that is stored with the stop."""
        self._before_stops: dict[str, asyncio.Task[None]] = {}
        """What runs in workspaces before their end, by lease id: beside all else, as it may take minutes."""
        self._turns: WeakValueDictionary[Owner, asyncio.Semaphore] = WeakValueDictionary()

    def mark(self, lease_id: str, how: Exit, still: Callable[[Lease], bool] = lambda _: True) -> asyncio.Future[None]:
        """Begin a stop: record who, why and the readings behind it. ``still`` judges the newest state of the lease.

        It is recorded once what is returned is awaited.

        Raises:
            Conflict: the lease has ended or is stopping, or what called for the stop is no longer so.
        """
        lease = self._registry.get(lease_id)
        if lease is None or lease.phase is Phase.STOPPING or not still(lease):
            raise Conflict("This workspace is not to be stopped any more.")
        since = self._clock.now() - max(EVIDENCE_SECONDS, 2 * lease.streak.observed_seconds)
        return self._allocator.commits.finish(
            lease, how, kept_since=None if how.reason is ExitReason.STOPPED else since
        )

    async def end_for_good(self, lease: Lease, how: Exit) -> None:
        """Let what stops, to start again as its user asked, start no more: they stopped it meanwhile. Or do nothing."""
        current = self._registry.get(lease.id)
        if current is not None and (after := transitions.end_for_good(current, how)) is not current:
            line = self._allocator.commits.line(current, how.by, Stopped(how.reason.value, how.message), how.where)
            await self._registry.save(after, audit=[line])

    async def drive(self, lease_id: str) -> None:
        """Take a stopping lease one step further. Called again and again until it has ended; no step twice at once."""
        lease = self._registry.get(lease_id)
        # Once the hub has no server of it, it ends without waiting for the hub's answer to a stop under way.
        step = (lease_id, lease is not None and lease.hub_gone)
        if step in self._driving:
            return
        self._driving.add(step)
        try:
            await self._drive(lease_id)
        except (Unavailable, Conflict) as error:
            log.warning("the stop of %s waits: %s", lease_id, error)
        finally:
            self._driving.discard(step)

    async def _drive(self, lease_id: str) -> None:
        await self._registry.stored(lease_id)
        lease = self._registry.get(lease_id)
        if lease is None or lease.phase is not Phase.STOPPING:
            return
        if not lease.hub_gone and not await self._stop_in_hub(lease):
            return
        if (left := self._before_stops.pop(lease_id, None)) is not None:
            left.cancel()  # its workspace is gone
        # The hub has no server of it any more: whatever still carries the id is left over.
        if not await self._backend.end(lease_id, None, lease.slots):
            log.warning("processes of %s outlived their end; its GPUs stay taken", lease_id)
            return
        lease = self._registry.get(lease_id)
        if lease is not None and lease.phase is Phase.STOPPING:
            await asyncio.gather(self._end(lease), self._allocator.give())
        self._wrote.pop(lease_id, None)

    def _end(self, lease: Lease) -> asyncio.Future[None]:
        """End a lease. What the backend took, or its user moves, goes back in the queue in the same step.

        No crash loses it between.
        """
        now = self._clock.now()
        ended = transitions.end(lease, now)
        if lease.reason is None or not self._allocator.returns(lease):
            return self._registry.save(ended)
        parked = transitions.successor(lease, uuid.uuid4().hex, now)
        line = self._allocator.commits.line(parked, "gpuspawner", Returned(lease.id, lease.reason.value))
        return self._registry.save(ended, parked, audit=[line])

    async def _stop_in_hub(self, lease: Lease) -> bool:
        """Return True once the hub has no server of this lease; otherwise see that it is told to stop it."""
        server = await self._server_of(lease)
        if server is None:
            return True
        sent_at = lease.stop_sent_at
        is_sent = sent_at is not None and self._clock.now() - sent_at < self._settings.stop_retry_seconds
        if server.pending == "stop" or is_sent:
            return False
        current = self._registry.get(lease.id)
        if current is None or current.hub_gone:
            return False
        if sent_at is None and current.running_at is not None:
            before = self._before_stops.get(lease.id)
            if before is None:
                run = self._run_on_stop(current)
                before = self._before_stops[lease.id] = context_without_act().run(asyncio.create_task, run)
                await asyncio.wait({before}, timeout=AT_ONCE_SECONDS)
                return before.done() and await self._stop_in_hub(current)  # the server may be another by now
            if not before.done():
                return False
            del self._before_stops[lease.id]
            before.result()
        now = self._clock.now()
        # The write checks the epoch: a service that was replaced sends no stop. A start that never ran is known by its
        # server from here on: a stop that is sent again must not hit the next one.
        sent = replace(current, stop_sent_at=now, server_started=lease.server_started or server.started)
        await self._registry.save(sent)
        self._wrote.pop(lease.id, None)
        self._allocator.observed.stop_begins(lease.key)
        try:
            await self._hub.stop(lease.user, lease.key.server)
        finally:
            self._allocator.observed.stop_answered(lease.key)
        return False

    async def _server_of(self, lease: Lease) -> HubServer | None:
        """Return the hub's server of a lease; None, which is noted, where it has none, or another in its place."""
        server = await self._hub.server(lease.user, lease.key.server)
        same_user = server is not None and server.user_created == lease.key.user_created
        if server is not None and same_user and lease.server_started in {"", server.started}:
            return server
        current = self._registry.get(lease.id)
        if current is not None and current.phase is Phase.STOPPING:
            await self._registry.save(replace(current, hub_gone=True))
        return None

    async def _run_on_stop(self, lease: Lease) -> None:
        """Run what the workspace has to do before its end, and keep what it wrote.

        It runs once, however long the store takes nothing. A service that restarts meanwhile runs it again: rather
        twice than a checkpoint less.
        """
        if lease.id not in self._wrote:
            async with self._turns.setdefault(lease.key.owner, asyncio.Semaphore(ON_STOP_OF_A_USER)):
                self._wrote[lease.id] = await self._on_stop(lease)
        if text := self._wrote[lease.id]:
            row = OutputRow(lease.id, self._clock.now(), text)
            await self._registry.store.write(self._registry.store.outputs.save, row)

    async def _on_stop(self, lease: Lease) -> str:
        """Return how what was run ended, and what it wrote; "" where there was nothing to run."""
        template = self._allocator.catalog.templates.get(lease.request.template)
        on_stop = template.on_stop if template else OnStop()
        reason = lease.reason.value if lease.reason else ""
        seconds = on_stop.timeout_seconds
        script = on_stop_script(on_stop.command, seconds, reason)
        result = await self._backend.run_script(lease.id, lease.attempt, script, seconds + ON_STOP_MARGIN_SECONDS)
        ran = OnStopResult(problem=result.problem) if result.problem else read_on_stop(result.text)
        if ran.problem:
            log.warning("what %s was to run before its end did not run: %s", lease.id, ran.problem)
        if ran.code is None:
            return ""
        how = (
            f"ended with exit code {ran.code}"
            if ran.code != TERMINATED
            else f"was ended after {show_duration(seconds)}"
        )
        return mask_output(f"What was to run before the end {how}.\n{ran.output}", {})

    async def end_attempts(self, lease: Lease) -> bool:
        """End what earlier attempts of a live lease left running. True once nothing of them is left."""
        await self._registry.stored(lease.id)
        running = await self._backend.workspaces()
        older = frozenset(r.attempt for r in running if r.lease_id == lease.id and r.attempt < lease.attempt)
        return not older or await self._backend.end(lease.id, older, lease.slots)

    async def end_unknown(self, lease_id: str, user: str, why: str) -> None:
        """End what runs for a lease that is not live. The write checks the epoch before anything is ended."""
        now = self._clock.now()
        line = AuditLine(now, lease_id, user, "gpuspawner", Stopped(ExitReason.ORPHANED.value, why))
        await self._registry.save(audit=[line])
        log.info("ending what is left of %s of %s: %s", lease_id, user, why)
        await self._backend.end(lease_id)
