"""The page Usage and quota: the reader's limits, their GPU hours by day, what used them, and the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import reduce
from math import ceil, log10

from gpuspawner.catalog import teams_of, visible
from gpuspawner.core.quotas.limits import entries_in_force
from gpuspawner.core.units import show_money
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.models import Usage
from gpuspawner.service.quotas.presenter import present_quota, present_usage, title_usage, today_of
from gpuspawner.service.quotas.rules_page import rules_of
from gpuspawner.service.store.usage_sums import UsageAmounts
from gpuspawner.service.web.base import PageHandler
from gpuspawner.service.web.lists import Column as CsvColumn
from gpuspawner.service.web.lists import csv_text
from gpuspawner.service.workspaces.home import meter_of

PERIODS = ("day", "week", "month", "year")
GROUPINGS = (("workspace", "Workspace"), ("kind", "GPU"), ("team", "Team"), ("day", "Day"))
ORIGIN = "the page Usage"
LEAST_HOURS = 0.005
"""Less than this is shown as nothing."""


@dataclass(frozen=True)
class Period:
    """A day, a week, a month or a year, by its first and last day."""

    name: str
    first: date
    last: date

    @property
    def days(self) -> list[date]:
        """Its days."""
        return [self.first + timedelta(days=number) for number in range((self.last - self.first).days + 1)]

    @property
    def columns(self) -> list[date]:
        """The days of the chart, of a year the first days of its months."""
        return [day for day in self.days if self.name != "year" or day.day == 1]

    @property
    def before(self) -> date:
        """A day of the period before."""
        return self.first - timedelta(days=1)

    @property
    def after(self) -> date:
        """A day of the period after."""
        return self.last + timedelta(days=1)

    @property
    def words(self) -> str:
        """The period as people read it."""
        if self.name == "year":
            return f"{self.first:%Y}"
        if self.name == "month":
            return f"{self.first:%B %Y}"
        if self.first == self.last:
            return f"{self.first:%a} {self.first.day} {self.first:%b %Y}"
        begin = f"{self.first.day}" if self.first.month == self.last.month else f"{self.first.day} {self.first:%b}"
        return f"{begin} to {self.last.day} {self.last:%b %Y}"


def period_of(name: str, at: date) -> Period:
    """Return the day, week, month or year of a day. An unknown name is a week."""
    if name == "day":
        return Period("day", at, at)
    if name == "year":
        return Period("year", at.replace(month=1, day=1), at.replace(month=12, day=31))
    if name == "month":
        first = at.replace(day=1)
        return Period("month", first, (first + timedelta(days=31)).replace(day=1) - timedelta(days=1))
    first = at - timedelta(days=at.weekday())
    return Period("week", first, first + timedelta(days=6))


@dataclass(frozen=True)
class Column:
    """A day or month of the chart: its hours, and the heights of its parts in percent of the chart.

    ``day`` is the first day of a month.
    """

    day: date
    hours: float
    active: float
    idle: float
    not_measured: float

    @property
    def text(self) -> str:
        """The hours as text, "" without hours."""
        return hours_text(self.hours) if self.hours >= LEAST_HOURS else ""


def hours_text(hours: float) -> str:
    """Return hours with one decimal, less than an hour with two, so that a short use is not shown as nothing."""
    return f"{hours:.2f}" if 0 < abs(hours) < 1 else f"{hours:.1f}"


def columns_of(period: Period, amounts: Mapping[str, UsageAmounts]) -> tuple[list[Column], list[tuple[str, float]]]:
    """Return the columns of a chart, and its grid lines: their labels and heights in percent.

    ``amounts`` are the usage of each day in ISO 8601.
    """
    sums = {day: UsageAmounts() for day in period.columns}
    for iso, one in amounts.items():
        day = date.fromisoformat(iso)
        column = day.replace(day=1) if period.name == "year" else day
        sums[column] = sums[column].plus(one)
    top = max((one.allocated for one in sums.values()), default=0.0)
    step = _step(top)
    whole = max(step, step * ceil(top / step)) * 1.1  # room for the numbers above the columns
    columns = [
        Column(day, one.allocated, *(round(100 * part / whole, 1) for part in (one.active, one.idle, one.not_measured)))
        for day, one in sums.items()
    ]
    return columns, [
        (f"{step * number:g}", round(100 * step * number / whole, 1)) for number in range(ceil(top / step) + 1)
    ]


def _step(top: float) -> float:
    """Return the distance of grid lines: a round number, so that there are two or three."""
    if top <= 0:
        return 1.0
    rough = top / 2
    power = 10 ** int(log10(rough) // 1)
    return float(next((factor * power for factor in (1, 2, 5) if factor * power >= rough), 10 * power))


class UsagePage(PageHandler):
    """GET: the page. ``period`` and ``at`` choose the days, ``by`` the table, and ``csv=1`` answers the table."""

    async def get(self) -> None:
        """Answer the page."""
        state, person = self.parts, self.viewer()
        actor = self.actor(ORIGIN)
        today = date.fromisoformat(today_of(state))
        period = period_of(self.get_query_argument("period", "week"), self._day(today))
        by = self.get_query_argument("by", "workspace")
        by = by if by in dict(GROUPINGS) else "workspace"
        first, last = period.first.isoformat(), period.last.isoformat()
        usage = title_usage(state, await present_usage(state, by, first, last, person.owner))
        if self.get_query_argument("csv", ""):
            self._answer_csv(usage)
            return
        amounts = await _amounts(state, person.owner.user_created, first, last)
        groups, rules = await actor.groups_shown(), state.catalog.rules
        # From here on nothing is awaited: the page shows one moment.
        teams = teams_of(rules, groups)
        quota = present_quota(state, person.name, person.owner, teams)
        binding = [entry for team in teams or ("",) for entry in entries_in_force(rules.quotas, person.name, team)]
        applying = tuple(one for one in rules.quotas if one in binding)
        sentences = list(rules_of(visible(state.catalog, groups), applying, quota.now))
        order = {entry.name: number for number, entry in enumerate(rules.quotas)}
        bounds = sorted([*quota.limits, *quota.budgets], key=lambda one: order[one.entry])
        columns, grid = columns_of(period, amounts)
        self.render_page(
            "quota.html",
            meters=[meter_of(one) for one in bounds],
            bounds=bounds,
            period=period,
            periods=PERIODS,
            is_now=period.first <= today <= period.last,
            by=by,
            by_words=dict(GROUPINGS)[by],
            groupings=[one for one in GROUPINGS if one[0] != "team" or teams],
            columns=columns,
            grid=grid,
            total=reduce(UsageAmounts.plus, amounts.values(), UsageAmounts()),
            usage=usage,
            hours=hours_text,
            least=LEAST_HOURS,
            cost="" if usage.cost is None else show_money(usage.cost, rules.currency),
            currency=rules.currency,
            grants=quota.grants,
            contact=rules.contact,
            entries=sentences[: len(applying)],
            rules=sentences[len(applying) :],
        )

    def _day(self, today: date) -> date:
        """Return the day that the address names, today if it names none that could be shown."""
        try:
            at = date.fromisoformat(self.get_query_argument("at", ""))
        except ValueError:
            return today
        return at if today - timedelta(days=LONGEST_DAYS) <= at <= today + timedelta(days=LONGEST_DAYS) else today

    def _answer_csv(self, usage: Usage) -> None:
        self.set_header("Content-Type", "text/csv; charset=UTF-8")
        self.set_header("Content-Disposition", f'attachment; filename="usage-{usage.since}-{usage.until}.csv"')
        names = ["name", "active_gpu_hours", "idle_gpu_hours", "charged_gpu_hours", "credited_gpu_hours"]
        names += ["cost"] if usage.cost is not None else []
        columns = [CsvColumn(name, name.replace("_", " "), "text" if name == "name" else "number") for name in names]
        self.finish(csv_text(columns, usage.rows))


LONGEST_DAYS = 800
"""Usage is kept for about two years."""


async def _amounts(state: Parts, user_created: str, first: str, last: str) -> dict[str, UsageAmounts]:
    """Return a user's usage on each of these days. Days without usage are left out."""
    read = state.store.usage_sums.of_days
    return {
        one.day: one.amounts
        for one in await state.store.read(read, "user", first, last, daily=True, keys=[user_created])
    }
