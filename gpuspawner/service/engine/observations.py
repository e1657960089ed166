"""Observes leases: the processes in the backend, the servers of the hub, and the rules that apply now."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpuspawner.backends.base import Backend
from gpuspawner.core import events
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet
from gpuspawner.core.gpus.pools import NODE_WAIT_FACTOR
from gpuspawner.core.leases.lease import UP, WAITING, Lease
from gpuspawner.core.leases.observations import Observation, Running, is_own
from gpuspawner.core.leases.step_results import LeaseRules, Timing
from gpuspawner.core.queue.class_holds import HeldGpus
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.engine.allocation.observed_state import assign_slots, corrected_leases
from gpuspawner.service.engine.effects import EffectRunner
from gpuspawner.service.engine.hub_client import HubClient
from gpuspawner.service.engine.hub_state import HubServers
from gpuspawner.service.engine.lease_documents import HubIdentity
from gpuspawner.service.engine.recovery import LeaseRecovery, OrphanWatch
from gpuspawner.service.failures import OF_ALL
from gpuspawner.service.rules.policies import idle_policy_of, policy_of

log = logging.getLogger("gpuspawner.engine")


class BackendView(NamedTuple):
    """The running workspaces at the last observation of the backend."""

    at: float = 0.0
    running: tuple[Running, ...] = ()
    of_lease: Mapping[str, list[Running]] = {}
    failed_gpus: frozenset[str] = frozenset()


class LeaseObserver:
    """Remembers the last observations of backend and hub, and returns the observation of one lease."""

    def __init__(
        self,
        allocator: Allocator,
        hub: HubClient,
        servers: HubServers,
        effects: EffectRunner,
        backend: Backend,
        identity: HubIdentity,
    ) -> None:
        """Start without an observation."""
        self._registry, self._allocator, self._clock = allocator.registry, allocator, allocator.clock
        self._backend = backend
        self._timing = Timing(*(getattr(allocator.settings, name) for name in Timing._fields))
        self._servers, self._effects = servers, effects
        self.recovery = LeaseRecovery(allocator, identity, self.processes)
        self.orphans = OrphanWatch(allocator, hub, identity)
        self.last_look, self._sees_since, self._has_missed_look = BackendView(), 0.0, False
        self._missing_since: dict[str, float] = {}
        self.held: Mapping[str, HeldGpus] = {}
        """The class holds that workspaces run into, by lease id, as last computed."""
        self.has_looked = False
        """Whether all workspaces were observed once, and each of them has its lease."""

    async def look_at_backend(self) -> bool:
        """Observe the workspaces and their GPUs, and rebuild missing leases. Return whether the backend answered."""
        failures, observed = self._registry.failures, self._allocator.observed
        at, given_back = self._clock.now(), observed.release_count
        try:
            running = tuple(one for one in await self._backend.workspaces() if not self._is_of_other_hub(one))
        except Unavailable as error:
            failures.note_wait("looking at what runs", OF_ALL, error)
            self._has_missed_look = True
            return False
        failures.clear("looking at what runs")
        if self._has_missed_look:
            self._has_missed_look, self._sees_since = False, at
        of_lease: dict[str, list[Running]] = {}
        for one in running:
            of_lease.setdefault(one.lease_id, []).append(one)
        gpus = self._allocator.scheduler.fleet.gpus
        failed = frozenset(gpu.id for gpu in gpus if not gpu.healthy and not gpu.group)
        self.last_look = BackendView(at, running, of_lease, failed)
        await self.recovery.rebuild(running)
        self.has_looked = True
        found = assign_slots(running, self._registry)
        observed.note_running(((one.lease_id, slot) for one, slots in found for slot in slots), given_back)
        pools = {gpu.group: gpu.pool for gpu in gpus if gpu.group}
        with failures.isolating("correcting which GPUs are held"):
            rated = self._allocator.bounds.with_rate
            await self._correct([rated(lease) for lease in corrected_leases(found, self._registry, pools)])
        return True

    def _is_of_other_hub(self, one: Running) -> bool:
        """Return whether a workspace has the id of a lease of this hub, but the id of another hub."""
        lease = self._registry.get(one.lease_id)
        return lease is not None and one.environment.get("GPUSPAWNER_HUB_ID", lease.key.hub) != lease.key.hub

    async def _correct(self, given: list[Lease]) -> None:
        """Note the GPUs that the backend gave instead of the granted ones, all at once: two may have been swapped."""
        lines = []
        for lease in given:
            placed = events.Placed(tuple(slot.gpu for slot in lease.slots))
            lines.append(self._allocator.commits.line(lease, "gpuspawner", placed))
            log.info("%s of %s was given %s", lease.id, lease.user, ", ".join(placed.gpus))
        if given:
            await self._registry.save(*given, audit=lines)

    def find_orphans(self) -> Iterable[Running]:
        """Find the running workspaces that the hub has forgotten. Return those without a live lease."""
        servers = self._servers.servers
        if servers is None:
            self.orphans.reset()
            return ()
        return self.orphans.update(self.last_look.running, servers, self._allocator.observed.boot_id)

    def processes(self, lease: Lease) -> list[Running]:
        """Return the processes of all attempts of a lease, as last observed."""
        return self.last_look.of_lease.get(lease.id, [])

    def ending(self, lease: Lease) -> Running | None:
        """Return the process of a lease's attempt that the backend is ending, None without one."""
        own = (one for one in self.processes(lease) if one.attempt == lease.attempt)
        return next((one for one in own if one.ending), None)

    def last_activity(self, lease: Lease) -> float | None:
        """Return when the hub last noted activity of a lease's server, None if it is not known now."""
        server = self._servers.server_of(lease)
        return None if server is None else server.last_activity

    def observe(self, lease: Lease, **news: Any) -> Observation:
        """Return the present observation of a lease. ``news`` are further fields of it."""
        observed, servers = self._allocator.observed, self._servers
        return Observation(
            hub_answers=observed.hub_answers,
            hub_in_doubt=servers.in_doubt,
            server=servers.server_of(lease),
            processes=tuple(self.processes(lease)),
            looked_at=self.last_look.at,
            sees_since=self._sees_since,
            heard_at=max(lease.heard_at, self._clock.awake_since()),
            missing_since=self._note_missing(lease),
            is_orphan=lease.id in self.orphans.due,
            start_sent=(lease.id, lease.granted_at) in self._effects.start_sent,
            on_stop_done=lease.id in self._effects.on_stop_done,
            failed_gpus=self.last_look.failed_gpus,
            away_gpus=_away_gpus(lease, self._allocator.scheduler.fleet),
            held=self.held.get(lease.id),
            **news,
        )

    def _note_missing(self, lease: Lease) -> float | None:
        """Return the time since when neither hub nor backend has a lease, None while one of them has it."""
        listed = self._servers.servers is not None
        is_shown = not listed or self.processes(lease) or is_own(self._servers.server_of(lease), lease)
        if lease.phase not in UP or is_shown:
            self._missing_since.pop(lease.id, None)
            return None
        return max(self._missing_since.setdefault(lease.id, self._clock.now()), self._clock.awake_since())

    def rules_of(self, lease: Lease) -> LeaseRules:
        """Return the present rules of the catalog and of administrators for a lease."""
        allocator, now, kind = self._allocator, self._clock.now(), lease.request.gpu
        scheduler, bounds = allocator.scheduler, allocator.bounds
        queue, node_seconds = scheduler.capabilities_of(kind), scheduler.node_seconds(lease)
        return LeaseRules(
            timing=self._timing,
            lifecycle=policy_of(allocator.catalog, lease, now),
            idle=idle_policy_of(allocator.catalog, lease, now),
            exempt_until=allocator.restrictions.exempt_until(lease),
            pod_waits_seconds=(queue.pod_waits_seconds or 0.0) if kind is not None else 0.0,
            node_seconds=NODE_WAIT_FACTOR * (node_seconds or 0.0),
            queue_title=queue.title,
            node=lambda: next(filter(None, (scheduler.fleet.node_of(slot.gpu) for slot in lease.slots)), ""),
            returns_to_queue=lambda: allocator.returns(lease),
            budget_used_up=lambda: bounds.used_up_sentence(lease),
            running=lambda: bounds.with_running_bound(lease),
            recovered=lambda: self.recovery.recovered(lease),
            extension=lambda: bounds.earlier_extension(lease),
        )

    def signature(self, lease: Lease) -> tuple[object, ...]:
        """Return everything outside a lease that its next step depends on, in a form that is cheap to compare."""
        processes = tuple((x.attempt, x.disruption, x.unhealthy, x.uuids) for x in self.processes(lease))
        if lease.phase in WAITING:
            return processes
        hub, failed = self._servers, self.last_look.failed_gpus
        is_listed = hub.servers is None or is_own(hub.server_of(lease), lease)
        state = self._allocator.observed.hub_answers, is_listed, lease.id in self.orphans.due
        gpus = _away_gpus(lease, self._allocator.scheduler.fleet), [x.gpu for x in lease.slots if x.gpu in failed]
        return (*state, *gpus, *processes)


def _away_gpus(lease: Lease, fleet: Fleet) -> int | None:
    """Return how many GPUs of a lease are on nodes that do not answer, None if it is not known."""
    known = [fleet.by_id[slot.gpu] for slot in lease.slots if slot.gpu in fleet.by_id]
    return sum(not gpu.reachable for gpu in known) if fleet.complete and known else None
