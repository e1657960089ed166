"""Who gets GPUs now: one pass over those who wait, in order.

At its turn a request takes the first kind of those that it accepts which is free, and which the quotas and budgets
leave. Where none is free, it reserves GPUs of one kind, those that it starts with first; of each pool the first in
order alone does so. Others pass by what is kept for nobody else, or by ending before. Where a quota leaves none, it
keeps no GPU from anybody; who takes of the same limit passes only if that is given back before it is needed. Nor does
one whose budget leaves it too little.

Passed over, and keeping nothing from others: one whose kinds an administrator has paused, one whose cluster or list of
GPUs does not answer, a parked lease while its hub does not answer, one that backs off, and one that the whole fleet
could not serve as it is: for GPUs of strangers, which nobody knows the end of, a pool would stand still for days. A
lease whose user has as many starts under way as one may have keeps its GPUs from those behind it, and gets them a
moment later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import merge
from itertools import chain
from math import inf
from typing import NamedTuple, Protocol

from gpuspawner.core.gpus.fleet import Beside, GpuKind, Slot
from gpuspawner.core.leases.lease import Lease, Phase
from gpuspawner.core.placement.kinds import kinds_of
from gpuspawner.core.placement.placement import beside_of
from gpuspawner.core.queue.backfill import (
    BACKFILL,
    Ending,
    Fit,
    Reservation,
    Unfit,
    bound_of,
    fit,
    kept_for_others,
    kept_from,
    reserve,
)
from gpuspawner.core.queue.holds import kept_for_classes
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.order import Line, Standing
from gpuspawner.core.queue.shares import Uses
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.queue.waiting import Asks, stands_aside
from gpuspawner.core.quotas.bounds import Amount, Bucket
from gpuspawner.core.quotas.purse import Purse
from gpuspawner.core.quotas.quota_words import behind_words
from gpuspawner.core.quotas.quotas import Bar, Tally
from gpuspawner.core.rules import LatestEnd

PAUSED = "paused"
"""The rule that holds a request back while an administrator pauses grants."""


class Given(NamedTuple):
    """A grant to make now. ``kind`` is what is given, None without a GPU; ``latest_end`` bounds its end."""

    claim: Claim
    slots: tuple[Slot, ...]
    kind: str | None = None
    latest_end: LatestEnd | None = None

    @property
    def substitute(self) -> str:
        """The kind that is given where it is not the one asked for, else ""."""
        return self.kind if self.kind and self.kind != self.claim.request.gpu else ""


class Held(NamedTuple):
    """Which rule holds a request back, and the sentence for its user."""

    rule: str
    words: str


@dataclass(frozen=True)
class Decision:
    """The grants to make now, in order; who is held back by a rule, by lease id; and what is reserved for whom."""

    grants: tuple[Given, ...] = ()
    held_back: Mapping[str, Held] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()


class PlaceLimits(Protocol):
    """What the place allows beside its GPUs, and has left: it holds back whole pools."""

    def held_back(self, claim: Claim, slots: Sequence[Slot]) -> Held | None:
        """Return what leaves too little for a claim on these GPUs now, if anything."""
        ...

    def take(self, claim: Claim, slots: Sequence[Slot]) -> None:
        """Note what is granted."""
        ...


def starts_under_way(leases: Iterable[Lease]) -> Counter[str]:
    """Return how many starts of each user, by ``created``, are under way: granted, and not running yet.

    One that waits for a node to come is none: nothing starts for it yet, and it may wait for many minutes.
    """
    return Counter(
        x.key.user_created for x in leases if x.phase in {Phase.RESERVED, Phase.STARTING} and not _comes(x.slots)
    )


def _comes(slots: Iterable[Slot]) -> bool:
    return any(slot.is_coming for slot in slots)


def decide(
    seen: Snapshot, limits: PlaceLimits | None = None, also: Claim | None = None, index: Index | None = None
) -> Decision:
    """Return what is to be granted now, who is held back, and what is reserved.

    ``also`` would ask too; it takes the place of a claim with its id. ``index`` is what is derived from the snapshot,
    where that is kept; else it is derived anew.
    """
    if not seen.processes_known:
        return Decision()
    index = index or Index(seen)
    with index.waiting.and_of(also):
        if not index.claims:
            return Decision(reservations=kept_for_others(seen, ()))
        return _Pass(seen, index, limits).run()


MOST_LOOKS = 16
"""So often it is looked whether a pass is over. Arbitrary: where nobody asks for the same, each looks at all."""


class _Pass:
    """One pass over those who wait."""

    def __init__(self, seen: Snapshot, index: Index, limits: PlaceLimits | None) -> None:
        self._seen, self._index, self._limits = seen, index, limits
        self._pools, self._waiting = index.pools, index.waiting
        self._taken: list[tuple[tuple[Slot, ...], Beside]] = []
        """What this pass takes of the pools, and gives back at its end."""
        self._tally, self._uses = Tally(seen, index.holdings), Uses(seen, index.charges)
        self._standing = Standing(seen, self._tally, self._uses)
        self._purse = Purse(seen)
        self._served: set[str] = set()
        self._starts = starts_under_way(index.starts.values())
        self._under_way = self._starts.total()
        self._grants: list[Given] = []
        self._held: dict[str, Held] = {}
        claims = self._waiting.claims.values()
        self._reservations = [*kept_for_others(seen, claims), *kept_for_classes(seen, claims)]
        self._keeps = bool(self._reservations)
        """Whether the rules keep GPUs for somebody."""
        self._tells_all = self._keeps or bool(seen.paused) or self._purse.binds
        """Whether there may be something to tell to anybody."""
        self._reserved: set[str] = set()
        """Pools of which somebody has reserved GPUs."""
        self._closed: dict[str, Held] = {}
        """Pools that the place leaves nothing of to whom had the turn."""
        self._first_in: dict[Bucket, Bar] = {}
        """What holds back the first of those that take of a limit."""
        self._promised: dict[Bucket, tuple[Amount, float]] = {}
        """What is to be left of a limit for those who have reserved GPUs, and when they need it."""
        self._unfit: set[Unfit] = set()
        """What did not fit before."""
        self._hopeless: set[Asks] = set()
        """What was asked, and lacked nothing but free GPUs: who asks for the same gets nothing either."""
        self._to_tell: set[str] = set()
        """Of whom there may be something else to tell: takers of limits, and whom GPUs are reserved for."""
        self._largest = lru_cache(maxsize=None)(self._pools.largest)

    def run(self) -> Decision:
        line, looks, before = Line(self._waiting.lined, self._standing), MOST_LOOKS, (0, 0)
        self._note_to_tell()
        try:
            while (claim := line.pop()) is not None:
                if self._stands_aside(claim):
                    continue
                if looks and self._gets_nothing(claim):
                    self._served.add(claim.id)
                    continue
                self._serve(claim)
                now = len(self._grants), len(self._reserved)
                if looks and now != before:
                    looks, before = looks - 1, now
                    if self._is_over():
                        break
                    self._note_to_tell()
        finally:
            for slots, needs in reversed(self._taken):
                self._pools.give(slots, needs)
        return Decision(tuple(self._grants), self._held, tuple(self._reservations))

    def _is_over(self) -> bool:
        """Whether nobody of the rest is granted anything, in whatever order they are served; note what holds them back.

        Most of a long line find nothing left, and to put them in order is most of a pass. So one of each who ask alike
        is looked at, and served are those alone of whom there is something to tell. It matters who is behind whom where
        a limit bars somebody, and until GPUs are reserved for the first of each pool.
        """
        seen, waiting = self._seen, self._waiting
        without = self._served | waiting.barred_by(self._tally)
        some = waiting.one_of_each(without, seen.now, hub_answers=seen.hub_answers)
        named = {name for one in self._reservations for name in one.whom} - self._served  # they have GPUs of their own
        if any(map(self._may_get, chain(some, (waiting.claims[name] for name in named)))):
            return False
        short = self._first_in.keys() | waiting.short(self._tally)
        rest = waiting.claims.values() if self._tells_all else waiting.takers_of(short | self._promised.keys())
        left = [one for one in rest if one.id not in self._served and not self._stands_aside(one)]
        for claim in sorted(left, key=self._standing.rank) if short else left:
            self._serve(claim)
        return True

    def _gets_nothing(self, claim: Claim) -> bool:
        """Whether nothing would follow from serving a claim: most of a long line ask for what others did not get."""
        return self._waiting.asks_of(claim) in self._hopeless and claim.id not in self._to_tell

    def _note_to_tell(self) -> None:
        limits = self._first_in.keys() | self._waiting.short(self._tally) | self._promised.keys()
        self._to_tell = {one.id for one in self._waiting.takers_of(limits)}
        self._to_tell.update(*(one.whom for one in self._reservations))

    def _may_get(self, claim: Claim) -> bool:
        """Whether a claim may be granted something, or have GPUs reserved."""
        if claim.request.gpu is None:
            return True
        for kind in kinds_of(claim.request, self._seen.kinds):
            if claim.request.count > self._largest(kind.pool) or self._paused(kind) or self._is_away(kind):
                continue
            if kind.pool not in self._reserved or self._fit(claim, kind) is not None:
                return True
        return False

    def _stands_aside(self, claim: Claim) -> bool:
        return stands_aside(claim, self._seen.now, hub_answers=self._seen.hub_answers)

    def _serve(self, claim: Claim) -> None:
        self._served.add(claim.id)
        if claim.request.gpu is None:
            self._serve_without_gpu(claim)
            return
        held: Held | None = None
        fitting: list[GpuKind] = []
        for kind in kinds_of(claim.request, self._seen.kinds):
            if self._is_away(kind):
                continue  # somebody else may use by now what was free; pages tell of the outage
            if (paused := self._paused(kind)) or claim.request.count > self._largest(kind.pool):
                held = held or paused
                continue  # nothing that ends could serve it: it keeps nothing from others
            if (barred := self._barred(claim, kind)) is not None:
                held = held or barred
                continue
            found = self._fit(claim, kind)
            if found is None:
                fitting.append(kind)
            elif (over := self._over_the_place(claim, kind, found.slots)) is not None:
                held = held or over
            else:
                self._give(claim, kind, found)
                return
        if fitting:
            self._let_wait(claim, fitting)
        elif held is not None:
            self._held[claim.id] = held

    def _let_wait(self, claim: Claim, fitting: Sequence[GpuKind]) -> None:
        if self._keeps:
            self._note_kept_from(claim, fitting)
        self._reserve(claim, fitting)
        if not self._tells_all and claim.id not in self._to_tell and self._reserved >= {x.pool for x in fitting}:
            self._hopeless.add(self._waiting.asks_of(claim))

    def _paused(self, kind: GpuKind | None) -> Held | None:
        words = self._seen.paused_words(kind.name if kind else None)
        return Held(PAUSED, words) if words else None

    def _is_away(self, kind: GpuKind | None) -> bool:
        """Return whether an outage hides the present state of a kind's GPUs. One failed look is enough."""
        return self._seen.fleet.outage_of_kind(kind) is not None

    def _fit(self, claim: Claim, kind: GpuKind) -> Fit | None:
        if not self._pools.has_free(kind.pool):
            return None  # most of a long line find nothing left
        return fit(claim, kind, self._pools, self._reservations, self._seen.now, self._unfit)

    def _note_kept_from(self, claim: Claim, fitting: Iterable[GpuKind]) -> None:
        kept = (kept_from(claim, kind, self._pools, self._reservations) for kind in fitting)
        if (first := next((one for one in kept if one is not None), None)) is not None:
            self._held[claim.id] = Held(first.rule, first.words)

    def _serve_without_gpu(self, claim: Claim) -> None:
        if self._is_away(None):
            return
        held = self._paused(None) or self._barred(claim, None) or self._over_the_place(claim, None, ())
        if held is not None:
            self._held[claim.id] = held
        elif self._may_start(claim):
            self._give(claim, None, Fit(()))

    def _may_start(self, claim: Claim) -> bool:
        seen = self._seen
        return self._under_way < seen.most_starts and self._starts[claim.user_created] < seen.most_starts_each

    def _give(self, claim: Claim, kind: GpuKind | None, found: Fit) -> None:
        if self._may_start(claim):
            self._starts[claim.user_created] += not _comes(found.slots)
            self._under_way += not _comes(found.slots)
            bounds = [one for one in (found.latest_end, self._until_promised(claim, kind)) if one is not None]
            end = min(bounds, key=lambda one: one.at) if bounds else None
            self._grants.append(Given(claim, found.slots, kind.name if kind else None, end))
        self._pools.take(found.slots, beside_of(claim.request))
        self._taken.append((found.slots, beside_of(claim.request)))
        self._tally.take(claim, kind)
        self._purse.take(claim, kind)
        self._uses.charge(claim, kind)
        if self._limits is not None:
            self._limits.take(claim, found.slots)

    def _barred(self, claim: Claim, kind: GpuKind | None) -> Held | None:
        """Return which quota or budget holds a claim back: by what is held, or for another that goes first."""
        if (over := self._purse.held_back(claim, kind)) is not None:
            return Held(*over)
        bar = self._tally.bar(claim, kind)
        if bar is not None:
            self._first_in.setdefault(bar.bucket, bar)
            return Held(bar.rule, bar.words)
        end = self._seen.now + claim.request.lifetime_seconds
        for bound, asked in self._tally.takes(claim, kind) if self._first_in or self._promised else ():
            rule = f"quota {bound.entry.name}"
            first = self._first_in.get(bound.bucket)
            promised, needed_at = self._promised.get(bound.bucket, (0, inf))
            if first is not None and end > first.frees_at:
                return Held(rule, behind_words(rule))
            if bound.hard is not None and end > needed_at and not self._tally.leaves(bound, asked + promised):
                return Held(rule, behind_words(rule))
        return None

    def _until_promised(self, claim: Claim, kind: GpuKind | None) -> LatestEnd | None:
        """Return the bound on the end of what passes another that waits for the same limit."""
        found = inf
        for bound, asked in self._tally.takes(claim, kind):
            if (first := self._first_in.get(bound.bucket)) is not None:
                found = min(found, first.frees_at)
            promised, needed_at = self._promised.get(bound.bucket, (0, inf))
            if bound.hard is not None and not self._tally.leaves(bound, asked + promised):
                found = min(found, needed_at)
        return None if found == inf else bound_of(found, self._seen.now)

    def _over_the_place(self, claim: Claim, kind: GpuKind | None, slots: Sequence[Slot]) -> Held | None:
        pool = kind.pool if kind else ""
        held = None if self._limits is None else self._limits.held_back(claim, slots)
        if held is not None:
            self._closed.setdefault(pool, held)
            return held
        first = self._closed.get(pool)
        return None if first is None else Held(first.rule, behind_words(first.rule))

    def _reserve(self, claim: Claim, kinds: Sequence[GpuKind]) -> None:
        open_to = [kind for kind in kinds if kind.pool not in self._reserved]
        if not open_to:
            return
        found = reserve(claim, open_to, self._pools, self._endings, self._reservations)
        if found is None:
            return
        kind, reservation = found
        self._reservations.append(replace(reservation, whom=reservation.whom | self._kept_now_for(reservation)))
        self._reserved.add(kind.pool)
        needed_at = inf if reservation.at is None else reservation.at
        for bound, asked in self._tally.takes(claim, kind):
            if bound.hard is None:
                continue
            promised, at = self._promised.get(bound.bucket, (0, inf))
            self._promised[bound.bucket] = promised + asked, min(at, needed_at)

    def _kept_now_for(self, reservation: Reservation) -> frozenset[str]:
        """Return for whom a class or a stronger claim keeps the same GPUs now: nobody who waits keeps them from these.

        Where it is not known when GPUs come free, those are reserved that others keep.
        """
        gpus = {slot.gpu for slot in reservation.slots}
        kept = (x for x in self._reservations if x.rule != BACKFILL and x.at is not None and x.at <= self._seen.now)
        return frozenset(name for one in kept if gpus & {slot.gpu for slot in one.slots} for name in one.whom)

    def _endings(self, pool: str) -> Iterable[Ending]:
        """Return when GPUs of a pool come free, of leases and of what this pass grants."""
        now, ends = self._seen.now, self._index.ends.get(pool)
        of_leases = (Ending(at, x.slots, x.request) for at, _, x in (ends.coming(now) if ends is not None else ()))
        new = (Ending(now + x.claim.request.lifetime_seconds, x.slots, x.claim.request) for x in self._grants if x.kind)
        return merge(of_leases, sorted(new, key=_at), key=_at)


def _at(ending: Ending) -> float:
    return ending.at
