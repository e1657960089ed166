"""Usage by month, team, user, kind of GPU and price, and the statements of closed months that are made of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from gpuspawner.service.store import tables
from gpuspawner.service.store.databases import Upsert
from gpuspawner.service.store.rows import StoredRows
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

    @staticmethod
    def sums_of_month(connection: sa.Connection, month: str, team: str | None = None) -> list[TeamSum]:
        """Return the sums of a team in a month, or of all teams, in a transaction that has begun."""
        t = tables.team_sums
        query = sa.select(t).where(t.c.month == month).order_by(*t.primary_key)
        rows = connection.execute(query if team is None else query.where(t.c.team == team)).mappings()
        names = UsageAmounts._fields
        return [
            TeamSum(
                **{name: row[name] for name in ("team", "user_created", "kind", "price", "user")},
                amounts=UsageAmounts(*(row[name] for name in names)),
            )
            for row in rows
        ]

    def months_with_usage(self) -> list[str]:
        """Return the months that have sums, in order."""
        with self._transaction() as connection:
            months = sa.select(tables.team_sums.c.month).distinct().order_by(tables.team_sums.c.month)
            return list(connection.scalars(months))

    def last_closed(self) -> str:
        """Return the last closed month, "" for none."""
        with self._transaction() as connection:
            return connection.scalar(sa.select(sa.func.max(tables.statements.c.month))) or ""

    @staticmethod
    def add(connection: sa.Connection, month: str, documents: dict[str, dict[str, Any]]) -> None:
        """Write the statements of a month by team, in a transaction that has begun."""
        rows = [{"month": month, "team": team, "document": document} for team, document in documents.items()]
        connection.execute(tables.statements.insert(), rows)

    def document(self, month: str, team: str) -> dict[str, Any] | None:
        """Return the statement of a team in a closed month, None without one."""
        t = tables.statements.c
        with self._transaction() as connection:
            found: dict[str, Any] | None = connection.scalar(
                sa.select(t.document).where(t.month == month, t.team == team)
            )
        return found

    def delete_before(self, month: str) -> None:
        """Delete what is about earlier months."""
        for table in (tables.team_sums, tables.statements):
            self._delete(table, table.c.month < month)


def _added(new: Any) -> dict[str, Any]:
    t = tables.team_sums.c
    return {name: t[name] + new[name] for name in UsageAmounts._fields} | {"user": new.user}


_ADDED = Upsert(tables.team_sums, _added)
