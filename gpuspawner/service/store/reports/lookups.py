"""What the console's lists read: pages of what ended, and of what people were told."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from gpuspawner.core.leases.events import Disputed
from gpuspawner.core.leases.lease import Lease, Phase
from gpuspawner.core.leases.stored_events import event_of
from gpuspawner.service.store import tables
from gpuspawner.service.store.damaged import DamagedLeases, rows_of
from gpuspawner.service.store.outputs import Transactions
from gpuspawner.service.store.rows import AuditLine

LAST_LETTER = "\U0010ffff"
"""Sorts after every text that goes on otherwise."""


class Lookups:
    """Reads leases and audit. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions, damaged: DamagedLeases) -> None:
        """Read by the store's transactions. ``damaged`` records leases that can't be read."""
        self._transaction, self._damaged = transaction, damaged

    def ended(self, user: str, reason: str, first: int, count: int, sort: str = "-ended_at") -> tuple[list[Lease], int]:
        """Return some leases that ended, the newest first, and how many there are of users whose name begins so.

        ``user`` and ``reason`` are "" for any; ``first`` is how many are passed over. ``sort`` is another order: by
        ended_at, user or reason, from high to low after ``-``. Of one user or reason the ends are in that direction
        too, so that one index has the order.
        """
        t = tables.leases.c
        where: sa.ColumnElement[bool] = t.ended_at.is_not(
            None
        )  # not by phase: so an index alone counts them, and no row is read for it
        if user:
            where &= (t.user >= user) & (t.user < user + LAST_LETTER)
        if reason:  # of a user's, without the index of reasons: those of all who ended so are far more
            where &= (sa.func.coalesce(t.reason, "") if user else t.reason) == reason
        by = [t[name] for name in dict.fromkeys((sort.removeprefix("-"), "ended_at"))]
        order = [column.desc() for column in by] if sort.startswith("-") else by
        query = sa.select(t.document).where(where).order_by(*order, t.id).offset(first).limit(count)
        with self._transaction() as connection:
            found = connection.scalar(sa.select(sa.func.count(t.ended_at)).where(where)) or 0
            return self._damaged.readable(connection, query), found

    def ended_of_user(self, user: str, limit: int) -> list[Lease]:
        """Return the leases of whoever is, or was, called so that ended last, the newest first."""
        t = tables.leases.c
        query = sa.select(t.document).where(t.user == user, t.phase == Phase.ENDED.value)
        with self._transaction() as connection:
            return self._damaged.readable(connection, query.order_by(t.ended_at.desc(), t.id).limit(limit))

    def audit_of_user(self, user: str, actions: Collection[str], limit: int) -> list[AuditLine]:
        """Return some of the audit of a user's workspaces, the newest first: ``actions`` are names of events."""
        t = tables.audit.c
        query = sa.select(tables.audit).where(t.user == user, t.action.in_(actions))
        with self._transaction() as connection:
            rows = rows_of(connection, query.order_by(t.number.desc()).limit(limit), t.fields)
        return [
            AuditLine(row.at, row.lease, row.user, row.actor, event_of(row.action, row.fields, row.why)) for row in rows
        ]

    def count_disputes(self, since: float, until: float) -> int:
        """Return how many ends were called wrong in a span."""
        t = tables.audit.c
        where = (t.action == Disputed.name) & (t.at >= since) & (t.at < until)
        with self._transaction() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(tables.audit).where(where)) or 0
