"""How far off the estimates were that people got: a line for each start that was waited for."""

from __future__ import annotations

from dataclasses import asdict

import sqlalchemy as sa

from gpuspawner.core.queue.forecast.ranges import MOST_ERRORS, Outcome
from gpuspawner.service.store import tables
from gpuspawner.service.store.outputs import Transactions

KEPT_SECONDS = 90 * 86400.0
"""Older ones are forgotten. Arbitrary: a cluster of a quarter ago is another."""


class Estimates:
    """Their table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    def keep(self, outcome: Outcome, at: float) -> None:
        """Keep one more, and forget those that are too old."""
        columns = tables.estimates.c
        with self._transaction(writes=True) as connection:
            connection.execute(tables.estimates.delete().where(columns.at < at - KEPT_SECONDS))
            connection.execute(tables.estimates.insert(), {"at": at, **asdict(outcome)})

    def last(self) -> list[Outcome]:
        """Return the last ones, the oldest first."""
        columns = [c for c in tables.estimates.c if c.name not in {"number", "at"}]
        query = sa.select(*columns).order_by(tables.estimates.c.number.desc()).limit(MOST_ERRORS)
        with self._transaction() as connection:
            return [Outcome(**row) for row in connection.execute(query).mappings()][::-1]
