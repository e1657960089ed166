"""Stronger claims, as they stand: stored apart from leases, whose notices name them."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from pydantic import TypeAdapter

from gpuspawner.core.queue.preemption import Preemption
from gpuspawner.service.store import tables
from gpuspawner.service.store.outputs import Transactions
from gpuspawner.service.store.rows import AuditLine, row_of_line

_json: TypeAdapter[Preemption] = TypeAdapter(Preemption)


class PreemptionRows:
    """Their table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    def save(self, one: Preemption, audit: Iterable[AuditLine] = ()) -> None:
        """Write one, in place of what was stored of it, with its audit."""
        t = tables.preemptions
        row = {
            "id": one.id,
            "by": one.by,
            "key": one.key,
            "live": one.live,
            "made_at": one.made_at,
            "document": _json.dump_python(one, mode="json"),
        }
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(t.c.id == one.id))
            connection.execute(t.insert(), row)
            if lines := [row_of_line(line) for line in audit]:
                connection.execute(tables.audit.insert(), lines)

    def live(self) -> list[Preemption]:
        """Return those that are not over, the oldest first."""
        return self._where(tables.preemptions.c.live)

    def last(self, limit: int) -> list[Preemption]:
        """Return the last that were made, the newest first."""
        return self._where(sa.true(), limit)

    def of(self, name: str) -> Preemption | None:
        """Return one by its id."""
        return next(iter(self._where(tables.preemptions.c.id == name)), None)

    def of_key(self, by: str, key: str) -> Preemption | None:
        """Return the one that somebody made by a key."""
        columns = tables.preemptions.c
        return next(iter(self._where((columns.by == by) & (columns.key == key))), None)

    def forget(self, before: float) -> None:
        """Delete what was made before, and is over."""
        t = tables.preemptions
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(t.c.made_at < before, ~t.c.live))

    def _where(self, where: sa.ColumnElement[bool], limit: int | None = None) -> list[Preemption]:
        columns = tables.preemptions.c
        order = columns.made_at if limit is None else columns.made_at.desc()
        query = sa.select(columns.document).where(where).order_by(order, columns.id).limit(limit)
        with self._transaction() as connection:
            return [_json.validate_python(document) for document in connection.scalars(query)]
