"""Use of a span of days, by whom or what, as rows: what page, CSV, JSON and ``gpuspawner admin report`` tell. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any
from urllib.parse import quote

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.visibility import team_title
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.service.quotas.presenter import NO_KIND, NO_TEAM
from gpuspawner.service.store.usage_sums import UsageAmounts, UsagePart, UsageSum
from gpuspawner.service.web.lists import Column, Filter, Table, Wanted

BY = {
    "user": "User",
    "team": "Team",
    "kind": "Kind",
    "template": "Template",
    "node": "Node",
    "day": "Day",
    "week": "Week",
}
OF_TIME = ("day", "week")
MOST_DAYS = 400
"""As long as use is kept."""
DAYS_CHARTED = 62
"""A longer span is drawn by week. Arbitrary: as many columns as a phone can show."""
NOT_KNOWN = "not known"

AMOUNTS = (
    Column("allocated", "Allocated", "hours"),
    Column("active", "Active", "hours"),
    Column("idle", "Idle", "hours"),
    Column("not_measured", "Not measured", "hours"),
    Column("idle_percent", "Idle share", "percent"),
    Column("reclaimed", "Reclaimed", "hours"),
    Column("charged", "Charged", "hours"),
    Column("credited", "Credited", "hours"),
)
COST = Column("cost", "Cost", "money")


def table_of(by: str, *, priced: bool) -> Table:
    """Return the table of use by one of BY; with its cost where prices are set."""
    columns = (Column("name", BY[by], "link" if by == "user" else "text"), *AMOUNTS, *((COST,) if priced else ()))
    filters = (Filter("find", BY[by], within=("name",)),)
    return Table("use", columns, filters, "name" if by in OF_TIME else "-allocated", ("by", "since", "until"))


@dataclass(frozen=True)
class Days:
    """From a day to another, both included, as ISO 8601 has them."""

    first: str
    last: str

    @property
    def count(self) -> int:
        """How many they are."""
        return (date.fromisoformat(self.last) - date.fromisoformat(self.first)).days + 1

    def each(self) -> list[str]:
        """Return each of them."""
        first = date.fromisoformat(self.first)
        return [(first + timedelta(days=number)).isoformat() for number in range(self.count)]


def read_by(text: str) -> str:
    """Return by what use is asked for; by user where nothing is said. Raises RequestRefused."""
    if text and text not in BY:
        raise RequestRefused("by", quoted(text), ", ".join(BY), "Choose one of them.")
    return text or "user"


def read_days(since: str, until: str, today: str, read: Callable[[str, str], str]) -> Days:
    """Return which days are asked for: this month up to today where nothing is said.

    Args:
        since: the first day as it is written, "" for the first of the last one's month.
        until: the last day as it is written, "" for today.
        today: as ISO 8601 has it.
        read: returns the day that a text under a name is; raises RequestRefused.
    """
    last = read("until", until) if until else today
    first = read("since", since) if since else f"{last[:-2]}01"
    days = Days(first, last)
    if first > last:
        raise RequestRefused("since", first, f"up to {last}", "Write the earlier day as since.")
    if days.count > MOST_DAYS:
        raise RequestRefused("since", first, f"{MOST_DAYS} days", "Choose a shorter span: use is kept no longer.")
    return days


def week_of(day: str) -> str:
    """Return the Monday of a day's week."""
    there = date.fromisoformat(day)
    return (there - timedelta(days=there.weekday())).isoformat()


def summed(
    by: str, stored: Iterable[UsageSum], running: Iterable[UsagePart], days: Days
) -> dict[str, tuple[str, UsageAmounts]]:
    """Return name and amounts of each key: what is stored of these days, and what runs up to now."""
    found: dict[str, tuple[str, UsageAmounts]] = defaultdict(lambda: ("", UsageAmounts()))
    for one in stored:
        key = _key(by, one.key, one.day)
        found[key] = (one.name, found[key][1].plus(one.amounts))
    for part in running:
        if days.first <= part.day <= days.last:
            key = _key(by, part.key("all" if by in OF_TIME else by), part.day)
            name = part.user if by == "user" else found[key][0]
            found[key] = (name, found[key][1].plus(part.amounts))
    return found


def _key(by: str, key: str, day: str) -> str:
    return {"day": day, "week": week_of(day) if by == "week" else ""}.get(by, key)


def use_rows(
    by: str, sums: Mapping[str, tuple[str, UsageAmounts]], catalog: Catalog, people: str, *, priced: bool
) -> list[dict[str, Any]]:
    """Return a row for each key that something was used of. ``people`` is the address below which each has a page."""
    return [
        {
            "id": key,
            "page": f"{people}{quote(name, safe='')}" if by == "user" and name else "",
            "name": _title(by, key, name, catalog),
            **amounts_row(amounts, priced=priced),
        }
        for key, (name, amounts) in sums.items()
        if any(abs(amount) > 1e-9 for amount in amounts)  # noqa: PLR2004 - what is left of sums that cancel
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


def amounts_row(amounts: UsageAmounts, *, priced: bool) -> dict[str, Any]:
    """Return amounts as columns."""
    known = amounts.active + amounts.idle
    row = {
        "allocated": amounts.allocated,
        "active": amounts.active,
        "idle": amounts.idle,
        "not_measured": amounts.not_measured,
        "idle_percent": 100 * amounts.idle / known if known else None,
        "reclaimed": amounts.reclaimed,
        "charged": amounts.charged,
        "credited": amounts.credited,
    }
    return {**row, "cost": amounts.cost} if priced else row


def total_of(sums: Mapping[str, tuple[str, UsageAmounts]]) -> UsageAmounts:
    """Return everything together."""
    total = UsageAmounts()
    for _, amounts in sums.values():
        total = total.plus(amounts)
    return total


def series_of(sums: Mapping[str, tuple[str, UsageAmounts]], days: Days) -> list[tuple[str, UsageAmounts]]:
    """Return the use of each day, or of each week of a long span, also of those without any. ``sums`` are by day."""
    found: dict[str, UsageAmounts] = {}
    for day in days.each():
        key = week_of(day) if days.count > DAYS_CHARTED else day
        found[key] = found.get(key, UsageAmounts()).plus(sums.get(day, ("", UsageAmounts()))[1])
    return list(found.items())


def wasted(sums: Mapping[str, tuple[str, UsageAmounts]], count: int) -> list[tuple[str, UsageAmounts]]:
    """Return who had GPUs allocated idle for longest, by name; not who did for so little that 0.0 is shown of it."""
    found = [one for one in sums.values() if round(one[1].idle, 1) > 0]
    return sorted(found, key=lambda one: (-one[1].idle, one[0]))[:count]


def document_of(
    wanted: Wanted, by: str, days: Days, rows: Sequence[Mapping[str, Any]], told: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the whole as JSON: ``told`` is all beside the rows."""
    names = [column.name for column in wanted.table.columns]
    named = [{"key": row["id"], **{name: row[name] for name in names}} for row in rows]
    return {"by": by, "since": days.first, "until": days.last, **told, "rows": named}
