"""Whether budgets leave those who wait enough to start: for the pass that grants, and for estimates."""

from __future__ import annotations

from collections.abc import Iterable

from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.budgets import Asker, Balances, Verdict, least_seconds, refusal
from gpuspawner.core.quotas.ledger import rate_of


class Purse:
    """What budgets leave claims. What a pass grants is taken from it."""

    def __init__(self, seen: Snapshot, balances: Balances | None = None) -> None:
        """Count what a snapshot's leases use and set aside. A forecast keeps ``balances`` from one pass to the next."""
        self._seen = seen
        self._balances = balances or Balances(seen.now, seen.leases, seen.rules, seen.accounts, seen.quota_grants)

    @property
    def binds(self) -> bool:
        """Whether there are budgets."""
        return bool(self._balances.bind)

    def held_back(self, claim: Claim, kind: GpuKind | None) -> tuple[str, str] | None:
        """Return the budget that leaves a claim too little now, as a rule and its sentence; None where none does."""
        verdict = self._short(claim, kind)
        if verdict is None or verdict.balance is None:
            return None
        limit, remedy = refusal(verdict, 0, self._seen.rules.contact, self._seen.now)
        return f"budget {verdict.balance.entry.name}", f"{limit}. {remedy}"

    def opens_at(self, claim: Claim, kinds: Iterable[GpuKind | None]) -> float:
        """Return when a claim may start by its budgets with one of these kinds: now, or once the period renews."""
        found = [self._short(claim, kind) for kind in kinds]
        return min(
            (self._seen.now if one is None or one.balance is None else one.balance.period.end for one in found),
            default=self._seen.now,
        )

    def take(self, claim: Claim, kind: GpuKind | None) -> None:
        """Set aside what a claim takes that is granted in this pass."""
        if self._balances.bind:
            rate, seconds = rate_of(kind, claim.request.count), float(claim.request.lifetime_seconds)
            self._balances.take(claim.id, _asker(claim), rate, self._seen.now, seconds)

    def _short(self, claim: Claim, kind: GpuKind | None) -> Verdict | None:
        """Return what budgets leave a claim where that is too little to start."""
        if not self._balances.bind:
            return None
        seen, request = self._seen, claim.request
        rate, seconds = rate_of(kind, request.count), float(request.lifetime_seconds)
        verdict = self._balances.verdict(_asker(claim), rate, seen.now, seconds)
        is_short = verdict.balance is not None and verdict.seconds < least_seconds(0, seconds, seen.fast)
        return verdict if is_short else None


def _asker(claim: Claim) -> Asker:
    return Asker(claim.user or claim.request.user, claim.user_created, claim.request.team)
