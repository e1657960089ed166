"""Messages to be sent by mail or chat: stored with the event that they are about, and kept until they are sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from gpuspawner.service.store import tables
from gpuspawner.service.store.rows import StoredRows

MAX_PAUSE_SECONDS = 3600.0
"""No message pauses longer after an attempt. A later time was stored while the clock was wrong."""
ONCE = frozenset({"granted"})
"""Kinds of message that a workspace gets once, even if its start is dropped and its GPUs are granted again."""


@dataclass(frozen=True)
class OutboxRow:
    """One message for one channel. Times are seconds since the epoch.

    Args:
        id: its own.
        at: when it was made.
        channel: where it goes: ``user``, ``admins`` with the number of the target in the settings, or ``team`` with the
            name of the team.
        subject: workspace and kind of message, "" if it replaces no other message.
        document: the message, empty or None if the row is damaged.
        attempts: how often it was tried.
        not_before: when it is tried next.
        over_at: when it was sent or given up, None while it waits.
        result: how the last attempt ended, "" while it waits.
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


def write_outbox(connection: sa.Connection, rows: Iterable[OutboxRow]) -> None:
    """Write new messages in the transaction of the event that they are about.

    A message replaces those that wait with its subject and channel, because they are out of date. A message of a kind
    in ONCE is left out if there is another one already.
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


class Outbox(StoredRows):
    """Reads and writes messages to be sent."""

    def add(self, rows: Iterable[OutboxRow]) -> None:
        """Write new messages that belong to no other write."""
        with self._transaction(writes=True) as connection:
            write_outbox(connection, rows)

    def due(self, now: float, limit: int) -> list[OutboxRow]:
        """Return the messages to be tried now, oldest first. A damaged one has no document."""
        t = tables.outbox.c
        is_due = (t.not_before <= now) | (t.not_before > now + MAX_PAUSE_SECONDS)
        query = sa.select(tables.outbox).where(t.over_at.is_(None), is_due)
        rows = self._read(query.order_by(t.at, t.id).limit(limit), t.document)
        return [OutboxRow(**row) for row in rows]

    def count_waiting(self) -> int:
        """Return how many messages wait to be sent."""
        waiting = tables.outbox.c.over_at.is_(None)
        return self._scalar(sa.select(sa.func.count()).select_from(tables.outbox).where(waiting)) or 0

    def save_attempts(self, rows: Sequence[OutboxRow]) -> None:
        """Write the outcome of one attempt to send each of these messages."""
        t = tables.outbox
        with self._transaction(writes=True) as connection:
            for row in rows:
                outcome = {name: getattr(row, name) for name in ("attempts", "not_before", "over_at", "result")}
                connection.execute(t.update().where(t.c.id == row.id).values(**outcome))
