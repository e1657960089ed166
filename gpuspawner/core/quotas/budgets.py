"""Budgets: what of them is used, set aside and left, and until when a workspace may run by them.

What has ended is in the ledger; what runs is counted from its lease, never stored: what it used so far, and what it may
still use until its end, which is set aside for it. So nothing leaks, and what was not used returns by itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import HOUR_MS, TimeSpan, milliseconds, period_of, show_moment
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.ledger import BUDGET_RULE, amount_per_hour, charged_ms, rate_of
from gpuspawner.core.quotas.limits import (
    Requester,
    accounts_bound_elsewhere,
    accounts_of,
    counted_account,
    entries_in_force,
    granted_amount,
    requester_of,
)
from gpuspawner.core.rules import (
    Account,
    Accounts,
    Budget,
    BudgetUnit,
    LatestEnd,
    Quota,
    QuotaGrant,
    QuotaScope,
    Rate,
    Rules,
)
from gpuspawner.core.units import show_money, show_time

LEAST_SECONDS = 600.0
"""Less than this is given to no workspace: it is started or extended for some use, or not at all."""


_NONE = Fraction(0)


@dataclass(frozen=True)
class BudgetBalance:
    """Where one budget stands in one period, for those whose use ``account`` counts. In GPU hours or money.

    ``used`` is what ended workspaces used and those that run so far, ``added`` what grants add to soft and hard.
    """

    entry: Quota
    budget: Budget
    account: Account
    period: TimeSpan
    used: Fraction
    reserved: Fraction
    added: Fraction
    zone: ZoneInfo
    currency: str = ""
    rate: Fraction = Fraction(0)
    """What runs and starts now takes an hour, where that was asked for."""

    @property
    def hard(self) -> Fraction | None:
        """The most, with what grants add; None for no bound."""
        return None if self.budget.hard is None else self.budget.hard + self.added

    @property
    def soft(self) -> Fraction | None:
        """The share, with what grants add; None for no bound."""
        return None if self.budget.soft is None else self.budget.soft + self.added

    @cached_property
    def left(self) -> Fraction | None:
        """What may still be set aside; None for no bound."""
        return None if self.hard is None else max(Fraction(0), self.hard - self.used - self.reserved)

    def renews(self, now: float) -> str:
        """Return when the next period begins, as people read it."""
        return show_moment(self.period.end, now, self.zone)

    def lasts_until(self, now: float) -> float | None:
        """Return when it is used up at the present use; None where it renews before that."""
        if self.hard is None or not self.rate:
            return None
        at = now + float(max(Fraction(0), self.hard - self.used) / self.rate) * 3600
        return at if at < self.period.end else None


@dataclass(frozen=True)
class BudgetVerdict:
    """What budgets allow a start, or an extension.

    Args:
        seconds: for how long it may run of what was asked.
        latest_end: the bound on its end; None where it may run as long as it asked.
        balance: the budget that bounds it, in the period in which it does.
    """

    seconds: float
    latest_end: LatestEnd | None = None
    balance: BudgetBalance | None = None


@dataclass(frozen=True)
class _Live:
    rate: Rate
    start_ms: int
    """Its use from then on is set aside."""
    end_ms: int
    lease: Lease | None = None
    """None for a claim that a pass grants."""


class BudgetBalances:
    """Every budget at one instant. What a pass grants is added to it: the next one sees it set aside."""

    def __init__(
        self,
        now: float,
        leases: Iterable[Lease],
        rules: Rules,
        accounts: Accounts,
        grants: Sequence[QuotaGrant] = (),
    ) -> None:
        self.now, self.zone = now, ZoneInfo(rules.timezone)
        self._rules, self._accounts, self._grants = rules, accounts, grants
        self._now_ms = milliseconds(now)
        self._live: dict[Account, dict[str, _Live]] = defaultdict(dict)
        self._sums: dict[Account, dict[tuple[BudgetUnit, TimeSpan], tuple[Fraction, Fraction]]] = defaultdict(dict)
        self._stands: dict[tuple[int, int, Account, int], BudgetBalance] = {}
        """What was worked out since the last change, by what an entry and its budget are: all ask for everybody's."""
        self._whoms = {entry.whom for entry in rules.quotas if entry.budgets}
        self.bind = bool(self._whoms)
        """Whether there is any."""
        for lease in leases if self.bind else ():
            self.add(lease)

    def add(self, lease: Lease) -> None:
        """Count one more lease, which holds what it was granted."""
        end = expected_end(lease, self.now)
        if lease.rate is None or end is None:
            return
        start_ms = max(self._now_ms, milliseconds(self.now if lease.running_at is None else lease.running_at))
        live = _Live(lease.rate, start_ms, max(self._now_ms, milliseconds(end)), lease)
        self._count(lease.id, live, lease.key.user_created, lease.request.team)

    def remove(self, lease: Lease) -> None:
        """Count a lease no more."""
        for account in accounts_of(lease.key.user_created, lease.request.team):
            live = self._live[account].pop(lease.id, None) if account in self._live else None
            if live is not None:
                self._change_sums(account, live, -1)

    def take(self, name: str, asker: Requester, rate: Rate, start: float, seconds: float) -> None:
        """Count what a pass grants to the lease of this id: it is set aside, as far as the budgets leave it."""
        seconds = self.verdict(asker, rate, start, seconds).seconds
        live = _Live(rate, milliseconds(start), milliseconds(start + seconds))
        self._count(name, live, asker.user_created, asker.team)

    def _count(self, name: str, live: _Live, user_created: str, team: str) -> None:
        for account in accounts_of(user_created, team):
            if not self._whoms.isdisjoint(_COUNTED_BY[bool(account.team), bool(account.user_created)]):
                self._live[account][name] = live
                self._change_sums(account, live, 1)

    def _change_sums(self, account: Account, live: _Live, sign: int) -> None:
        self._stands.clear()
        sums = self._sums[account]
        for (used, period), (so_far, aside) in sums.items():
            more_so_far, more_aside = self._uses([live], used, period)
            sums[used, period] = so_far + sign * more_so_far, aside + sign * more_aside

    def of(self, asker: Requester, at: float | None = None) -> list[BudgetBalance]:
        """Return where the budgets that bind somebody stand, in the periods of a time (None: of now)."""
        at_ms = self._now_ms if at is None else milliseconds(at)
        return [
            replace(balance, rate=self._rate(balance))
            for entry in entries_in_force(self._rules.quotas, asker.user, asker.team)
            for budget in entry.budgets
            for balance in [self._balance(entry, budget, counted_account(entry, asker.user_created, asker.team), at_ms)]
        ]

    def _rate(self, balance: BudgetBalance) -> Fraction:
        others = accounts_bound_elsewhere(self._rules.quotas, balance.entry, balance.account.user_created)
        parts = [(1, balance.account), *((-1, other) for other in others)]
        takes = (
            sign * amount_per_hour(one.rate, balance.budget.what)
            for sign, which in parts
            for one in self._live[which].values()
        )
        return sum(takes, _NONE)

    def verdict(self, asker: Requester, rate: Rate, start: float, seconds: float) -> BudgetVerdict:
        """Return for how long what takes ``rate`` may run from a start (now or later), of the ``seconds`` asked.

        Past the end of a period it goes on with the next one's budget, less what is set aside there.
        """
        found = BudgetVerdict(seconds)
        for entry in entries_in_force(self._rules.quotas, asker.user, asker.team):
            account = counted_account(entry, asker.user_created, asker.team)
            for budget in entry.budgets:
                takes = amount_per_hour(rate, budget.what)
                if budget.hard is not None and takes:
                    found = self._shorter(found, (entry, budget, account), takes, start)
        return found

    def _shorter(
        self, found: BudgetVerdict, which: tuple[Quota, Budget, Account], per_hour_taken: Fraction, start: float
    ) -> BudgetVerdict:
        at_ms = start_ms = milliseconds(start)
        end_ms = milliseconds(start + found.seconds)
        while at_ms < end_ms:
            balance = self._balance(*which, at_ms)
            left_ms = math.floor((balance.left or 0) * HOUR_MS / per_hour_taken)
            until_ms = min(end_ms, balance.period.end_ms)
            if at_ms + left_ms < until_ms:
                end = (at_ms + left_ms) / 1000
                words = f"ends at {show_time(end, self.now)}, when {budget_text(balance, self.now)} are used up"
                bound = LatestEnd(end, BUDGET_RULE, words, which[0].name)
                return BudgetVerdict((at_ms + left_ms - start_ms) / 1000, bound, balance)
            at_ms = until_ms
        return found

    def _balance(self, entry: Quota, budget: Budget, account: Account, at_ms: int) -> BudgetBalance:
        which = id(entry), id(budget), account, at_ms
        if which not in self._stands:
            self._stands[which] = self._worked_out(entry, budget, account, at_ms)
        return self._stands[which]

    def _worked_out(self, entry: Quota, budget: Budget, account: Account, at_ms: int) -> BudgetBalance:
        period = period_of(at_ms, budget.per, self.zone)
        used, reserved = self._counted(account, budget, period)
        for other in accounts_bound_elsewhere(self._rules.quotas, entry, account.user_created):
            less_used, less_aside = self._counted(other, budget, period)
            used, reserved = used - less_used, reserved - less_aside
        added = granted_amount(self._grants, account, budget.what, max(self.now, period.start))
        return BudgetBalance(entry, budget, account, period, used, reserved, added, self.zone, self._rules.currency)

    def _counted(self, account: Account, budget: Budget, period: TimeSpan) -> tuple[Fraction, Fraction]:
        used, reserved = self._sum(account, budget.what, period)
        if period.start_ms <= self._now_ms < period.end_ms:
            used += self._accounts.charged.get((account, budget.what, budget.per), 0)
        return used, reserved

    def _sum(self, account: Account, used: BudgetUnit, period: TimeSpan) -> tuple[Fraction, Fraction]:
        if account not in self._live:
            return _NONE, _NONE
        sums = self._sums[account]
        if (used, period) not in sums:
            sums[used, period] = self._uses(self._live[account].values(), used, period)
        return sums[used, period]

    def _uses(self, live: Iterable[_Live], used: BudgetUnit, period: TimeSpan) -> tuple[Fraction, Fraction]:
        so_far: dict[tuple[int, int], Fraction | int] = defaultdict(int)
        aside: dict[tuple[int, int], int] = defaultdict(int)
        for one in live:
            takes = amount_per_hour(one.rate, used).as_integer_ratio()
            aside[takes] += period.overlap(one.start_ms, one.end_ms)
            if one.lease is not None and one.lease.phase in UP:
                so_far[takes] += charged_ms(one.lease, self._now_ms, period)
        return _hours(so_far), _hours(aside)


_COUNTED_BY = {
    (False, False): {QuotaScope.EVERYBODY},
    (True, False): {QuotaScope.TEAM},
    (False, True): {QuotaScope.USER, QuotaScope.EACH_USER},
    (True, True): {QuotaScope.EACH_OF_TEAM},
}
"""Which entries count the use of an account, by whether it is a team's, and a user's."""


def _hours(number_ms: Mapping[tuple[int, int], Fraction | int]) -> Fraction:
    return sum((Fraction(*takes) * ms for takes, ms in number_ms.items()), _NONE) / HOUR_MS


def expected_end(lease: Lease, now: float) -> float | None:
    """Return when a lease that holds something stops being charged, as things are; None where it holds nothing.

    One that starts runs its whole time from when it does, at the earliest now. One without a deadline has no end, and
    nothing is set aside for it.
    """
    if lease.phase in UP:
        return now if lease.deadline_at is None else lease.deadline_at
    if lease.phase not in {Phase.RESERVED, Phase.STARTING}:
        return None
    seconds = float(lease.request.lifetime_seconds)
    bound = lease.latest_end
    if bound is not None and bound.rule == BUDGET_RULE and lease.granted_at is not None:
        return now + min(seconds, bound.at - lease.granted_at)
    return min(now + seconds, bound.at) if bound is not None else now + seconds


def with_latest_end(lease: Lease, by_budget: LatestEnd | None) -> Lease:
    """Return a lease with the earlier of a budget's bound and the one that another rule fixed at its grant."""
    bounds = [one for one in (lease.fixed_end, by_budget) if one is not None]
    return replace(lease, latest_end=min(bounds, key=lambda one: one.at, default=None))


def min_start_seconds(template_least: float, asked: float, fast: float = 1.0) -> float:
    """Return how long a start must be able to run: the template's least lifetime, and ten minutes unless it asks less.

    ``fast`` is the factor by which all times were shortened.
    """
    return max(template_least, min(LEAST_SECONDS / fast, asked))


def budget_text(balance: BudgetBalance, now: float, share: Fraction | None = None) -> str:
    """Return a budget, or a share of it, as people read it: ``your 40 GPU h of this week``."""
    whose = {QuotaScope.TEAM: f"{balance.entry.subject}'s", QuotaScope.EVERYBODY: "everybody's"}.get(
        balance.entry.whom, "your"
    )
    return f"{whose} {budget_amount_text(share or balance.hard or _NONE, balance)} of {period_text(balance, now)}"


def period_text(balance: BudgetBalance, now: float) -> str:
    """Return which period a balance is of: ``this week``, or ``the week from Mon 30 Nov 00:00``."""
    per, period = balance.budget.per.value, balance.period
    if period.start <= now < period.end:
        return "today" if per == "day" else f"this {per}"
    return f"the {per} from {show_moment(period.start, now, balance.zone)}"


def budget_amount_text(value: Fraction, balance: BudgetBalance) -> str:
    """Return an amount of a budget as people read it: ``39.9 GPU h``, ``CHF 120.00``."""
    if balance.budget.what is BudgetUnit.GPU_HOURS:
        return gpu_hours_text(value)
    return show_money(float(value), balance.currency)


def gpu_hours_text(value: Fraction) -> str:
    """Return GPU hours as people read them: ``39.9 GPU h``."""
    return f"{decimal_text(value)} GPU h"


def decimal_text(value: Fraction) -> str:
    """Return a number with one decimal at most; a little is never shown as none."""
    if 0 < value < Fraction(1, 20):
        return "less than 0.1"
    return f"{float(value):.1f}".removesuffix(".0")


def budget_refusal(verdict: BudgetVerdict, fewer: int, contact: str, now: float) -> tuple[str, str]:
    """Return the limit and the remedy of a start that a budget leaves too little for.

    ``fewer`` is for how many GPUs it would be enough, 0 where for none; ``contact`` whom to ask for more.
    """
    balance = verdict.balance
    if balance is None:
        raise ValueError("nothing bounds it")
    left, used, aside = (
        budget_amount_text(value, balance) for value in (balance.left or _NONE, balance.used, balance.reserved)
    )
    limit = f"{left} of {budget_text(balance, now)} are left ({used} used, {aside} set aside for what runs)"
    less = f"Ask for {fewer}, stop" if fewer else "Stop"
    remedy = (
        f"They renew {balance.renews(now)}. {less} what you do not need, or ask "
        f"{contact or 'an administrator'} for more."
    )
    return limit, remedy


class ClaimBudgets:
    """What budgets leave claims. What a pass grants is taken from it."""

    def __init__(self, seen: Snapshot, balances: BudgetBalances | None = None) -> None:
        self._seen = seen
        self._balances = balances or BudgetBalances(seen.now, seen.leases, seen.rules, seen.accounts, seen.quota_grants)

    def held_back(self, claim: Claim, kind: GpuKind | None) -> tuple[str, str] | None:
        """Return the budget that leaves a claim too little now, as a rule and its sentence; None where none does."""
        verdict = self._short(claim, kind)
        if verdict is None or verdict.balance is None:
            return None
        limit, remedy = budget_refusal(verdict, 0, self._seen.rules.contact, self._seen.now)
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
            self._balances.take(claim.id, requester_of(claim), rate, self._seen.now, seconds)

    def _short(self, claim: Claim, kind: GpuKind | None) -> BudgetVerdict | None:
        if not self._balances.bind:
            return None
        seen, request = self._seen, claim.request
        rate, seconds = rate_of(kind, request.count), float(request.lifetime_seconds)
        verdict = self._balances.verdict(requester_of(claim), rate, seen.now, seconds)
        is_short = verdict.balance is not None and verdict.seconds < min_start_seconds(0, seconds, seen.fast)
        return verdict if is_short else None
