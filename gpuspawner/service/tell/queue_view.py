"""Queue positions and offers as of now: computed once for all who look, and kept until something changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.placement.placement import beside_of
from gpuspawner.core.queue.ends import LEAST_WAIT_SECONDS
from gpuspawner.core.queue.forecast.estimates import Place
from gpuspawner.core.queue.grants import Held
from gpuspawner.core.queue.kept_free import KeptFree, kept_free
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.schedulers.base import Answer, Offer, Preview, Scheduler
from gpuspawner.service.clock import Clock
from gpuspawner.service.leases.allocator import Allocator
from gpuspawner.service.leases.book import Book
from gpuspawner.service.tell.rules.place_changes import PlaceChanges

T = TypeVar("T")

KEPT_SECONDS = 5.0
"""What is kept is computed again after this also where no change is known: a grace that pauses moves an estimate, and
quotas of a namespace change without a word. As often as the GPUs are looked at."""


@dataclass
class _Computed:
    """What was computed of ``seen``, good until ``until``."""

    seen: Snapshot
    until: float
    offers: list[Offer]
    answer: Answer | None = None
    places: Mapping[str, Place] | None = None
    held_back: Mapping[str, Held] | None = None
    made: dict[str, Any] = field(default_factory=dict)


class QueueView:
    """Answers where everybody stands and what could be had."""

    def __init__(self, book: Book, scheduler: Scheduler, allocator: Allocator, clock: Clock) -> None:
        """Compute nothing before somebody asks."""
        self._book, self._scheduler, self._observed, self._clock = book, scheduler, allocator.observed, clock
        self._syncs, self._restrictions = allocator.syncs, allocator.restrictions
        self._changes = PlaceChanges()
        self._computed: _Computed | None = None
        self._sources: tuple[Any, ...] = ()
        self._known: tuple[Any, ...] = ()
        self._version = 0

    @property
    def version(self) -> int:
        """Raised whenever the queue or the offers change, by more than the time that passes."""
        self._now()
        return self._version

    @property
    def offers(self) -> list[Offer]:
        """What could be had of every kind, in the catalog's order."""
        return self._now().offers

    def offer(self, kind: str | None) -> Offer | None:
        """Return what could be had of a kind."""
        return next((offer for offer in self.offers if offer.kind == kind), None)

    def place(self, lease: Lease) -> Place:
        """Return where a waiting lease stands, as its scheduler says; before it does, last in our queue."""
        computed = self._now()
        answer = self._standing(computed)
        if computed.places is None:
            computed.places = {} if answer is None else answer.places()
            if answer is not None:
                numbers = {name: one.number for name, one in computed.places.items() if one.number is not None}
                self._changes.see(numbers, self._book, self._scheduler.kinds, answer.as_of)
        last = len(computed.seen.claims)
        unknown = self._scheduler.capabilities.owns_queue
        behind = Place(None, None, None, None) if unknown else Place(last, last, None, None)
        place = computed.places.get(lease.id, behind)
        passed_seconds = self._clock.now() - (computed.seen.now if answer is None else answer.as_of)
        most, likely = (_less(x, passed_seconds) for x in (place.at_most_seconds, place.likely_seconds))
        return replace(place, at_most_seconds=most, likely_seconds=likely)

    def change(self, lease: Lease) -> str:
        """Return in a sentence how a place changed last, and why; "" where it did not since this service started."""
        self.place(lease)
        return self._changes.words(lease.id, self._clock.now())

    def held_back(self, lease: Lease) -> Held | None:
        """Return which rule holds a waiting lease back: what but free GPUs it waits for."""
        computed = self._now()
        if computed.held_back is None:
            answer = self._standing(computed)
            computed.held_back = {} if answer is None else answer.held_back()
        return computed.held_back.get(lease.id)

    def kept_free(self, lease: Lease) -> KeptFree | None:
        """Return what is free and kept from a waiting lease for one that goes first: once for all that ask alike."""
        computed, request = self._now(), lease.request
        answer = self._standing(computed)
        reserved = () if answer is None else tuple(answer.reservations())
        claim = claim_of(lease)
        whose = tuple(number for number, one in enumerate(reserved) if lease.id in one.whom)
        alike = f"kept free {request.gpu} {request.count} {beside_of(request)} {claim.tried_nodes} {whose}"
        return self.once(alike, lambda: kept_free(claim, computed.seen, reserved))

    async def offers_for(self, claim: Claim) -> Preview:
        """Return what a claim would get if it were made now, in the place of the one with its id.

        Raises Unavailable where the scheduler does not answer.
        """
        seen = self._now().seen
        rivals = tuple(lease for lease in seen.leases if lease.id != claim.id)
        return await self._scheduler.offers(replace(seen, leases=rivals), claim)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what is made of the queue for all who look: the same as before, where nothing changed since."""
        made = self._now().made
        if name not in made:
            made[name] = make()
        result: T = made[name]
        return result

    def _standing(self, computed: _Computed) -> Answer | None:
        if computed.answer is None:
            computed.answer = self._syncs.standing(computed.seen)
        return computed.answer

    def _now(self) -> _Computed:
        """Return what is in force now, computed anew where something changed."""
        now, computed = self._clock.now(), self._computed
        observed, told = self._observed, self._syncs.told
        restrictions = self._restrictions.in_force()
        sources = (self._book.changes, observed.fleet, restrictions, observed.seen, observed.hub_answers, told)
        same = all(x is y for x, y in zip(sources, self._sources, strict=False))  # each is replaced, never changed
        if computed is not None and same and computed.seen.now <= now < computed.until:
            return computed
        seen = self._observed.snapshot()
        offers = self._scheduler.stock(seen)
        known = (self._book.changes, seen.hub_answers, seen.fleet.complete, seen.others, offers, told)
        if known != self._known:
            self._known = known
            self._version += 1
        self._sources = sources
        until = min([now + KEPT_SECONDS, *(x.not_before for x in seen.claims if x.not_before > now)])
        self._computed = _Computed(seen, until, offers)
        return self._computed


def _less(seconds: float | None, passed_seconds: float) -> float | None:
    """Return a wait after some of it has passed: who is free to go stays so, and who waits is not said to be served."""
    return max(LEAST_WAIT_SECONDS, seconds - passed_seconds) if seconds else seconds
