"""Messages that are to be sent by mail or chat: stored with what they tell of, and kept until they are sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from gpuspawner.service.store import tables
from gpuspawner.service.store.outputs import Transactions

ONCE = frozenset({"granted"})
"""Kinds of message of which a workspace gets one: its start may be dropped, and its GPUs granted again."""


@dataclass(frozen=True)
class OutboxRow:
    """One message for one channel. Times are seconds since the epoch.

    Args:
        id: its own.
        at: when it was made.
        channel: where it goes: ``user``, or ``admins`` with the number of the target in the settings.
        subject: workspace and kind; "" for a message of its own.
        document: the message.
        attempts: how often it was tried.
        not_before: when it is tried next.
        over_at: when it was sent or given up; None while it waits.
        result: what came of it; "" while it waits.
    """

    id: str
    at: float
    channel: str
    subject: str
    document: dict[str, Any]
    attempts: int = 0
    not_before: float = 0.0
    over_at: float | None = None
    result: str = ""


class Outbox:
    """Their table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    def write(self, connection: sa.Connection, rows: Iterable[OutboxRow]) -> None:
        """Write new messages in the transaction of what they tell of.

        A message takes the place of those that wait with its subject and channel: they tell what is not so any more.
        One of ONCE is left out where there is another already.
        """
        t = tables.outbox
        for row in rows:
            same = (t.c.subject == row.subject) & (t.c.channel == row.channel)
            if row.subject and row.document["kind"] in ONCE:
                if connection.scalar(sa.select(t.c.id).where(same).limit(1)) is not None:
                    continue
            elif row.subject:
                connection.execute(t.delete().where(same & t.c.over_at.is_(None)))
            connection.execute(t.insert(), asdict(row))

    def put(self, rows: Sequence[OutboxRow]) -> None:
        """Write new messages that tell of no change of a lease."""
        with self._transaction(writes=True) as connection:
            self.write(connection, rows)

    def due(self, now: float, limit: int) -> list[OutboxRow]:
        """Return the messages to be tried now, the oldest first."""
        t = tables.outbox.c
        query = sa.select(tables.outbox).where(t.over_at.is_(None), t.not_before <= now)
        with self._transaction() as connection:
            rows = connection.execute(query.order_by(t.at, t.id).limit(limit)).mappings().all()
        return [OutboxRow(**row) for row in rows]

    def count_waiting(self) -> int:
        """Return how many messages wait to be sent."""
        query = sa.select(sa.func.count()).select_from(tables.outbox).where(tables.outbox.c.over_at.is_(None))
        with self._transaction() as connection:
            return connection.scalar(query) or 0

    def note(self, rows: Sequence[OutboxRow]) -> None:
        """Write what came of an attempt of each of these."""
        t = tables.outbox
        with self._transaction(writes=True) as connection:
            for row in rows:
                came = {name: getattr(row, name) for name in ("attempts", "not_before", "over_at", "result")}
                connection.execute(t.update().where(t.c.id == row.id).values(**came))

    def forget(self, before: float) -> None:
        """Delete what was over before."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.outbox.delete().where(tables.outbox.c.over_at < before))
