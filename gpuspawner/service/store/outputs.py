"""The last lines of servers that failed: stored apart from leases and audit, so that no list of these shows them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Protocol

import sqlalchemy as sa

from gpuspawner.core.leases.output import KEPT_SECONDS
from gpuspawner.service.store import tables


@dataclass(frozen=True)
class OutputRow:
    """What the server of a lease wrote last, as ``leases.output.shown`` left it. ``shared``: with administrators."""

    lease: str
    at: float
    text: str
    shared: bool = False


class Transactions(Protocol):
    """Begins a transaction that checks the epoch."""

    def __call__(self, *, writes: bool = False) -> AbstractContextManager[sa.Connection]:
        """Return it."""


class Outputs:
    """Their table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    def keep(self, row: OutputRow) -> None:
        """Keep the output of a lease, in place of an earlier one."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.outputs.delete().where(tables.outputs.c.lease == row.lease))
            connection.execute(tables.outputs.insert(), asdict(row))

    def of(self, lease_id: str, now: float) -> OutputRow | None:
        """Return the output of a lease; None where there is none, or its time is over."""
        columns = tables.outputs.c
        query = sa.select(tables.outputs).where(columns.lease == lease_id, columns.at >= now - KEPT_SECONDS)
        with self._transaction() as connection:
            row = connection.execute(query).mappings().first()
            return None if row is None else OutputRow(**row)

    def share(self, lease_id: str) -> None:
        """Let administrators read the output of a lease."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.outputs.update().where(tables.outputs.c.lease == lease_id).values(shared=True))

    def forget(self, now: float) -> None:
        """Delete what is older than its time."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.outputs.delete().where(tables.outputs.c.at < now - KEPT_SECONDS))
