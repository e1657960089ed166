"""Messages of administrators, as stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa

from gpuspawner.core.inbox.messages import Message, Whom
from gpuspawner.service.store import tables
from gpuspawner.service.store.outbox import Outbox, OutboxRow
from gpuspawner.service.store.outputs import Transactions
from gpuspawner.service.store.rows import AuditLine, row_of_line


class MessageRows:
    """Their table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions, outbox: Outbox) -> None:
        """Read and write by the store's transactions."""
        self._transaction, self._outbox = transaction, outbox

    def save(self, one: Message, audit: Sequence[AuditLine], outbox: Sequence[OutboxRow] = ()) -> None:
        """Write one, in place of what was stored of it, with who did it, and what is sent of it."""
        t = tables.messages
        row = {**asdict(one), "whom": one.whom.value, "recipients": sorted(one.recipients)}
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(t.c.id == one.id))
            connection.execute(t.insert(), row)
            connection.execute(tables.audit.insert(), [row_of_line(line) for line in audit])
            self._outbox.write(connection, outbox)

    def since(self, made_at: float) -> list[Message]:
        """Return those that were made since, the newest first."""
        t = tables.messages
        query = sa.select(t).where(t.c.made_at >= made_at).order_by(t.c.made_at.desc(), t.c.id)
        with self._transaction() as connection:
            rows = connection.execute(query).mappings().all()
        return [
            Message(**{**row, "whom": Whom(row["whom"]), "recipients": frozenset(row["recipients"])}) for row in rows
        ]

    def forget(self, before: float) -> None:
        """Delete what was made before, and is over."""
        t = tables.messages
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(t.c.made_at < before, t.c.until < before))
