"""Brings leases in line with what hub and backend show. Absence is believed only when both say so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from gpuspawner.backends.base import Backend
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.pools import NODE_WAIT_FACTOR
from gpuspawner.core.leases import events, exits, transitions
from gpuspawner.core.leases.lease import UP, WAITING, Lease, Phase
from gpuspawner.core.leases.observations import Running
from gpuspawner.core.units import show_duration
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocator import Allocator
from gpuspawner.service.engine.executor import KeyedExecutor
from gpuspawner.service.engine.hub import GroupMembers, HubClient
from gpuspawner.service.engine.hub_servers import HubView, answers, as_it_stands, is_its
from gpuspawner.service.engine.lease_documents import HubIdentity, lost_identities
from gpuspawner.service.engine.observed_state import assign_slots, corrected_leases
from gpuspawner.service.engine.orphans import Orphans
from gpuspawner.service.engine.reclaimer import Reclaimer
from gpuspawner.service.engine.recovery import LeaseRecovery, read_release_spool
from gpuspawner.service.engine.registry import LeaseRegistry, all_stored
from gpuspawner.service.engine.requests import options_of
from gpuspawner.service.failures import OF_ALL, step_each
from gpuspawner.service.rules.place_news import told_by_the_place
from gpuspawner.service.settings import Settings

log = logging.getLogger("gpuspawner.reconciler")

ACTS_AT_ONCE = 64
"""Starts, stops and ends of what is left over under way at the same time. Arbitrary: more than the starts that may be,
so that no stop waits for them, and few enough for the hub's and the cluster's APIs."""


class Reconciler:
    """One round a tick: look at what runs, then move each lease by at most one step. A round never waits for the hub.

    What waits for it, or for an end on the backend, is a task beside the rounds, one at a time for each lease as it
    stands: what hangs from before a lease changed holds it up no longer. A task reads its lease anew after each answer.
    """

    def __init__(
        self,
        registry: LeaseRegistry,
        allocator: Allocator,
        reclaimer: Reclaimer,
        hub: HubClient,
        members: GroupMembers,
        backend: Backend,
        clock: Clock,
        settings: Settings,
        identity: HubIdentity,
        data: Path | None = None,
    ) -> None:
        """Reconcile the workspaces of the hub that ``identity`` names.

        ``data`` is the folder that spawner and service share, None where they share none.
        """
        self._data = data
        self._registry, self._allocator, self._reclaimer, self._hub = registry, allocator, reclaimer, hub
        self._members = members
        self._backend, self._clock, self._settings, self._identity = backend, clock, settings, identity
        self._running: tuple[Running, ...] = ()
        self._running_of: dict[str, list[Running]] = {}
        self._looked_at = 0.0
        self._has_missed_look = False
        self._sees_since = 0.0
        """When a look at what runs succeeded again after a failed one."""
        self.has_looked = False
        """Whether it has seen what runs, and all that runs has its lease again."""
        self._gone_since: dict[str, float] = {}
        self._started: set[tuple[str, float | None]] = set()
        self._failed_gpus: frozenset[str] = frozenset()
        self._view = HubView(hub, allocator, clock, settings)
        self._adopting = LeaseRecovery(registry, allocator, clock, identity)
        self._acts = KeyedExecutor(ACTS_AT_ONCE, clock.now)
        self.orphans = Orphans(registry, reclaimer, hub, clock, settings, self._drop, identity)
        self.lost_identities: tuple[str, ...] = ()
        """Which workspaces of this hub run under an identity that it lost, in sentences for administrators."""

    def _act(self, lease: Lease, step: Callable[[Lease], Coroutine[Any, Any, None]]) -> None:
        """Have something started or ended, once all that is known of the lease is stored."""
        self._acts.offer(as_it_stands(lease), partial(self._once_stored, lease, step))

    async def _once_stored(self, lease: Lease, step: Callable[[Lease], Coroutine[Any, Any, None]]) -> None:
        await self._registry.stored(lease.id)
        await step(lease)

    async def close(self) -> None:
        """Cancel what runs beside the rounds: every step of it can be taken again."""
        await self._view.close()
        await self._acts.close()

    async def round(self) -> None:
        """Observe and act once. What cannot be observed now is left as it is."""
        if self._data is not None:
            await read_release_spool(self._data, self._allocator)  # first: it tells why what is gone is gone
        looked_at, given_back = self._clock.now(), self._allocator.observed.given_back
        try:
            self._running = tuple(one for one in await self._backend.workspaces() if not self._is_false(one))
        except Unavailable as error:
            self._registry.failures.note_wait("looking at what runs", OF_ALL, error)
            self._has_missed_look = True
            return
        self._registry.failures.clear("looking at what runs")
        if self._has_missed_look:
            self._has_missed_look, self._sees_since = False, looked_at
        self._looked_at = looked_at
        gpus = self._allocator.scheduler.fleet.gpus
        self._failed_gpus = frozenset(gpu.id for gpu in gpus if not gpu.healthy and not gpu.group)
        self._running_of = {}
        for one in self._running:
            self._running_of.setdefault(one.lease_id, []).append(one)
        await self._adopting.rebuild(self._running)
        self.has_looked = True
        found = assign_slots(self._running, self._registry)
        self._allocator.observed.see(((one.lease_id, slot) for one, slots in found for slot in slots), given_back)
        pools = {gpu.group: gpu.pool for gpu in gpus if gpu.group}
        with self._registry.failures.isolating("correcting which GPUs are held"):
            await self._correct(
                [self._allocator.bounds.rated(x) for x in corrected_leases(found, self._registry, pools)]
            )
        if self._view.is_due():
            self._acts.offer("the list of the hub's servers", self._list_servers)
        await self._allocator.end_what_is_not_offered()
        await self._take_steps()
        if self._view.servers is not None:
            boot_id = self._allocator.observed.boot_id
            self._acts.offer("orphans", partial(self.orphans.round, self._running, self._view.servers, boot_id))
            self._tell_what_is_lost(self._view.servers)
        else:
            self.orphans.begin_anew()
        with self._registry.failures.isolating("taking expired grants back"):
            await self._allocator.lapse_expired()
        self._allocator.syncs.ask()
        with self._registry.failures.isolating("looking ahead"):
            await self._allocator.look_ahead()

    def _is_false(self, one: Running) -> bool:
        """Whether it says that it is of a lease of ours, and of another hub: that one's is never the same."""
        lease = self._registry.get(one.lease_id)
        return lease is not None and one.environment.get("GPUSPAWNER_HUB_ID", lease.key.hub) != lease.key.hub

    async def _take_steps(self) -> None:
        """Move each lease by at most one step: all at once, so that they are written together."""
        live = list(self._registry)
        self._started &= {(lease.id, lease.granted_at) for lease in live}
        self._registry.failures.forget_others({lease.id for lease in live})
        await step_each("round", live, self._step, self._registry.failures)

    async def _list_servers(self) -> None:
        leased = {lease.key for lease in self._registry}
        if await self._view.look():
            await self._adopting.adopt(self._view.servers or {}, leased, self._processes)
            self._allocator.syncs.ask()  # parked leases waited for this answer

    def last_activity(self, lease: Lease) -> float | None:
        """Return when the hub last noted activity of a lease's server; None where that is not known now."""
        server = self._view.server(lease)
        return server.last_activity if server is not None else None

    def ending(self, lease: Lease) -> Running | None:
        """Return what is being ended of a lease's attempt, as the backend shows it; None while nothing is."""
        own = (one for one in self._processes(lease) if one.attempt == lease.attempt)
        return next((one for one in own if one.ending), None)

    def _processes(self, lease: Lease) -> list[Running]:
        return self._running_of.get(lease.id, [])

    def _tell_what_is_lost(self, servers: Collection[tuple[str, str]]) -> None:
        known = {lease.id for lease in self._registry}
        told, self.lost_identities = (
            self.lost_identities,
            lost_identities(self._running, known, servers, self._identity),
        )
        for sentence in self.lost_identities:
            if sentence not in told:
                log.error(sentence)

    async def _correct(self, given: list[Lease]) -> None:
        """Take in what the backend gave instead of what was planned: all at once, as two may have changed places."""
        lines = []
        for lease in given:
            placed = events.Placed(tuple(slot.gpu for slot in lease.slots))
            lines.append(self._allocator.commits.line(lease, "gpuspawner", placed))
            log.info("%s of %s was given %s", lease.id, lease.user, placed.why)
        if given:
            await self._registry.save(*given, audit=lines)

    def _step(self, lease: Lease) -> asyncio.Future[None] | None:
        now = self._clock.now()
        if lease.phase in WAITING and any(r.attempt < lease.attempt for r in self._processes(lease)):
            # They may use the very GPUs that the lease waits for.
            if lease.failed_starts:  # given up unheard: its server may answer all the same
                self._view.ask(lease, self._see_dropped)
            else:
                self._act(lease, self._end_left_over)
        if lease.phase is Phase.QUEUED and now - self._heard_at(lease) > self._settings.listen_seconds:
            return self._registry.save(transitions.park(lease, now))
        if lease.phase is Phase.RESERVED:
            return self._reserved(lease, now)
        if lease.phase in UP:
            return self._up(lease, now)
        if lease.phase is Phase.STARTING:
            self._starting(lease)
        elif lease.phase is Phase.STOPPING and (lease.hub_gone or self._allocator.observed.hub_answers):
            self._act(lease, self._drive)
        return None

    async def _drive(self, lease: Lease) -> None:
        await self._reclaimer.drive(lease.id)

    async def _end_left_over(self, lease: Lease) -> None:
        if not await self._reclaimer.end_attempts(lease):
            log.warning("processes of an earlier start of %s outlived their end; its GPUs stay taken", lease.id)

    def _reserved(self, lease: Lease, now: float) -> asyncio.Future[None] | None:
        to_start = lease.unattended and (lease.id, lease.granted_at) not in self._started
        held_up = (lease.granted_at or now) < self._sees_since  # an outage kept its start from being tried
        is_silent = now - max(lease.phase_since, self._heard_at(lease)) > self._settings.reserved_seconds
        if is_silent and answers(self._view.server(lease), lease):
            self._view.ask(lease, self._see_dropped)
        elif held_up and (is_silent or to_start):
            return self._parked(lease, now)
        elif is_silent:
            return self._dropped(lease, now)
        elif to_start and self._allocator.observed.hub_answers:
            self._act(lease, self._start)
        elif to_start and self._view.in_doubt:  # it went away as this was granted: no start failed
            return self._parked(lease, now)
        return None

    def _parked(self, lease: Lease, now: float) -> asyncio.Future[None]:
        """Give a start that was never tried back to its place. It does not count as failed."""
        self._allocator.observed.give_back(lease)
        return self._registry.save(transitions.park(lease, now))

    def _heard_at(self, lease: Lease) -> float:
        """Return from when on nobody was heard who speaks for a lease, though this service could have heard."""
        return max(lease.heard_at, self._clock.awake_since())

    async def _see_dropped(self, lease: Lease) -> None:
        """Ask the hub whether the server of a start that nobody speaks for answers all the same."""
        server = await self._hub.server(lease.user, lease.key.server)
        current = self._registry.get(lease.id)
        if current is None or current.attempt != lease.attempt or current.phase not in WAITING | {Phase.RESERVED}:
            return
        if server is not None and answers(server, lease):
            await self._adopting.found(current, server, self._processes(current))
        elif current.phase is Phase.RESERVED:
            await self._drop(current, self._clock.now())
        else:
            await self._end_left_over(current)

    async def _start(self, lease: Lease) -> None:
        """Start a parked workspace for whoever asked for it: their name may be another user's by now."""
        name = await self._hub.name_of(lease.key.user_created, lease.user)
        if name is None:
            log.warning("the hub has no %s any more who asked for %s: it is not started", lease.user, lease.id)
            return
        groups = await self._members.now(name, lease.key.owner)
        newest = self._registry.get(lease.id)
        if newest is None or newest.phase is not Phase.RESERVED or newest.granted_at != lease.granted_at:
            return  # withdrawn, or taken back, while the hub was asked
        if group := self._allocator.asking.lost_group(newest, groups):
            await self._allocator.dismiss(newest, exits.not_allowed(group), gone=True)
            return
        self._started.add((lease.id, lease.granted_at))
        log.info("starting the parked workspace of %s", name)
        if why := await self._hub.start(name, lease.key.server, options_of(lease)):
            newest = self._registry.get(lease.id)
            if newest is not None and newest.phase is Phase.RESERVED and newest.granted_at == lease.granted_at:
                await self._allocator.dismiss(newest, exits.refused_by_hub(why), gone=True)

    def _without_room(self, lease: Lease) -> Running | None:
        """Return what of this start the backend has found no room for, for too long, or is about to end."""
        queue_seconds = self._queue_seconds(lease)
        patience_seconds = max(queue_seconds, self._settings.no_room_seconds + self._node_seconds(lease))

        def waited_seconds(one: Running) -> float:
            # The queue's owner may say nothing of a pod as long as it has not looked at it.
            return one.age_seconds if queue_seconds and one.given is None else one.waiting_seconds

        return next(
            (
                one
                for one in self._processes(lease)
                if one.attempt == lease.attempt and (waited_seconds(one) > patience_seconds or one.disruption)
            ),
            None,
        )

    def _queue_seconds(self, lease: Lease) -> float:
        """Return for how long its pod may wait in the queue of the scheduler that owns that: 0 where none does."""
        waits = self._allocator.scheduler.capabilities_of(lease.request.gpu).pod_waits_seconds
        return 0.0 if waits is None or lease.request.gpu is None else waits

    def _node_seconds(self, lease: Lease) -> float:
        """Return for how long a node may take that is started for a lease: 0 where none is."""
        seconds = self._allocator.scheduler.node_seconds(lease)
        return 0.0 if seconds is None else NODE_WAIT_FACTOR * seconds

    async def _requeue(self, lease: Lease) -> None:
        """End what found no room, and only then give its place in the queue back: it would go on waiting beside it."""
        one = self._without_room(lease)
        if one is None or not await self._backend.end(lease.id, frozenset({lease.attempt}), lease.slots):
            return
        current = self._registry.get(lease.id)
        if current is None or current.phase is not Phase.STARTING or current.attempt != lease.attempt:
            return
        waited_seconds, queue_seconds = self._node_seconds(current), self._queue_seconds(current)
        what = "There was no room for it after all"
        if waited_seconds:
            what = f"No node came within {show_duration(waited_seconds)}"
        elif queue_seconds and not one.disruption:
            owner = self._allocator.scheduler.capabilities_of(current.request.gpu).title
            what = f"It waited {show_duration(queue_seconds)} in {owner}'s queue, and is put into it again"
        why = one.disruption or one.waiting
        fleet, gpus = self._allocator.scheduler.fleet, {slot.gpu for slot in current.slots}
        node = next((gpu.node for gpu in fleet.gpus if gpu.id in gpus), "")
        await self._allocator.requeue(current.id, current.attempt, f"{what}: {why}" if why else what, node)

    def _starting(self, lease: Lease) -> None:
        if self._without_room(lease) is not None:
            self._act(lease, self._requeue)
        elif self._processes(lease) or self._is_silent(lease):
            self._view.ask(lease, self._see_start)

    def _is_silent(self, lease: Lease) -> bool:
        """Whether a start was neither heard nor seen for too long: what came up since the last look was not seen."""
        unheard_seconds = self._looked_at - self._heard_at(lease)
        return not self._processes(lease) and unheard_seconds > self._settings.heartbeat_seconds

    async def _see_start(self, lease: Lease) -> None:
        """Ask the hub whether the server of a start answers, or is none any more."""
        server = await self._hub.server(lease.user, lease.key.server)
        current = self._registry.get(lease.id)
        if current is None or current.phase is not Phase.STARTING or current.attempt != lease.attempt:
            return
        ready = answers(server, lease)
        if server is not None and server.pending == "stop":
            return  # no dropped start, which would come again by itself: the hub ends it, and tells when it has
        silent = self._is_silent(current)
        own = any(running.attempt == lease.attempt for running in self._processes(lease))
        if silent and not ready:
            await self._drop(current, self._clock.now())
        elif (own or silent) and ready and server is not None:
            if silent:
                # The hub has it, so it uses its GPUs, seen or not. Unseen, it is unknown: never idle.
                log.error("no process of %s's workspace is seen: may the service read its environment?", lease.user)
            running = transitions.run(self._allocator.bounds.running(current), server.started, self._clock.now())
            await self._registry.save(
                running, audit=[self._allocator.commits.line(lease, "gpuspawner", events.Started())]
            )

    async def _drop(self, seen: Lease, now: float) -> None:
        await all_stored([self._dropped(seen, now)])

    def _dropped(self, seen: Lease, now: float) -> asyncio.Future[None] | None:
        """Give a start that never came up back to its place."""
        lease = self._registry.get(seen.id)
        if lease is None or (lease.phase, lease.attempt) != (seen.phase, seen.attempt):
            return None  # it was stopped, or went on, since
        dropped = transitions.drop_start(lease, now, self._settings.back_off_seconds)
        event: events.Event = events.Parked(lease.failed_starts + 1)
        if dropped.reason is not None:
            event = events.Stopped(dropped.reason.value, dropped.message)
        self._allocator.observed.give_back(lease)
        return self._registry.save(dropped, audit=[self._allocator.commits.line(lease, "gpuspawner", event)])

    def _up(self, lease: Lease, now: float) -> asyncio.Future[None] | None:
        """A workspace that neither hub nor backend shows has ended without a word.

        So has one whose place at the hub a newer server has: no lease is to take that one for its own.
        """
        told, lines = told_by_the_place(lease, self._processes(lease), self._failed_gpus, now)
        stored = self._registry.save(told, audit=lines) if told is not lease else None
        if self._view.servers is None or self._processes(lease) or is_its(self._view.server(lease), lease):
            self._gone_since.pop(lease.id, None)
        elif (
            now - max(self._gone_since.setdefault(lease.id, now), self._clock.awake_since())
            >= self._settings.settle_seconds
        ):
            self._view.ask(lease, self._see_end)
        return stored

    async def _see_end(self, lease: Lease) -> None:
        """Ask the hub whether a workspace has ended of which nothing is seen."""
        server = await self._hub.server(lease.user, lease.key.server)
        self._gone_since.pop(lease.id, None)
        current = self._registry.get(lease.id)
        if is_its(server, lease) or current is None or current.phase not in UP or self._processes(lease):
            return
        newer = server is not None and server.user_created == lease.key.user_created
        how = exits.vanished(disruption=current.disruption, newer_server=newer, adopted=current.adopted)
        await self._allocator.commits.finish(current, how, gone=True)
