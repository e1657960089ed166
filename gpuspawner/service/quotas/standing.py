"""How full limits and budgets are, in numbers. The presenter adds the sentences of those that are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.requests.visibility import gpu_title, team_title
from gpuspawner.core.quotas.budgets import BudgetBalance
from gpuspawner.core.quotas.limits import Amount
from gpuspawner.core.quotas.usage import LimitTotals
from gpuspawner.core.rules import Account, BudgetUnit, Limit, LimitedResource, Quota, QuotaScope

FULL, OVER, NEAR = "full", "over the share", "over 80 %"
NEAR_SHARE = 0.8
"""From this share of it on, a quota is nearly used up. Arbitrary: the documentation advises to alert there."""


class Fullness:
    """How full a limit or budget is. ``soft`` is its share, and ``hard`` the most, each None without one."""

    if TYPE_CHECKING:  # the classes that inherit from this have them as fields
        soft: float | None
        hard: float | None
        used: float

    @property
    def taken(self) -> float:
        """The amount that is used or reserved."""
        return self.used + (getattr(self, "set_aside", None) or 0.0)

    @property
    def bound(self) -> float | None:
        """The most, or the share if there is no most."""
        return self.soft if self.hard is None else self.hard

    @property
    def percent(self) -> float | None:
        """The percentage that is used or reserved, None without a bound."""
        return 100 * self.taken / self.bound if self.bound else None

    @property
    def part(self) -> float | None:
        """The part that is used or reserved, at most 1, None without a bound."""
        return None if self.percent is None else min(1.0, self.percent / 100)

    @property
    def bar_parts(self) -> list[tuple[float, str]]:
        """The used and the reserved percentage of a bar, each with its class in the style sheet."""
        if not self.bound:
            return []
        used_percent = min(100.0, 100 * self.used / self.bound)
        reserved_percent = min(100.0 - used_percent, 100 * (self.taken - self.used) / self.bound)
        parts = ((used_percent, "gpu"), (reserved_percent, "asked"))
        return [(round(percent, 1), kind) for percent, kind in parts if percent > 0]

    @property
    def share_percent(self) -> float | None:
        """The place of the share on a bar, in percent, None without a share below the limit."""
        if self.soft is None or not self.hard:
            return None
        return round(min(100.0, 100 * self.soft / self.hard), 1)

    @property
    def tag(self) -> str:
        """FULL or OVER, else ""."""
        if self.hard is not None and self.taken >= self.hard:
            return FULL
        return OVER if self.soft is not None and self.taken > self.soft else ""

    @property
    def state(self) -> str:
        """FULL, OVER or NEAR, else ""."""
        return self.tag or (NEAR if (self.part or 0.0) >= NEAR_SHARE else "")


@dataclass(frozen=True)
class Standing(Fullness):
    """The numbers of one limit or budget of a user, a team or everybody.

    Args:
        source: the limit or budget as the core counts it.
        entry: the name of the catalog's entry.
        whose: the user or team that it counts, as people read it.
        limit: what it limits, as the API names it.
        what: its unit, as people read it, for example ``GPUs at once`` or ``GPU h a week``.
        set_aside: the reserved part of a budget, None of a limit.
        waiting: the amount that waiting requests ask for, None of a budget.
        lasts_until: when a budget is used up at the present use, None if it resets before.
        user: the name of the user that it counts, "" for others.
    """

    source: LimitTotals | BudgetBalance
    entry: str
    whose: str
    limit: str
    what: str
    soft: float | None
    hard: float | None
    used: float
    left: float | None
    set_aside: float | None = None
    waiting: float | None = None
    lasts_until: float | None = None
    renews_at: float | None = None
    user: str = ""

    @property
    def team(self) -> str:
        """The team whose usage it counts, "" without one."""
        one = self.source
        return one.account.team if isinstance(one, BudgetBalance) else one.bound.limit_key.account.team

    @property
    def is_shared(self) -> bool:
        """Whether a whole team or everybody uses it together."""
        entry = self.source.entry if isinstance(self.source, BudgetBalance) else self.source.bound.entry
        return entry.whom in {QuotaScope.TEAM, QuotaScope.EVERYBODY}


def limit_standing(taken: LimitTotals, catalog: Catalog, whose: str = "", user: str = "") -> Standing:
    """Return the standing of a limit. ``whose`` is "" for the reader's own."""
    bound, held, waiting = taken
    return Standing(
        taken,
        bound.entry.name,
        whose or whose_words(bound.entry, bound.limit_key.account, catalog),
        bound.limit.what.value,
        f"{unit_of(bound.limit, catalog)} at once",
        _number(bound.soft),
        _number(bound.hard),
        float(held),
        None if bound.hard is None else float(max(0, bound.hard - held - waiting)),
        waiting=float(waiting),
        user=user,
    )


def budget_standing(balance: BudgetBalance, catalog: Catalog, now: float, whose: str = "", user: str = "") -> Standing:
    """Return the standing of a budget. ``whose`` is "" for the reader's own."""
    what = balance.budget.what
    return Standing(
        balance,
        balance.entry.name,
        whose or whose_words(balance.entry, balance.account, catalog),
        what.value,
        f"{'cost' if what is BudgetUnit.COST else 'GPU h'} a {balance.budget.per.value}",
        _number(balance.soft),
        _number(balance.hard),
        float(balance.used),
        _number(balance.left),
        set_aside=float(balance.reserved),
        lasts_until=balance.lasts_until(now),
        renews_at=balance.period.end,
        user=user,
    )


def _number(value: Amount | None) -> float | None:
    return None if value is None else float(value)


def rule_id(entry: str) -> str:
    """Return the anchor of an entry of quotas on the pages with the rules."""
    return f"rule-{entry}"


def whose_words(entry: Quota, account: Account, catalog: Catalog) -> str:
    """Return the user or team that an entry counts: ``you``, ``you in Vision``, ``team Vision``, ``everybody``."""
    if entry.whom is QuotaScope.EVERYBODY:
        return "everybody"
    title = team_title(catalog, account.team)
    if entry.whom is QuotaScope.TEAM:
        return f"team {title}"
    return f"you in {title}" if title else "you"


def unit_of(limit: Limit, catalog: Catalog, number: Amount | None = None) -> str:
    """Return the unit of a limit, as it is read after a number."""
    if limit.what is LimitedResource.KIND:
        return gpu_title(limit.kind, catalog)
    one = number == 1
    names = {
        LimitedResource.GPUS: "GPU" if one else "GPUs",
        LimitedResource.WORKSPACES: "workspace" if one else "workspaces",
        LimitedResource.CPU: "CPU core" if one else "CPU cores",
        LimitedResource.MEMORY: "memory",
    }
    return names[limit.what]
