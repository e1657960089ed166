"""Preemption between users by fair share.

The soft quotas of its user and team on GPUs and on its kind give a lease its share. Without them there is no share. Use
is divided by share, and the limit with the highest quotient counts. A request may claim GPUs if it stays within its
share with them. A workspace may be ended while its user or team is over the share, and uses more of its share
than the claimant will. Two users therefore cannot take GPUs from each other in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from gpuspawner.core.leases.lease import HOLDING, Lease
from gpuspawner.core.queue.preemption import Preemption, victims
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.limits import Bound, Bucket, Who, amount, bounds_of, who_of
from gpuspawner.core.rules import Account, What, Whom

NOTHING = Fraction(0)
BEYOND_ALL = Fraction(10**9)
"""Use divided by share, for a user who uses something and has a share of 0."""
OF_SHARE = frozenset({What.GPUS, What.KIND})


class Wish(NamedTuple):
    """A request that has waited long enough, and the ids of the workspaces that may be ended for it."""

    claim: Claim
    givers: frozenset[str]


class Standings:
    """Use divided by share, by user and team."""

    def __init__(self, seen: Snapshot) -> None:
        """Count the leases that hold GPUs, without those under notice: their GPUs come free already."""
        self._seen = seen
        self._bounds: dict[Who, tuple[Bound, ...]] = {}
        self._held: dict[Bucket, Fraction] = {}
        for lease in seen.leases:
            if lease.phase in HOLDING and lease.notice is None:
                self._add(lease, 1)

    def used(self, lease: Lease) -> Fraction | None:
        """Return the larger of use divided by share of a lease's user and team, or None without a share."""
        return self._most(self._takes(lease), with_it=False)

    def with_claim(self, claim: Claim) -> Fraction | None:
        """Return the same for the user and team of a request, as if it had its GPUs."""
        return self._most(self._takes(claim), with_it=True)

    def give(self, lease: Lease) -> None:
        """Remove a lease."""
        self._add(lease, -1)

    def _most(self, takes: Iterable[tuple[Bound, Fraction]], *, with_it: bool) -> Fraction | None:
        found = []
        for bound, asked in takes:
            held = self._held.get(bound.bucket, NOTHING) + (asked if with_it else NOTHING)
            found.append(held / bound.soft if bound.soft else BEYOND_ALL if held else NOTHING)
        return max(found, default=None)

    def _takes(self, one: Claim | Lease) -> list[tuple[Bound, Fraction]]:
        kind = self._seen.kinds.get((one.kind if isinstance(one, Lease) else one.request.gpu) or "")
        who = who_of(one)
        if who not in self._bounds:
            found = bounds_of(who, self._seen.rules, self._seen.quota_grants, self._seen.now)
            self._bounds[who] = tuple(x for x in found if x.soft is not None and _is_share(x))
        takes = ((bound, amount(bound.limit, one.request, kind)) for bound in self._bounds[who])
        return [(bound, Fraction(much)) for bound, much in takes if much]

    def _add(self, lease: Lease, sign: int) -> None:
        for bound, much in self._takes(lease):
            self._held[bound.bucket] = self._held.get(bound.bucket, NOTHING) + sign * much


def over_share(seen: Snapshot) -> frozenset[str]:
    """Return the ids of the leases whose user or team is over the soft share."""
    standings = Standings(seen)
    used = ((lease.id, standings.used(lease)) for lease in seen.leases if lease.phase in HOLDING)
    return frozenset(name for name, part in used if part is not None and part > 1)


def wishes(seen: Snapshot, waited_for: Iterable[str]) -> Iterable[Wish]:
    """Yield the requests that may claim GPUs now, by the time at which they were made.

    Args:
        seen: everything at one instant. Nothing is yielded where its rules have no ``make_room``.
        waited_for: the leases, by id, that room is made for already.
    """
    rule, asked_for = seen.rules.make_room, frozenset(waited_for)
    if rule is None:
        return
    held_back = {lease.id for lease in seen.leases if lease.held_back is not None or lease.impossible_since is not None}
    for claim in seen.claims:
        kind = claim.request.gpu
        if (
            kind not in seen.kinds
            or claim.id in asked_for | held_back
            or claim.waited_seconds(seen.now) < rule.after_seconds
        ):
            continue
        if claim.not_before > seen.now or not (claim.attended or seen.hub_answers):
            continue
        if givers := _givers(claim, seen):
            yield Wish(claim, givers)


def account_of(claim: Claim) -> Account:
    """Return the account of a request: its user in its team."""
    return Account(claim.request.team, claim.user_created)


def givers_to(asks: Preemption, seen: Snapshot) -> frozenset[str]:
    """Return the ids of further workspaces that may be ended for a preemption that is under way."""
    claim = next((one for one in seen.claims if one.id == asks.lease), None)
    return frozenset() if claim is None else _givers(claim, seen)


def _givers(claim: Claim, seen: Snapshot) -> frozenset[str]:
    """Return the ids of workspaces that may be ended, each as long as its user or team is still over the share."""
    standings, found = Standings(seen), []
    part = standings.with_claim(claim)
    if part is None or part > 1:
        return frozenset()
    kind, count, account = claim.request.gpu or "", claim.request.count, account_of(claim)
    asks = Preemption("", "", kind, count, account, "", "", seen.now)
    for lease in victims(asks, seen, over_share(seen)):
        used = standings.used(lease)
        if lease.notice is None and used is not None and used > max(Fraction(1), part):
            standings.give(lease)
            found.append(lease.id)
    return frozenset(found)


def _is_share(bound: Bound) -> bool:
    return bound.limit.what in OF_SHARE and bound.entry.whom is not Whom.EVERYBODY
