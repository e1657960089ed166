"""The statement of a team for a month: of a closed month as it was stored, of an open one as things are now."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import ValidationError

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.requests.visibility import team_title
from gpuspawner.core.calendar import Per
from gpuspawner.core.quotas.ledger import LedgerKind, LedgerLine, ledger_lines_until
from gpuspawner.core.quotas.months import closes_at, first_day, last_day, month_of, month_span, round_to_sum
from gpuspawner.core.rules import BudgetUnit, QuotaScope
from gpuspawner.core.units import show_iso
from gpuspawner.service.api.rest import Answer
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.presenter import CORRECTIONS, NO_TEAM, is_priced
from gpuspawner.service.store.usage_sums import (
    BUDGET_PERCENTS,
    TeamAlert,
    TeamSum,
    UsageAmounts,
    budget_kind,
    sum_parts,
)
from gpuspawner.service.usage.report import running_parts
from gpuspawner.service.web.lists import EXPORTED_DECIMALS, Column, Row
from gpuspawner.version import describe_version

log = logging.getLogger("gpuspawner")

OPEN, CLOSED = "open", "closed"
MEMBERS_SHOWN = 8
"""The page adds further members up in one row, so that it prints on one sheet. The CSV has each."""
NO_TEAM_NUMBER = "no-team"


class StatementAmounts(Answer):
    """GPU hours as quotas count them. ``cost`` is in the currency of the statement, null without prices."""

    allocated: float
    active: float
    idle: float
    not_measured: float
    reclaimed: float
    credited: float
    charged: float
    cost: float | None

    @property
    def amounts(self) -> UsageAmounts:
        """The amounts as sums have them."""
        return UsageAmounts(
            self.active,
            self.idle,
            self.not_measured,
            self.reclaimed,
            0.0,
            self.charged,
            self.credited,
            self.cost or 0.0,
        )


class StatementLine(StatementAmounts):
    """The usage of one member, of one kind of GPU at one price."""

    user: str
    """The time at which the hub created the user, which is unique."""
    member: str
    kind: str
    gpu: str
    """The title of the kind."""
    price: float | None
    """The price of a GPU hour."""


class StatementCredit(Answer):
    """Hours and money that were credited on a day, for one reason. A minus is a charge."""

    day: str
    members: list[str]
    gpu: str
    why: str
    by: str
    gpu_hours: float
    money: float | None


class BudgetAlert(Answer):
    """When the used part of the budget reached a percentage."""

    percent: int
    at: float


class StatementSummary(Answer):
    """The totals of a statement."""

    number: str
    team: str
    title: str
    month: str
    state: str
    """``open`` or ``closed``."""
    since: float
    until: float
    closes_at: float
    made_at: float
    """The present, or when the month was closed."""
    timezone: str
    currency: str
    budget: float | None
    """The team's budget of money for the month."""
    total: StatementAmounts


class Statement(StatementSummary):
    """The statement of a team for a month. The statement of a closed month never changes."""

    version: str
    budget_alerts: list[BudgetAlert]
    lines: list[StatementLine]
    credits: list[StatementCredit]


class StatementList(Answer):
    """The statements of a month, by team."""

    statements: list[StatementSummary]


@dataclass(frozen=True)
class StatementContext:
    """The common values of the statements of a month: the catalog, and the time at which they were made."""

    catalog: Catalog
    month: str
    made_at: float
    alerts: Sequence[TeamAlert]
    """The alerts that were sent about teams."""
    is_closed: bool

    def build(self, team: str, sums: Iterable[TeamSum], credits_: Iterable[LedgerLine]) -> Statement:
        """Return the statement of a team.

        Args:
            team: the team, "" for usage without a team.
            sums: the usage of the team in the month.
            credits_: the refunds and corrections of the team in the month.
        """
        rules, zone = self.catalog.rules, ZoneInfo(self.catalog.rules.timezone)
        span, found, budget = month_span(self.month, zone), list(sums), money_budget(self.catalog, team)
        total = reduce(UsageAmounts.plus, (one.amounts for one in found), UsageAmounts())
        return Statement(
            number=f"{self.month}-{team or NO_TEAM_NUMBER}",
            team=team,
            title=team_title(self.catalog, team) or team or NO_TEAM.capitalize(),
            month=self.month,
            state=CLOSED if self.is_closed else OPEN,
            since=span.start,
            until=span.end,
            closes_at=closes_at(self.month, zone),
            made_at=self.made_at,
            timezone=rules.timezone,
            currency=rules.currency,
            budget=None if budget is None else budget[1],
            total=StatementAmounts(**self._fields(total)),
            version=describe_version(),
            budget_alerts=[] if budget is None else list(self._budget_alerts(team, budget[0])),
            lines=sorted((self._line(one) for one in found), key=lambda x: (x.member, x.user, x.gpu, x.price or 0.0)),
            credits=list(self._credits(credits_)),
        )

    def _budget_alerts(self, team: str, entry: str) -> Iterator[BudgetAlert]:
        period = first_day(self.month).isoformat()
        for percent in BUDGET_PERCENTS:
            key = team, budget_kind(entry, Per.MONTH, percent), period
            yield from (BudgetAlert(percent=percent, at=one.at) for one in self.alerts if one.key == key)

    def _line(self, one: TeamSum) -> StatementLine:
        price = float(Fraction(one.price)) if one.price else None
        return StatementLine(
            user=one.user_created,
            member=one.user,
            kind=one.kind,
            gpu=self._gpu(one.kind),
            price=price,
            **self._fields(one.amounts),
        )

    def _fields(self, amounts: UsageAmounts) -> dict[str, Any]:
        names = StatementAmounts.model_fields
        found = {name: round(getattr(amounts, name), EXPORTED_DECIMALS) for name in names}
        return {**found, "cost": found["cost"] if is_priced(self.catalog) else None}

    def _gpu(self, kind: str) -> str:
        return self.catalog.gpus[kind].title if kind in self.catalog.gpus else kind or CORRECTIONS

    def _credits(self, lines: Iterable[LedgerLine]) -> Iterator[StatementCredit]:
        groups: dict[tuple[str, str, str, str], list[LedgerLine]] = defaultdict(list)
        for line in lines:
            groups[line.day, self._gpu(line.kind) if line.kind else "", line.why, line.by].append(line)
        for (day, gpu, why, by), some in sorted(groups.items()):
            hours, money = (-float(sum(line.amount(unit) for line in some)) for unit in BudgetUnit)
            yield StatementCredit(
                day=day,
                members=sorted({line.user for line in some}),
                gpu=gpu,
                why=why,
                by=by,
                gpu_hours=round(hours, EXPORTED_DECIMALS),
                money=round(money, EXPORTED_DECIMALS) if is_priced(self.catalog) else None,
            )


def is_credit(line: LedgerLine) -> bool:
    """Return whether a statement lists a ledger line by itself."""
    return line.what in {LedgerKind.REFUND, LedgerKind.CORRECTION}


def money_budget(catalog: Catalog, team: str) -> tuple[str, float] | None:
    """Return the name of the entry with the team's budget of money for a month, and the amount, or None."""
    found = (
        (quota.name, budget.hard if budget.hard is not None else budget.soft)
        for quota in catalog.rules.quotas
        if quota.whom is QuotaScope.TEAM and quota.subject == team
        for budget in quota.budgets
        if (budget.what, budget.per) == (BudgetUnit.COST, Per.MONTH)
    )
    return next(((name, float(amount)) for name, amount in found if amount is not None), None)


async def find_statement(state: Parts, team: str, month: str) -> Statement:
    """Return the statement of a team for a month, "" for usage without a team."""
    stored = await state.store.read(state.store.statements.document, month, team)
    if stored is not None:
        try:
            return Statement.model_validate(stored)
        except ValidationError as error:  # its numbers are still in the sums
            log.error("the statement of %s for %s can't be read, and is calculated again: %s", team, month, error)  # noqa: TRY400 - the data is at fault
    first, last = first_day(month).isoformat(), last_day(month).isoformat()
    credits_ = await state.store.read(state.store.ledger.credits, first, last, team)
    sums = await state.store.read(state.store.statements.sums, month, team)
    # Read after the store, so that a workspace that ended meanwhile counts once or not yet, never twice.
    running = [one for one in await running_parts(state) if (one.team, month_of(one.day)) == (team, month)]
    now, zone = state.clock.now(), state.accounting.zone
    lines = (line for lease in state.registry for line in ledger_lines_until(lease, now, zone))
    credits_ += [x for x in lines if is_credit(x) and (x.account.team, month_of(x.day)) == (team, month)]
    # A month without any usage is closed too, although nothing of it is stored.
    is_closed = month <= state.accounting.closed_month or (now >= closes_at(month, zone) and not sums and not running)
    alerts = await state.store.read(state.store.team_alerts.all)
    return StatementContext(state.catalog, month, now, alerts, is_closed).build(
        team, sum_parts(sums, running), credits_
    )


async def find_statements(state: Parts, month: str, teams: Collection[str]) -> StatementList:
    """Return the totals of the statements of some teams."""
    found = [await find_statement(state, team, month) for team in teams]
    names = StatementSummary.model_fields
    return StatementList(statements=[StatementSummary(**{name: getattr(one, name) for name in names}) for one in found])


# CSV

CSV_COLUMNS = tuple(
    Column(name, name, kind)
    for name, kind in (
        *((name, "text") for name in ("statement", "team", "state", "since", "until", "closes_at", "member", "gpu")),
        ("price", "money"),
        ("currency", "text"),
        *((name, "money" if name == "cost" else "hours") for name in StatementAmounts.model_fields),
    )
)


def csv_rows(statement: Statement) -> list[Row]:
    """Return a row for each line of a statement. The columns add up to its total."""
    zone = ZoneInfo(statement.timezone)
    times = {name: show_iso(getattr(statement, name), zone) for name in ("since", "until", "closes_at")}
    shared = {**vars(statement), "statement": statement.number, **times}
    return [SimpleNamespace(**{**shared, **vars(line)}) for line in statement.lines]


# The page


@dataclass(frozen=True)
class ShownRow:
    """A row of a table on the page. Its numbers are rounded so that columns and rows add up."""

    name: str
    price: float | None
    numbers: tuple[float, ...]
    """Allocated, active, idle, not measured, reclaimed, credited and charged, in GPU hours."""
    cost: float | None


def shown_by_gpu(statement: Statement) -> list[ShownRow]:
    """Return a row for each kind of GPU and price, and the total as the last row."""
    groups: dict[tuple[str, float | None], UsageAmounts] = defaultdict(UsageAmounts)
    for line in statement.lines:
        groups[line.gpu, line.price] = groups[line.gpu, line.price].plus(line.amounts)
    rows = sorted(groups.items(), key=lambda one: (one[0][0], one[0][1] or 0.0))
    return _shown([(gpu, price, amounts) for (gpu, price), amounts in rows], statement)


def shown_by_member(statement: Statement) -> list[ShownRow]:
    """Return a row for each of the members with the most charged hours, one for the others, and the total."""
    groups: dict[str, UsageAmounts] = defaultdict(UsageAmounts)
    for line in statement.lines:
        groups[line.user] = groups[line.user].plus(line.amounts)
    names = {line.user: line.member for line in statement.lines}
    rows = sorted(groups.items(), key=lambda one: (-one[1].charged, names[one[0]]))
    shown = [(names[user], None, amounts) for user, amounts in rows[:MEMBERS_SHOWN]]
    if others := rows[MEMBERS_SHOWN:]:
        rest = reduce(UsageAmounts.plus, (amounts for _, amounts in others), UsageAmounts())
        shown.append((f"{len(others)} others" if len(others) > 1 else "1 other", None, rest))
    return _shown(shown, statement)


def _shown(rows: Sequence[tuple[str, float | None, UsageAmounts]], statement: Statement) -> list[ShownRow]:
    def rounded(read: str, digits: int = 1) -> list[float]:
        return round_to_sum([getattr(amounts, read) for _, _, amounts in rows], digits)

    parts = [rounded(name) for name in ("active", "idle", "not_measured")]
    allocated = [round(sum(some), 1) for some in zip(*parts, strict=True)]
    reclaimed, credited = rounded("reclaimed"), rounded("credited")
    added = round_to_sum([x.charged + x.credited - x.allocated for _, _, x in rows], 1)
    charged = [round(a - c + more, 1) for a, c, more in zip(allocated, credited, added, strict=True)]
    columns = (allocated, *parts, reclaimed, credited, charged)
    costs = None if statement.total.cost is None else rounded("cost", 2)
    found = [
        ShownRow(name, price, tuple(column[at] for column in columns), None if costs is None else costs[at])
        for at, (name, price, _) in enumerate(rows)
    ]
    totals = tuple(round(sum(column), 1) for column in columns)
    return [*found, ShownRow("Total", None, totals, None if costs is None else round(sum(costs), 2))]


def cost_at_prices(statement: Statement, hours: str) -> float | None:
    """Return the cost of the ``idle`` or ``reclaimed`` hours of a statement at their prices."""
    if statement.total.cost is None:
        return None
    return float(sum(getattr(line, hours) * line.price for line in statement.lines if line.price is not None))
