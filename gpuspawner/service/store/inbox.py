"""What people are told of, which is the audit of their own leases, and what they have read of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from gpuspawner.core.inbox.notices import KEPT_SECONDS, Marks, Step
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.leases.stored_events import event_of
from gpuspawner.service.store import tables
from gpuspawner.service.store.damaged import rows_of
from gpuspawner.service.store.databases.statements import IsJson
from gpuspawner.service.store.outputs import Transactions

MOST_STEPS = 2000
"""The newest of a month. Arbitrary: more than anybody's, and still read in some milliseconds."""
MOST_READ = 500
"""So many notices are marked one by one, at most: more are marked all at once."""
ALL = ""


class InboxRows:
    """Its table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    def of(self, owner: Owner, now: float) -> tuple[list[Step], Marks]:
        """Return the newest steps of an owner's leases, newest first, and what they have read."""
        a, x, since = tables.audit.c, tables.leases.c, now - KEPT_SECONDS
        own = (x.hub == owner.hub) & (x.user_created == owner.user_created)
        recent = own & (sa.func.coalesce(x.ended_at, since) >= since) & (a.at >= since)
        seen = sa.case((IsJson(x.document), x.document["seen_by_user"].as_boolean()), else_=False).label("seen")
        what = sa.select(
            a.number, a.at, a.lease, x.server, x.user, x.asked_at, seen, a.actor, a.action, a.fields, a.why
        )
        what = what.join(tables.leases, x.id == a.lease).where(recent).order_by(a.number.desc()).limit(MOST_STEPS)
        with self._transaction() as connection:
            rows = rows_of(connection, what, a.fields)
            marks = self._marks(connection, owner)
        return [_step(row) for row in rows], marks

    def marks(self, owner: Owner) -> Marks:
        """Return what an owner has read."""
        with self._transaction() as connection:
            return self._marks(connection, owner)

    @staticmethod
    def _marks(connection: sa.Connection, owner: Owner) -> Marks:
        t = tables.inbox_read.c
        rows = connection.execute(sa.select(t.notice, t.at).where(_own(owner))).all()
        ids = frozenset(row.notice for row in rows if row.notice != ALL)
        return Marks(max((row.at for row in rows if row.notice == ALL), default=0.0), ids)

    def mark(self, owner: Owner, names: Collection[str], now: float) -> None:
        """Note that an owner has read notices. Repeating it is harmless."""
        t = tables.inbox_read
        wanted = sorted(set(names))[:MOST_READ]
        rows = [{"hub": owner.hub, "user_created": owner.user_created, "notice": name, "at": now} for name in wanted]
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(_own(owner) & t.c.notice.in_(wanted)))
            if rows:
                connection.execute(t.insert(), rows)

    def mark_all(self, owner: Owner, now: float) -> None:
        """Note that an owner has read all that there is until now."""
        t = tables.inbox_read
        row = {"hub": owner.hub, "user_created": owner.user_created, "notice": ALL, "at": now}
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(_own(owner)))
            connection.execute(t.insert(), row)

    def forget(self, now: float) -> None:
        """Delete marks of notices that are shown no more. Who has read all until some time, has for good."""
        t = tables.inbox_read
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(t.c.at < now - 2 * KEPT_SECONDS, t.c.notice != ALL))


def _step(row: Any) -> Step:
    event = event_of(row.action, row.fields, row.why)
    return Step(row.number, row.at, row.lease, row.server, row.user, row.asked_at, bool(row.seen), row.actor, event)


def _own(owner: Owner) -> sa.ColumnElement[bool]:
    t = tables.inbox_read.c
    return (t.hub == owner.hub) & (t.user_created == owner.user_created)
