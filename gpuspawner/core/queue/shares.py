"""Who has used how much lately: what the order of those who are beyond their share goes by.

Use is GPU-seconds, counted as quotas count GPUs. What was used is halved each week. A workspace is charged at its grant
with all it may still use, until its end; what it does not use is given back at its end. So whoever is granted
something goes behind at once, and nobody gains by asking for many small things.

A team's use is divided by its weight. Who is in no team counts as a team of their own, of weight 1.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from math import inf

from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.leases.lease import HOLDING, Lease, Phase
from gpuspawner.core.placement.kinds import counts_of
from gpuspawner.core.queue.ends import end_at
from gpuspawner.core.queue.snapshot import Claim, Kinds, Snapshot
from gpuspawner.core.quotas.charges import decayed_of, rate_of
from gpuspawner.core.quotas.entries import accounts_of
from gpuspawner.core.rules import Account


def charge_of(lease: Lease, kinds: Kinds, now: float) -> float:
    """Return the GPU-seconds that a lease is charged with: used so far, and what it may use until its end."""
    if lease.phase not in HOLDING:
        return 0.0
    if lease.rate is None:  # an older version granted it
        rate = rate_of(kinds.get(lease.kind or ""), lease.request.count)
        return charge_of(replace(lease, rate=rate), kinds, now)
    gpus, end = float(lease.rate.gpus), end_at(lease, now)
    left = 0.0 if end == inf or lease.phase is Phase.STOPPING else end - now
    return (decayed_of(lease, now) + gpus * left) if gpus else 0.0


class Uses:
    """What teams and users have used, with what live leases are charged. A pass adds what it grants."""

    def __init__(self, seen: Snapshot) -> None:
        """Take the leases of a snapshot, beside what ended; they are counted once somebody asks."""
        self._seen, self._rules = seen, seen.rules
        self._granted: dict[Account, float] = {}

    @cached_property
    def _used(self) -> dict[Account, float]:
        seen = self._seen
        used = dict(seen.accounts.decayed_gpu_seconds)
        for lease in seen.leases:
            if charge := charge_of(lease, seen.kinds, seen.now):
                _charge(used, lease.request.team, lease.key.user_created, charge)
        return used

    def _of(self, account: Account) -> float:
        return self._used.get(account, 0.0) + self._granted.get(account, 0.0)

    def of_team(self, claim: Claim) -> float:
        """Return the use of a claim's team, divided by its weight; its user's where it is charged to no team."""
        team = claim.request.team
        if not team:
            return self._of(Account("", claim.user_created))
        entry = self._rules.teams.get(team)
        weight = entry.weight if entry is not None else Fraction(1)
        return self._of(Account(team, "")) / float(weight) if weight > 0 else inf

    def of_user(self, claim: Claim) -> float:
        """Return the use of a claim's user for its team."""
        return self._of(Account(claim.request.team, claim.user_created))

    def charge(self, claim: Claim, kind: GpuKind | None) -> None:
        """Charge what is granted in this pass."""
        if kind is not None:
            seconds = float(counts_of(kind) * claim.request.count) * claim.request.lifetime_seconds
            _charge(self._granted, claim.request.team, claim.user_created, seconds)


def _charge(used: dict[Account, float], team: str, user_created: str, seconds: float) -> None:
    for account in accounts_of(user_created, team):
        used[account] = used.get(account, 0.0) + seconds
