"""Usage by month, team, user, kind of GPU and price; the statements of closed months, and alerts that were sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

import sqlalchemy as sa

from gpuspawner.core.calendar import Per
from gpuspawner.core.quotas.months import is_month
from gpuspawner.service.store import tables
from gpuspawner.service.store.audit_log import AuditLine, write_audit
from gpuspawner.service.store.databases import Upsert
from gpuspawner.service.store.outbox import OutboxRow, write_outbox
from gpuspawner.service.store.rows import StoredRows, read_with_damaged_json
from gpuspawner.service.store.usage_sums import MONTH_LENGTH, UsageAmounts, UsagePart


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
        """What it is summed up by, within a month."""
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
        _ADDED.execute(connection, rows)

    def sums(self, month: str, team: str) -> list[TeamSum]:
        """Return the sums of a team in a month."""
        with self._transaction() as connection:
            return self.sums_of_month(connection, month, team)

    def sums_of_month(self, connection: sa.Connection, month: str, team: str | None = None) -> list[TeamSum]:
        """Return the sums of a team in a month, or of all teams, in a transaction that has begun."""
        t = tables.team_sums
        query = sa.select(t).where(t.c.month == month).order_by(*t.primary_key)
        rows = connection.execute(query if team is None else query.where(t.c.team == team)).all()
        return self._damaged.read(t, rows, _sum_of, key="user_created")

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
        with self._transaction() as connection:
            rows = read_with_damaged_json(connection, query, t.document)
        return next(iter(self._damaged.read(tables.statements, rows, lambda row: {**row.document}, key="team")), None)

    def delete_before(self, month: str) -> None:
        """Delete what is about earlier months."""
        for table in (tables.team_sums, tables.statements):
            self._delete(table, table.c.month < month)


def _sum_of(row: Any) -> TeamSum:
    amounts = UsageAmounts(*(getattr(row, name) for name in UsageAmounts._fields))
    Fraction(row.price or 0)  # a damaged price is found here, and hides this row only
    return TeamSum(row.team, row.user_created, row.kind, row.price, row.user, amounts)


def _added(new: Any) -> dict[str, Any]:
    t = tables.team_sums.c
    return {name: t[name] + new[name] for name in UsageAmounts._fields} | {"user": new.user}


_ADDED = Upsert(tables.team_sums, _added)


BUDGET_PERCENTS = (50, 80, 100)
"""The used parts of a budget of money that are told."""


def budget_kind(entry: str, per: Per, percent: int) -> str:
    """Return the kind of the alert of a budget, which has reached a percentage."""
    return f"{entry} {per.value} {percent}"


@dataclass(frozen=True)
class TeamAlert:
    """One fact that was told of a team ("" for everybody), in the period that begins on a day in ISO 8601.

    ``at`` is when, in seconds since the epoch.
    """

    team: str
    kind: str
    period: str
    at: float

    @property
    def key(self) -> tuple[str, str, str]:
        """What is told once."""
        return self.team, self.kind, self.period


class TeamAlerts(StoredRows):
    """Reads and writes them."""

    def all(self) -> list[TeamAlert]:
        """Return all of them, in the order of telling."""
        query = sa.select(tables.team_alerts).order_by(tables.team_alerts.c.at)
        return self._read_each(tables.team_alerts, query, lambda row: TeamAlert(**row), key="kind")

    def add(self, alerts: Sequence[TeamAlert], outbox: Iterable[OutboxRow], audit: Iterable[AuditLine]) -> None:
        """Write alerts with the messages that they send and with audit entries."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.team_alerts.insert(), [asdict(one) for one in alerts])
            write_outbox(connection, outbox)
            write_audit(connection, audit)

    def delete_before(self, day: str) -> None:
        """Delete the alerts of periods that began before a day."""
        self._delete(tables.team_alerts, tables.team_alerts.c.period < day)
