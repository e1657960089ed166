"""Who has used how much lately: what the order of those who are beyond their share goes by.

Use is GPU-seconds, counted as quotas count GPUs. What was used is halved each week. A workspace is charged at its grant
with all it may still use, until its end; what it does not use is given back at its end. So whoever is granted
something goes behind at once, and nobody gains by asking for many small things.

A team's use is divided by its weight. Who is in no team counts as a team of their own, of weight 1.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf, log

from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.leases.lease import HOLDING, Lease, Phase
from gpuspawner.core.queue.charges import HALF_LIFE_SECONDS, decayed_of, rate_of
from gpuspawner.core.queue.ends import end_at
from gpuspawner.core.queue.entries import accounts_of
from gpuspawner.core.queue.kinds import counts_of
from gpuspawner.core.queue.placement import grantable
from gpuspawner.core.queue.snapshot import Claim, Kinds, Snapshot
from gpuspawner.core.rules import Account

WINDOW_SECONDS = HALF_LIFE_SECONDS / log(2)
"""What one GPU that is always in use counts, in GPU-seconds."""


def charge_of(lease: Lease, kinds: Kinds, now: float) -> float:
    """Return the GPU-seconds that a lease is charged with: used so far, and what it may use until its end."""
    if lease.phase not in HOLDING:
        return 0.0
    rate = lease.rate or rate_of(kinds.get(lease.kind or ""), lease.request.count)
    if not rate.gpus:
        return 0.0
    end = end_at(lease, now)
    left = 0.0 if end == inf or lease.phase is Phase.STOPPING else end - now
    return decayed_of(lease if lease.rate else replace(lease, rate=rate), now) + float(rate.gpus) * left


class Uses:
    """What teams and users have used, with what live leases are charged. A pass adds what it grants."""

    def __init__(self, seen: Snapshot) -> None:
        """Count the leases of a snapshot, beside what ended."""
        self._rules = seen.rules
        self._used = dict(seen.accounts.decayed_gpu_seconds)
        self._capacity = sum(grantable(gpu) for gpu in seen.fleet.gpus)
        for lease in seen.leases:
            if charge := charge_of(lease, seen.kinds, seen.now):
                self._charge(lease.request.team, lease.key.user_created, charge)

    def of_team(self, claim: Claim) -> float:
        """Return the use of a claim's team, divided by its weight; its user's where it is charged to no team."""
        team = claim.request.team
        if not team:
            return self._used.get(Account("", claim.user_created), 0.0)
        entry = self._rules.teams.get(team)
        weight = entry.weight if entry is not None else Fraction(1)
        return self._used.get(Account(team, ""), 0.0) / float(weight) if weight > 0 else inf

    def of_user(self, claim: Claim) -> float:
        """Return the use of a claim's user for its team."""
        return self._used.get(Account(claim.request.team, claim.user_created), 0.0)

    def charge(self, claim: Claim, kind: GpuKind | None) -> None:
        """Charge what is granted in this pass."""
        if kind is not None:
            seconds = float(counts_of(kind) * claim.request.count) * claim.request.lifetime_seconds
            self._charge(claim.request.team, claim.user_created, seconds)

    def percent_of_all(self, used: float) -> float:
        """Return a use in percent of what all GPUs that are there could have done."""
        return 100 * used / (self._capacity * WINDOW_SECONDS) if self._capacity else 0.0

    def _charge(self, team: str, user_created: str, seconds: float) -> None:
        for account in accounts_of(user_created, team):
            self._used[account] = self._used.get(account, 0.0) + seconds
