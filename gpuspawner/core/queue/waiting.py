"""Those who wait, judged as they stand before a pass, and kept from one snapshot to the next.

Between two decisions few change: who comes or goes, who has waited too long by now, and who takes of a limit that came
to leave enough, or too little. These alone are judged anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from gpuspawner.core.idle.policy import LifecyclePolicy
from gpuspawner.core.placement.kinds import kinds_of
from gpuspawner.core.queue.order import Lined, Standing
from gpuspawner.core.queue.snapshot import Claim, Kinds, Snapshot
from gpuspawner.core.quotas.bounds import Amount, Bound, Bucket
from gpuspawner.core.quotas.quotas import Holdings

_SOON_SECONDS = 1.0
"""So long before somebody has waited too long they are judged at each look: sums of times are rounded."""


@dataclass
class _Takers:
    """Those who take of one limit, by id, and how much at most one of them."""

    bound: Bound
    most: Amount = 0
    claims: dict[str, Claim] = field(default_factory=dict)

    def matters(self, before: Amount, now: Amount) -> bool:
        """Return whether somebody may be within the guaranteed share, or beyond it, who was not before."""
        soft = self.bound.soft
        return soft is not None and min(before, now) < soft < max(before, now) + self.most


class Waiting:
    """Those who wait, by what a pass asks of them."""

    def __init__(self, kinds: Kinds, holdings: Holdings) -> None:
        """Know of nobody yet. ``holdings`` are kept by whoever adds claims."""
        self.claims: dict[str, Claim] = {}
        self.lined = Lined()
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
        for bound, asked in self._takes(claim):
            takers = self._takers.setdefault(bound.bucket, _Takers(bound))
            takers.claims[claim.id], takers.most = claim, max(takers.most, asked)

    def remove(self, name: str) -> None:
        """Note one no more."""
        claim = self.claims.pop(name)
        self.lined.remove(claim)
        self._anew.discard(name)
        self._due_at.pop(name, None)
        for bound, _ in self._takes(claim):
            takers = self._takers.get(bound.bucket)
            if takers is not None and takers.claims.pop(name, None) is not None and not takers.claims:
                del self._takers[bound.bucket]

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
            self.lined.add(claim, standing)
            if not standing.is_overdue(claim) and (at := standing.overdue_at(claim)) < inf:
                if self._due_at.get(name) != at:
                    heappush(self._due, (at, name))
                self._due_at[name] = at
        self._anew.clear()

    def _takes(self, claim: Claim) -> Iterable[tuple[Bound, Amount]]:
        """Yield what a claim takes of which limits, with each kind that it accepts."""
        for kind in (self._kinds.get(claim.request.gpu or ""), *kinds_of(claim.request, self._kinds)):
            yield from self._holdings.takes(claim, kind)
