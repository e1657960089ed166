"""Queue positions and available GPUs. They are computed once for all readers, and kept until something changes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, TypeVar

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.placement import host_resources_of, largest_free
from gpuspawner.core.gpus.topology import requires_domain
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.outages import Outage
from gpuspawner.core.queue.backfill import Reservation
from gpuspawner.core.queue.class_holds import (
    HeldGpus,
    HoldUser,
    active_holds,
    count_free_in_hold,
    current_hold_gpus,
    hold_user_of,
    may_use,
)
from gpuspawner.core.queue.decisions import BlockingRule, ReservedForOthers, reserved_for_others
from gpuspawner.core.queue.estimates import QueuePosition
from gpuspawner.core.queue.snapshot import LEAST_WAIT_SECONDS, Claim, Snapshot, claim_of
from gpuspawner.core.quotas.usage import QuotaTally
from gpuspawner.schedulers.base import Answer, Offer, Preview
from gpuspawner.schedulers.own_queue import use_slots
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.waiting.reasons import PositionChanges
from gpuspawner.service.waiting.shared_results import OWN_SHARE, SHARE, SharedResults, TimedResult

T = TypeVar("T")

KEPT_SECONDS = 5.0
"""Results are computed again after this time even without a known change, because a paused grace period moves an
estimate, and quotas of a namespace change silently. The GPUs are observed as often."""
OLD_SECONDS = 10.0
"""Pages show the time of positions that are older than this. Arbitrary: only the longest queues take longer."""


@dataclass
class _SnapshotResults:
    """The results of the snapshot ``seen``, valid until ``until``."""

    seen: Snapshot
    until: float
    offers: list[Offer]
    answer: Answer | None = None
    values: dict[str, Any] = field(default_factory=dict)


_RequestState = tuple[Request, int, float, int]
"""The parts of a waiting lease that its own user changes, and its move by an administrator."""


def _request_state(one: Lease | Claim) -> _RequestState:
    return one.request, one.attempt, one.asked_at, one.queue_move


@dataclass
class _Positions(TimedResult):
    """The positions of all waiting requests at one time."""

    as_of: float
    places: Mapping[str, QueuePosition]
    requests: Mapping[str, _RequestState]
    values: dict[str, Any] = field(default_factory=dict)
    is_old: bool = False
    """Whether it was shown although something had changed."""

    def has_same(self, lease: Lease) -> bool:
        """Return whether a request is still the same as then."""
        return self.requests.get(lease.id) == _request_state(lease)


class QueueSnapshot:
    """Answers queue positions and available GPUs."""

    def __init__(self, allocator: Allocator) -> None:
        """Compute nothing before the first reader."""
        self._registry, self._scheduler, self._clock = allocator.registry, allocator.scheduler, allocator.clock
        self._observed, self._syncs, self._restrictions = allocator.observed, allocator.syncs, allocator.restrictions
        self._changes = PositionChanges()
        self._computed: _SnapshotResults | None = None
        self._last: _Positions | None = None
        self._shared = SharedResults()
        self._sources: tuple[Any, ...] = ()
        self._known: tuple[Any, ...] = ()
        self._version = 0

    # Outages

    def outage_of(self, gpu: str | None) -> Outage | None:
        """Return the outage that holds up a request for this kind of GPU now. ``gpu`` is None without a GPU.

        The first of database, cluster, scheduler and hub: each needs those before it.
        """
        cluster = self._scheduler.fleet.outage_of_kind(self._scheduler.kinds.get(gpu or ""))
        found = (self._registry.store.outage, cluster, self._syncs.outage, self._observed.hub_outage)
        return next(filter(None, found), None)

    def outages(self) -> Iterator[Outage]:
        """Yield each outage of the parts around the service."""
        fleet = self._scheduler.fleet
        found = (self._registry.store.outage, self._observed.hub_outage, self._syncs.outage, fleet.outage)
        yield from filter(None, found)
        if fleet.outage is None:
            yield from fleet.outages.values()

    # Available GPUs

    @property
    def version(self) -> int:
        """A number that grows whenever the queue or the available GPUs change.

        It grows again once new positions can be computed, if old ones were shown.
        """
        self._now()
        if self._last is not None and self._last.is_old and self._last.is_due(SHARE):
            self._last.is_old = False
            self._version += 1
        return self._version

    @property
    def offers(self) -> list[Offer]:
        """The available GPUs of each kind, in the order of the catalog."""
        return self._now().offers

    def offer(self, kind: str | None, asker: HoldUser | None = None) -> Offer | None:
        """Return the available GPUs of a kind, for one user if ``asker`` is given."""
        offers = self.offers if asker is None else self.offers_to(asker)
        return next((offer for offer in offers if offer.kind == kind), None)

    def offers_to(self, asker: HoldUser) -> list[Offer]:
        """Return the available GPUs of each kind for one user. GPUs that are held for others are not free."""
        others = self._held_for_others(asker)
        holds = [one.hold for one in others]
        return self.compute_once(f"offers without {holds}", lambda: self._without(others)) if others else self.offers

    def startable_count(self, lease: Lease) -> int:
        """Return how many GPUs of its kind are free on one node for the first request in the queue."""
        seen, gpu, offer = self._now().seen, lease.request.gpu, self.offer(lease.request.gpu, hold_user_of(lease))
        if gpu is None or gpu not in seen.kinds or offer is None or offer.largest is None:
            return 0
        used = dict(seen.used)
        for one in self._held_for_others(hold_user_of(lease)):
            use_slots(used, one.slots)
        kind, one_domain = seen.kinds[gpu], requires_domain(lease.request, seen.kinds[gpu])
        return min(offer.largest, largest_free(kind, seen.placement_fleet, used, one_domain=one_domain))

    def _held_for_others(self, asker: HoldUser) -> list[HeldGpus]:
        return [one for one in self.compute_once("held", self._held) if not may_use(asker, one.hold)]

    def _held(self) -> tuple[HeldGpus, ...]:
        """Return the GPUs that are held now. GPUs whose queue another program owns are left out."""
        owner_of, held = self._scheduler.capabilities_of, current_hold_gpus(self._now().seen)
        return tuple(one for one in held if not owner_of(one.hold.kind).owns_queue)

    def _without(self, held: Sequence[HeldGpus]) -> list[Offer]:
        computed = self._now()
        taken = tuple(slot for one in held for slot in one.slots)
        left = self._scheduler.stock(replace(computed.seen, others=(*computed.seen.others, *taken)))
        return [_with_holds(was, now, held, computed.seen) for was, now in zip(computed.offers, left, strict=True)]

    # Positions

    def due_seconds(self, lease: Lease) -> float:
        """Return in how many seconds a new position can be computed, infinite if the position is new."""
        last = self._last
        if last is None or not last.is_old:
            return inf
        return last.due_seconds(SHARE if last.has_same(lease) else OWN_SHARE)

    @property
    def as_of(self) -> float:
        """The time of the positions, in seconds of the service's clock."""
        return self._positions().as_of

    @property
    def old_since(self) -> float | None:
        """The time of the positions if they are old, None otherwise."""
        as_of = self._positions().as_of
        return as_of if self._clock.now() - as_of > OLD_SECONDS else None

    def place(self, lease: Lease) -> QueuePosition:
        """Return the position of a waiting lease, as its scheduler says. Until then it is behind all others.

        Changes of other requests are as of the last computation. A change of its own is included as soon as there is
        time for another one.
        """
        found = self._positions(lease)
        last = len(self._now().seen.claims)
        behind = QueuePosition(last, last, None, None)
        if self._scheduler.capabilities_of(lease.request.gpu).owns_queue:
            behind = QueuePosition(None, None, None, None)  # the others are not known
        place = found.places.get(lease.id) if found.has_same(lease) else None
        return self._shown(_later(place or behind, self._clock.now() - found.as_of), lease.request.gpu)

    def places(self) -> Mapping[str, QueuePosition]:
        """Return all positions by lease id, as of the last computation. Newer requests are not in it."""
        found, gpus = self._positions(), {claim.id: claim.request.gpu for claim in self._now().seen.claims}
        passed = self._clock.now() - found.as_of
        return {name: self._shown(_later(place, passed), gpus.get(name)) for name, place in found.places.items()}

    def _shown(self, place: QueuePosition, gpu: str | None) -> QueuePosition:
        """Return a position for people. During an outage its start is not known."""
        return place if self.outage_of(gpu) is None else replace(place, unchanged_seconds=None, likely_seconds=None)

    def _positions(self, lease: Lease | None = None) -> _Positions:
        """Return the last positions, or new ones if something changed and there is time."""
        computed, last = self._now(), self._last
        if last is not None and last.of is not computed:
            is_own = lease is not None and not last.has_same(lease)
            if not (last.is_due(OWN_SHARE) if is_own else self._shared.is_due(last)):
                last.is_old = True
                return last
            if last.is_old:
                self._version += 1  # some pages show it
        if last is None or last.of is not computed:
            self._last = last = self._compute_positions(computed)
            self._shared.note_long(last)
        return last

    def _compute_positions(self, computed: _SnapshotResults) -> _Positions:
        began, answer = time.thread_time(), self._standing(computed)
        places = {} if answer is None else answer.places()
        if answer is not None:
            numbers = {name: one.number for name, one in places.items() if one.number is not None}
            self._changes.see(numbers, self._registry, self._scheduler.kinds, answer.as_of)
        requests = {claim.id: _request_state(claim) for claim in computed.seen.claims if claim.id in places}
        as_of = computed.seen.now if answer is None else answer.as_of
        return _Positions(computed, time.thread_time() - began, time.monotonic(), as_of, places, requests)

    def change(self, lease: Lease) -> str:
        """Return in a sentence how a position changed last, and why, "" without a change since this service started."""
        self.place(lease)
        return self._changes.words(lease.id, self._clock.now())

    # Reasons to wait

    def wait_reason(self, lease: Lease) -> BlockingRule | None:
        """Return the rule that holds a waiting lease back, as of a moment ago, None without one."""
        wait_reasons, _ = self.compute_seldom("decided", self._decided)
        return wait_reasons.get(lease.id)

    def wait_reasons_of_substitutes(self, lease: Lease) -> list[str]:
        """Return in sentences which accepted other kinds a limit holds back."""
        claim, seen = claim_of(lease), self._now().seen
        owner = self._scheduler.capabilities_of(claim.request.gpu)
        if owner.owns_queue or not claim.request.substitutes or self.wait_reason(lease):
            return []
        tally = QuotaTally(seen, self._observed.holdings(seen))
        kinds = [seen.kinds[name] for name in claim.request.substitutes if name in seen.kinds]
        blocks = ((kind, tally.find_block(claim, kind)) for kind in kinds)
        return [f"{kind.title}, which you take instead: {block.words}" for kind, block in blocks if block is not None]

    def kept_free(self, lease: Lease) -> ReservedForOthers | None:
        """Return the free GPUs that are reserved for a request that goes first, None without any."""
        computed, request, claim = self._now(), lease.request, claim_of(lease)
        _, reserved = self.compute_seldom("decided", self._decided)
        whose = tuple(number for number, one in enumerate(reserved) if lease.id in one.claim_ids)
        alike = f"kept free {request.gpu} {request.count} {host_resources_of(request)} {claim.tried_nodes} {whose}"
        return self.compute_once(alike, lambda: reserved_for_others(claim, computed.seen, reserved))

    def _decided(self) -> tuple[Mapping[str, BlockingRule], tuple[Reservation, ...]]:
        answer = self._standing(self._now())
        return ({}, ()) if answer is None else (answer.wait_reasons(), tuple(answer.reservations()))

    async def offers_for(self, claim: Claim) -> Preview:
        """Return the preview of a claim that is made now, in the position of the claim with the same id.

        During an outage the position is unknown. Raises Unavailable if the scheduler does not answer and no outage is
        known.
        """
        seen = self._now().seen
        rivals = tuple(lease for lease in seen.leases if lease.id != claim.id)
        try:
            preview = await self._scheduler.offers(replace(seen, leases=rivals), claim)
        except Unavailable:
            if self.outage_of(claim.request.gpu) is None:
                raise
            preview = Preview(QueuePosition(None, None, None, None))  # the page explains the outage
        return replace(preview, place=self._shown(preview.place, claim.request.gpu))

    # Computation

    def compute_once_per_pass(self, name: str, make: Callable[[], T]) -> T:
        """Return a shared value of the queue positions, made once for each computation of positions."""
        return _get_or_make(self._positions().values, name, make)

    def compute_once(self, name: str, make: Callable[[], T]) -> T:
        """Return a shared value of the present snapshot, made once for each snapshot."""
        return _get_or_make(self._now().values, name, make)

    def compute_seldom(self, name: str, make: Callable[[], T]) -> T:
        """Return a shared value of the present snapshot. A slow value may be some seconds old.

        ``name`` is one of a few constants in the code.
        """
        return self._shared.compute_seldom(self._now(), name, make)

    async def compute_in_background(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """Return, as :meth:`compute_seldom`, a value that takes too long for a page. ``make`` yields to other tasks."""
        return await self._shared.compute_in_background(self._now(), name, make)

    def _standing(self, computed: _SnapshotResults) -> Answer | None:
        if computed.answer is None:
            computed.answer = self._syncs.current_answer(computed.seen)
        return computed.answer

    def _now(self) -> _SnapshotResults:
        """Return the results of the present snapshot. Compute them again if something changed."""
        now, computed = self._clock.now(), self._computed
        changes, answers = self._registry.changes, self._syncs.news_count
        sources = (
            changes, self._observed.fleet, self._restrictions.in_force(), self._observed.seen,
            self._observed.hub_answers, answers, self._registry.store.outage, self._observed.hub_outage,
            self._syncs.outage,
        )  # fmt: skip
        same = all(x is y for x, y in zip(sources, self._sources, strict=False))  # each is replaced, never changed
        if computed is not None and same and computed.seen.now <= now < computed.until:
            return computed
        seen = self._observed.snapshot()
        offers = [self._as_seen(offer) for offer in self._scheduler.stock(seen)]
        known = (
            changes, seen.hub_answers, seen.fleet.complete, seen.others, offers, active_holds(seen), answers,
            tuple(self.outages()),
        )  # fmt: skip
        if known != self._known:
            self._known = known
            self._version += 1
        self._sources = sources
        until = min([now + KEPT_SECONDS, *(x.not_before for x in seen.claims if x.not_before > now)])
        self._computed = _SnapshotResults(seen, until, offers)
        return self._computed

    def _as_seen(self, offer: Offer) -> Offer:
        """Return an offer for people. How many GPUs are free is not known during an outage of their cluster."""
        kind, fleet = self._scheduler.kinds.get(offer.kind), self._scheduler.fleet
        return replace(offer, free=None) if fleet.outage_of_kind(kind) is not None else offer


def _get_or_make(values: dict[str, Any], name: str, make: Callable[[], T]) -> T:
    if name not in values:
        values[name] = make()
    result: T = values[name]
    return result


def _with_holds(offer: Offer, left: Offer, held: Iterable[HeldGpus], seen: Snapshot) -> Offer:
    """Return an offer to a user who can have only ``left`` of it, with notes about the holds for others."""
    kind = seen.kinds[offer.kind]
    if offer.free is None:
        return offer
    free = [(one, count_free_in_hold(one, kind, seen)) for one in held if seen.kinds[one.hold.kind].pool == kind.pool]
    notes = [one.note(count, seen.now) for one, count in free if count]
    kept = ", ".join(filter(None, [offer.held, *notes]))
    return replace(offer, free=left.free, held=kept, note="; ".join(filter(None, [offer.note, *notes])))


def _later(place: QueuePosition, passed_seconds: float) -> QueuePosition:
    """Return a position after some time in which nothing changed."""
    most, likely = (_wait_left(x, passed_seconds) for x in (place.unchanged_seconds, place.likely_seconds))
    return replace(place, unchanged_seconds=most, likely_seconds=likely)


def _wait_left(seconds: float | None, passed_seconds: float) -> float | None:
    """Return the rest of a wait. A wait of 0 stays 0, and another wait never becomes 0: the request was not served."""
    return max(LEAST_WAIT_SECONDS, seconds - passed_seconds) if seconds else seconds
