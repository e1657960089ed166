"""The pages Usage and Statements with their chart, CSV and JSON."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import urlencode, urlsplit
from zoneinfo import ZoneInfo

from gpuspawner.catalog.requests.visibility import team_title
from gpuspawner.core.calendar import parse_day
from gpuspawner.core.quotas.months import month_of, month_words, next_month, previous_month
from gpuspawner.service.notifications.recipients import recipients_of
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.presenter import NO_TEAM, is_priced
from gpuspawner.service.store.history import WaitingTimes
from gpuspawner.service.store.usage_sums import UsageAmounts, UsagePart, UsageSum
from gpuspawner.service.usage.api import get_statement, mail_statement, teams_with_statements
from gpuspawner.service.usage.report import (
    BY,
    BY_TIME,
    MAX_CHART_DAYS,
    Period,
    cost_of_idle,
    daily_series,
    parse_by,
    parse_period,
    period_choices,
    present_amounts,
    present_usage_rows,
    running_parts,
    sum_usage,
    total_of,
    usage_table,
)
from gpuspawner.service.usage.statements import (
    CSV_COLUMNS,
    MEMBERS_SHOWN,
    cost_at_prices,
    csv_rows,
    shown_by_gpu,
    shown_by_member,
)
from gpuspawner.service.web.admin_page import FORMS, AdminPage
from gpuspawner.service.web.inputs import refused_as
from gpuspawner.service.web.lists import EXPORTED_DECIMALS, json_rows, list_part, parse_list_state, select_rows

TICKS = 3
HEADROOM = 1.12
"""The axis is higher than its highest value by this factor, so that the uppermost tick does not touch the heading."""
LABELS = 7
MIN_CAPACITY_PERCENT = 15.0
"""The line of all GPUs is left out if the highest column would be lower than this. Arbitrary: bars must be readable."""


@dataclass(frozen=True)
class ColumnPart:
    """A part of a column. ``kind`` is its class in the style sheet, ``percent`` its height."""

    kind: str
    percent: float


@dataclass(frozen=True)
class ChartColumn:
    """A day or a week. ``label`` is "" if another one is too near. ``words`` says its numbers."""

    day: str
    parts: tuple[ColumnPart, ...]
    label: str
    words: str


@dataclass(frozen=True)
class Columns:
    """The whole chart.

    Args:
        columns: its columns.
        ticks: the values of the axis, and their heights in percent.
        capacity_percent: the height of the line of all GPUs, None without one.
        weekly: whether a column is a week.
        summary: the range of the columns in words.
    """

    columns: tuple[ChartColumn, ...]
    ticks: tuple[tuple[str, float], ...]
    capacity_percent: float | None
    weekly: bool
    summary: str


def columns_of(
    series: Sequence[tuple[str, UsageAmounts]], *, weekly: bool, capacity_hours: float | None = None
) -> Columns:
    """Return the columns of a series: active, idle and not measured, from the bottom up.

    ``capacity_hours`` are the GPU hours of all GPUs in one column's time.
    """
    totals = [one.allocated for _, one in series]
    highest = max([*totals, 0.0])
    shows_capacity = bool(capacity_hours) and 100 * highest >= MIN_CAPACITY_PERCENT * (capacity_hours or 0.0)
    top, step = _scale(max(highest, (capacity_hours or 0.0) if shows_capacity else 0.0))
    every = max(1, math.ceil(len(series) / LABELS))
    is_one_month = len({day[:7] for day, _ in series}) == 1
    columns = []
    for number, (day, one) in enumerate(series):
        amounts = (("hole", one.not_measured), ("idle", one.idle), ("gpu", one.active))
        parts = tuple(ColumnPart(kind, round(100 * hours / top, 2)) for kind, hours in amounts if hours > 0)
        words = f"{one.active:.1f} active, {one.idle:.1f} idle, {one.not_measured:.1f} not measured"
        label = "" if number % every else str(int(day[8:])) if number and is_one_month else _short(day)
        columns.append(ChartColumn(day, parts, label, f"{_short(day)}: {words}"))
    ticks = tuple((f"{value:,g}", round(100 * value / top, 1)) for value in reversed(_steps(top / HEADROOM, step)))
    capacity = round(100 * (capacity_hours or 0.0) / top, 1) if shows_capacity else None
    unit = "week" if weekly else "day"
    summary = f"GPU hours by {unit}, from {min(totals, default=0.0):.1f} to {highest:.1f}"
    return Columns(tuple(columns), ticks, capacity, weekly, summary)


def _short(day: str) -> str:
    there = date.fromisoformat(day)
    return f"{there.day} {there:%b}"


def _scale(highest: float) -> tuple[float, float]:
    """Return the height of the axis, and the step between two ticks: 1, 2 or 5 times a power of ten."""
    if highest <= 0:
        return 1.0, 1.0
    rough = highest / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough)
    return HEADROOM * highest, step


def _steps(highest: float, step: float) -> list[float]:
    return [round(number * step, 6) for number in range(math.floor(highest / step) + 1)]


DAY_HOURS, WEEK_DAYS = 24.0, 7


@dataclass(frozen=True)
class _StoredUsage:
    """The stored usage of a period, and that of running workspaces."""

    grouped: list[UsageSum]
    daily: list[UsageSum]
    by_kind: list[UsageSum]
    waits: WaitingTimes
    disputes: int | None
    running: list[UsagePart]


class UsagePage(AdminPage):
    """GET [?by=&since=&until=]: usage of a period by user, team, kind, node, template, day or week."""

    tab = "usage"

    async def get(self, form: str) -> None:
        """Answer in the wanted form."""
        state, currency = self.parts, self.parts.catalog.rules.currency
        priced = is_priced(state.catalog)
        whose = self.whose()
        teams = sorted(whose) if isinstance(whose, frozenset) else None
        by = parse_by(self.get_query_argument("by", "")) if teams is None else "team"
        wanted = parse_list_state(usage_table(by, priced=priced), self.arguments_of_address())
        period = self._period(wanted.kept)
        read = await self._read(by, period, teams)
        sums = sum_usage(by, read.grouped, read.running, period)
        rows = present_usage_rows(by, sums, state.catalog, priced=priced)
        if form == ".csv":
            self.send_csv(
                f"usage-by-{by}-{period.first}-{period.last}", wanted.table.columns, select_rows(rows, wanted)
            )
            return
        total = total_of(sums)
        if form == ".json":
            found = select_rows(rows, wanted)
            documents = zip(found, json_rows(wanted.table.columns, found), strict=True)
            self.answer(
                {
                    "by": by,
                    "since": period.first,
                    "until": period.last,
                    "now": state.clock.now(),
                    "timezone": state.catalog.rules.timezone,
                    "currency": currency,
                    "total": _total_document(total, priced=priced),
                    "waits": asdict(read.waits),
                    "called_wrong": read.disputes,
                    "rows": [{"key": row.id, **document} for row, document in documents],
                }
            )
            return
        series = daily_series(sum_usage("day", read.daily, read.running, period), period)
        weekly = period.days > MAX_CHART_DAYS
        of_kinds = sum_usage("kind", read.by_kind, read.running, period)
        capacity = _capacity(state) if teams is None else 0.0
        self.show(
            "admin_usage.html",
            by=by,
            groupings=BY if teams is None else {"team": BY["team"]},
            period=period,
            choices=period_choices(period, self.today()),
            list=list_part(rows, wanted),
            path="console/usage",
            chart=columns_of(series, weekly=weekly, capacity_hours=capacity * (WEEK_DAYS if weekly else 1)),
            capacity=capacity,
            allocated_percent=self._allocated_percent(total, period, capacity),
            total=present_amounts(total, priced=priced),
            reclaims=round(total.reclaims),
            disputes=read.disputes,
            waits=read.waits if teams is None else None,
            idle_cost=cost_of_idle(of_kinds) if priced and teams is None else None,
            currency=currency,
        )

    def _period(self, arguments: Mapping[str, str]) -> Period:
        now, zone = self.parts.clock.now(), self.parts.accounting.zone

        def parse(name: str, text: str) -> str:
            day: str = refused_as(name, parse_day, text, now, zone)
            return day

        return parse_period(arguments.get("since", ""), arguments.get("until", ""), self.today(), parse)

    def _times(self, period: Period) -> tuple[float, float]:
        """Return the beginning of the first day and the end of the last one, in seconds since the epoch."""
        first, last = (
            datetime.fromisoformat(day).replace(tzinfo=self.parts.accounting.zone)
            for day in (period.first, period.last)
        )
        return first.timestamp(), (last + timedelta(days=1)).timestamp()

    def _allocated_percent(self, total: UsageAmounts, period: Period, capacity: float) -> float | None:
        """Return the allocated part of the hours of all GPUs that there are now, in the past part of the period."""
        since, until = self._times(period)
        days = (min(until, self.parts.clock.now()) - since) / 86400
        return min(100.0, 100 * total.allocated / (capacity * days)) if capacity and days > 0 else None

    async def _read(self, by: str, period: Period, teams: list[str] | None) -> _StoredUsage:
        """Return the usage of everybody, or of some teams. The sums of teams are not known by kind of GPU."""
        store = self.parts.store
        since, until = self._times(period)
        of_days = store.usage_sums.of_days
        if teams is not None:
            daily = await store.read(of_days, "team", period.first, period.last, daily=True, keys=teams)
            running = [one for one in await running_parts(self.parts) if one.team in teams]
            return _StoredUsage(daily, daily, [], WaitingTimes(), None, running)
        by_day, by_kind, waits, disputes = await asyncio.gather(
            store.read(of_days, "all", period.first, period.last, daily=True),
            store.read(of_days, "kind", period.first, period.last),
            store.read(store.estimates.waiting_times, since, until),
            store.read(store.audit_log.count_disputes, since, until),
        )
        known = {"kind": by_kind} | dict.fromkeys(BY_TIME, by_day)
        stored = known[by] if by in known else await store.read(of_days, by, period.first, period.last)
        # Read after the store, so that a workspace that ended meanwhile counts once or not yet, never twice.
        return _StoredUsage(stored, by_day, by_kind, waits, disputes, await running_parts(self.parts))


def _capacity(state: Parts) -> float:
    """Return the GPU hours a day of all GPUs that there are now, as quotas count them."""
    kinds, fleet = state.catalog.gpus, state.scheduler.fleet
    counts = (kinds[gpu.pool].counts if gpu.pool in kinds else None for gpu in fleet.gpus if not gpu.is_coming)
    return DAY_HOURS * sum(1.0 if count is None else float(count) for count in counts) if fleet.complete else 0.0


def _total_document(total: UsageAmounts, *, priced: bool) -> dict[str, Any]:
    """Return the total as JSON, with how much was measured, and how many workspaces were reclaimed."""
    shown = dict(vars(present_amounts(total, priced=priced)))
    if not priced:
        del shown["cost"]
    known = total.active + total.idle
    shown["measured_percent"] = 100 * known / total.allocated if total.allocated > 0 else None
    rounded = {name: None if value is None else round(value, EXPORTED_DECIMALS) for name, value in shown.items()}
    return {**rounded, "reclaims": round(total.reclaims)}


class StatementPage(AdminPage):
    """GET [?team=&month=]: the statement of a team for a month, to print or as CSV or JSON."""

    tab = "usage"

    async def get(self, form: str) -> None:
        """Answer in the wanted form."""
        actor, this_month = self.actor("the console"), month_of(self.today())
        teams = teams_with_statements(actor)
        asked = {name: texts[-1] for name, texts in self.arguments_of_address().items()}
        is_mailed = asked.pop("mailed", "") == "1"
        statement = await get_statement.act(actor, arguments={"team": next(iter(teams), ""), **asked})
        if form == ".csv":
            self.send_csv(statement.number, CSV_COLUMNS, csv_rows(statement))
        elif form == ".json":
            self.answer(statement.as_json())
        else:
            zone, settings = ZoneInfo(statement.timezone), self.parts.settings
            can_send = settings.notify_users or statement.team in settings.notify_teams
            self.show(
                "admin_statement.html",
                doc=statement,
                leads=recipients_of(self.parts, statement.team) if can_send else [],
                is_mailed=is_mailed,
                teams=[(team, team_title(self.parts.catalog, team) or NO_TEAM.capitalize()) for team in teams],
                month=month_words(statement.month),
                earlier=previous_month(statement.month),
                later=next_month(statement.month) if statement.month < this_month else "",
                words=month_words,
                day_words=lambda day: f"{date.fromisoformat(day).day} {date.fromisoformat(day):%b}",
                next_words=month_words(next_month(statement.month)),
                day_of=lambda at: show_date(at, zone).partition(" at ")[0],
                closes=show_date(statement.closes_at, zone),
                made=show_date(statement.made_at, zone),
                by_gpu=shown_by_gpu(statement),
                by_member=shown_by_member(statement),
                members=len({line.user for line in statement.lines}),
                shown=MEMBERS_SHOWN,
                idle_cost=cost_at_prices(statement, "idle"),
                reclaimed_cost=cost_at_prices(statement, "reclaimed"),
                hub=urlsplit(self.service_url).netloc,
            )


class MailPage(AdminPage):
    """POST: mail a statement to the leads of its team."""

    tab = "usage"

    async def get(self) -> None:
        """Go to the page. A form was sent to this address."""
        self.redirect(f"{self.parts.prefix.rstrip('/')}/console/statements")

    async def post(self) -> None:
        """Do it and go back."""
        team, month = self.get_body_argument("team"), self.get_body_argument("month")
        await mail_statement.act(self.actor("the console"), values={"team": team, "month": month})
        query = urlencode({"team": team, "month": month, "mailed": "1"})
        self.redirect(f"{self.parts.prefix.rstrip('/')}/console/statements?{query}", status=303)


def show_date(at: float, zone: ZoneInfo) -> str:
    """Return a time for display in print: ``3 Nov 2026 at 00:00``."""
    there = datetime.fromtimestamp(at, zone)
    return f"{there.day} {there:%b %Y at %H:%M}"


ROUTES: list[Any] = [
    (rf"/console/usage{FORMS}", UsagePage),
    (r"/console/statements/mail", MailPage),
    (rf"/console/statements{FORMS}", StatementPage),
]
