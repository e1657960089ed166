"""The ledger of use, and the grants on quotas and budgets: appended, never changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import sqlalchemy as sa

from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.quotas.charges import Charge, Line
from gpuspawner.core.rules import Account, QuotaGrant, Rate, Used, What
from gpuspawner.service.store import tables
from gpuspawner.service.store.outputs import Transactions
from gpuspawner.service.store.rows import AuditLine, row_of_line

ALIVE = "alive"


@dataclass(frozen=True)
class GrantRow:
    """A grant on quotas or budgets, with who gave it and who took it back, when and why."""

    id: str
    team: str
    user_created: str
    user: str
    what: str
    kind: str
    amount: str
    since: float
    until: float
    why: str
    by: str
    made_at: float
    taken_back_at: float | None = None
    taken_back_by: str = ""
    taken_back_why: str = ""

    @property
    def grant(self) -> QuotaGrant:
        """What it adds, for decisions."""
        of_budget = {used.value: used for used in Used}
        what = of_budget.get(self.what) or What(self.what)
        account = Account(self.team, self.user_created)
        return QuotaGrant(self.id, account, what, Fraction(self.amount), self.since, self.until, self.kind)


@dataclass(frozen=True)
class Sum:
    """What lines of one sort charge together: ``milliseconds`` at ``rate``. ``key`` is what they were grouped by."""

    key: str
    user: str
    what: Charge
    milliseconds: int
    rate: Rate


GROUPS = {"user": "user_created", "team": "team", "kind": "kind", "day": "day"}
"""By what use is summed up, and by which column."""


class Ledger:
    """Their tables. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    @staticmethod
    def write(connection: sa.Connection, lines: Iterable[Line]) -> None:
        """Append lines, in a transaction that is under way."""
        rows = [_row(line) for line in lines]
        if rows:
            connection.execute(tables.ledger.insert(), rows)

    def since(self, end_ms: int) -> list[Line]:
        """Return the lines that end at or after a moment, in the order in which they were written."""
        columns = tables.ledger.c
        with self._transaction() as connection:
            query = sa.select(tables.ledger).where(columns.end_ms >= end_ms).order_by(columns.number)
            return [_line(row) for row in connection.execute(query).mappings()]

    def of_lease(self, lease_id: str) -> list[Line]:
        """Return the lines of a workspace, in the order in which they were written."""
        columns = tables.ledger.c
        with self._transaction() as connection:
            query = sa.select(tables.ledger).where(columns.lease == lease_id).order_by(columns.number)
            return [_line(row) for row in connection.execute(query).mappings()]

    def sums(self, by: str, first_day: str, last_day: str, owner: Owner | None) -> list[Sum]:
        """Return what was charged on some days, by one of GROUPS; of ``owner``, or of all (None)."""
        columns = tables.ledger.c
        group = columns[GROUPS[by]]
        keys = (group, columns.what, columns.gpus, columns.price_per_hour)
        where = (columns.day >= first_day) & (columns.day <= last_day)
        if owner is not None:
            where &= (columns.hub == owner.hub) & (columns.user_created == owner.user_created)
        query = sa.select(*keys, sa.func.max(columns.user), sa.func.sum(columns.milliseconds)).where(where)
        with self._transaction() as connection:
            return [
                Sum(key, user, Charge(what), int(number_ms), Rate(Fraction(gpus), Fraction(price)))
                for key, what, gpus, price, user, number_ms in connection.execute(query.group_by(*keys))
            ]

    def forget(self, before_ms: int) -> None:
        """Delete lines that end before a moment."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.ledger.delete().where(tables.ledger.c.end_ms < before_ms))

    def grants(self, now: float | None = None) -> list[GrantRow]:
        """Return the grants that are in force at a time or will be (None: all there were), in the order of making."""
        columns = tables.quota_grants.c
        query = sa.select(tables.quota_grants).order_by(columns.made_at, columns.id)
        if now is not None:
            query = query.where(columns.until > now, columns.taken_back_at.is_(None))
        with self._transaction() as connection:
            return [GrantRow(**row) for row in connection.execute(query).mappings()]

    def grant(self, row: GrantRow, audit: Sequence[AuditLine]) -> None:
        """Write a new grant, with its audit."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.quota_grants.insert(), asdict(row))
            connection.execute(tables.audit.insert(), [row_of_line(line) for line in audit])

    def take_back(self, row: GrantRow, audit: Sequence[AuditLine]) -> None:
        """Write when, by whom and why a grant was taken back, with its audit."""
        values = {name: value for name, value in asdict(row).items() if name.startswith("taken_back")}
        with self._transaction(writes=True) as connection:
            connection.execute(tables.quota_grants.update().where(tables.quota_grants.c.id == row.id).values(**values))
            connection.execute(tables.audit.insert(), [row_of_line(line) for line in audit])

    def alive_at(self) -> float | None:
        """Return when a service last noted that it serves; None where none ever did."""
        with self._transaction() as connection:
            found = connection.scalar(sa.select(tables.meta.c.number).where(tables.meta.c.name == ALIVE))
        return None if found is None else float(found)

    def note_alive(self, now: float) -> None:
        """Note that this service serves."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.meta.delete().where(tables.meta.c.name == ALIVE))
            connection.execute(tables.meta.insert().values(name=ALIVE, number=int(now)))


def _row(line: Line) -> dict[str, Any]:
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


def _line(row: sa.RowMapping) -> Line:
    return Line(
        row["at"],
        row["lease"],
        Account(row["team"], row["user_created"]),
        row["hub"],
        row["user"],
        row["kind"],
        Charge(row["what"]),
        row["day"],
        row["start_ms"],
        row["end_ms"],
        row["milliseconds"],
        Rate(Fraction(row["gpus"]), Fraction(row["price_per_hour"])),
        row["by"],
        row["why"],
    )
