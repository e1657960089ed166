"""Queue positions and available GPUs. They are computed once for all readers, and kept until something changes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, TypeVar

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.placement import host_resources_of, largest_free
from gpuspawner.core.gpus.topology import requires_domain
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
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
from gpuspawner.schedulers.base import Answer, Offer, Preview, Scheduler
from gpuspawner.schedulers.own_queue import use_slots
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.outages import Outages
from gpuspawner.service.waiting.positions import PlaceChanges

T = TypeVar("T")

log = logging.getLogger("gpuspawner.queue")

KEPT_SECONDS = 5.0
"""Results are computed again after this time even without a known change, because a paused grace period moves an
estimate, and quotas of a namespace change silently. The GPUs are observed as often."""

# The positions of a long queue take longer to compute than anything else, and in a busy cluster something always
# changes. Pages show the last positions meanwhile, with their time, so that everything else goes on.
PART, OWN_PART = 0.05, 0.2
"""Upper bounds on the share of CPU time spent computing positions: for all readers, and for a user whose own request
changed. Arbitrary: a queue of a thousand is computed within a second."""
LITTLE_SECONDS = 0.01
"""A computation that takes less is repeated at each change."""
BETWEEN_SECONDS = 0.2
"""The pause between two long computations, so that a page waits for one of them only. Arbitrary."""
TURN_SECONDS = 0.005
"""The time between two turns of other tasks. Arbitrary."""
LONGEST_SECONDS = 60.0
"""The longest time for which an old result is shown while a new one is computed. Arbitrary."""
OLD_SECONDS = 10.0
"""Pages show the time of positions that are older than this. Arbitrary: only the longest queues take longer."""


@dataclass
class _Computed:
    """The results of the snapshot ``seen``, valid until ``until``."""

    seen: Snapshot
    until: float
    offers: list[Offer]
    answer: Answer | None = None
    made: dict[str, Any] = field(default_factory=dict)


_Asked = tuple[Request, int, float, int]
"""The parts of a waiting lease that its own user changes, and its move by an administrator."""


def _asked(one: Lease | Claim) -> _Asked:
    return one.request, one.attempt, one.asked_at, one.queue_move


@dataclass
class _Made:
    """A result of the snapshot ``of``. It took ``seconds`` of CPU time until ``ended_at``."""

    of: _Computed
    seconds: float
    ended_at: float

    def is_due(self, part: float) -> bool:
        """Whether another result may be computed within this share of the CPU time."""
        return self.seconds < LITTLE_SECONDS or self.due_seconds(part) <= 0

    def due_seconds(self, part: float) -> float:
        """Return in how many seconds another result may be computed."""
        return max(0.0, self.ended_at + self.seconds / part - time.monotonic())


@dataclass
class _Seldom(_Made):
    """A result that all readers share."""

    value: Any

    def is_old(self) -> bool:
        """Whether it is too old to be shown."""
        return time.monotonic() - self.ended_at > LONGEST_SECONDS


@dataclass
class _Pass(_Made):
    """The positions of all waiting requests at one time."""

    as_of: float
    places: Mapping[str, QueuePosition]
    asked: Mapping[str, _Asked]
    made: dict[str, Any] = field(default_factory=dict)
    is_old: bool = False
    """Whether it was shown although something had changed."""

    def knows(self, lease: Lease) -> bool:
        """Whether a request is still the same as then."""
        return self.asked.get(lease.id) == _asked(lease)


class QueueSnapshot:
    """Answers queue positions and available GPUs."""

    def __init__(self, registry: LeaseRegistry, scheduler: Scheduler, allocator: Allocator, clock: Clock) -> None:
        """Compute nothing before the first reader."""
        self._registry, self._scheduler, self._observed, self._clock = registry, scheduler, allocator.observed, clock
        self._syncs, self._restrictions = allocator.syncs, allocator.restrictions
        self.outages = Outages(registry.store, scheduler, allocator.observed, allocator.syncs)
        self._changes = PlaceChanges()
        self._computed: _Computed | None = None
        self._pass: _Pass | None = None
        self._seldom: dict[str, _Seldom] = {}
        self._long_until = -inf
        """The end of the last long computation."""
        self._making: dict[str, asyncio.Task[None]] = {}
        self._sources: tuple[Any, ...] = ()
        self._known: tuple[Any, ...] = ()
        self._version = 0

    @property
    def version(self) -> int:
        """A number that grows whenever the queue or the available GPUs change.

        It grows again once new positions can be computed, if old ones were shown.
        """
        self._now()
        if self._pass is not None and self._pass.is_old and self._pass.is_due(PART):
            self._pass.is_old = False
            self._version += 1
        return self._version

    def due_seconds(self, lease: Lease) -> float:
        """Return in how many seconds a new position can be computed, infinite if the position is new."""
        last = self._pass
        if last is None or not last.is_old:
            return inf
        return last.due_seconds(PART if last.knows(lease) else OWN_PART)

    @property
    def as_of(self) -> float:
        """The time of the positions, in seconds of the service's clock."""
        return self._places().as_of

    @property
    def old_since(self) -> float | None:
        """The time of the positions if they are old, None otherwise."""
        as_of = self._places().as_of
        return as_of if self._clock.now() - as_of > OLD_SECONDS else None

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
        return self.once(f"offers without {holds}", lambda: self._without(others)) if others else self.offers

    def startable_count(self, lease: Lease) -> int:
        """Return how many GPUs of its kind are free on one node for the first in line."""
        seen, gpu, offer = self._now().seen, lease.request.gpu, self.offer(lease.request.gpu, hold_user_of(lease))
        if gpu is None or gpu not in seen.kinds or offer is None or offer.largest is None:
            return 0
        used = dict(seen.used)
        for one in self._held_for_others(hold_user_of(lease)):
            use_slots(used, one.slots)
        kind, one_domain = seen.kinds[gpu], requires_domain(lease.request, seen.kinds[gpu])
        return min(offer.largest, largest_free(kind, seen.placement_fleet, used, one_domain=one_domain))

    def _held_for_others(self, asker: HoldUser) -> list[HeldGpus]:
        return [one for one in self.once("held", self._held) if not may_use(asker, one.hold)]

    def _held(self) -> tuple[HeldGpus, ...]:
        """Return the GPUs that are held now. GPUs whose queue another program owns are left out."""
        owner_of, held = self._scheduler.capabilities_of, current_hold_gpus(self._now().seen)
        return tuple(one for one in held if not owner_of(one.hold.kind).owns_queue)

    def _without(self, held: Sequence[HeldGpus]) -> list[Offer]:
        computed = self._now()
        taken = tuple(slot for one in held for slot in one.slots)
        left = self._scheduler.stock(replace(computed.seen, others=(*computed.seen.others, *taken)))
        return [_noted(was, now, held, computed.seen) for was, now in zip(computed.offers, left, strict=True)]

    def place(self, lease: Lease) -> QueuePosition:
        """Return the position of a waiting lease, as its scheduler says. Until then it is behind all others.

        Changes of other requests are as of the last computation. A change of its own is included as soon as there is
        time for another one.
        """
        found = self._places(lease)
        last = len(self._now().seen.claims)
        behind = QueuePosition(last, last, None, None)
        if self._scheduler.capabilities_of(lease.request.gpu).owns_queue:
            behind = QueuePosition(None, None, None, None)  # the others are not known
        place = found.places.get(lease.id) if found.knows(lease) else None
        return self._told(_later(place or behind, self._clock.now() - found.as_of), lease.request.gpu)

    def places(self) -> Mapping[str, QueuePosition]:
        """Return all positions by lease id, as of the last computation. Newer requests are not in it."""
        found, gpus = self._places(), {claim.id: claim.request.gpu for claim in self._now().seen.claims}
        passed_seconds = self._clock.now() - found.as_of
        return {name: self._told(_later(place, passed_seconds), gpus.get(name)) for name, place in found.places.items()}

    def _told(self, place: QueuePosition, gpu: str | None) -> QueuePosition:
        """Return a position for people. During an outage its start is not known."""
        if self.outages.of_kind(gpu) is None:
            return place
        return replace(place, unchanged_seconds=None, likely_seconds=None)

    def _places(self, lease: Lease | None = None) -> _Pass:
        """Return the last positions, or new ones if something changed and there is time."""
        computed, last = self._now(), self._pass
        if last is not None and last.of is not computed:
            mine = lease is not None and not last.knows(lease)
            if not (last.is_due(OWN_PART) if mine else self._is_due(last)):
                last.is_old = True
                return last
            if last.is_old:
                self._version += 1  # some pages show it
        if last is None or last.of is not computed:
            self._pass = last = self._pass_of(computed)
            self._note_long(last)
        return last

    def _is_due(self, last: _Made) -> bool:
        """Whether another result may be computed for all readers."""
        if last.seconds >= LITTLE_SECONDS and time.monotonic() < self._long_until + BETWEEN_SECONDS:
            return False
        return last.is_due(PART)

    def _note_long(self, made: _Made) -> None:
        if made.seconds >= LITTLE_SECONDS:
            self._long_until = made.ended_at

    def _pass_of(self, computed: _Computed) -> _Pass:
        began, answer = time.thread_time(), self._standing(computed)
        places = {} if answer is None else answer.places()
        if answer is not None:
            numbers = {name: one.number for name, one in places.items() if one.number is not None}
            self._changes.see(numbers, self._registry, self._scheduler.kinds, answer.as_of)
        asked = {claim.id: _asked(claim) for claim in computed.seen.claims if claim.id in places}
        as_of = computed.seen.now if answer is None else answer.as_of
        return _Pass(computed, time.thread_time() - began, time.monotonic(), as_of, places, asked)

    def change(self, lease: Lease) -> str:
        """Return in a sentence how a position changed last, and why, "" without a change since this service started."""
        self.place(lease)
        return self._changes.words(lease.id, self._clock.now())

    def wait_reason(self, lease: Lease) -> BlockingRule | None:
        """Return the rule that holds a waiting lease back, as of a moment ago, None without one."""
        wait_reason, _ = self.seldom("decided", self._decided)
        return wait_reason.get(lease.id)

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
        _, reserved = self.seldom("decided", self._decided)
        whose = tuple(number for number, one in enumerate(reserved) if lease.id in one.claim_ids)
        alike = f"kept free {request.gpu} {request.count} {host_resources_of(request)} {claim.tried_nodes} {whose}"
        return self.once(alike, lambda: reserved_for_others(claim, computed.seen, reserved))

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
            would = await self._scheduler.offers(replace(seen, leases=rivals), claim)
        except Unavailable:
            if self.outages.of_kind(claim.request.gpu) is None:
                raise
            would = Preview(QueuePosition(None, None, None, None))  # who asks is told of the outage
        return replace(would, place=self._told(would.place, claim.request.gpu))

    def once_a_pass(self, name: str, make: Callable[[], T]) -> T:
        """Return a shared value of the queue positions, made once for each computation of positions."""
        return self._once(self._places().made, name, make)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return a shared value of the present snapshot, made once for each snapshot."""
        return self._once(self._now().made, name, make)

    def seldom(self, name: str, make: Callable[[], T]) -> T:
        """Return a shared value of the present snapshot. A slow value may be some seconds old.

        At most ``PART`` of the time is spent on it. ``name`` is one of a few constants in the code.
        """
        computed, last = self._now(), self._seldom.get(name)
        if last is None or (last.of is not computed and self._is_due(last)):
            began, value = time.thread_time(), make()
            last = self._seldom[name] = _Seldom(computed, time.thread_time() - began, time.monotonic(), value)
            self._note_long(last)
        result: T = last.value
        return result

    async def seldom_beside(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """Return, as :meth:`seldom`, a value that takes too long for a page. ``make`` yields to other tasks.

        The previous value is returned while a new one is made. The call waits only if the value is missing or old,
        or if a new one is made quickly.
        """
        computed, last, task = self._now(), self._seldom.get(name), self._making.get(name)
        if task is None and (last is None or (last.of is not computed and last.is_due(PART))):
            task = self._making[name] = asyncio.create_task(self._make(name, computed, make))
            task.add_done_callback(partial(self._made, name))
        if task is not None and (last is None or last.is_old()):
            await asyncio.shield(task)
        elif task is not None and last is not None and last.seconds < LITTLE_SECONDS:
            await asyncio.wait((task,))
        result: T = self._seldom[name].value
        return result

    async def _make(self, name: str, computed: _Computed, make: Callable[[], Awaitable[Any]]) -> None:
        began, value = time.thread_time(), await make()
        self._seldom[name] = _Seldom(computed, time.thread_time() - began, time.monotonic(), value)

    def _made(self, name: str, task: asyncio.Task[None]) -> None:
        del self._making[name]
        if not task.cancelled() and task.exception() is not None:
            log.error("%s could not be made", name, exc_info=task.exception())

    @staticmethod
    def _once(made: dict[str, Any], name: str, make: Callable[[], T]) -> T:
        if name not in made:
            made[name] = make()
        result: T = made[name]
        return result

    def _as_seen(self, offer: Offer) -> Offer:
        """Return an offer as people are told it: how many are free is not known while their cluster is away."""
        kind, fleet = self._scheduler.kinds.get(offer.kind), self._scheduler.fleet
        return replace(offer, free=None) if fleet.outage_of_kind(kind) is not None else offer

    def _standing(self, computed: _Computed) -> Answer | None:
        if computed.answer is None:
            computed.answer = self._syncs.standing(computed.seen)
        return computed.answer

    def _now(self) -> _Computed:
        """Return the results of the present snapshot. Compute them again if something changed."""
        now, computed = self._clock.now(), self._computed
        observed, told = self._observed, self._syncs.told
        restrictions = self._restrictions.in_force()
        sources = (
            self._registry.changes,
            observed.fleet,
            restrictions,
            observed.seen,
            observed.hub_answers,
            told,
            self._registry.store.outage,
            observed.hub_outage,
            self._syncs.outage,
        )
        same = all(x is y for x, y in zip(sources, self._sources, strict=False))  # each is replaced, never changed
        if computed is not None and same and computed.seen.now <= now < computed.until:
            return computed
        seen = self._observed.snapshot()
        offers = [self._as_seen(offer) for offer in self._scheduler.stock(seen)]
        outages = tuple(self.outages.under_way())
        of_queue = (
            self._registry.changes,
            seen.hub_answers,
            seen.fleet.complete,
            seen.others,
            offers,
            active_holds(seen),
            told,
        )
        known = (*of_queue, outages)
        if known != self._known:
            self._known = known
            self._version += 1
        self._sources = sources
        until = min([now + KEPT_SECONDS, *(x.not_before for x in seen.claims if x.not_before > now)])
        self._computed = _Computed(seen, until, offers)
        return self._computed


async def let_others() -> None:
    """Let all else go on, from within what takes long: also threads that read the store, a turn for each row."""
    await asyncio.sleep(TURN_SECONDS)


def _noted(offer: Offer, left: Offer, held: Iterable[HeldGpus], seen: Snapshot) -> Offer:
    """Return an offer to a user who can have only ``left`` of it, with notes about the holds for others."""
    kind = seen.kinds[offer.kind]
    if offer.free is None:
        return offer
    free = [(one, count_free_in_hold(one, kind, seen)) for one in held if seen.kinds[one.hold.kind].pool == kind.pool]
    notes = [one.note(count, seen.now) for one, count in free if count]
    kept = ", ".join(filter(None, [offer.held, *notes]))
    return replace(offer, free=left.free, held=kept, note="; ".join(filter(None, [offer.note, *notes])))


def _later(place: QueuePosition, passed_seconds: float) -> QueuePosition:
    """Return a place after some time in which nothing changed."""
    most, likely = (_less(x, passed_seconds) for x in (place.unchanged_seconds, place.likely_seconds))
    return replace(place, unchanged_seconds=most, likely_seconds=likely)


def _less(seconds: float | None, passed_seconds: float) -> float | None:
    """Return a wait after some of it has passed: who is free to go stays so, and who waits is not said to be served."""
    return max(LEAST_WAIT_SECONDS, seconds - passed_seconds) if seconds else seconds
