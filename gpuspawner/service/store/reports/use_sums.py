"""Use, summed up by day and month: what reports over a year are read from, in milliseconds instead of seconds.

Each step that charges, samples or reclaims adds to these sums in its own transaction. The ledger stays what is charged
by; these sums hold the same amounts, and beside them what samples read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from operator import add
from typing import Any, NamedTuple

import sqlalchemy as sa

from gpuspawner.service.store import tables
from gpuspawner.service.store.databases.statements import Upsert
from gpuspawner.service.store.outputs import Transactions

BY = ("all", "user", "team", "kind", "template", "node")
"""By what it is summed up."""
MONTH = len("2026-12")


class Amounts(NamedTuple):
    """What is summed up: GPU hours as quotas count them, but for ``cost`` (money) and ``reclaims`` (workspaces).

    Args:
        active: allocated, and read as in use.
        idle: allocated, and read as not in use.
        not_measured: allocated, and not sampled or not readable. It is never counted as idle.
        reclaimed: from each stop for idleness, or because nobody came, to the end that was asked for.
        reclaims: how many such stops.
        charged: what budgets count: allocated, less what was credited, with what administrators charged besides.
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

    def plus(self, other: Amounts) -> Amounts:
        """Return both together."""
        return Amounts(*map(add, self, other))


@dataclass(frozen=True)
class Part:
    """Some use of one day, and by what it is summed up. ``day`` is as ISO 8601 has it, in the catalog's time zone."""

    day: str
    user_created: str
    user: str
    team: str
    kind: str
    template: str
    node: str
    amounts: Amounts

    def key(self, by: str) -> str:
        """Return what it belongs to."""
        return {
            "all": "",
            "user": self.user_created,
            "team": self.team,
            "kind": self.kind,
            "template": self.template,
            "node": self.node,
        }[by]


@dataclass(frozen=True)
class Sum:
    """The use of one ``key`` on some days, called ``name``. ``span`` is the day or, of several, none that counts."""

    key: str
    name: str
    span: str
    amounts: Amounts


class UseSums:
    """Their table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    @staticmethod
    def write(connection: sa.Connection, parts: Iterable[Part]) -> None:
        """Add to the sums, in a transaction that is under way."""
        _ADDED.execute(connection, rows_of(parts))

    def of_days(
        self, by: str, first_day: str, last_day: str, *, daily: bool = False, keys: Sequence[str] | None = None
    ) -> list[Sum]:
        """Return the sums of some days, by one of BY, of each day where ``daily``; of ``keys``, or of all."""
        t = tables.use_sums.c
        newest = sa.select(sa.func.max(t.span)).where(t.by == "all", sa.func.length(t.span) > MONTH)
        sums = [sa.func.sum(t[name]) for name in Amounts._fields]
        grouped = sa.select(t.key, sa.func.max(t.name), sa.func.max(t.span), *sums)
        with self._transaction() as connection:
            days: sa.ColumnElement[bool] = (
                (t.span >= first_day) & (t.span <= last_day) & (sa.func.length(t.span) > MONTH)
            )
            if not daily:
                days = t.span.in_(_spans(first_day, last_day, connection.scalar(newest) or ""))
            where = (t.by == by) & days
            if keys is not None:
                where &= t.key.in_(keys)
            grouped = grouped.where(where)
            rows = connection.execute(grouped.group_by(t.key, *((t.span,) if daily else ()))).all()
        return [Sum(row[0], row[1], row[2], Amounts(*row[3:])) for row in rows]

    def names(self) -> dict[str, str]:
        """Return what users were called last, by their ``created``."""
        with self._transaction() as connection:
            return _last_names(connection, sa.true())

    def called(self, name: str) -> list[str]:
        """Return whoever was called so last, by their ``created``."""
        t = tables.use_sums.c
        with self._transaction() as connection:
            ever = set(connection.scalars(sa.select(t.key).where(_of_months(connection), t.name == name)))
            last = _last_names(connection, t.key.in_(ever))
        return [key for key, called in last.items() if called == name]

    def forget(self, before_day: str) -> None:
        """Delete the sums of the months before a day's."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.use_sums.delete().where(tables.use_sums.c.span < before_day[:MONTH]))


def _of_months(connection: sa.Connection) -> sa.ColumnElement[bool]:
    """Return which rows are of users' months, by the months that there are: days, of which there are more, are left."""
    t = tables.use_sums.c
    months = sa.select(t.span).where(t.by == "all", sa.func.length(t.span) == MONTH)
    return (t.by == "user") & t.span.in_(list(connection.scalars(months)))


def _last_names(connection: sa.Connection, where: sa.ColumnElement[bool]) -> dict[str, str]:
    t = tables.use_sums.c
    last = sa.func.max(t.span)
    query = sa.select(t.key, t.name).where(_of_months(connection), where).group_by(t.key, t.name).order_by(last)
    return {row.key: row.name for row in connection.execute(query)}


def rows_of(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """Return the rows that some use adds to: of its day and its month, by each of BY."""
    sums: dict[tuple[str, str, str], Amounts] = defaultdict(Amounts)
    names: dict[tuple[str, str, str], str] = {}
    for part in parts:
        for by in BY:
            key = part.key(by)
            for span in (part.day, part.day[:MONTH]):
                sums[by, span, key] = sums[by, span, key].plus(part.amounts)
                names[by, span, key] = part.user if by == "user" else key
    return [
        {"by": by, "span": span, "key": key, "name": names[by, span, key], **amounts._asdict()}
        for (by, span, key), amounts in sums.items()
    ]


def _spans(first_day: str, last_day: str, newest_day: str) -> list[str]:
    """Return the months that are summed up whole, and the days beside them; of a month of now nothing is later."""
    months = _whole_months(first_day, f"{last_day[:MONTH]}-31" if newest_day <= last_day else last_day)
    day, last, days = date.fromisoformat(first_day), date.fromisoformat(last_day), list[str]()
    while day <= last:
        if f"{day}"[:MONTH] not in months:
            days.append(f"{day}")
        day += timedelta(days=1)
    return [*months, *days]


def _whole_months(first_day: str, last_day: str) -> Sequence[str]:
    """Return the months that lie within some days from their first to their last."""
    months, month = [], first_day[:MONTH] if first_day.endswith("-01") else _next(first_day[:MONTH])
    while _next(month) <= last_day[:MONTH] or (month == last_day[:MONTH] and last_day >= f"{month}-31"):
        months.append(month)
        month = _next(month)
    return months


def _next(month: str) -> str:
    year, number = int(month[:4]), int(month[5:])
    return f"{year + number // 12:04}-{number % 12 + 1:02}"


def _added(new: Any) -> dict[str, Any]:
    t = tables.use_sums.c
    return {name: t[name] + new[name] for name in Amounts._fields} | {"name": new.name}


_ADDED = Upsert(tables.use_sums, _added)
