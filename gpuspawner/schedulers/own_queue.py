"""What schedulers share whose queue is ours: the view of a backend's GPUs, answers, previews and offers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import inf

from gpuspawner.backends.base import Backend
from gpuspawner.backends.outages import OutageLog
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind
from gpuspawner.core.gpus.placement import (
    UNKNOWN,
    count_all,
    count_away,
    count_free,
    demand_of,
    largest_fit,
    pools_of,
    used_shares,
)
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.outages import GPU_SOURCE
from gpuspawner.core.queue.decisions import Decision, PlaceLimits, decide, kept_free
from gpuspawner.core.queue.estimates import Place, queue_places
from gpuspawner.core.queue.forecasts import RunTimes, past_run
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.usage import Tally
from gpuspawner.schedulers.base import Answer, Capabilities, Grant, Offer, Preview

LEARN_SECONDS = 600.0
"""So often it is looked at what is asked for. Arbitrary: what people ask for changes by the day."""


class View:
    """The GPUs of a backend, as they were last seen. Nothing is known before the first look."""

    def __init__(self, backend: Backend) -> None:
        """Look at nothing yet."""
        self._backend = backend
        self.fleet = Fleet()
        self._outages = OutageLog()
        self._demand, self._learnt_at = UNKNOWN, -inf
        self._known_by: object = None
        self._index: Index | None = None
        self._run_times = RunTimes()
        self._counted: tuple[Gpu, ...] = ()
        self._sizes: Counter[str] = Counter()

    async def observe(self, now: float) -> Fleet:
        """Ask the backend. Raises Unavailable; the last complete view stays in force, with the outage."""
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

    def knowing_demand(self, seen: Snapshot) -> Snapshot:
        """Return the snapshot with what will be asked for: more of what is asked for, and held, now.

        It is looked at now and then only: what placements have worked out by it is kept meanwhile.
        """
        if self._counted is not seen.fleet.gpus:
            self._counted, self._sizes = seen.fleet.gpus, Counter(gpu.pool for gpu in seen.fleet.gpus)
        known_by = (seen.kinds, self._sizes)
        if known_by != self._known_by or not 0 <= seen.now - self._learnt_at < LEARN_SECONDS:
            self._demand = demand_of((lease.request for lease in seen.leases), seen.kinds, seen.fleet)
            self._known_by, self._learnt_at = known_by, seen.now
        return replace(seen, demand=self._demand)

    def index(self, seen: Snapshot) -> Index:
        """Return what is derived from a snapshot: kept since the last one, and changed as that has changed."""
        if self._index is None:
            self._index = Index(seen)
        else:
            self._index.see(seen)
            for lease in self._index.ended:
                self._run_times.add(past_run(lease, seen.now))
        return self._index

    def places(self, seen: Snapshot, also: Claim | None = None) -> dict[str, Place]:
        """Return where each claim stands, ``also`` among them, by what was seen of how long workspaces last."""
        index = self.index(seen)
        return queue_places(seen, also, index, self._run_times)

    def preview(self, seen: Snapshot, claim: Claim, limits: PlaceLimits | None = None) -> Preview:
        """Return what a claim would get that does not wait, or one in the place of the claim with its id."""
        index = self.index(seen)
        decision = decide(seen, limits, claim, index)
        place = queue_places(seen, claim, index, self._run_times)[claim.id]
        given = next((one for one in decision.grants if one.claim.id == claim.id), None)
        kind = claim.request.gpu if given is None else given.kind
        return Preview(
            place if given is None else Place(1, place.of, 0.0, 0.0, given.kind or ""),
            decision.held_back.get(claim.id),
            kind="" if given is None else given.substitute,
            latest_end=None if given is None else given.latest_end,
            beyond_share=Tally(seen, index.holdings).share_words(claim, seen.kinds.get(kind or "")),
            kept_free=kept_free(claim, seen, decision.reservations) if given is None else None,
        )


class OwnQueue:
    """What those do not do whose queue is ours."""

    capabilities = Capabilities()

    def capabilities_of(self, kind: str | None) -> Capabilities:  # noqa: ARG002 - the seam's
        """Return what it can: the same of every kind."""
        return self.capabilities

    async def extend(self, lease: Lease, until: float) -> None:
        """Allow it: our own rules have decided."""

    def listen(self, told: Callable[[], None]) -> None:
        """Tell nothing: they answer at once."""

    def start_words(self, lease: Lease) -> str:  # noqa: ARG002 - the seam's
        """Return nothing: no pod waits in a queue but ours."""
        return ""


def answer_of(as_of: float, decided: Callable[[], Decision], places: Callable[[], dict[str, Place]]) -> Answer:
    """Return the answer by a decision, which is made once, and not before somebody asks for what it says."""
    once = lru_cache(maxsize=1)(decided)
    return Answer(
        as_of,
        lambda: [Grant(x.claim, x.slots, kind=x.substitute, latest_end=x.latest_end) for x in once().grants],
        places,
        lambda: once().held_back,
        reservations=lambda: once().reservations,
    )


def without_gpus(seen: Snapshot) -> Snapshot:
    """Return a snapshot in which nobody waits for a GPU: what of it is ours where another owns the queue."""
    return replace(seen, leases=tuple(x for x in seen.leases if x.phase not in WAITING or x.request.gpu is None))


def offers_of(seen: Snapshot) -> list[Offer]:
    """Return what could be had of every kind, in the catalog's order. What is kept for a stronger claim is not free."""
    fleet = seen.gpus_as_held
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
            away=count_away(kind, fleet),
            held=_kept(kind, fleet, seen, used) if known else "",
        )
        for kind in seen.kinds.values()
    ]


def _note(kind: GpuKind, fleet: Fleet, seen: Snapshot, used: Mapping[str, Fraction]) -> str:
    """Return what is to be known beside the numbers: none is there or given, or some are kept for a stronger claim."""
    if not count_all(kind, fleet):
        return "none is there now"
    if seen.paused_words(kind.name):
        return "paused, none is given now"
    return _kept(kind, fleet, seen, used)


def _kept(kind: GpuKind, fleet: Fleet, seen: Snapshot, used: Mapping[str, Fraction]) -> str:
    kept = 0 if used is seen.used else count_free(kind, fleet, seen.used) - count_free(kind, fleet, used)
    return f"{kept} kept for a stronger claim" if kept else ""
