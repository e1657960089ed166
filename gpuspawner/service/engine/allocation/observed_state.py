"""The last observed state of hub, GPUs and workspaces, and the snapshot for decisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gpuspawner.catalog import Catalog
from gpuspawner.core.gpus.fleet import Fleet, Group, Kinds, Slot
from gpuspawner.core.gpus.placement import unleased_slots, used_shares
from gpuspawner.core.gpus.pools import GpuHolder, assign_counted_slots
from gpuspawner.core.leases.lease import HOLDING, UP, Key, Lease, Phase
from gpuspawner.core.leases.observations import Running
from gpuspawner.core.outages import Outage
from gpuspawner.core.queue.index import QuotaUsageCache
from gpuspawner.core.queue.snapshot import PreemptedGpus, Snapshot
from gpuspawner.core.quotas.usage import QuotaUsage
from gpuspawner.schedulers.base import Scheduler
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.lease_documents import claimed_slots
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.rules.accounting import Accounting
from gpuspawner.service.rules.restrictions import Restrictions
from gpuspawner.service.settings import Settings


class ObservedState:
    """Remembers whether the hub answers, the GPUs in use, and the stops that the hub may still carry out."""

    def __init__(
        self,
        registry: LeaseRegistry,
        scheduler: Scheduler,
        catalog: Callable[[], Catalog],
        accounting: Accounting,
        clock: Clock,
        settings: Settings,
        restrictions: Restrictions,
    ) -> None:
        """Start without observations. Nothing is granted before the engine has observed the running workspaces."""
        self._registry, self._scheduler, self._clock, self._settings = registry, scheduler, clock, settings
        self._catalog, self._accounting, self._restrictions = catalog, accounting, restrictions
        self.kept: Callable[[], tuple[PreemptedGpus, ...]] = tuple
        """Returns the GPUs that are reserved for stronger claims."""
        self.hub_answers = False
        self.hub_outage: Outage | None = None
        """Why the hub does not answer now, None also before it was asked."""
        self.boot_id = ""
        """The hub process that made the last request for a lease, "" before the first since this service started."""
        self.processes_known = False
        self.release_count = 0
        """How many leases released GPUs since the service started while processes may still use them."""
        self.seen: frozenset[tuple[str, Slot]] = frozenset()
        """The GPUs that each workspace used at the last observation, by lease id."""
        self._stops: dict[Key, float] = {}
        self._holdings = QuotaUsageCache()

    @property
    def others(self) -> tuple[Slot, ...]:
        """Slots that may not be granted: those in use without a lease, and those held for a change of size."""
        return self.others_without("")

    def others_without(self, lease_id: str) -> tuple[Slot, ...]:
        """Return these slots without the ones that are held for a lease."""
        unleased = unleased_slots(self.seen, self._registry)
        assigned = (slot for one in self._registry if one.assigned and one.id != lease_id for slot in one.assigned)
        return (*unleased, *assigned)

    def snapshot(self) -> Snapshot:
        """Return the present state for a decision."""
        scheduler, settings, catalog = self._scheduler, self._settings, self._catalog()
        return Snapshot(
            now=self._clock.now(),
            kinds=scheduler.kinds,
            leases=self._registry.view(),
            fleet=self.fleet,
            others=self.others,
            room=scheduler.room,
            hub_answers=self.hub_answers,
            processes_known=self.processes_known,
            most_starts=settings.concurrent_starts,
            most_starts_each=settings.concurrent_starts_each,
            rules=self._restrictions.add_reservations(catalog.rules),
            fast=catalog.fast or 1.0,
            policies=catalog.policies,
            accounts=self._accounting.accounts,
            quota_grants=self._accounting.grants,
            kept=self.kept(),
            paused=self._restrictions.paused_kinds(),
        )

    def holdings(self, seen: Snapshot) -> QuotaUsage:
        """Return the quota holdings of a snapshot's leases. They are kept, because counting is slow."""
        return self._holdings.of(seen)

    @property
    def fleet(self) -> Fleet:
        """The GPUs as last observed. Restricted GPUs are closed for new workspaces."""
        return self._restrictions.close_gpus(self._scheduler.fleet)

    def is_queue_ours(self, lease: Lease) -> bool:
        """Return whether gpuspawner decides the order in which a lease is granted."""
        return not self._scheduler.capabilities_of(lease.request.gpu).owns_queue

    def queue_owner(self, lease: Lease) -> str:
        """Return the name of the scheduler that owns the queue of a lease, for pages."""
        return self._scheduler.capabilities_of(lease.request.gpu).title or "The scheduler"

    @property
    def kinds(self) -> Kinds:
        """The GPU kinds, by name."""
        return self._scheduler.kinds

    def note_running(self, slots: Iterable[tuple[str, Slot]], given_back: int) -> None:
        """Store the observed GPUs of workspaces by lease id. ``given_back`` is the count before the observation."""
        self.seen = frozenset(slots)
        self.processes_known = given_back == self.release_count

    def note_release(self, lease: Lease) -> None:
        """Note that a lease releases its GPUs before the backend was asked whether processes still use them.

        If a start may have created processes, nothing is granted before the next observation.
        """
        if lease.token_hash:
            self.release_count += 1
            self.processes_known = False

    def unheld(self, lease: Lease, slots: Iterable[Slot]) -> tuple[Slot, ...]:
        """Return the slots that no other lease holds, and that no process of another lease uses."""
        rivals = [x for x in self._registry if x.id != lease.id]
        used = used_shares(rivals, unleased_slots((one for one in self.seen if one[0] != lease.id), rivals))
        return tuple(slot for slot in slots if used.get(slot.gpu, 0) + slot.share <= 1)

    def note_stop_request(self, key: Key) -> None:
        """Note a stop request to the hub. Until the hub answers, it may hit a new start at any moment."""
        self._stops[key] = math.inf

    def note_stop_answer(self, key: Key) -> None:
        """Note that the hub has answered a stop request."""
        now = self._clock.now()
        self._stops[key] = now
        oldest = now - self._settings.stop_race_seconds
        self._stops = {one: answered_at for one, answered_at in self._stops.items() if answered_at >= oldest}

    def was_stopped_recently(self, key: Key) -> bool:
        """Return whether a stop by the service probably hit a start that is cancelled now."""
        answered_at = self._stops.get(key)
        return answered_at is not None and self._clock.now() - answered_at <= self._settings.stop_race_seconds


CORRECTABLE = UP | {Phase.STARTING}


def assign_slots(running: Sequence[Running], leases: Iterable[Lease]) -> list[tuple[Running, tuple[Slot, ...]]]:
    """Return the slots of each attempt. If the backend counts no GPUs, the claim of the workspace is used."""
    holding = {lease.id: lease for lease in leases if lease.phase in HOLDING}
    occupants, given = [], set()
    for one in running:
        lease = holding.get(one.lease_id)
        is_own = lease is not None and lease.attempt == one.attempt
        counts = None if one.given is None else dict(one.given)
        slots = lease.slots if lease is not None and is_own and counts is not None else claimed_slots(one)
        occupants.append(GpuHolder(slots, counts))
        if is_own and counts is not None:
            given.add(one.lease_id)
    reserved = (slot for lease in holding.values() if lease.id not in given for slot in lease.slots)
    return list(zip(running, assign_counted_slots(occupants, reserved), strict=True))


def corrected_leases(
    found: Iterable[tuple[Running, tuple[Slot, ...]]], leases: Iterable[Lease], pools: Mapping[Group, str]
) -> list[Lease]:
    """Return the leases that got other GPUs than they hold, with the GPUs that they got.

    ``pools`` are the kinds of the fleet's groups. A lease that got an accepted substitute changes its kind.
    """
    known = {lease.id: lease for lease in leases if lease.phase in CORRECTABLE}
    return [
        _given(replace(lease, slots=slots), pools)
        for one, slots in found
        if one.given is not None
        and (lease := known.get(one.lease_id)) is not None
        and lease.attempt == one.attempt
        and set(slots) != set(lease.slots)
    ]


def _given(lease: Lease, pools: Mapping[Group, str]) -> Lease:
    """Return a lease with the kind of its slots. If the kind changes, the lease loses its rate."""
    kind = next((pools.get(slot.group, "") for slot in lease.slots if slot.group), "")
    if kind == lease.kind or kind not in {lease.request.gpu, *lease.request.substitutes}:
        return lease
    return replace(lease, given="" if kind == lease.request.gpu else kind, rate=None)
