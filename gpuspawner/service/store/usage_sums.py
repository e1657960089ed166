"""Usage summed up by day and month, so that a report over a year takes milliseconds.

Each write that charges, samples or reclaims adds to these sums in its own transaction. The ledger is what people are
charged by. The sums hold the same amounts, and what samples read.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from operator import add
from typing import Any, NamedTuple

import sqlalchemy as sa

from gpuspawner.service.store import tables
from gpuspawner.service.store.databases import Upsert
from gpuspawner.service.store.rows import StoredRows

BY = ("all", "user", "team", "kind", "template", "node")
"""By what usage is summed up."""
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
    """Some usage of one day, and what it is summed up by. ``day`` is an ISO date in the catalog's time zone.

    ``price`` is that of a GPU hour, a fraction as text, or "".
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

    def key(self, by: str) -> str:
        """Return the key of its sum by one of BY."""
        return {
            "all": "",
            "user": self.user_created,
            "team": self.team,
            "kind": self.kind,
            "template": self.template,
            "node": self.node,
        }[by]


@dataclass(frozen=True)
class UsageSum:
    """The usage of one ``key`` on some days. ``name`` is for people. ``day`` is the day, of several the last one."""

    key: str
    name: str
    day: str
    amounts: UsageAmounts


class UsageSums(StoredRows):
    """Reads and writes the sums."""

    @staticmethod
    def write(connection: sa.Connection, parts: Iterable[UsagePart]) -> None:
        """Add to the sums, in a transaction that has begun."""
        _ADDED.execute(connection, rows_of(parts))

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
            rows = connection.execute(grouped.group_by(t.key, *((t.span,) if daily else ()))).all()
        return self._damaged.read(tables.usage_sums, rows, _sum_of, key="key")

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

    def delete_before(self, day: str) -> None:
        """Delete the sums of the months before the month of a day."""
        self._delete(tables.usage_sums, tables.usage_sums.c.span < day[:MONTH_LENGTH])


def _sum_of(row: Any) -> UsageSum:
    return UsageSum(row[0], row[1], row[2], UsageAmounts(*row[3:]))


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
    """Return the rows that some usage adds to: of its day and its month, by each of BY."""
    sums: dict[tuple[str, str, str], UsageAmounts] = defaultdict(UsageAmounts)
    names: dict[tuple[str, str, str], str] = {}
    for part in parts:
        for by in BY:
            key = part.key(by)
            for span in (part.day, part.day[:MONTH_LENGTH]):
                sums[by, span, key] = sums[by, span, key].plus(part.amounts)
                names[by, span, key] = part.user if by == "user" else key
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


def _added(new: Any) -> dict[str, Any]:
    t = tables.usage_sums.c
    return {name: t[name] + new[name] for name in UsageAmounts._fields} | {"name": new.name}


_ADDED = Upsert(tables.usage_sums, _added)


Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name, and its labels by name."""


class Counters(StoredRows):
    """Reads and writes counters of metrics, so that a new service continues where the one before it ended."""

    def save(self, values: Mapping[Series, float], at: float) -> None:
        """Write counters, in place of what was stored of them."""
        t = tables.counters
        rows = [{"series": _text_of(series), "value": value, "at": at} for series, value in values.items()]
        with self._transaction(writes=True) as connection:
            connection.execute(
                t.delete().where(t.c.series == sa.bindparam("this")), [{"this": row["series"]} for row in rows]
            )
            connection.execute(t.insert(), rows)

    def all(self) -> dict[Series, float]:
        """Return every counter."""
        query = sa.select(tables.counters)
        return dict(self._read_each(tables.counters, query, lambda row: (_series_of(row.series), row.value), "series"))

    def delete_old(self, before: float) -> None:
        """Delete counters that last changed before: those of users and teams that are gone."""
        self._delete(tables.counters, tables.counters.c.at < before)


def _text_of(series: Series) -> str:
    return json.dumps(series, ensure_ascii=False, separators=(",", ":"))


def _series_of(text: str) -> Series:
    name, labels = json.loads(text)
    return name, tuple((key, value) for key, value in labels)


class KindsSeen(StoredRows):
    """Reads and writes which kinds of GPU there have been: how many one workspace could have, and when that was."""

    def all(self) -> dict[str, tuple[int, float]]:
        """Return count and time by kind."""
        query = sa.select(tables.kinds_seen)
        return dict(self._read_each(tables.kinds_seen, query, lambda row: (row.kind, (row.largest, row.at)), "kind"))

    def save(self, seen: Mapping[str, tuple[int, float]]) -> None:
        """Write kinds as :meth:`all` returns them."""
        t = tables.kinds_seen
        rows = [{"kind": kind, "largest": largest, "at": at} for kind, (largest, at) in seen.items()]
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(t.c.kind.in_(list(seen))))
            connection.execute(t.insert(), rows)
