"""The usage report: its periods, sums and rows. Page, CSV, JSON and ``gpuspawner admin report`` show the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import reduce
from types import SimpleNamespace
from typing import NamedTuple

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.requests.visibility import team_title
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.quotas.ledger import ledger_lines_until
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.presenter import NO_KIND, NO_TEAM
from gpuspawner.service.rules.accounting import counted_until, parts_of_lines, parts_of_rest
from gpuspawner.service.store.usage_sums import UsageAmounts, UsagePart, UsageSum
from gpuspawner.service.waiting.shared_results import yield_to_others
from gpuspawner.service.web.lists import Column, Filter, Row, Table

BY = {
    "user": "User",
    "team": "Team",
    "kind": "GPU kind",
    "node": "Node",
    "template": "Template",
    "day": "Day",
    "week": "Week",
}
BY_TIME = ("day", "week")
MAX_DAYS = 400
"""Usage is kept as long."""
MAX_CHART_DAYS = 62
"""A longer period is drawn by week. Arbitrary: a phone can show as many columns."""
NOT_KNOWN = "not known"
YEAR_MONTHS = 12
WORKSPACES_AT_A_TIME = 50
"""After this many workspaces, other work has its turn."""

AMOUNTS = (
    Column("allocated", "Allocated", "hours"),
    Column("active", "Active", "hours"),
    Column("idle", "Idle", "hours"),
    Column("not_measured", "Not measured", "hours"),
    Column("idle_percent", "Idle share", "bar", absent="not measured"),
    Column("reclaimed", "Reclaimed", "hours"),
    Column("charged", "Charged", "hours"),
    Column("credited", "Credited", "hours"),
)
COST = Column("cost", "Cost", "money")


def usage_table(by: str, *, priced: bool) -> Table:
    """Return the table of usage by one of BY. It has a cost if the catalog has prices."""
    name = Column("name", BY[by], "person" if by == "user" else "text")
    columns = (name, *AMOUNTS, *((COST,) if priced else ()))
    filters = (Filter("find", BY[by], within=("name",)),)
    return Table("usage", columns, filters, "name" if by in BY_TIME else "-allocated", ("by", "since", "until"))


# Periods


@dataclass(frozen=True)
class Period:
    """From one day to another, both included, as ISO 8601 has them."""

    first: str
    last: str

    @property
    def days(self) -> int:
        """The number of days."""
        return (date.fromisoformat(self.last) - date.fromisoformat(self.first)).days + 1

    def each_day(self) -> list[str]:
        """Return each day."""
        first = date.fromisoformat(self.first)
        return [(first + timedelta(days=number)).isoformat() for number in range(self.days)]

    @property
    def words(self) -> str:
        """The period as people read it: ``1 to 27 Nov 2026``."""
        first, last = date.fromisoformat(self.first), date.fromisoformat(self.last)
        if first == last:
            return f"{last.day} {last:%b %Y}"
        year = "" if first.year == last.year else f" {first:%Y}"
        month = "" if (first.year, first.month) == (last.year, last.month) else f" {first:%b}"
        return f"{first.day}{month}{year} to {last.day} {last:%b %Y}"


def this_month(today: str) -> Period:
    """Return this month up to today."""
    return Period(f"{today[:-2]}01", today)


MONTHS = {"month": 1, "quarter": 3, "year": 12}
"""The months of a period of the calendar."""


def calendar_period(kind: str, day: date) -> Period:
    """Return the ``week``, ``month``, ``quarter`` or ``year`` of a day."""
    if kind == "week":
        monday = day - timedelta(days=day.weekday())
        return Period(monday.isoformat(), (monday + timedelta(days=6)).isoformat())
    months = MONTHS[kind]
    first = day.replace(day=1, month=day.month - (day.month - 1) % months)
    after = date(first.year + (first.month + months > YEAR_MONTHS), (first.month + months - 1) % YEAR_MONTHS + 1, 1)
    return Period(first.isoformat(), (after - timedelta(days=1)).isoformat())


@dataclass(frozen=True)
class PeriodChoices:
    """The periods to choose from. ``kind`` is the one that the shown period is, "" for other dates.

    ``later`` is None if it has not begun.
    """

    kind: str
    kinds: tuple[tuple[str, str, Period], ...]
    earlier: Period
    later: Period | None


def period_choices(shown: Period, today: str) -> PeriodChoices:
    """Return the other periods to choose from."""
    first, now = date.fromisoformat(shown.first), date.fromisoformat(today)

    def until_today(one: Period) -> Period:
        return Period(one.first, min(one.last, today))

    kinds = ("week", "month", "quarter", "year")
    kind = next((one for one in kinds if until_today(calendar_period(one, first)) == shown), "")
    before = first - timedelta(days=1)
    after = date.fromisoformat(calendar_period(kind, first).last if kind else shown.last) + timedelta(days=1)
    if kind:
        earlier, later = calendar_period(kind, before), until_today(calendar_period(kind, after))
    else:
        length = timedelta(days=shown.days - 1)
        earlier = Period((before - length).isoformat(), before.isoformat())
        later = until_today(Period(after.isoformat(), (after + length).isoformat()))
    named = tuple((one, one.capitalize(), until_today(calendar_period(one, now))) for one in kinds)
    return PeriodChoices(kind, named, earlier, None if later.first > today else later)


def parse_by(text: str) -> str:
    """Return the wanted grouping, by default ``user``. Raises RequestRefused."""
    if text and text not in BY:
        raise RequestRefused("by", quoted(text), ", ".join(BY), "Choose one of them.")
    return text or "user"


def parse_period(since: str, until: str, today: str, parse: Callable[[str, str], str]) -> Period:
    """Return the wanted period.

    Args:
        since: the first day as it was typed, "" for the first day of the last one's month.
        until: the last day as it was typed, "" for today.
        today: as ISO 8601 has it.
        parse: returns the day of a field's text. Raises RequestRefused.

    Raises:
        RequestRefused: a day is wrong, they are in the wrong order, or there are more than MAX_DAYS.
    """
    last = parse("until", until) if until else today
    first = parse("since", since) if since else f"{last[:-2]}01"
    period = Period(first, last)
    if first > last:
        raise RequestRefused("since", first, f"up to {last}", "Enter the earlier day as since.")
    if period.days > MAX_DAYS:
        raise RequestRefused("since", first, f"{MAX_DAYS} days", "Choose a shorter period. Usage is kept no longer.")
    return period


def week_of(day: str) -> str:
    """Return the Monday of a day's week."""
    there = date.fromisoformat(day)
    return (there - timedelta(days=there.weekday())).isoformat()


# Sums


def sum_usage(
    by: str, stored: Iterable[UsageSum], running: Iterable[UsagePart], period: Period
) -> dict[str, tuple[str, UsageAmounts]]:
    """Return name and amounts of each key: the stored usage of the period, and what runs up to now."""
    found: dict[str, tuple[str, UsageAmounts]] = defaultdict(lambda: ("", UsageAmounts()))
    for one in stored:
        key = _key(by, one.key, one.day)
        found[key] = (one.name, found[key][1].plus(one.amounts))
    for part in running:
        if period.first <= part.day <= period.last:
            key = _key(by, part.key("all" if by in BY_TIME else by), part.day)
            name = part.user if by == "user" else found[key][0]
            found[key] = (name, found[key][1].plus(part.amounts))
    return found


def _key(by: str, key: str, day: str) -> str:
    return {"day": day, "week": week_of(day) if by == "week" else ""}.get(by, key)


def present_usage_rows(
    by: str, sums: Mapping[str, tuple[str, UsageAmounts]], catalog: Catalog, *, priced: bool
) -> list[Row]:
    """Return a row for each key with usage."""
    return [
        SimpleNamespace(**vars(present_amounts(amounts, priced=priced)), id=key, name=_title(by, key, name, catalog))
        for key, (name, amounts) in sums.items()
        if any(abs(amount) > 1e-9 for amount in amounts)  # noqa: PLR2004 - the rest of sums that cancel out
    ]


def _title(by: str, key: str, name: str, catalog: Catalog) -> str:
    if by == "user":
        return name or NOT_KNOWN
    if by == "team":
        return team_title(catalog, key) or key or NO_TEAM
    if by == "kind":
        return catalog.gpus[key].title if key in catalog.gpus else key or NO_KIND
    if by == "template":
        return catalog.templates[key].title if key in catalog.templates else key or NOT_KNOWN
    return key or NOT_KNOWN


def present_amounts(amounts: UsageAmounts, *, priced: bool) -> Row:
    """Return the amounts of a sum in GPU hours.

    ``idle_percent`` is the idle part of the measured hours. ``cost`` is in the catalog's currency, None without prices.
    """
    known = amounts.active + amounts.idle
    return SimpleNamespace(
        allocated=amounts.allocated,
        active=amounts.active,
        idle=amounts.idle,
        not_measured=amounts.not_measured,
        idle_percent=100 * amounts.idle / known if known else None,
        reclaimed=amounts.reclaimed,
        charged=amounts.charged,
        credited=amounts.credited,
        cost=amounts.cost if priced else None,
    )


def total_of(sums: Mapping[str, tuple[str, UsageAmounts]]) -> UsageAmounts:
    """Return the sum of all."""
    return reduce(UsageAmounts.plus, (amounts for _, amounts in sums.values()), UsageAmounts())


def cost_of_idle(by_kind: Mapping[str, tuple[str, UsageAmounts]]) -> float:
    """Return the cost of the idle hours, by the average price that was charged for each kind."""
    return sum(one.idle * one.cost / one.charged for _, one in by_kind.values() if one.charged > 0)


def daily_series(sums: Mapping[str, tuple[str, UsageAmounts]], period: Period) -> list[tuple[str, UsageAmounts]]:
    """Return the usage of each day, or of each week of a long period. ``sums`` are by day."""
    found: dict[str, UsageAmounts] = {}
    for day in period.each_day():
        key = week_of(day) if period.days > MAX_CHART_DAYS else day
        found[key] = found.get(key, UsageAmounts()).plus(sums.get(day, ("", UsageAmounts()))[1])
    return list(found.items())


# Running workspaces


async def running_parts(state: Parts) -> list[UsagePart]:
    """Return the usage of running workspaces that the ledger and its sums get at their end.

    It is counted once in some seconds for all readers. Workspaces that ended meanwhile are left out, so that their
    usage counts once.
    """
    counted = await state.queue.compute_in_background("running parts", lambda: _count_running(state))
    now, zone, node_of = state.clock.now(), state.accounting.zone, state.scheduler.fleet.node_of
    found = []
    for lease in state.registry:
        one = counted.get(lease.id)
        if one is None:
            continue
        # A sample may have added to the sums meanwhile. That time counts once.
        same = one.counted_until == counted_until(lease)
        found += [*one.charged, *(one.rest if same else parts_of_rest(lease, now, zone, node_of))]
    return found


class _RunningUsage(NamedTuple):
    """The usage of a running workspace that the sums do not have: its charges, and its time since a sample."""

    counted_until: float
    charged: list[UsagePart]
    rest: list[UsagePart]


async def _count_running(state: Parts) -> dict[str, _RunningUsage]:
    """Return it by the id of the lease. Other work goes on meanwhile."""
    now, zone, node_of = state.clock.now(), state.accounting.zone, state.scheduler.fleet.node_of
    found = {}
    for number, x in enumerate(tuple(state.registry)):
        if number % WORKSPACES_AT_A_TIME == 0:
            await yield_to_others()
        charged = list(parts_of_lines(ledger_lines_until(x, now, zone), {x.id: x}, node_of))
        found[x.id] = _RunningUsage(counted_until(x), charged, list(parts_of_rest(x, now, zone, node_of)))
    return found
