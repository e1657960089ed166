"""Queue positions and offers as of now: computed once for all who look, and kept until something changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.queue.order import LEAST_WAIT_SECONDS, Place
from gpuspawner.core.queue.snapshot import Snapshot, claim_of
from gpuspawner.schedulers.base import Offer, Scheduler
from gpuspawner.service.clock import Clock
from gpuspawner.service.leases.book import Book
from gpuspawner.service.leases.observed import Observed

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
    places: dict[str, Place] | None = None
    shortages: dict[str, str] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)


class QueueView:
    """Answers where everybody stands and what could be had."""

    def __init__(self, book: Book, scheduler: Scheduler, observed: Observed, clock: Clock) -> None:
        """Compute nothing before somebody asks."""
        self._book, self._scheduler, self._observed, self._clock = book, scheduler, observed, clock
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
        """Return where a waiting lease stands."""
        computed = self._now()
        if computed.places is None:
            computed.places = self._scheduler.places(computed.seen)
        place, passed_seconds = computed.places[lease.id], self._clock.now() - computed.seen.now
        most, likely = (_less(x, passed_seconds) for x in (place.at_most_seconds, place.likely_seconds))
        return replace(place, at_most_seconds=most, likely_seconds=likely)

    def shortage(self, lease: Lease) -> str:
        """Return what but GPUs a waiting lease waits for, in a sentence; "" where that is nothing."""
        computed = self._now()
        if lease.id not in computed.shortages:
            short = self._scheduler.shortage(computed.seen, claim_of(lease))
            computed.shortages[lease.id] = short
        return computed.shortages[lease.id]

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what is made of the queue for all who look: the same as before, where nothing changed since."""
        made = self._now().made
        if name not in made:
            made[name] = make()
        result: T = made[name]
        return result

    def _now(self) -> _Computed:
        """Return what is in force now, computed anew where something changed."""
        now, computed = self._clock.now(), self._computed
        sources = (self._book.changes, self._scheduler.fleet, self._observed.seen, self._observed.hub_answers)
        same = all(x is y for x, y in zip(sources, self._sources, strict=False))  # each is replaced, never changed
        if computed is not None and same and computed.seen.now <= now < computed.until:
            return computed
        seen = self._observed.snapshot()
        offers = self._scheduler.offers(seen)
        known = (self._book.changes, seen.hub_answers, seen.fleet.complete, seen.others, offers)
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
