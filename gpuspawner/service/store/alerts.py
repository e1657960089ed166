"""What leads and administrators were told of teams, so that they are told once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from gpuspawner.core.calendar import Per
from gpuspawner.service.store import tables
from gpuspawner.service.store.audit_log import AuditLine, write_audit
from gpuspawner.service.store.outbox import OutboxRow, write_outbox
from gpuspawner.service.store.rows import StoredRows

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
