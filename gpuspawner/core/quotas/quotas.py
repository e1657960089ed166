"""Quotas: how much may be held at once, who is refused, who waits, and who is beyond a soft share.

A request is refused where it and what its user has by themselves are beyond a hard limit: of a limit for users counts
also what waits, of a team's or everybody's only what is held. Where others have filled a limit, it waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.leases.lease import HOLDING, Lease
from gpuspawner.core.placement.kinds import kinds_of
from gpuspawner.core.queue.ends import end_at
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.bounds import Amount, Bound, Bucket, Who, amount, bounds_of, who_of
from gpuspawner.core.quotas.quota_words import Use, held_back_words, refusal, share_words


class Bar(NamedTuple):
    """What holds a request back: ``rule`` names it, ``words`` is the sentence for its user.

    Nobody else who takes of ``bucket`` passes, unless it is given back by ``frees_at``, when enough is free.
    """

    rule: str
    words: str
    bucket: Bucket
    frees_at: float


@dataclass
class _Taken:
    """What is taken of one bucket: by lease id, and by claims that a pass grants, which have no lease."""

    total: Amount = 0
    of: dict[str, tuple[Amount, Lease | None]] = field(default_factory=dict)

    def add(self, name: str, much: Amount, lease: Lease | None) -> None:
        self.total += much - self.of.get(name, (0, None))[0]
        self.of[name] = much, lease

    def remove(self, name: str) -> None:
        self.total -= self.of.pop(name, (0, None))[0]


_NONE = _Taken()


class Tally:
    """What leases hold of each limit, and what waits for those of users. A pass adds what it grants."""

    def __init__(self, seen: Snapshot) -> None:
        """Count the leases of a snapshot."""
        self._seen = seen
        self._held: dict[Bucket, _Taken] = {}
        self._waiting: dict[Bucket, _Taken] = {}
        self._bounds: dict[Who, tuple[Bound, ...]] = {}
        self.counts = any(quota.limits for quota in seen.rules.quotas)
        """Whether there is anything to count."""
        for lease in seen.leases if self.counts else ():
            self._count(lease)

    def _count(self, lease: Lease) -> None:
        kind, holds = self._seen.kinds.get(lease.kind or ""), lease.phase in HOLDING
        for bound in self.bounds(who_of(lease)):
            much = amount(bound.limit, lease.request, kind)
            if much and (holds or not bound.of_all):
                (self._held if holds else self._waiting).setdefault(bound.bucket, _Taken()).add(lease.id, much, lease)

    def bounds(self, who: Who) -> tuple[Bound, ...]:
        """Return the limits in force for somebody."""
        if not self.counts:
            return ()
        if who not in self._bounds:
            self._bounds[who] = bounds_of(who, self._seen.rules, self._seen.quota_grants, self._seen.now)
        return self._bounds[who]

    def uses(self, who: Who) -> list[tuple[Bound, Amount]]:
        """Return the limits in force for somebody, and what is taken of each: for those of users also what waits."""
        held, waiting = self._held, self._waiting
        return [
            (bound, held.get(bound.bucket, _NONE).total + waiting.get(bound.bucket, _NONE).total)
            for bound in self.bounds(who)
        ]

    def takes(self, claim: Claim, kind: GpuKind | None) -> list[tuple[Bound, Amount]]:
        """Return of which limits a claim takes, and how much."""
        found = ((bound, amount(bound.limit, claim.request, kind)) for bound in self.bounds(who_of(claim)))
        return [(bound, asked) for bound, asked in found if asked]

    def bar(self, claim: Claim, kind: GpuKind | None) -> Bar | None:
        """Return the hard limit that leaves too little for a claim now; None where all leave enough."""
        for bound, asked in self.takes(claim, kind):
            held = self._held.get(bound.bucket, _NONE).total
            if bound.hard is not None and not self.leaves(bound, asked):
                seen, next_end = self._seen, self._frees_at(bound.bucket, 0)
                use = Use(asked, held, next_end=next_end, now=seen.now)
                words = held_back_words(bound, use, claim.request.count, seen.kinds, seen.rules.contact)
                short = held + asked - bound.hard
                return Bar(f"quota {bound.entry.name}", words, bound.bucket, self._frees_at(bound.bucket, short))
        return None

    def leaves(self, bound: Bound, much: Amount) -> bool:
        """Whether a hard limit leaves so much."""
        return bound.hard is None or self._held.get(bound.bucket, _NONE).total + much <= bound.hard

    def is_guaranteed(self, claim: Claim, kind: GpuKind | None) -> bool:
        """Whether a claim stays within the soft limits that bind it. Where there are none, nothing is guaranteed."""
        soft = [bound for bound in self.bounds(who_of(claim)) if bound.soft is not None]
        return bool(soft) and not any(self._is_beyond(x, amount(x.limit, claim.request, kind)) for x in soft)

    def share_words(self, claim: Claim, kind: GpuKind | None) -> str:
        """Return in a sentence which soft limit a claim goes beyond; "" for none."""
        for bound, asked in self.takes(claim, kind):
            if self._is_beyond(bound, asked):
                held = self._held.get(bound.bucket, _NONE).total
                return share_words(bound, Use(asked, held), self._seen.kinds)
        return ""

    def _is_beyond(self, bound: Bound, asked: Amount) -> bool:
        return bound.soft is not None and asked > 0 and self._held.get(bound.bucket, _NONE).total + asked > bound.soft

    def refuse(self, claim: Claim, kind: GpuKind | None) -> RequestRefused | None:
        """Return the refusal of a request that its user's own workspaces leave no room for, or that may not wait."""
        for bound, asked in self.takes(claim, kind):
            if bound.hard is None:
                continue
            own, others = self._own(bound, claim), self._others(bound, claim)
            refused_now = not bound.entry.full_waits and own + others + asked > bound.hard
            if own + asked <= bound.hard and not refused_now:
                continue
            if own + asked > bound.hard:
                others = 0  # whatever they do, it can't be had
            ends = self._frees_at(bound.bucket, 0) if others else inf
            use, seen = Use(asked, own, others, ends, self._seen.now), self._seen
            return refusal(bound, use, claim.request.count, seen.kinds, seen.rules.contact)
        return None

    def take(self, claim: Claim, kind: GpuKind | None) -> None:
        """Count what is granted in this pass."""
        for bound, asked in self.takes(claim, kind):
            self._held.setdefault(bound.bucket, _Taken()).add(claim.id, asked, None)

    def give(self, one: Claim | Lease) -> list[Bucket]:
        """Count no more what a lease holds, or a claim was granted; return of which buckets that was."""
        buckets = [bound.bucket for bound in self.bounds(who_of(one))]
        freed = [bucket for bucket in buckets if one.id in self._held.get(bucket, _NONE).of]
        for bucket in freed:
            self._held[bucket].remove(one.id)
        return freed

    def _own(self, bound: Bound, claim: Claim) -> Amount:
        """Return what the user of a claim has of a limit beside it."""
        taken = [self._held.get(bound.bucket, _NONE), self._waiting.get(bound.bucket, _NONE)]
        return sum(
            (
                much
                for one in taken
                for name, (much, lease) in one.of.items()
                if name != claim.id and lease is not None and lease.key.user_created == claim.user_created
            ),
            0,
        )

    def _others(self, bound: Bound, claim: Claim) -> Amount:
        """Return what others hold of a limit."""
        taken = self._held.get(bound.bucket, _NONE)
        mine = (
            much
            for name, (much, lease) in taken.of.items()
            if name == claim.id or lease is None or lease.key.user_created == claim.user_created
        )
        return taken.total - sum(mine, 0)

    def _frees_at(self, bucket: Bucket, short: Amount) -> float:
        """Return when so much more of a limit is free by the ends that are known; infinite where nothing tells."""
        taken, now = self._held.get(bucket, _NONE), self._seen.now
        ends = sorted((inf if x is None else end_at(x, now), much) for much, x in taken.of.values())
        for at, much in ends:
            short -= much
            if short <= 0:
                return at
        return inf


def check_quotas(claim: Claim, seen: Snapshot) -> None:
    """Raise RequestRefused where a request can't be had for its user's quotas, with any kind of GPU that it takes."""
    tally = Tally(seen)
    refused = [tally.refuse(claim, kind) for kind in kinds_of(claim.request, seen.kinds) or (None,)]
    if all(refused) and refused[0] is not None:
        raise refused[0]
