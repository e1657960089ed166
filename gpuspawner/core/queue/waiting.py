"""Waiting requests in their order before a pass, kept from one snapshot to the next.

Few change between two decisions: requests that come or go, requests that have become overdue, and requests under a soft
quota whose use has passed the guaranteed share. Only these are ordered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from gpuspawner.core.gpus.fleet import Kinds
from gpuspawner.core.gpus.placement import kinds_of
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.queue.order import Lined, Standing
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.limits import Amount, Bound, Bucket
from gpuspawner.core.quotas.usage import Holdings

_SOON_SECONDS = 1.0
"""A request is checked this many seconds before it becomes overdue, because sums of times are rounded."""


@dataclass
class _Takers:
    """The requests that count towards one limit, by id, and the most that one of them takes."""

    bound: Bound
    most: Amount = 0
    claims: dict[str, Claim] = field(default_factory=dict)

    def matters(self, before: Amount, now: Amount) -> bool:
        """Return whether a request may have passed the guaranteed share, in either direction."""
        soft = self.bound.soft
        return soft is not None and min(before, now) < soft < max(before, now) + self.most


class Waiting:
    """The waiting requests, in the order before a pass."""

    def __init__(self, kinds: Kinds, holdings: Holdings) -> None:
        """Begin with no request. ``holdings`` are those of the same index."""
        self.claims: dict[str, Claim] = {}
        self.lined = Lined()
        self._takers: dict[Bucket, _Takers] = {}
        self._kinds, self._holdings = kinds, holdings
        self._anew: set[str] = set()
        self._due: list[tuple[float, str]] = []
        """A heap of the times at which requests become overdue. An entry counts if it equals the one in ``_due_at``."""
        self._due_at: dict[str, float] = {}
        self._standing: Standing | None = None
        self._policies: Mapping[str, LifecyclePolicy] = {}
        self._now = -inf

    def add(self, claim: Claim) -> None:
        """Add a request. It is ordered by the next ``see``."""
        self.claims[claim.id] = claim
        self._anew.add(claim.id)
        for bound, asked in self._takes(claim):
            takers = self._takers.setdefault(bound.bucket, _Takers(bound))
            takers.claims[claim.id], takers.most = claim, max(takers.most, asked)

    def remove(self, name: str) -> None:
        """Remove a request."""
        claim = self.claims.pop(name)
        self.lined.remove(claim)
        self._anew.discard(name)
        self._due_at.pop(name, None)
        for bound, _ in self._takes(claim):
            takers = self._takers.get(bound.bucket)
            if takers is not None and takers.claims.pop(name, None) is not None and not takers.claims:
                del self._takers[bound.bucket]

    def see(self, seen: Snapshot, standing: Standing) -> None:
        """Order the requests by another snapshot, in which nothing is granted yet."""
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
        """Include one more request for a while. It replaces the request with its id."""
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
        """Yield each limit that a request counts towards, with the amount, for each kind that it accepts."""
        for kind in (self._kinds.get(claim.request.gpu or ""), *kinds_of(claim.request, self._kinds)):
            yield from self._holdings.takes(claim, kind)
