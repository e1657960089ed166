"""Our own queue: the base of its schedulers, the view of a backend's GPUs, and the scheduler of one machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import inf
from typing import Any

from gpuspawner.backends.base import Backend, OutageLog
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Kinds, Slot
from gpuspawner.core.gpus.placement import (
    UNKNOWN_DEMAND,
    count_all,
    count_free,
    count_unavailable,
    largest_fit,
    pools_of,
    sample_demand,
    used_shares,
)
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.outages import GPU_SOURCE
from gpuspawner.core.queue.changes import SizeDecision, decide_size
from gpuspawner.core.queue.decisions import ClusterLimits, Decision, decide, reserved_for_others
from gpuspawner.core.queue.estimates import QueuePosition, queue_positions
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.run_times import RunTimes, past_run
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.namespaces import NamespaceBounds
from gpuspawner.core.quotas.usage import QuotaTally
from gpuspawner.schedulers.base import Answer, Capabilities, Grant, Offer, Preview

LEARN_SECONDS = 600.0
"""How often the demand is recomputed. Arbitrary: what people request changes by the day."""


class FleetView:
    """The GPUs of a backend as last observed, and what is derived from them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.fleet = Fleet()
        self._outages = OutageLog()
        self._demand, self._learnt_at = UNKNOWN_DEMAND, -inf
        self._known_by: object = None
        self._index: Index | None = None
        self._run_times = RunTimes()
        self._counted: tuple[Gpu, ...] = ()
        self._sizes: Counter[str] = Counter()

    async def observe(self, now: float) -> Fleet:
        """Ask the backend. Raises Unavailable, and the last complete view stays valid with the outage."""
        try:
            found = await self._backend.fleet()
        except Unavailable as error:
            known_at = self.fleet.observed_at if self.fleet.complete else None
            outage = self._outages.begin(error.part or GPU_SOURCE, str(error), now, known_at)
            if self.fleet.outage is not outage:
                self.fleet = replace(self.fleet, outage=outage)
            raise Unavailable(str(error), outage.part) from error
        self._outages.end(now)
        self.fleet = replace(found, observed_at=now - found.age_seconds)
        return self.fleet

    def with_demand(self, seen: Snapshot) -> Snapshot:
        """Return the snapshot with the expected demand: what is requested and held now.

        It is recomputed seldom, so that placements can keep what they derived from it.
        """
        if self._counted is not seen.fleet.gpus:
            self._counted, self._sizes = seen.fleet.gpus, Counter(gpu.pool for gpu in seen.fleet.gpus)
        known_by = (seen.kinds, self._sizes)
        if known_by != self._known_by or not 0 <= seen.now - self._learnt_at < LEARN_SECONDS:
            self._demand = sample_demand((lease.request for lease in seen.leases), seen.kinds, seen.fleet)
            self._known_by, self._learnt_at = known_by, seen.now
        return replace(seen, demand=self._demand)

    def index(self, seen: Snapshot) -> Index:
        """Return the values derived from a snapshot. They are kept and updated from one snapshot to the next."""
        if self._index is None:
            self._index = Index(seen)
        else:
            self._index.see(seen)
            for lease in self._index.ended:
                self._run_times.add(past_run(lease, seen.now))
        return self._index

    def places(self, seen: Snapshot, also: Claim | None = None) -> dict[str, QueuePosition]:
        """Return the queue position of each claim and of ``also``, by the observed durations of workspaces."""
        index = self.index(seen)
        return queue_positions(seen, also, index, self._run_times)

    def preview(self, seen: Snapshot, claim: Claim, limits: ClusterLimits | None = None) -> Preview:
        """Preview a new claim, a changed claim with the same id, or the new size of a running workspace."""
        if claim.replaces:
            return self._preview_size(decide_size(seen, claim, limits), claim)
        index = self.index(seen)
        decision = decide(seen, limits, claim, index)
        place = queue_positions(seen, claim, index, self._run_times)[claim.id]
        given = next((one for one in decision.grants if one.claim.id == claim.id), None)
        kind = claim.request.gpu if given is None else given.kind
        return Preview(
            place if given is None else QueuePosition(1, place.of, 0.0, 0.0, given.kind or ""),
            decision.wait_reasons.get(claim.id),
            kind="" if given is None else given.substitute,
            latest_end=None if given is None else given.latest_end,
            beyond_share=QuotaTally(seen, index.holdings).share_words(claim, seen.kinds.get(kind or "")),
            kept_free=reserved_for_others(claim, seen, decision.reservations) if given is None else None,
            slots=None if given is None else given.slots,
        )

    def _preview_size(self, found: SizeDecision, claim: Claim) -> Preview:
        if found.slots is not None:
            place = QueuePosition(1, 1, 0.0, 0.0)
            return Preview(place, latest_end=found.latest_end, slots=found.slots)
        place = queue_positions(found.seen, claim, found.index, self._run_times)[claim.id]
        kept = reserved_for_others(claim, found.seen, found.decision.reservations)
        return Preview(place, found.decision.wait_reasons.get(claim.id), kept_free=kept)


class OwnQueueScheduler:
    """Base of schedulers that use our own queue, with the GPUs of one backend."""

    capabilities = Capabilities()

    def __init__(self, backend: Backend, kinds: Kinds) -> None:
        """Serve ``kinds`` from ``backend``."""
        self._backend, self._view, self.kinds = backend, FleetView(backend), kinds

    @property
    def fleet(self) -> Fleet:
        """The last observed view."""
        return self._view.fleet

    async def observe(self, now: float) -> Fleet:
        """Ask the backend. Raises Unavailable, and the last complete view stays valid."""
        return await self._view.observe(now)

    def use_kinds(self, kinds: Kinds) -> None:
        """Serve the kinds of a changed catalog."""
        self._backend.use_kinds(kinds.values())
        self.kinds = kinds

    def capabilities_of(self, kind: str | None) -> Capabilities:  # noqa: ARG002 - part of the interface
        """Return the same for each kind."""
        return self.capabilities

    async def extend(self, lease: Lease, until: float) -> None:
        """Allow each extension: our own rules have decided."""

    def listen(self, notify: Callable[[], None]) -> None:
        """Never call ``notify``: the scheduler answers at once."""

    def start_words(self, lease: Lease) -> str:  # noqa: ARG002 - part of the interface
        """Return "": no pod waits in another queue."""
        return ""


def to_answer(as_of: float, decided: Callable[[], Decision], places: Callable[[], dict[str, QueuePosition]]) -> Answer:
    """Return the answer from a decision, which is computed once and only when needed."""
    once = lru_cache(maxsize=1)(decided)
    return Answer(
        as_of,
        lambda: [Grant(x.claim, x.slots, kind=x.substitute, latest_end=x.latest_end) for x in once().grants],
        places,
        lambda: once().wait_reasons,
        reservations=lambda: once().reservations,
    )


def use_slots(used: dict[str, Fraction], slots: Iterable[Slot]) -> None:
    """Add granted slots to the used share of each GPU."""
    for slot in slots:
        used[slot.gpu] = used.get(slot.gpu, Fraction(0)) + slot.share


def list_offers(seen: Snapshot) -> list[Offer]:
    """Return the GPUs of each kind, in the catalog's order. GPUs reserved for a request ahead are not free."""
    fleet = seen.placement_fleet
    known = fleet.complete
    kept = used_shares((), (slot for one in seen.kept for slot in one.slots))
    used = {**seen.used, **{gpu: share + seen.used.get(gpu, 0) for gpu, share in kept.items()}} if kept else seen.used
    waiting = Counter(pool for claim in seen.claims for pool in pools_of(claim, seen.kinds))
    return [
        Offer(
            kind.name,
            count_free(kind, fleet, used) if known else None,
            count_all(kind, fleet) if known else None,
            largest_fit(kind, fleet) if known else None,
            waiting[kind.pool],
            kind.pool in fleet.simulated_pools,
            note=_note(kind, fleet, seen, used) if known else "",
            away=count_unavailable(kind, fleet),
            held=_kept(kind, fleet, seen, used) if known else "",
        )
        for kind in seen.kinds.values()
    ]


def _note(kind: GpuKind, fleet: Fleet, seen: Snapshot, used: Mapping[str, Fraction]) -> str:
    if not count_all(kind, fleet):
        return "no GPU exists now"
    if seen.paused_words(kind.name):
        return "paused"
    return _kept(kind, fleet, seen, used)


def _kept(kind: GpuKind, fleet: Fleet, seen: Snapshot, used: Mapping[str, Fraction]) -> str:
    kept = 0 if used is seen.used else count_free(kind, fleet, seen.used) - count_free(kind, fleet, used)
    return f"{kept} reserved for a request ahead" if kept else ""


class InMemoryScheduler(OwnQueueScheduler):
    """The scheduler of one machine. It grants the GPUs of a backend before the start."""

    capabilities = Capabilities(substitutes=True)
    room = NamespaceBounds()

    def __init__(self, backend: Backend, kinds: Kinds) -> None:
        """Serve ``kinds`` from ``backend``, which starts no nodes."""
        super().__init__(backend, _without_nodes(kinds))

    @property
    def unseen(self) -> tuple[str, ...]:
        """Empty: a machine is observed completely or not at all."""
        return ()

    def use_kinds(self, kinds: Kinds) -> None:
        """Serve the kinds of a changed catalog."""
        super().use_kinds(_without_nodes(kinds))

    async def sync(self, seen: Snapshot) -> Answer:
        """Return the state of each claim."""
        seen = self._view.with_demand(seen)
        return to_answer(
            seen.now,
            lambda: decide(seen, index=self._view.index(seen)),
            lambda: self._view.places(seen),
        )

    async def offers(self, seen: Snapshot, claim: Claim) -> Preview:
        """Preview a new or changed claim."""
        return self._view.preview(self._view.with_demand(seen), claim)

    def stock(self, seen: Snapshot) -> list[Offer]:
        """Return the GPUs of each kind, in the catalog's order."""
        return list_offers(seen)

    def check(self, request: Request) -> None:
        """Accept each request: the machine has no limits of its own."""

    def node_seconds(self, lease: Lease) -> float | None:  # noqa: ARG002 - part of the interface
        """Return None: no node is started."""
        return None

    def patch(
        self,
        lease: Lease,
        off: Collection[str] = (),  # noqa: ARG002 - part of the interface
        instead: Sequence[GpuKind] = (),  # noqa: ARG002 - part of the interface
    ) -> dict[str, Any]:
        """Return the patch that shows the workspace its own GPUs only."""
        return self._backend.patch(lease.slots)


def _without_nodes(kinds: Kinds) -> Kinds:
    return {name: replace(kind, autoscale=None) for name, kind in kinds.items()}
