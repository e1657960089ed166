"""Brings leases in line with what hub and backend show. Absence is believed only when both say so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gpuspawner.backends.base import Backend, Running
from gpuspawner.core import lease as leases
from gpuspawner.core.autoscale import PATIENCE
from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.lease import UP, WAITING, Key, Lease, Phase, Reason
from gpuspawner.core.units import show_duration
from gpuspawner.service.adoption import adopted_server, rebuilt_lease
from gpuspawner.service.allocator import Allocator, options_of
from gpuspawner.service.book import Book
from gpuspawner.service.clock import Clock
from gpuspawner.service.hub import Hub, HubServer
from gpuspawner.service.orphans import Orphans
from gpuspawner.service.reclaimer import Reclaimer
from gpuspawner.service.seating import corrected, seated
from gpuspawner.service.settings import Settings
from gpuspawner.service.unheard import hear_late

log = logging.getLogger("gpuspawner.reconciler")

NEWER_SERVER = "A newer server runs in its place, and how this one ended was not seen. Your files are untouched."


class Reconciler:
    """One round a tick: look at processes, then at the hub, then move each lease by at most one step."""

    def __init__(
        self,
        book: Book,
        allocator: Allocator,
        reclaimer: Reclaimer,
        hub: Hub,
        backend: Backend,
        clock: Clock,
        settings: Settings,
        hub_id: str,
        secret: bytes,
        data: Path | None = None,
    ) -> None:
        """Reconcile the workspaces of the hub ``hub_id``; ``secret`` signed what they carry.

        ``data`` is the folder that spawner and service share, None where they share none.
        """
        self._data = data
        self._secret = secret
        self._book, self._allocator, self._reclaimer, self._hub = book, allocator, reclaimer, hub
        self._backend, self._clock, self._settings, self._hub_id = backend, clock, settings, hub_id
        self._running: tuple[Running, ...] = ()
        self._running_of: dict[str, list[Running]] = {}
        self._looked_at = 0.0
        self._servers: dict[tuple[str, str], HubServer] | None = None
        self._listed_at = 0.0
        self._gone_since: dict[str, float] = {}
        self._started: set[tuple[str, float]] = set()
        self._failed_gpus: frozenset[str] = frozenset()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.orphans = Orphans(book, reclaimer, hub, clock, settings, self._drop, hub_id, secret)

    def _aside(self, name: str, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a step that waits for the hub beside the rounds, one of a name at a time."""
        if name not in self._tasks:
            task = asyncio.create_task(step())
            self._tasks[name] = task
            task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(name, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("the step %r failed and is tried again: %s", name, task.exception())

    async def close(self) -> None:
        """Cancel what runs beside the rounds: every step of it can be taken again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def round(self) -> None:
        """Observe and act once. What cannot be observed now is left as it is."""
        if self._data is not None:
            hear_late(self._data, self._allocator)  # first: it tells why what is gone is gone
        looked_at, taken_back = self._clock.now(), self._allocator.taken_back
        try:
            self._running = await self._backend.workspaces()
        except Unavailable as error:
            log.warning("workspaces are not seen now: %s", error)
            return
        self._looked_at = looked_at
        gpus = self._allocator.scheduler.fleet.gpus
        self._failed_gpus = frozenset(gpu.id for gpu in gpus if not gpu.healthy and not gpu.group)
        self._running_of = {}
        for one in self._running:
            self._running_of.setdefault(one.lease_id, []).append(one)
        self._rebuild()
        found = seated(self._running, self._book)
        self._allocator.see(((one.lease_id, slot) for one, slots in found for slot in slots), taken_back)
        self._correct(corrected(found, self._book))
        await self._list_servers()
        self._allocator.end_what_is_not_offered()
        for lease_id in [lease.id for lease in self._book]:
            lease = self._book.get(lease_id)  # as it is now: another step may have changed it while one was awaited
            try:
                if lease is not None:
                    await self._step(lease)
            except (Unavailable, Conflict) as error:
                log.warning("lease %s waits: %s", lease_id, error)
        if self._servers is not None:
            await self.orphans.round(self._running, self._servers)
        self._allocator.give()

    async def _list_servers(self) -> None:
        now = self._clock.now()
        if self._servers is not None and now - self._listed_at < self._settings.hub_seconds:
            return
        self._listed_at = now
        leased = {lease.key for lease in self._book}
        try:
            servers = await self._hub.servers()
        except Unavailable as error:
            if self._allocator.hub_answers:
                log.warning("%s Parked workspaces wait.", error)
            self._allocator.hub_answers = False
            self._servers = None
            return
        self._allocator.hub_answers = True
        self._servers = {(s.user_created, s.name): s for s in servers}
        self._adopt(leased)

    def _server(self, lease: Lease) -> HubServer | None:
        return (self._servers or {}).get((lease.key.user_created, lease.key.server))

    def last_activity(self, lease: Lease) -> float | None:
        """Return when the hub last noted activity of a lease's server; None where that is not known now."""
        server = self._server(lease)
        return server.last_activity if server is not None else None

    def _processes(self, lease: Lease) -> list[Running]:
        return self._running_of.get(lease.id, [])

    def _adopt(self, leased: set[Key]) -> None:
        """Adopt ready servers that have no lease: no GPU is known of them, and no deadline stands.

        ``leased`` are the keys that had one before the list was asked for: it may still show what ended meanwhile.
        """
        now = self._clock.now()
        for server in (self._servers or {}).values():
            key = Key(self._hub_id, server.user_created, server.name)
            lease = self._book.of_key(key)
            if lease is not None:
                if lease.user != server.user:
                    self._book.save(replace(lease, user=server.user))
            elif server.ready and key not in leased:
                lease = adopted_server(key, server, now)
                self._book.save(lease, audit=[self._allocator.line(lease, "gpuspawner", "adopted", "no lease")])

    def _rebuild(self) -> None:
        """Rebuild leases that the store does not know from what runs, each from its newest attempt."""
        now = self._clock.now()
        for running in reversed(self._running):
            if self._book.get(running.lease_id) is not None:
                continue
            lease = rebuilt_lease(running, self._hub_id, self._secret, now)
            if lease is None or self._book.of_key(lease.key) or self._book.store.lease(lease.id):
                continue
            line = self._allocator.line(lease, "gpuspawner", "adopted", "rebuilt from what runs")
            self._book.save(lease, audit=[line])

    def _correct(self, given: list[Lease]) -> None:
        """Take in what the place gave instead of what was planned: all at once, as two may have changed places."""
        lines = []
        for lease in given:
            gpus = ", ".join(slot.gpu for slot in lease.slots) or "no GPU"
            lines.append(self._allocator.line(lease, "gpuspawner", "placed", gpus))
            log.info("%s of %s was given %s", lease.id, lease.user, gpus)
        if given:
            self._book.save(*given, audit=lines)

    async def _step(self, lease: Lease) -> None:
        now = self._clock.now()
        if lease.phase in WAITING and any(r.attempt < lease.attempt for r in self._processes(lease)):
            # They may use the very GPUs that the lease waits for.
            self._aside(f"left over {lease.id}", partial(self._end_left_over, lease))
        if lease.phase is Phase.QUEUED and now - lease.heard_at > self._settings.listen_seconds:
            self._book.save(leases.park(lease, now))
        elif lease.phase is Phase.RESERVED:
            await self._reserved(lease, now)
        elif lease.phase is Phase.STARTING:
            await self._starting(lease, now)
        elif lease.phase in UP:
            await self._up(lease, now)
        elif lease.phase is Phase.STOPPING:
            self._aside(f"stop {lease.id}", partial(self._reclaimer.drive, lease.id))

    async def _end_left_over(self, lease: Lease) -> None:
        if not await self._reclaimer.end_attempts(lease):
            log.warning("processes of an earlier start of %s outlived their end; its GPUs stay taken", lease.id)

    async def _reserved(self, lease: Lease, now: float) -> None:
        if now - max(lease.phase_since, lease.heard_at) > self._settings.reserved_seconds:
            self._drop(lease, now)
            return
        granted = (lease.id, lease.granted_at or 0.0)
        if lease.unattended and granted not in self._started:
            self._started.add(granted)
            self._aside(f"start {granted}", partial(self._start, lease))

    async def _start(self, lease: Lease) -> None:
        """Start a parked workspace for whoever asked for it: their name may be another user's by now."""
        name = await self._hub.name_of(lease.key.user_created, lease.user)
        if name is None:
            log.warning("the hub has no %s any more who asked for %s: it is not started", lease.user, lease.id)
            return
        newest = self._book.get(lease.id)
        if newest is None or newest.phase is not Phase.RESERVED or newest.granted_at != lease.granted_at:
            return  # withdrawn, or taken back, while the hub was asked
        log.info("starting the parked workspace of %s", name)
        await self._hub.start(name, lease.key.server, options_of(lease))

    def _without_room(self, lease: Lease) -> Running | None:
        """Return what of this start the place has found no room for, for too long, or is about to end."""
        patience_seconds = self._settings.no_room_seconds + self._node_seconds(lease)
        return next(
            (
                one
                for one in self._processes(lease)
                if one.attempt == lease.attempt and (one.waiting_seconds > patience_seconds or one.disruption)
            ),
            None,
        )

    def _node_seconds(self, lease: Lease) -> float:
        """Return for how long a node may take that is started for a lease: 0 where none is."""
        seconds = self._allocator.scheduler.node_seconds(lease, (), ())
        return 0.0 if seconds is None else PATIENCE * seconds

    async def _requeue(self, lease: Lease, why: str) -> None:
        """End what found no room, and only then give its place in the queue back: it would go on waiting beside it."""
        if not await self._backend.end(lease.id, frozenset({lease.attempt})):
            return
        current = self._book.get(lease.id)
        if current is None or current.phase is not Phase.STARTING or current.attempt != lease.attempt:
            return
        waited_seconds = self._node_seconds(current)
        what = (
            f"No node came within {show_duration(waited_seconds)}"
            if waited_seconds
            else "There was no room for it after all"
        )
        fleet, gpus = self._allocator.scheduler.fleet, {slot.gpu for slot in current.slots}
        node = next((gpu.node for gpu in fleet.gpus if gpu.id in gpus), "")
        self._allocator.requeue(current.id, current.attempt, f"{what}: {why}", node)

    async def _starting(self, lease: Lease, now: float) -> None:
        if (one := self._without_room(lease)) is not None:
            self._aside(f"requeue {lease.id}", partial(self._requeue, lease, one.disruption or one.waiting))
            return
        # By the time of the look: what came up while this round waited for the hub was not seen.
        if not self._processes(lease) and self._looked_at - lease.heard_at <= self._settings.heartbeat_seconds:
            return
        server = await self._hub.server(lease.user, lease.key.server)
        current = self._book.get(lease.id)
        if current is None or current.phase is not Phase.STARTING or current.attempt != lease.attempt:
            return
        ready = server is not None and server.ready and server.user_created == lease.key.user_created
        if server is not None and server.pending == "stop":
            return  # no dropped start, which would come again by itself: the hub ends it, and tells when it has
        silent = not self._processes(lease) and current.heard_at == lease.heard_at
        own = any(running.attempt == lease.attempt for running in self._processes(lease))
        if silent and not ready:
            self._drop(current, now)
        elif (own or silent) and ready and server is not None:
            if silent:
                # The hub has it, so it uses its GPUs, seen or not. Unseen, it is unknown: never idle.
                log.error("no process of %s's workspace is seen: may the service read its environment?", lease.user)
            running = leases.run(current, server.started, self._clock.now())
            self._book.save(running, audit=[self._allocator.line(lease, "gpuspawner", "running", "")])

    def _drop(self, seen: Lease, now: float) -> None:
        lease = self._book.get(seen.id)
        if lease is None or (lease.phase, lease.attempt) != (seen.phase, seen.attempt):
            return  # it was stopped, or went on, since
        dropped = leases.drop_start(lease, now, self._settings.back_off_seconds)
        why = f"the hub did not start it (try {lease.failed_starts + 1})"
        action = dropped.phase.value if dropped.live else "stop"
        self._book.save(dropped, audit=[self._allocator.line(lease, "gpuspawner", action, why)])
        self._allocator.take_back(lease)

    def _disrupted(self, lease: Lease, now: float) -> Lease:
        """Note that the place is about to end it, or is no more: its user is told while it still runs."""
        own = [x for x in self._processes(lease) if x.attempt == lease.attempt]
        one = next((x for x in own if x.disruption), None)
        if not own or (one is None) is (not lease.disruption):
            return lease
        if one is None:
            told = leases.disrupt(lease, "", None)
            line = self._allocator.line(lease, "cluster", "spared", "The cluster ends it no more.")
        else:
            until = None if one.ends_in_seconds is None else now + one.ends_in_seconds
            told = leases.disrupt(lease, one.disruption, until)
            line = self._allocator.line(lease, "cluster", "disrupted", one.disruption)
        self._book.save(told, audit=[line])
        return told

    def _unhealthy(self, lease: Lease) -> Lease:
        """Note which of its GPUs the place calls unhealthy, and which no more: its user is told, nothing is stopped."""
        own = next((x for x in self._processes(lease) if x.attempt == lease.attempt), None)
        if own is None:
            return lease
        failed = (slot.gpu for slot in lease.slots if slot.gpu in self._failed_gpus)
        unhealthy = tuple(sorted({*own.unhealthy, *failed}))
        if unhealthy == lease.unhealthy:
            return lease
        told = replace(lease, unhealthy=unhealthy)
        names = ", ".join(unhealthy)
        why = f"the place calls {names} unhealthy" if names else "the place calls its GPUs healthy again"
        self._book.save(told, audit=[self._allocator.line(lease, "cluster", "health", why)])
        return told

    async def _up(self, lease: Lease, now: float) -> None:
        """A workspace that neither hub nor backend shows has ended without a word.

        So has one whose place at the hub a newer server has: no lease is to take that one for its own.
        """
        lease = self._unhealthy(self._disrupted(lease, now))
        if self._servers is None or self._processes(lease) or _is_its(self._server(lease), lease):
            self._gone_since.pop(lease.id, None)
            return
        if now - self._gone_since.setdefault(lease.id, now) < self._settings.settle_seconds:
            return
        self._gone_since.pop(lease.id)
        server = await self._hub.server(lease.user, lease.key.server)
        current = self._book.get(lease.id)
        if _is_its(server, lease) or current is None or current.phase not in UP:
            return
        if current.disruption:
            reason, message = Reason.PREEMPTED, current.disruption
        elif server is not None and server.user_created == lease.key.user_created:
            reason, message = Reason.ORPHANED, NEWER_SERVER
        elif current.adopted:
            reason, message = Reason.STOPPED, "It was stopped from the hub."
        else:
            reason, message = Reason.FAILED, "Its server ended by itself. Your files are untouched."
        ended = leases.stop(current, reason, "hub", message, now)
        self._book.save(
            replace(ended, hub_gone=True), audit=[self._allocator.line(lease, "gpuspawner", "stop", message)]
        )


def _is_its(server: HubServer | None, lease: Lease) -> bool:
    """Whether a server is the lease's own: a newer one may have its name, started while gpuspawner was not there."""
    return (
        server is not None
        and server.user_created == lease.key.user_created
        and lease.server_started in {"", server.started}
    )
