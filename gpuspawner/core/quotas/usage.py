"""The usage of quotas: which requests are refused, wait, or are beyond a soft share.

A request is refused if it exceeds a hard limit together with its user's own usage. Limits of users count the user's
waiting requests too. Limits of a team or of everybody count only GPUs in use. If others have used up a limit, the
request waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.fleet import GpuKind, Kinds
from gpuspawner.core.gpus.placement import accepted_kinds
from gpuspawner.core.leases.lease import HOLDING, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.snapshot import Claim, Snapshot, end_at
from gpuspawner.core.quotas.limits import (
    Amount,
    EffectiveLimit,
    LimitKey,
    LimitUsage,
    Requester,
    effective_limits,
    quota_refusal,
    quota_wait_sentence,
    requested_amount,
    requester_of,
    share_sentence,
)
from gpuspawner.core.rules import QuotaGrant, Rules


class LimitTotals(NamedTuple):
    """The held and the waiting amount of a limit. Waiting requests count only for limits of users."""

    bound: EffectiveLimit
    held: Amount
    waiting: Amount


class QuotaBlock(NamedTuple):
    """A quota that holds a request back. ``rule`` names it, ``words`` is the sentence for the user.

    No other request passes it under the same limit, unless it ends before ``clears_at``, when enough comes free.
    """

    rule: str
    words: str
    limit_key: LimitKey
    clears_at: float


@dataclass
class _Taken:
    """The amounts of a limit by lease id and by user."""

    total: Amount = 0
    of: dict[str, tuple[Amount, Lease]] = field(default_factory=dict)
    of_user: dict[str, Amount] = field(default_factory=dict)

    def add(self, lease: Lease, much: Amount) -> None:
        self.of[lease.id] = much, lease
        self._count(lease, much)

    def remove(self, lease: Lease) -> None:
        self._count(lease, -self.of.pop(lease.id)[0])

    def _count(self, lease: Lease, much: Amount) -> None:
        self.total += much
        user = lease.key.user_created
        self.of_user[user] = self.of_user.get(user, 0) + much
        if not self.of_user[user]:
            del self.of_user[user]

    def own(self, claim: Claim) -> Amount:
        """Return the user's amount without the claim."""
        return self.of_user.get(claim.user_created, 0) - self._of(claim)

    def others(self, claim: Claim) -> Amount:
        return self.total - self.of_user.get(claim.user_created, 0)

    def _of(self, claim: Claim) -> Amount:
        return self.of[claim.id][0] if claim.id in self.of else 0


_NONE = _Taken()
Takes = Sequence[tuple[EffectiveLimit, Amount]]
"""Limits with the amount that a request takes of each."""


class QuotaUsage:
    """The amounts of each limit that leases hold and that requests wait for."""

    def __init__(self, kinds: Kinds, rules: Rules, grants: Sequence[QuotaGrant], now: float) -> None:
        self.held: dict[LimitKey, _Taken] = {}
        self.waiting: dict[LimitKey, _Taken] = {}
        self.counts = any(quota.limits for quota in rules.quotas)
        """Whether there are limits."""
        self._kinds, self._rules, self._grants, self._now = kinds, rules, grants, now
        self._bounds: dict[Requester, tuple[EffectiveLimit, ...]] = {}
        self._taken_of: dict[str, list[_Taken]] = {}
        self._takes: dict[str, tuple[Request, dict[str, Takes]]] = {}
        """The amounts of each lease's request, by kind."""

    def add(self, lease: Lease) -> None:
        """Add a lease."""
        if not self.counts:
            return
        kind, holds = self._kinds.get(lease.kind or ""), lease.phase in HOLDING
        taken_of = self._taken_of[lease.id] = []
        self._takes[lease.id] = lease.request, {}
        for bound in self.bounds(requester_of(lease)):
            much = requested_amount(bound.limit, lease.request, kind)
            if much and (holds or not bound.of_all):
                taken = (self.held if holds else self.waiting).setdefault(bound.limit_key, _Taken())
                taken.add(lease, much)
                taken_of.append(taken)

    def remove(self, lease: Lease) -> None:
        """Remove a lease."""
        self._takes.pop(lease.id, None)
        for taken in self._taken_of.pop(lease.id, ()):
            taken.remove(lease)

    def takes(self, claim: Claim, kind: GpuKind | None) -> Takes:
        """Return the limits and amounts of a request. They are computed once for each request."""
        if not self.counts:
            return ()
        request, known = self._takes.get(claim.id, (None, {}))
        if request is not claim.request:
            known = {}
        name = kind.name if kind else ""
        if name not in known:
            found = (
                (bound, requested_amount(bound.limit, claim.request, kind))
                for bound in self.bounds(requester_of(claim))
            )
            known[name] = [(bound, asked) for bound, asked in found if asked]
        return known[name]

    def bounds(self, who: Requester) -> tuple[EffectiveLimit, ...]:
        """Return the limits in force for a requester."""
        if not self.counts:
            return ()
        if who not in self._bounds:
            self._bounds[who] = effective_limits(who, self._rules, self._grants, self._now)
        return self._bounds[who]


def quota_usage_of(seen: Snapshot) -> QuotaUsage:
    """Return the usage by the leases of a snapshot."""
    holdings = QuotaUsage(seen.kinds, seen.rules, seen.quota_grants, seen.now)
    for lease in seen.leases if holdings.counts else ():
        holdings.add(lease)
    return holdings


class QuotaTally:
    """The usage of quotas by leases and by the grants of a pass."""

    def __init__(self, seen: Snapshot, holdings: QuotaUsage | None = None) -> None:
        self._seen = seen
        self._all = quota_usage_of(seen) if holdings is None else holdings
        self._held, self._waiting = self._all.held, self._all.waiting
        self.counts = self._all.counts
        """Whether there are limits."""
        self._more: dict[LimitKey, Amount] = {}
        """The amounts of the pass's grants."""
        self._ends: dict[LimitKey, list[tuple[float, Amount]]] = {}

    def bounds(self, who: Requester) -> tuple[EffectiveLimit, ...]:
        """Return the limits in force for a requester."""
        return self._all.bounds(who)

    def total(self, limit_key: LimitKey) -> Amount:
        """Return the held amount of a limit with the grants of the pass."""
        more = self._more.get(limit_key, 0) if self._more else 0
        return self._held.get(limit_key, _NONE).total + more

    def uses(self, who: Requester) -> list[LimitTotals]:
        """Return the totals of each limit in force for a requester."""
        waiting = self._waiting
        return [
            LimitTotals(bound, self.total(bound.limit_key), waiting.get(bound.limit_key, _NONE).total)
            for bound in self.bounds(who)
        ]

    def takes(self, claim: Claim, kind: GpuKind | None) -> Takes:
        """Return the limits and amounts of a request."""
        return self._all.takes(claim, kind)

    def find_block(self, claim: Claim, kind: GpuKind | None) -> QuotaBlock | None:
        """Return the hard limit that holds a request back now, or None."""
        for bound, asked in self.takes(claim, kind):
            held = self.total(bound.limit_key)
            if bound.hard is not None and not self.leaves(bound, asked):
                seen, next_end = self._seen, self._frees_at(bound.limit_key, 0)
                use = LimitUsage(asked, held, next_end=next_end, now=seen.now)
                words = quota_wait_sentence(bound, use, claim.request.count, seen.kinds, seen.rules.contact)
                short = held + asked - bound.hard
                return QuotaBlock(
                    f"quota {bound.entry.name}", words, bound.limit_key, self._frees_at(bound.limit_key, short)
                )
        return None

    def leaves(self, bound: EffectiveLimit, much: Amount) -> bool:
        """Return whether a hard limit has this amount left."""
        return bound.hard is None or self.total(bound.limit_key) + much <= bound.hard

    def is_guaranteed(self, claim: Claim, kind: GpuKind | None) -> bool:
        """Return whether a request stays within its soft limits. Without soft limits nothing is guaranteed."""
        if any(self._is_beyond(bound, asked) for bound, asked in self.takes(claim, kind)):
            return False
        return any(bound.soft is not None for bound in self.bounds(requester_of(claim)))

    def share_words(self, claim: Claim, kind: GpuKind | None) -> str:
        """Return the sentence for the soft limit that a request exceeds, or ""."""
        for bound, asked in self.takes(claim, kind):
            if self._is_beyond(bound, asked):
                held = self.total(bound.limit_key)
                return share_sentence(bound, LimitUsage(asked, held), self._seen.kinds)
        return ""

    def _is_beyond(self, bound: EffectiveLimit, asked: Amount) -> bool:
        return bound.soft is not None and asked > 0 and self.total(bound.limit_key) + asked > bound.soft

    def refuse(self, claim: Claim, kind: GpuKind | None) -> RequestRefused | None:
        """Return the refusal of a request that exceeds a limit by its user's own usage, or that may not wait."""
        for bound, asked in self.takes(claim, kind):
            if bound.hard is None:
                continue
            held = self._held.get(bound.limit_key, _NONE)
            own, others = held.own(claim) + self._waiting.get(bound.limit_key, _NONE).own(claim), held.others(claim)
            refused_now = not bound.entry.full_waits and own + others + asked > bound.hard
            if own + asked <= bound.hard and not refused_now:
                continue
            if own + asked > bound.hard:
                others = 0  # whatever they do, it can't be had
            ends = self._frees_at(bound.limit_key, 0) if others else inf
            use, seen = LimitUsage(asked, own, others, ends, self._seen.now), self._seen
            return quota_refusal(bound, use, claim.request.count, seen.kinds, seen.rules.contact)
        return None

    def take(self, claim: Claim, kind: GpuKind | None) -> None:
        """Add a grant of this pass. It replaces the amount that the same lease holds."""
        for bound, asked in self.takes(claim, kind):
            had = self._held.get(bound.limit_key, _NONE).of.get(claim.id)
            much = asked if had is None else asked - had[0]
            self._more[bound.limit_key] = self._more.get(bound.limit_key, 0) + much

    def _frees_at(self, limit_key: LimitKey, short: Amount) -> float:
        if limit_key not in self._ends:
            now = self._seen.now
            ends = sorted((end_at(x, now), much) for much, x in self._held.get(limit_key, _NONE).of.values())
            self._ends[limit_key] = ends
        for at, much in self._ends[limit_key]:
            short -= much
            if short <= 0:
                return at
        return inf


def check_quotas(claim: Claim, seen: Snapshot, holdings: QuotaUsage | None = None) -> None:
    """Raise RequestRefused if quotas refuse a request with each kind that it accepts."""
    tally = QuotaTally(seen, holdings)
    refused = [tally.refuse(claim, kind) for kind in accepted_kinds(claim.request, seen.kinds) or (None,)]
    if all(refused) and refused[0] is not None:
        raise refused[0]
