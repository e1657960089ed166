"""Which limits of quotas bind a request or a lease, and how much of each it takes.

A limit bounds the sum of what its entry is in force for (``core.quotas.limits``): what a more specific one binds does
not count in it. Grants of administrators raise soft and hard
limits alike while they last.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import GpuKind, written_name
from gpuspawner.core.gpus.placement import counts_of
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.core.quotas.limits import account_of, entries_in_force, granted
from gpuspawner.core.rules import Account, Limit, Quota, QuotaGrant, Rules, What, Whom

OF_ALL = frozenset({Whom.TEAM, Whom.EVERYBODY})
Amount = Fraction | int
"""How much of a limit. Whole numbers are ints: fractions are slow where thousands are added."""


class Who(NamedTuple):
    """Whose a lease or a claim is: the user's name, their ``created``, and the team that it is charged to."""

    user: str
    user_created: str
    team: str


class Bucket(NamedTuple):
    """One limit of an entry, and whose use it counts."""

    entry: str
    account: Account
    what: What
    kind: str


class Bound(NamedTuple):
    """One limit of an entry that is in force for somebody; ``soft`` and ``hard`` with what was granted on top."""

    entry: Quota
    limit: Limit
    bucket: Bucket
    soft: Amount | None
    hard: Amount | None

    @property
    def of_all(self) -> bool:
        """Whether others count too: a team's entry, or everybody's."""
        return self.entry.whom in OF_ALL


def who_of(one: Claim | Lease) -> Who:
    """Return whose a lease or a claim is."""
    created = one.user_created if isinstance(one, Claim) else one.key.user_created
    return Who(one.user or one.request.user, created, one.request.team)


def bounds_of(who: Who, rules: Rules, grants: Sequence[QuotaGrant], now: float) -> tuple[Bound, ...]:
    """Return the limits in force for somebody."""
    found = []
    for entry in entries_in_force(rules.quotas, who.user, who.team):
        account = account_of(entry, who.user_created, who.team)
        for limit in entry.limits:
            more = granted(grants, account, limit.what, now, limit.kind)
            soft, hard = (None if x is None else _short(x + more) for x in (limit.soft, limit.hard))
            found.append(Bound(entry, limit, Bucket(entry.name, account, limit.what, limit.kind), soft, hard))
    return tuple(found)


def _short(amount: Fraction) -> Amount:
    return amount.numerator if amount.denominator == 1 else amount


def amount(limit: Limit, request: Request, kind: GpuKind | None) -> Amount:
    """Return how much of a limit a request takes with GPUs of this kind; None where its kind left the catalog."""
    if limit.what is What.WORKSPACES:
        return 1
    if limit.what is What.CPU:
        return _short(Fraction(str(request.cpu_cores)))
    if limit.what is What.MEMORY:
        return request.memory_bytes
    if limit.what is What.KIND:
        return request.count if limit.kind == written_name(kind.name if kind else request.gpu or "") else 0
    if kind is None or (kind.counts is None and kind.shares == 1):
        return request.count
    return _short(counts_of(kind) * request.count)
