"""Sums of usage: by day and month, by team and month, the statements of closed months, and alerts about them.

Each write that charges, samples or reclaims adds to the sums in its own transaction. So a report over a year takes
milliseconds. The ledger decides what people are charged. The sums hold the same amounts, and the results of samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from fractions import Fraction
from functools import partial
from operator import add
from typing import Any, NamedTuple

import sqlalchemy as sa

from gpuspawner.core.calendar import Per
from gpuspawner.core.quotas.months import is_month
from gpuspawner.service.store import tables
from gpuspawner.service.store.audit_log import AuditLine, write_audit
from gpuspawner.service.store.database.dialects import Upsert
from gpuspawner.service.store.outbox import OutboxRow, write_outbox
from gpuspawner.service.store.rows import Row, StoredRows, read_with_damaged_json

BY = ("all", "user", "team", "kind", "template", "node")
"""How usage is grouped."""
WORKSPACE = "workspace"
"""Each workspace has sums too, by day alone. Their key is its user and its lease, their name the lease."""
MONTH_LENGTH = len("2026-12")


class UsageAmounts(NamedTuple):
    """The amounts of a sum: GPU hours as quotas count them, except ``cost`` (money) and ``reclaims`` (workspaces).

    Args:
        active: allocated, and read as in use.
        idle: allocated, and read as not in use.
        not_measured: allocated, and not sampled or not readable. This time never counts as idle.
        reclaimed: from each stop for idleness, or because its user did not come, to the requested end.
        reclaims: the number of such stops.
        charged: what budgets count: allocated, less what was credited, plus corrections by administrators.
        credited: what was given back, for lost time or by an administrator.
        cost: money charged, less what was credited.
    """

    active: float = 0.0
    idle: float = 0.0
    not_measured: float = 0.0
    reclaimed: float = 0.0
    reclaims: float = 0.0
    charged: float = 0.0
    credited: float = 0.0
    cost: float = 0.0

    @property
    def allocated(self) -> float:
        """For how long GPUs were allocated: from when a server answers until its end is decided."""
        return self.active + self.idle + self.not_measured

    def plus(self, other: UsageAmounts) -> UsageAmounts:
        """Return the sum of both."""
        return UsageAmounts(*map(add, self, other))


@dataclass(frozen=True)
class UsagePart:
    """Some usage of one day, and its groups. ``day`` is an ISO date in the catalog's time zone.

    ``price`` is that of a GPU hour, a fraction as text, or "". ``lease`` is "" for a correction.
    """

    day: str
    user_created: str
    user: str
    team: str
    kind: str
    template: str
    node: str
    amounts: UsageAmounts
    price: str = ""
    lease: str = ""

    def key(self, by: str) -> str:
        """Return the key of its sum in one of the groupings BY."""
        return {
            "all": "",
            "user": self.user_created,
            "team": self.team,
            "kind": self.kind,
            "template": self.template,
            "node": self.node,
            WORKSPACE: f"{self.user_created}/{self.lease}",
        }[by]


@dataclass(frozen=True)
class UsageSum:
    """The usage of one ``key`` on some days. ``name`` is for people. ``day`` is the day, of several the last one."""

    key: str
    name: str
    day: str
    amounts: UsageAmounts


class UsageSums(StoredRows):
    """Reads and writes the sums by day and month."""

    @staticmethod
    def write(connection: sa.Connection, parts: Iterable[UsagePart]) -> None:
        """Add to the sums, in a transaction that has begun."""
        _ADD_USAGE.execute(connection, rows_of(parts))

    def of_days(
        self, by: str, first_day: str, last_day: str, *, daily: bool = False, keys: Sequence[str] | None = None
    ) -> list[UsageSum]:
        """Return the sums of some days, by one of BY, of each day if ``daily``; of ``keys``, or of all (None)."""
        t = tables.usage_sums.c
        newest = sa.select(sa.func.max(t.span)).where(t.by == "all", sa.func.length(t.span) > MONTH_LENGTH)
        sums = [sa.func.sum(t[name]).label(name) for name in UsageAmounts._fields]
        grouped = sa.select(t.key, sa.func.max(t.name).label("name"), sa.func.max(t.span).label("span"), *sums)
        with self._transaction() as connection:
            days: sa.ColumnElement[bool] = (
                (t.span >= first_day) & (t.span <= last_day) & (sa.func.length(t.span) > MONTH_LENGTH)
            )
            if not daily:
                days = t.span.in_(_spans(first_day, last_day, connection.scalar(newest) or ""))
            where = (t.by == by) & days
            if keys is not None:
                where &= t.key.in_(keys)
            grouped = grouped.where(where)
            rows = connection.execute(grouped.group_by(t.key, *((t.span,) if daily else ()))).mappings().all()
        return self._damaged.read(tables.usage_sums, rows, _sum_of, key="key")

    def of_workspaces(self, user_created: str, first_day: str, last_day: str) -> dict[str, UsageAmounts]:
        """Return the usage of a user's workspaces on some days, by lease id."""
        t = tables.usage_sums.c
        where = of_workspaces_of(user_created) & (t.span >= first_day) & (t.span <= last_day)
        sums = [sa.func.sum(t[name]).label(name) for name in UsageAmounts._fields]
        query = sa.select(t.key, t.name, sa.func.max(t.span).label("span"), *sums).where(where).group_by(t.key, t.name)
        return {one.name: one.amounts for one in self._read_each(tables.usage_sums, query, _sum_of, key="key")}

    def latest_names(self) -> dict[str, str]:
        """Return the latest name of each user, by creation time."""
        with self._transaction() as connection:
            return _latest_names(connection, sa.true())

    def users_named(self, name: str) -> list[str]:
        """Return the creation times of users whose latest name it is."""
        t = tables.usage_sums.c
        with self._transaction() as connection:
            ever = set(connection.scalars(sa.select(t.key).where(_user_months(connection), t.name == name)))
            latest = _latest_names(connection, t.key.in_(ever))
        return [key for key, latest_name in latest.items() if latest_name == name]


def of_workspaces_of(user_created: str) -> sa.ColumnElement[bool]:
    """Return the condition of the sums of a user's workspaces."""
    t = tables.usage_sums.c
    return (t.by == WORKSPACE) & t.key.startswith(f"{user_created}/", autoescape=True)


def _sum_of(row: Row) -> UsageSum:
    return UsageSum(row["key"], row["name"], row["span"], _amounts_of(row))


def _amounts_of(row: Row) -> UsageAmounts:
    return UsageAmounts(*(row[name] for name in UsageAmounts._fields))


def _user_months(connection: sa.Connection) -> sa.ColumnElement[bool]:
    """Select users' months by listing the months that there are: there are far more rows of days."""
    t = tables.usage_sums.c
    months = sa.select(t.span).where(t.by == "all", sa.func.length(t.span) == MONTH_LENGTH)
    return (t.by == "user") & t.span.in_(list(connection.scalars(months)))


def _latest_names(connection: sa.Connection, where: sa.ColumnElement[bool]) -> dict[str, str]:
    t = tables.usage_sums.c
    latest = sa.func.max(t.span)
    query = sa.select(t.key, t.name).where(_user_months(connection), where).group_by(t.key, t.name).order_by(latest)
    return {row.key: row.name for row in connection.execute(query)}


def rows_of(parts: Iterable[UsagePart]) -> list[dict[str, Any]]:
    """Return the rows that some usage adds to: of its day and its month, by each of BY, and of its workspace."""
    sums: dict[tuple[str, str, str], UsageAmounts] = defaultdict(UsageAmounts)
    names: dict[tuple[str, str, str], str] = {}
    for part in parts:
        for by in (*BY, WORKSPACE) if part.lease else BY:
            key = part.key(by)
            name = {"user": part.user, WORKSPACE: part.lease}.get(by, key)
            for span in (part.day,) if by == WORKSPACE else (part.day, part.day[:MONTH_LENGTH]):
                sums[by, span, key] = sums[by, span, key].plus(part.amounts)
                names[by, span, key] = name
    return [
        {"by": by, "span": span, "key": key, "name": names[by, span, key], **amounts._asdict()}
        for (by, span, key), amounts in sums.items()
    ]


def _spans(first_day: str, last_day: str, newest_day: str) -> list[str]:
    """Return the whole months within some days, and the other days. Nothing is later than the newest day."""
    months = _whole_months(first_day, f"{last_day[:MONTH_LENGTH]}-31" if newest_day <= last_day else last_day)
    day, last, days = date.fromisoformat(first_day), date.fromisoformat(last_day), list[str]()
    while day <= last:
        if f"{day}"[:MONTH_LENGTH] not in months:
            days.append(f"{day}")
        day += timedelta(days=1)
    return [*months, *days]


def _whole_months(first_day: str, last_day: str) -> Sequence[str]:
    months, month = [], first_day[:MONTH_LENGTH] if first_day.endswith("-01") else _next(first_day[:MONTH_LENGTH])
    while _next(month) <= last_day[:MONTH_LENGTH] or (month == last_day[:MONTH_LENGTH] and last_day >= f"{month}-31"):
        months.append(month)
        month = _next(month)
    return months


def _next(month: str) -> str:
    year, number = int(month[:4]), int(month[5:])
    return f"{year + number // 12:04}-{number % 12 + 1:02}"


def _adding(table: sa.Table, latest: str) -> Upsert:
    """Return the statement that adds amounts to the sums of a table. The column ``latest`` takes the newest value."""
    return Upsert(table, lambda new: {**{x: table.c[x] + new[x] for x in UsageAmounts._fields}, latest: new[latest]})


_ADD_USAGE = _adding(tables.usage_sums, "name")


@dataclass(frozen=True)
class TeamSum:
    """The usage of a user for a team in a month, of one kind of GPU at one price.

    ``price`` is for a GPU hour as quotas count it, a fraction as text. It is "" for a kind without a price and for
    corrections. ``user`` is the latest name.
    """

    team: str
    user_created: str
    kind: str
    price: str
    user: str
    amounts: UsageAmounts

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Its group within a month."""
        return self.team, self.user_created, self.kind, self.price


def sum_parts(sums: Iterable[TeamSum], parts: Iterable[UsagePart]) -> list[TeamSum]:
    """Return sums with some more usage of their month added."""
    found = {one.key: one for one in sums}
    for part in parts:
        new = TeamSum(part.team, part.user_created, part.kind, part.price, part.user, UsageAmounts())
        old = found.get(new.key, new)
        found[new.key] = replace(old, user=part.user or old.user, amounts=old.amounts.plus(part.amounts))
    return list(found.values())


class Statements(StoredRows):
    """Reads and writes sums of months, and the documents of statements. A stored statement is never changed."""

    @staticmethod
    def add_usage(connection: sa.Connection, parts: Iterable[UsagePart]) -> None:
        """Add to the sums, in a transaction that has begun."""
        of_month: dict[str, list[UsagePart]] = defaultdict(list)
        for part in parts:
            of_month[part.day[:MONTH_LENGTH]].append(part)
        rows = [
            {
                **dict(zip(("team", "user_created", "kind", "price"), one.key, strict=True)),
                "month": month,
                "user": one.user,
                **one.amounts._asdict(),
            }
            for month, some in of_month.items()
            for one in sum_parts((), some)
        ]
        _ADD_TEAM_USAGE.execute(connection, rows)

    def sums(self, month: str, team: str) -> list[TeamSum]:
        """Return the sums of a team in a month."""
        with self._transaction() as connection:
            return self.sums_of_month(connection, month, team)

    def sums_of_month(self, connection: sa.Connection, month: str, team: str | None = None) -> list[TeamSum]:
        """Return the sums of a team in a month, or of all teams, in a transaction that has begun."""
        t = tables.team_sums
        query = sa.select(t).where(t.c.month == month).order_by(*t.primary_key)
        rows = read_with_damaged_json(connection, query if team is None else query.where(t.c.team == team))
        return self._damaged.read(t, rows, _team_sum_of, key="user_created")

    def months_with_usage(self) -> list[str]:
        """Return the months that have sums."""
        return self._months(tables.team_sums)

    def last_closed(self) -> str:
        """Return the last closed month, "" for none."""
        return max(self._months(tables.statements), default="")

    def _months(self, table: sa.Table) -> list[str]:
        """Return the months of a table, without those that are damaged."""
        with self._transaction() as connection:
            return [one for one in connection.scalars(sa.select(table.c.month).distinct()) if is_month(one)]

    @staticmethod
    def add(connection: sa.Connection, month: str, documents: dict[str, dict[str, Any]]) -> None:
        """Write the statements of a month by team, in a transaction that has begun."""
        rows = [{"month": month, "team": team, "document": document} for team, document in documents.items()]
        connection.execute(tables.statements.insert(), rows)

    def document(self, month: str, team: str) -> dict[str, Any] | None:
        """Return the statement of a team in a closed month, None without one, and for one that can't be read."""
        t = tables.statements.c
        query = sa.select(t.team, t.document).where(t.month == month, t.team == team)
        found = self._read_each(tables.statements, query, lambda row: {**row["document"]}, t.document, key="team")
        return next(iter(found), None)


def _team_sum_of(row: Row) -> TeamSum:
    Fraction(row["price"] or 0)  # a damaged price is found here, and hides this row only
    names = ("team", "user_created", "kind", "price", "user")
    return TeamSum(**{name: row[name] for name in names}, amounts=_amounts_of(row))


_ADD_TEAM_USAGE = _adding(tables.team_sums, "user")

STATEMENT, WASTE = "statement", "waste"
"""The kinds of alerts about statements and about idle GPUs."""
BUDGET_PERCENTS = (50, 80, 100)
"""An alert is sent when this part of a budget of money is used."""


def budget_kind(entry: str, per: Per, percent: int) -> str:
    """Return the kind of the alert that a budget has reached a percentage."""
    return f"{entry} {per.value} {percent}"


@dataclass(frozen=True)
class TeamAlert:
    """One alert about a team ("" for all), in the period that begins on a day in ISO 8601.

    ``at`` is when it was sent, in seconds since the epoch. ``page`` is the address of its page below the service's
    prefix. An alert without a title was sent as a part of another one, or marks a period as looked through.
    """

    team: str
    kind: str
    period: str
    at: float
    title: str = ""
    text: str = ""
    page: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The alert with this key is sent once."""
        return self.team, self.kind, self.period


class TeamAlerts(StoredRows):
    """Reads and writes alerts about teams."""

    def all(self) -> list[TeamAlert]:
        """Return all alerts, oldest first."""
        query = sa.select(tables.team_alerts).order_by(tables.team_alerts.c.at)
        return self._read_each(tables.team_alerts, query, lambda row: TeamAlert(**row), key="kind")

    def add(self, alerts: Sequence[TeamAlert], outbox: Iterable[OutboxRow], audit: Iterable[AuditLine]) -> None:
        """Write alerts with the messages that they send and with audit entries."""
        others = partial(write_outbox, rows=outbox), partial(write_audit, lines=audit)
        self._save(tables.team_alerts, [asdict(one) for one in alerts], *others)
