"""Budgets: their use, the reserved amounts, the rest, and how long a workspace may run within them.

The ledger has the use of ended workspaces. The use of running ones is computed from their leases and never stored: the
use so far, and the amount that is reserved until their end. So nothing leaks, and an unused amount returns by itself.
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
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.ledger import BUDGET_RULE, amount_per_hour, charged_ms, expected_end, rate_of
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
"""The least time that a start or an extension gets, because less is of no use."""


_NONE = Fraction(0)


@dataclass(frozen=True)
class BudgetBalance:
    """The balance of one budget in one period for the usage of ``account``, in GPU hours or money.

    ``used`` is the use of ended and running workspaces. ``added`` is what grants add to soft and hard.
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
    """The use per hour of workspaces that run or start now, if it was asked for."""

    @property
    def hard(self) -> Fraction | None:
        """The maximum with the amounts that grants add, or None."""
        return None if self.budget.hard is None else self.budget.hard + self.added

    @property
    def soft(self) -> Fraction | None:
        """The share with the amounts that grants add, or None."""
        return None if self.budget.soft is None else self.budget.soft + self.added

    @cached_property
    def left(self) -> Fraction | None:
        """The amount that may still be reserved, or None without a maximum."""
        return None if self.hard is None else max(Fraction(0), self.hard - self.used - self.reserved)

    def renews(self, now: float) -> str:
        """Return the beginning of the next period for display."""
        return show_moment(self.period.end, now, self.zone)

    def lasts_until(self, now: float) -> float | None:
        """Return when it is used up at the present rate. None: the next period begins before."""
        if self.hard is None or not self.rate:
            return None
        at = now + float(max(Fraction(0), self.hard - self.used) / self.rate) * 3600
        return at if at < self.period.end else None


@dataclass(frozen=True)
class BudgetVerdict:
    """The time that budgets allow a start or an extension.

    Args:
        seconds: the allowed part of the requested time.
        latest_end: the bound on the end, or None if the whole time is allowed.
        balance: the budget that bounds it, in the period in which it does.
    """

    seconds: float
    latest_end: LatestEnd | None = None
    balance: BudgetBalance | None = None


@dataclass(frozen=True)
class _Live:
    rate: Rate
    start_ms: int
    """The use from this time on is reserved."""
    end_ms: int
    lease: Lease | None = None
    """None for a request that a pass grants."""


class BudgetBalances:
    """All budgets at one instant. A pass adds the amounts that its grants reserve."""

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
        self._known_balances: dict[tuple[int, int, Account, int], BudgetBalance] = {}
        """Results since the last change. Many requests ask for the same budget."""
        self._whoms = {entry.whom for entry in rules.quotas if entry.budgets}
        self.bind = bool(self._whoms)
        """Whether there are budgets."""
        for lease in leases if self.bind else ():
            self.add(lease)

    def add(self, lease: Lease) -> None:
        """Add a lease that holds something."""
        end = expected_end(lease, self.now)
        if lease.rate is None or end is None:
            return
        start_ms = max(self._now_ms, milliseconds(self.now if lease.running_at is None else lease.running_at))
        live = _Live(lease.rate, start_ms, max(self._now_ms, milliseconds(end)), lease)
        self._count(lease.id, live, lease.key.user_created, lease.request.team)

    def remove(self, lease: Lease) -> None:
        """Remove a lease."""
        for account in accounts_of(lease.key.user_created, lease.request.team):
            live = self._live[account].pop(lease.id, None) if account in self._live else None
            if live is not None:
                self._change_sums(account, live, -1)

    def take(self, name: str, asker: Requester, rate: Rate, start: float, seconds: float) -> None:
        """Reserve the amount of a grant under a lease id, as far as the budgets allow."""
        seconds = self.verdict(asker, rate, start, seconds).seconds
        live = _Live(rate, milliseconds(start), milliseconds(start + seconds))
        self._count(name, live, asker.user_created, asker.team)

    def _count(self, name: str, live: _Live, user_created: str, team: str) -> None:
        for account in accounts_of(user_created, team):
            if not self._whoms.isdisjoint(_COUNTED_BY[bool(account.team), bool(account.user_created)]):
                self._live[account][name] = live
                self._change_sums(account, live, 1)

    def _change_sums(self, account: Account, live: _Live, sign: int) -> None:
        self._known_balances.clear()
        sums = self._sums[account]
        for (used, period), (so_far, reserved) in sums.items():
            more_so_far, more_reserved = self._uses([live], used, period)
            sums[used, period] = so_far + sign * more_so_far, reserved + sign * more_reserved

    def of(self, asker: Requester, at: float | None = None) -> list[BudgetBalance]:
        """Return the balances of all budgets that bind a user, in the periods of a time (default: now)."""
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
        """Return how long a workspace with this rate may run from ``start``, at most ``seconds``.

        After the end of a period the next one's budget applies, less the amount that is reserved there.
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
        if which not in self._known_balances:
            self._known_balances[which] = self._compute_balance(entry, budget, account, at_ms)
        return self._known_balances[which]

    def _compute_balance(self, entry: Quota, budget: Budget, account: Account, at_ms: int) -> BudgetBalance:
        period = period_of(at_ms, budget.per, self.zone)
        used, reserved = self._counted(account, budget, period)
        for other in accounts_bound_elsewhere(self._rules.quotas, entry, account.user_created):
            less_used, less_reserved = self._counted(other, budget, period)
            used, reserved = used - less_used, reserved - less_reserved
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
        reserved: dict[tuple[int, int], int] = defaultdict(int)
        for one in live:
            takes = amount_per_hour(one.rate, used).as_integer_ratio()
            reserved[takes] += period.overlap(one.start_ms, one.end_ms)
            if one.lease is not None and one.lease.phase in UP:
                so_far[takes] += charged_ms(one.lease, self._now_ms, period)
        return _hours(so_far), _hours(reserved)


_COUNTED_BY = {
    (False, False): {QuotaScope.EVERYBODY},
    (True, False): {QuotaScope.TEAM},
    (False, True): {QuotaScope.USER, QuotaScope.EACH_USER},
    (True, True): {QuotaScope.EACH_OF_TEAM},
}
"""The scopes of entries that count an account, by whether it has a team and a user."""


def _hours(number_ms: Mapping[tuple[int, int], Fraction | int]) -> Fraction:
    return sum((Fraction(*takes) * ms for takes, ms in number_ms.items()), _NONE) / HOUR_MS


def with_latest_end(lease: Lease, by_budget: LatestEnd | None) -> Lease:
    """Return a lease bound by its budget or by the rule of its grant, whichever is earlier."""
    bounds = [one for one in (lease.fixed_end, by_budget) if one is not None]
    return replace(lease, latest_end=min(bounds, key=lambda one: one.at, default=None))


def min_start_seconds(template_least: float, asked: float, fast: float = 1.0) -> float:
    """Return the least run time of a start: the template's, and ten minutes unless it asks for less.

    ``fast`` is the factor by which all times were shortened.
    """
    return max(template_least, min(LEAST_SECONDS / fast, asked))


def budget_text(balance: BudgetBalance, now: float, share: Fraction | None = None) -> str:
    """Return a budget, or a share of it, for display: ``your 40 GPU hours this week``."""
    whose = {QuotaScope.TEAM: f"{balance.entry.subject}'s", QuotaScope.EVERYBODY: "everybody's"}.get(
        balance.entry.whom, "your"
    )
    return f"{whose} {budget_amount_text(share or balance.hard or _NONE, balance)} {period_text(balance, now)}"


def period_text(balance: BudgetBalance, now: float) -> str:
    """Return the period of a balance for display: ``this week``, or ``of the week from Mon 30 Nov 00:00``."""
    per, period = balance.budget.per.value, balance.period
    if period.start <= now < period.end:
        return "today" if per == "day" else f"this {per}"
    return f"of the {per} from {show_moment(period.start, now, balance.zone)}"


def budget_amount_text(value: Fraction, balance: BudgetBalance) -> str:
    """Return an amount of a budget for display: ``39.9 GPU hours``, ``CHF 120.00``."""
    if balance.budget.what is BudgetUnit.GPU_HOURS:
        return gpu_hours_text(value)
    return show_money(float(value), balance.currency)


def bare_amount_text(value: Fraction, balance: BudgetBalance) -> str:
    """Return an amount without the unit of GPU hours, which the budget names: ``39.9``, ``CHF 120.00``."""
    if balance.budget.what is BudgetUnit.GPU_HOURS:
        return decimal_text(value)
    return show_money(float(value), balance.currency)


def gpu_hours_text(value: Fraction) -> str:
    """Return GPU hours for display: ``39.9 GPU hours``."""
    return f"{decimal_text(value)} GPU hour{'' if value == 1 else 's'}"


def decimal_text(value: Fraction) -> str:
    """Return a number with one decimal. A small number is not shown as 0."""
    if 0 < value < Fraction(1, 20):
        return "less than 0.1"
    return f"{float(value):.1f}".removesuffix(".0")


def budget_refusal(verdict: BudgetVerdict, fewer: int, contact: str, now: float) -> tuple[str, str]:
    """Return the limit and the remedy for a start that a budget does not allow.

    ``fewer`` is the number of GPUs that it would allow, or 0. ``contact`` is for users who need more.
    """
    balance = verdict.balance
    if balance is None:
        raise ValueError("nothing bounds it")
    left, used, reserved = (
        bare_amount_text(value, balance) for value in (balance.left or _NONE, balance.used, balance.reserved)
    )
    limit = f"{left} of {budget_text(balance, now)} are left ({used} used, {reserved} reserved by running workspaces)"
    less = f"Ask for {fewer}, stop" if fewer else "Stop"
    remedy = (
        f"They reset {balance.renews(now)}. {less} what you do not need, or ask "
        f"{contact or 'an administrator'} for more."
    )
    return limit, remedy


class ClaimBudgets:
    """The budgets of waiting requests. A pass takes the amounts of its grants from them."""

    def __init__(self, seen: Snapshot, balances: BudgetBalances | None = None) -> None:
        self._seen = seen
        self._balances = balances or BudgetBalances(seen.now, seen.leases, seen.rules, seen.accounts, seen.quota_grants)

    def wait_reason(self, claim: Claim, kind: GpuKind | None) -> tuple[str, str] | None:
        """Return the rule and the sentence of the budget that does not allow a request now, or None."""
        verdict = self._short(claim, kind)
        if verdict is None or verdict.balance is None:
            return None
        limit, remedy = budget_refusal(verdict, 0, self._seen.rules.contact, self._seen.now)
        return f"budget {verdict.balance.entry.name}", f"{limit}. {remedy}"

    def opens_at(self, claim: Claim, kinds: Iterable[GpuKind | None]) -> float:
        """Return when budgets allow a request with one of these kinds: now, or in the next period."""
        found = [self._short(claim, kind) for kind in kinds]
        return min(
            (self._seen.now if one is None or one.balance is None else one.balance.period.end for one in found),
            default=self._seen.now,
        )

    def take(self, claim: Claim, kind: GpuKind | None) -> None:
        """Reserve the amount of a grant of this pass."""
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
