"""Fair share: how much each team and user has used lately, and preemption between users by their soft quotas.

Usage orders the requests that are beyond their share. It is in GPU seconds, counted as quotas count GPUs. It loses half
of its weight each week. A workspace is charged at its grant with all that it may use until its end, and the unused part
is given back when it ends. A user with a new workspace therefore goes behind others at once, and many small requests
give no advantage. A team's usage is divided by its weight. A user without a team counts as a team of weight 1.

Preemption uses the present number of GPUs. The soft quotas of user and team on GPUs and on the kind are the share. The
limit with the highest quotient of use and share counts. A request may claim GPUs if it stays within its share with
them. A workspace may be ended while its user or team is over the share, and uses more of its share than the claimant
will. So two users cannot take GPUs from each other in turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import GpuKind, Kinds
from gpuspawner.core.gpus.placement import quota_weight
from gpuspawner.core.leases.lease import HOLDING, UP, Lease, Phase
from gpuspawner.core.queue.preemption import Preemption, victims
from gpuspawner.core.queue.snapshot import LEAST_WAIT_SECONDS, Claim, Snapshot, end_at
from gpuspawner.core.quotas.ledger import HALF_LIFE_SECONDS, decayed_gpu_seconds_of, rate_of
from gpuspawner.core.quotas.limits import (
    EffectiveLimit,
    LimitKey,
    Requester,
    accounts_of,
    effective_limits,
    requested_amount,
    requester_of,
)
from gpuspawner.core.rules import Account, LimitedResource, QuotaScope

# --- usage


_BITS = 40
"""Amounts are added as whole numbers of 2**-40. A sum is therefore the same in any order of additions."""
_ONE = 1 << _BITS
_SQUARE = _ONE * _ONE
_LASTS_SECONDS = HALF_LIFE_SECONDS / math.log(2)
"""The decayed usage of one GPU that runs for ever, in seconds."""


def charge_of(lease: Lease, kinds: Kinds, now: float) -> float:
    """Return the GPU seconds of a lease: its use so far, and all that it may use until its end."""
    if lease.phase not in HOLDING:
        return 0.0
    if lease.rate is None:  # an older version granted it
        rate = rate_of(kinds.get(lease.kind or ""), lease.request.count)
        return charge_of(replace(lease, rate=rate), kinds, now)
    gpus, end = float(lease.rate.gpus), end_at(lease, now)
    left = 0.0 if end == inf or lease.phase is Phase.STOPPING else end - now
    return (decayed_gpu_seconds_of(lease, now) + gpus * left) if gpus else 0.0


@dataclass
class _Sum:
    """Sums over the leases of an account: their GPUs, GPUs times end, and GPUs with the decay of their start.

    A run from ``s`` to ``now`` counts as ``c * (1 - 2**((s - now) / half-life))`` seconds. Only ``2**(s / half-life)``
    differs between leases, so a sum of these gives the use of all leases at any time. ``others`` are leases that no sum
    covers.
    """

    gpus: int = 0
    ends: int = 0
    since: int = 0
    others: dict[str, Lease] = field(default_factory=dict)
    leases: int = 0

    def change(self, parts: tuple[int, int, int], sign: int) -> None:
        gpus, ends, since = parts
        self.gpus, self.ends, self.since = self.gpus + sign * gpus, self.ends + sign * ends, self.since + sign * since


class LeaseCharges:
    """The charges of live leases by account, kept as sums that give the charge at any time."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._sums: dict[Account, _Sum] = {}
        self._counted: dict[str, tuple[int, int, int]] = {}
        self._over: list[tuple[float, str]] = []
        """When the sums stop to cover a lease: at its deadline."""
        self._leases: dict[str, Lease] = {}
        self._now = 0.0

    def add(self, lease: Lease, now: float) -> None:
        """Count one more lease that holds something."""
        self._leases[lease.id] = lease
        parts = self._parts(lease, now)
        if parts is not None:
            self._counted[lease.id] = parts
            heappush(self._over, (lease.deadline_at or 0.0, lease.id))
        for account in accounts_of(lease.key.user_created, lease.request.team):
            if (one := self._sums.get(account)) is None:
                one = self._sums[account] = _Sum()
            one.leases += 1
            if parts is None:
                one.others[lease.id] = lease
            else:
                one.change(parts, 1)

    def remove(self, lease: Lease) -> None:
        """Remove a lease."""
        del self._leases[lease.id]
        parts = self._counted.pop(lease.id, None)
        for account in accounts_of(lease.key.user_created, lease.request.team):
            one = self._sums[account]
            if parts is None:
                del one.others[lease.id]
            else:
                one.change(parts, -1)
            one.leases -= 1
            if not one.leases:
                del self._sums[account]

    def go_to(self, now: float) -> None:
        """Move to another time. Leases that the sums do not cover at that time are counted one by one."""
        moved = []
        while self._over and self._over[0][0] < now + LEAST_WAIT_SECONDS:
            moved.append(heappop(self._over)[1])
        if now < self._now:
            moved += (lease.id for lease in self._leases.values() if (lease.unbilled_since or 0.0) > now)
            moved += self._leases.keys() - self._counted.keys()  # after a forecast their time is not over yet
        self._now = now
        for name in moved:
            lease = self._leases.get(name)
            if lease is not None and (name in self._counted) == (self._parts(lease, now) is None):
                self.remove(lease)
                self.add(lease, now)

    def of(self, account: Account, now: float) -> float:
        """Return the charge of an account in GPU seconds."""
        one = self._sums.get(account)
        if one is None:
            return 0.0
        at, weeks, part = _at(now)
        if one.gpus:
            decayed = _shift(one.since, -weeks) / _ONE * part
            found = (one.ends - one.gpus * at) / _SQUARE + _LASTS_SECONDS * (one.gpus - decayed) / _ONE
        else:
            found = 0.0
        if one.others:
            found += sum(charge_of(lease, self._kinds, now) for lease in one.others.values())
        return found

    def _parts(self, lease: Lease, now: float) -> tuple[int, int, int] | None:
        since, end = lease.unbilled_since, lease.deadline_at
        if lease.phase not in UP or lease.rate is None or lease.lost or since is None or end is None:
            return None
        if since > now or end < now + LEAST_WAIT_SECONDS:
            return None
        gpus = round(lease.rate.gpus * _ONE)
        weeks, part = divmod(since / HALF_LIFE_SECONDS, 1.0)
        return gpus, gpus * round(end * _ONE), _shift(gpus * round(math.pow(2.0, part) * _ONE), int(weeks))


@lru_cache(maxsize=4)
def _at(now: float) -> tuple[int, int, float]:
    weeks, part = divmod(now / HALF_LIFE_SECONDS, 1.0)
    return round(now * _ONE), int(weeks), math.pow(2.0, -part)


def _shift(number: int, bits: int) -> int:
    return number << bits if bits >= 0 else number >> -bits


class FairShareUsage:
    """The use of teams and users, live leases included. A pass adds its grants."""

    def __init__(self, seen: Snapshot, charges: LeaseCharges | None = None) -> None:
        self._seen, self._rules = seen, seen.rules
        self._charges, self._used = charges, seen.accounts.decayed_gpu_seconds
        self._granted: dict[Account, float] = {}
        self._known: dict[Account, float] = {}
        self._teams: dict[str, float] = {}
        self._users: dict[tuple[str, str], float] = {}
        self._gpus: dict[tuple[str, int], float] = {}
        """GPUs as quotas count them, by kind and number. Fractions are slow."""

    def _of(self, account: Account) -> float:
        known = self._known.get(account)
        if known is None:
            if self._charges is None:
                self._charges = lease_charges(self._seen)
            used = self._used.get(account, 0.0) if self._used else 0.0
            known = self._known[account] = used + self._charges.of(account, self._seen.now)
        return known + self._granted[account] if account in self._granted else known

    def of_team(self, claim: Claim) -> float:
        """Return the use of a claim's team divided by its weight, or the use of its user if it has no team."""
        team = claim.request.team
        if team in self._teams:
            return self._teams[team]
        if not team:
            return self.of_user(claim)
        entry = self._rules.teams.get(team)
        weight = entry.weight if entry is not None else Fraction(1)
        self._teams[team] = self._of(Account(team, "")) / float(weight) if weight > 0 else inf
        return self._teams[team]

    def of_user(self, claim: Claim) -> float:
        """Return the use of a claim's user for its team."""
        who = claim.request.team, claim.user_created
        if who not in self._users:
            self._users[who] = self._of(Account(*who))
        return self._users[who]

    def charge(self, claim: Claim, kind: GpuKind | None) -> None:
        """Charge a grant of this pass."""
        if kind is not None:
            what = kind.name, claim.request.count
            if what not in self._gpus:
                self._gpus[what] = float(quota_weight(kind) * claim.request.count)
            seconds = self._gpus[what] * claim.request.lifetime_seconds
            self._teams.pop(claim.request.team, None)
            for team in (claim.request.team, ""):
                self._users.pop((team, claim.user_created), None)
            for account in accounts_of(claim.user_created, claim.request.team):
                self._granted[account] = self._granted.get(account, 0.0) + seconds


def lease_charges(seen: Snapshot) -> LeaseCharges:
    """Return the charges of the leases of a snapshot."""
    charges = LeaseCharges(seen.kinds)
    for lease in seen.leases:
        if lease.phase in HOLDING:
            charges.add(lease, seen.now)
    return charges


# --- preemption by fair share


NO_USAGE = Fraction(0)
BEYOND_ALL = Fraction(10**9)
"""The quotient of use and share for a user with a share of 0."""
SHARED_RESOURCES = frozenset({LimitedResource.GPUS, LimitedResource.KIND})


class RoomRequest(NamedTuple):
    """A request that has waited long enough, and the ids of the workspaces that may be ended for it."""

    claim: Claim
    candidates: frozenset[str]


class ShareUsage:
    """Use divided by share, by user and team."""

    def __init__(self, seen: Snapshot) -> None:
        self._seen = seen
        self._bounds: dict[Requester, tuple[EffectiveLimit, ...]] = {}
        self._held: dict[LimitKey, Fraction] = {}
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

    def _most(self, takes: Iterable[tuple[EffectiveLimit, Fraction]], *, with_it: bool) -> Fraction | None:
        found = []
        for bound, asked in takes:
            held = self._held.get(bound.limit_key, NO_USAGE) + (asked if with_it else NO_USAGE)
            found.append(held / bound.soft if bound.soft else BEYOND_ALL if held else NO_USAGE)
        return max(found, default=None)

    def _takes(self, one: Claim | Lease) -> list[tuple[EffectiveLimit, Fraction]]:
        kind = self._seen.kinds.get((one.kind if isinstance(one, Lease) else one.request.gpu) or "")
        who = requester_of(one)
        if who not in self._bounds:
            found = effective_limits(who, self._seen.rules, self._seen.quota_grants, self._seen.now)
            self._bounds[who] = tuple(x for x in found if x.soft is not None and _is_share(x))
        takes = ((bound, requested_amount(bound.limit, one.request, kind)) for bound in self._bounds[who])
        return [(bound, Fraction(much)) for bound, much in takes if much]

    def _add(self, lease: Lease, sign: int) -> None:
        for bound, much in self._takes(lease):
            self._held[bound.limit_key] = self._held.get(bound.limit_key, NO_USAGE) + sign * much


def over_share(seen: Snapshot) -> frozenset[str]:
    """Return the ids of the leases whose user or team is over the soft share."""
    standings = ShareUsage(seen)
    used = ((lease.id, standings.used(lease)) for lease in seen.leases if lease.phase in HOLDING)
    return frozenset(name for name, part in used if part is not None and part > 1)


def room_requests(seen: Snapshot, waited_for: Iterable[str]) -> Iterable[RoomRequest]:
    """Yield the requests that may claim GPUs now, the oldest first, if the rules have ``make_room``.

    Args:
        seen: everything at one instant.
        waited_for: the ids of leases that a claim was made for already.
    """
    rule, asked_for = seen.rules.make_room, frozenset(waited_for)
    if rule is None:
        return
    blocked = {lease.id for lease in seen.leases if lease.wait_reason is not None or lease.impossible_since is not None}
    for claim in seen.claims:
        kind = claim.request.gpu
        if (
            kind not in seen.kinds
            or claim.id in asked_for | blocked
            or claim.waited_seconds(seen.now) < rule.after_seconds
        ):
            continue
        if claim.not_before > seen.now or not (claim.attended or seen.hub_answers):
            continue
        if candidates := _givers(claim, seen):
            yield RoomRequest(claim, candidates)


def claim_account(claim: Claim) -> Account:
    """Return the account of a request: its user in its team."""
    return Account(claim.request.team, claim.user_created)


def further_candidates(asks: Preemption, seen: Snapshot) -> frozenset[str]:
    """Return the ids of further workspaces that may be ended for a preemption that is under way."""
    claim = next((one for one in seen.claims if one.id == asks.lease), None)
    return frozenset() if claim is None else _givers(claim, seen)


def _givers(claim: Claim, seen: Snapshot) -> frozenset[str]:
    standings, found = ShareUsage(seen), []
    part = standings.with_claim(claim)
    if part is None or part > 1:
        return frozenset()
    kind, count, account = claim.request.gpu or "", claim.request.count, claim_account(claim)
    asks = Preemption("", "", kind, count, account, "", "", seen.now)
    for lease in victims(asks, seen, over_share(seen)):
        used = standings.used(lease)
        if lease.notice is None and used is not None and used > max(Fraction(1), part):
            standings.give(lease)
            found.append(lease.id)
    return frozenset(found)


def _is_share(bound: EffectiveLimit) -> bool:
    return bound.limit.what in SHARED_RESOURCES and bound.entry.whom is not QuotaScope.EVERYBODY
