"""How far off the estimates were that people got: a line for each start that was waited for."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import sqlalchemy as sa

from gpuspawner.core.queue.forecast.ranges import MOST_ERRORS, Outcome
from gpuspawner.service.store import tables
from gpuspawner.service.store.outputs import Transactions

KEPT_SECONDS = 90 * 86400.0
"""Older ones are forgotten. Arbitrary: a cluster of a quarter ago is another."""


@dataclass(frozen=True)
class Waits:
    """Starts that were waited for and had an estimate, of some days; times in seconds, None where there were none."""

    count: int = 0
    right: int = 0
    median_seconds: float | None = None
    ninth_seconds: float | None = None
    """Nine of ten waited no longer."""
    longest_seconds: float | None = None


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

    def waits(self, since: float, until: float) -> Waits:
        """Return how long starts were waited for that came in a span, and how many came when they were said to."""
        t = tables.estimates.c
        within = (t.at >= since) & (t.at < until)
        right = sa.case(((t.actual_seconds >= t.from_seconds) & (t.actual_seconds <= t.to_seconds), 1), else_=0)
        counted = sa.select(sa.func.count(), sa.func.sum(right), sa.func.max(t.actual_seconds)).where(within)
        ranked = sa.select(t.actual_seconds).where(within).order_by(t.actual_seconds).limit(1)
        with self._transaction() as connection:
            count, came, longest = connection.execute(counted).one()
            if not count:
                return Waits()
            median, ninth = (connection.scalar(ranked.offset(int(share * (count - 1)))) for share in (0.5, 0.9))
        return Waits(count, int(came), median, ninth, longest)

    def last(self) -> list[Outcome]:
        """Return the last ones, the oldest first."""
        columns = [c for c in tables.estimates.c if c.name not in {"number", "at"}]
        query = sa.select(*columns).order_by(tables.estimates.c.number.desc()).limit(MOST_ERRORS)
        with self._transaction() as connection:
            return [Outcome(**row) for row in connection.execute(query).mappings()][::-1]
