"""The ledger of GPU hours, and extra quota: rows are appended and never changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import sqlalchemy as sa

from gpuspawner.core.errors import Conflict
from gpuspawner.core.quotas.ledger import LedgerKind, LedgerLine
from gpuspawner.core.rules import Account, BudgetUnit, LimitedResource, QuotaGrant, Rate
from gpuspawner.service.store import tables
from gpuspawner.service.store.audit_log import AuditLine, write_audit
from gpuspawner.service.store.rows import Row, StoredRows, Whose, read_with_damaged_json, rows_whose

GROUPS = {"user": "user_created", "team": "team", "kind": "kind", "day": "day", "workspace": "lease"}
"""How charges are grouped, and the column of each group."""


@dataclass(frozen=True)
class ChargeSum:
    """The sum of the charges of one group and one rate: ``milliseconds`` at ``rate``. ``key`` is the group."""

    key: str
    user: str
    what: LedgerKind
    milliseconds: int
    rate: Rate


class Ledger(StoredRows):
    """Reads and writes the ledger and extra quota."""

    @staticmethod
    def write(connection: sa.Connection, lines: Iterable[LedgerLine]) -> None:
        """Append lines in a transaction that has begun."""
        if rows := [_row_of(line) for line in lines]:
            connection.execute(tables.ledger.insert(), rows)

    def since(self, end_ms: int) -> list[LedgerLine]:
        """Return the lines that end at or after a time, in the order of writing."""
        return self._lines(tables.ledger.c.end_ms >= end_ms)

    def of_lease(self, lease_id: str) -> list[LedgerLine]:
        """Return the lines of a workspace, in the order of writing."""
        return self._lines(tables.ledger.c.lease == lease_id)

    def _lines(self, where: sa.ColumnElement[bool]) -> list[LedgerLine]:
        query = sa.select(tables.ledger).where(where).order_by(tables.ledger.c.number)
        return self._read_each(tables.ledger, query, _line_of, key="number")

    def sums(self, by: str, first_day: str, last_day: str, whose: Whose) -> list[ChargeSum]:
        """Return the charges of some days, by one of GROUPS, of an owner, of teams or of all."""
        t = tables.ledger.c
        keys = (t[GROUPS[by]].label("key"), t.what, t.gpus, t.price_per_hour)
        where = (t.day >= first_day) & (t.day <= last_day) & rows_whose(tables.ledger, whose)
        sums = sa.func.max(t.user).label("user"), sa.func.sum(t.milliseconds).label("sum_ms")
        query = sa.select(*keys, *sums).where(where).group_by(*keys)
        return self._read_each(tables.ledger, query, _sum_of, key="key")

    def groups_of_workspaces(self, by: str, first_day: str, last_day: str, whose: Whose) -> dict[str, str]:
        """Return the key in one of GROUPS of each workspace that was charged on some days, by its lease."""
        t = tables.ledger.c
        where = (t.day >= first_day) & (t.day <= last_day) & rows_whose(tables.ledger, whose)
        query = sa.select(t.lease, t[GROUPS[by]].label("key")).where(where).distinct()
        with self._transaction() as connection:
            return {row.lease: row.key for row in connection.execute(query)}

    def credits(self, first_day: str, last_day: str, team: str) -> list[LedgerLine]:
        """Return the refunds and corrections of a team on some days, in the order of writing."""
        with self._transaction() as connection:
            return [line for line in self.credits_of_all(connection, first_day, last_day) if line.account.team == team]

    def credits_of_all(self, connection: sa.Connection, first_day: str, last_day: str) -> list[LedgerLine]:
        """Return the refunds and corrections of some days, in a transaction that has begun."""
        t = tables.ledger.c
        credits_ = t.what.in_([LedgerKind.REFUND.value, LedgerKind.CORRECTION.value])
        query = sa.select(tables.ledger).where(credits_, t.day >= first_day, t.day <= last_day).order_by(t.number)
        return self._damaged.read(tables.ledger, read_with_damaged_json(connection, query), _line_of, key="number")

    def grants(self, now: float | None = None) -> list[QuotaGrant]:
        """Return extra quota, oldest first: all of it, or the extra quota that is in force at a time or will be."""
        t = tables.quota_grants.c
        query = sa.select(tables.quota_grants).order_by(t.made_at, t.id)
        if now is not None:
            query = query.where(t.until > now, t.taken_back_at.is_(None))
        return self._read_each(tables.quota_grants, query, _grant_of)

    def add_grants(self, grants: Iterable[QuotaGrant], audit: Iterable[AuditLine]) -> None:
        """Write extra quota with its audit entries."""
        self._save(tables.quota_grants, [row_of_grant(one) for one in grants], partial(write_audit, lines=audit))

    def take_grants_back(self, grants: Iterable[QuotaGrant], audit: Iterable[AuditLine]) -> None:
        """Write that extra quota was taken back, with audit entries.

        Raises:
            Conflict: it was taken back before.
        """
        t = tables.quota_grants
        with self._transaction(writes=True) as connection:
            for grant in grants:
                row, open_row = t.c.id == grant.id, (t.c.id == grant.id) & t.c.taken_back_at.is_(None)
                values = {name: value for name, value in row_of_grant(grant).items() if name.startswith("taken_back")}
                if not connection.execute(t.update().where(open_row).values(**values)).rowcount:
                    by = connection.scalar(sa.select(t.c.taken_back_by).where(row))
                    raise Conflict(f"{by} has taken it back already.")
            write_audit(connection, audit)


def _sum_of(row: Row) -> ChargeSum:
    rate = Rate(Fraction(row["gpus"]), Fraction(row["price_per_hour"]))
    return ChargeSum(str(row["key"]), row["user"], LedgerKind(row["what"]), int(row["sum_ms"]), rate)


def row_of_grant(grant: QuotaGrant) -> dict[str, Any]:
    """Return the row of extra quota."""
    changed = {"what": grant.what.value, "amount": str(grant.amount)}
    row = {**vars(grant), **changed, "team": grant.account.team, "user_created": grant.account.user_created}
    return {column.name: row[column.name] for column in tables.quota_grants.c}


def _grant_of(row: Row) -> QuotaGrant:
    values = dict(row)
    account = Account(values.pop("team"), values.pop("user_created"))
    budgets = {used.value: used for used in BudgetUnit}
    what = budgets.get(values["what"]) or LimitedResource(values["what"])
    return QuotaGrant(**{**values, "account": account, "what": what, "amount": Fraction(values["amount"])})


def _row_of(line: LedgerLine) -> dict[str, Any]:
    return {
        "at": line.at,
        "hub": line.hub,
        "user_created": line.account.user_created,
        "user": line.user,
        "team": line.account.team,
        "lease": line.lease,
        "kind": line.kind,
        "what": line.what.value,
        "day": line.day,
        "start_ms": line.start_ms,
        "end_ms": line.end_ms,
        "milliseconds": line.milliseconds,
        "gpus": str(line.rate.gpus),
        "price_per_hour": str(line.rate.price_per_hour),
        "by": line.by,
        "why": line.why,
    }


def _line_of(row: Row) -> LedgerLine:
    return LedgerLine(
        row["at"],
        row["lease"],
        Account(row["team"], row["user_created"]),
        row["hub"],
        row["user"],
        row["kind"],
        LedgerKind(row["what"]),
        row["day"],
        row["start_ms"],
        row["end_ms"],
        row["milliseconds"],
        Rate(Fraction(row["gpus"]), Fraction(row["price_per_hour"])),
        row["by"],
        row["why"],
    )
