"""Those who wait, judged as they stand before a pass, and kept from one snapshot to the next.

Between two decisions few change: who comes or goes, who has waited too long by now, and who takes of a limit that came
to leave enough, or too little. These alone are judged anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from gpuspawner.core.idle.policy import LifecyclePolicy
from gpuspawner.core.placement.kinds import kinds_of
from gpuspawner.core.placement.placement import beside_of
from gpuspawner.core.queue.order import Lined, Standing
from gpuspawner.core.queue.snapshot import Claim, Kinds, Snapshot
from gpuspawner.core.quotas.bounds import Amount, Bound, Bucket
from gpuspawner.core.quotas.quotas import Holdings, Tally

Asks = tuple[object, ...]
"""What decides which GPUs fit: two who ask for the same fit alike."""
_SOON_SECONDS = 1.0
"""So long before somebody has waited too long they are judged at each look: sums of times are rounded."""


@dataclass
class _Takers:
    """Those who take of one limit, by id, and how much at most one of them."""

    bound: Bound
    most: Amount = 0
    claims: dict[str, Claim] = field(default_factory=dict)

    def matters(self, before: Amount, now: Amount) -> bool:
        """Whether the limit may leave somebody enough, or too little, whom it did not before."""
        low, high = min(before, now), max(before, now)
        limits = (limit for limit in (self.bound.soft, self.bound.hard) if limit is not None)
        return any(low < limit < high + self.most for limit in limits)

    def is_short(self, tally: Tally) -> bool:
        """Whether the limit leaves somebody too little."""
        return not tally.leaves(self.bound, self.most)


class Waiting:
    """Those who wait, by what a pass asks of them."""

    def __init__(self, kinds: Kinds, holdings: Holdings) -> None:
        """Know of nobody yet. ``holdings`` are kept by whoever adds claims."""
        self.claims: dict[str, Claim] = {}
        self.lined = Lined()
        self.barred: set[str] = set()
        """Whom hard limits leave too little, whichever kind they accept."""
        self._short: set[Bucket] = set()
        """The limits that leave somebody too little."""
        self._alike: dict[Asks, dict[str, Claim]] = {}
        self._asks: dict[str, Asks] = {}
        self._takers: dict[Bucket, _Takers] = {}
        self._kinds, self._holdings = kinds, holdings
        self._anew: set[str] = set()
        self._due: list[tuple[float, str]] = []
        """When who has waited too long, the first first; of each only the time in ``_due_at`` counts."""
        self._due_at: dict[str, float] = {}
        self._standing: Standing | None = None
        self._policies: Mapping[str, LifecyclePolicy] = {}
        self._now = -inf

    def add(self, claim: Claim) -> None:
        """Note one more; they are judged with the next ``see``."""
        self.claims[claim.id] = claim
        self._anew.add(claim.id)
        asks = self._asks[claim.id] = _asks(claim)
        self._alike.setdefault(asks, {})[claim.id] = claim
        for bound, asked in self._takes(claim):
            takers = self._takers.setdefault(bound.bucket, _Takers(bound))
            takers.claims[claim.id], takers.most = claim, max(takers.most, asked)

    def remove(self, name: str) -> None:
        """Note one no more."""
        claim = self.claims.pop(name)
        self.lined.remove(claim)
        self.barred.discard(name)
        self._anew.discard(name)
        self._due_at.pop(name, None)
        asks = self._asks.pop(name)
        alike = self._alike[asks]
        del alike[name]
        if not alike:
            del self._alike[asks]
        for bound, _ in self._takes(claim):
            takers = self._takers.get(bound.bucket)
            if takers is not None and takers.claims.pop(name, None) is not None and not takers.claims:
                del self._takers[bound.bucket]
                self._short.discard(bound.bucket)

    def see(self, seen: Snapshot, standing: Standing) -> None:
        """Judge by another snapshot, and how all stand in it with nothing granted."""
        if seen.policies != self._policies or seen.now < self._now:
            self._anew.update(self.claims)
        self._policies, self._now, self._standing = seen.policies, seen.now, standing
        while self._due and self._due[0][0] < seen.now + _SOON_SECONDS:
            at, name = heappop(self._due)
            if self._due_at.get(name) == at:
                del self._due_at[name]
                self._anew.add(name)
        for bucket, before in self._holdings.changed.items():
            takers = self._takers.get(bucket)
            if takers is not None and takers.matters(before, standing.tally.total(bucket)):
                self._anew.update(takers.claims)
        self._holdings.changed.clear()
        self._judge()

    @contextmanager
    def and_of(self, also: Claim | None) -> Iterator[None]:
        """Have one more among them meanwhile; it takes the place of the claim with its id."""
        if also is None:
            yield
            return
        before = self.claims.get(also.id)
        self._put(before, also)
        try:
            yield
        finally:
            self._put(also, before)

    def asks_of(self, claim: Claim) -> Asks:
        """Return what one of them asks for, by which they are alike."""
        return self._asks[claim.id]

    def one_of_each(self, without: Collection[str], now: float, *, hub_answers: bool) -> Iterable[Claim]:
        """Yield one of those who ask for the same, whoever they are; of those who may be granted something now."""
        for alike in self._alike.values():
            able = (one for name, one in alike.items() if name not in without)
            yield from next(((one,) for one in able if not stands_aside(one, now, hub_answers=hub_answers)), ())

    def takers_of(self, buckets: Iterable[Bucket]) -> Collection[Claim]:
        """Return who takes of any of these limits, each once."""
        found = {name: one for x in buckets if x in self._takers for name, one in self._takers[x].claims.items()}
        return found.values()

    def short(self, tally: Tally) -> set[Bucket]:
        """Return the limits that leave somebody too little, with what a pass has granted."""
        return self._short | {x for x in tally.granted_of if x in self._takers and self._takers[x].is_short(tally)}

    def barred_by(self, tally: Tally) -> set[str]:
        """Return whom hard limits leave too little, with what a pass has granted."""
        others = self.takers_of(self.short(tally) - self._short)
        return self.barred | {claim.id for claim in others if self._is_barred(claim, tally)}

    def _put(self, before: Claim | None, after: Claim | None) -> None:
        if before is not None:
            self.remove(before.id)
        if after is not None:
            self.add(after)
        self._judge()

    def _judge(self) -> None:
        standing = self._standing
        assert standing is not None, "a snapshot was seen"
        for name in self._anew:
            claim = self.claims[name]
            for bucket in {bound.bucket for bound, _ in self._takes(claim)}:
                (self._short.add if self._takers[bucket].is_short(standing.tally) else self._short.discard)(bucket)
            self.lined.add(claim, standing)
            (self.barred.add if self._is_barred(claim, standing.tally) else self.barred.discard)(name)
            if not standing.is_overdue(claim) and (at := standing.overdue_at(claim)) < inf:
                if self._due_at.get(name) != at:
                    heappush(self._due, (at, name))
                self._due_at[name] = at
        self._anew.clear()

    def _is_barred(self, claim: Claim, tally: Tally) -> bool:
        kinds = kinds_of(claim.request, self._kinds) or (None,)
        return all(any(not tally.leaves(*one) for one in self._holdings.takes(claim, kind)) for kind in kinds)

    def _takes(self, claim: Claim) -> Iterable[tuple[Bound, Amount]]:
        """Yield what a claim takes of which limits, with each kind that it accepts."""
        for kind in (self._kinds.get(claim.request.gpu or ""), *kinds_of(claim.request, self._kinds)):
            yield from self._holdings.takes(claim, kind)


def stands_aside(claim: Claim, now: float, *, hub_answers: bool) -> bool:
    """Whether nothing can be granted to it now, however much is free; it keeps nothing from those behind it."""
    return not (claim.attended or hub_answers) or claim.not_before > now


def _asks(claim: Claim) -> Asks:
    asks = claim.request
    needs = asks.needs_memory_bytes, asks.needs_compute, beside_of(asks)
    return asks.gpu, asks.substitutes, asks.count, needs, asks.lifetime_seconds, asks.least_lifetime_seconds
