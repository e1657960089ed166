"""Measurements of the service itself: estimates and their outcome, counters, the kinds of GPU it has seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from gpuspawner.core.queue.estimates import MOST_ERRORS, EstimateOutcome
from gpuspawner.service.store import tables
from gpuspawner.service.store.rows import StoredRows

ESTIMATES_SECONDS = 90 * 86400.0
"""Older estimates are deleted. Arbitrary: a cluster changes within a quarter."""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name, and its labels by name."""


@dataclass(frozen=True)
class WaitingTimes:
    """Starts of a period that had to wait and had an estimate. Times are None if there were none."""

    count: int = 0
    right: int = 0
    """Starts that came when the estimate said."""
    median_seconds: float | None = None
    ninth_seconds: float | None = None
    """Nine of ten waited no longer."""
    longest_seconds: float | None = None


class Estimates(StoredRows):
    """Reads and writes the outcome of estimates: one row for each start that had to wait."""

    def add(self, outcome: EstimateOutcome, at: float) -> None:
        """Write an outcome, and delete those that are too old."""
        t = tables.estimates
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(t.c.at < at - ESTIMATES_SECONDS))
            connection.execute(t.insert(), {"at": at, **asdict(outcome)})

    def waiting_times(self, since: float, until: float) -> WaitingTimes:
        """Return how long the starts of a period waited, and how many came when they were estimated."""
        t = tables.estimates.c
        within = (t.at >= since) & (t.at < until)
        right = sa.case(((t.actual_seconds >= t.from_seconds) & (t.actual_seconds <= t.to_seconds), 1), else_=0)
        counted = sa.select(sa.func.count(), sa.func.sum(right), sa.func.max(t.actual_seconds)).where(within)
        ranked = sa.select(t.actual_seconds).where(within).order_by(t.actual_seconds).limit(1)
        with self._transaction() as connection:
            count, came, longest = connection.execute(counted).one()
            if not count:
                return WaitingTimes()
            median, ninth = (connection.scalar(ranked.offset(int(share * (count - 1)))) for share in (0.5, 0.9))
        return WaitingTimes(count, int(came), median, ninth, longest)

    def latest(self) -> list[EstimateOutcome]:
        """Return the latest outcomes, oldest first."""
        t = tables.estimates.c
        query = sa.select(tables.estimates).order_by(t.number.desc()).limit(MOST_ERRORS)
        return self._read_each(tables.estimates, query, _outcome_of, key="number")[::-1]


def _outcome_of(row: sa.RowMapping) -> EstimateOutcome:
    return EstimateOutcome(**{name: value for name, value in row.items() if name not in {"number", "at"}})


class Counters(StoredRows):
    """Reads and writes counters of metrics, so that a new service continues where the one before it ended."""

    def save(self, values: Mapping[Series, float], at: float) -> None:
        """Write counters, in place of what was stored of them."""
        t = tables.counters
        rows = [{"series": _text_of(series), "value": value, "at": at} for series, value in values.items()]
        with self._transaction(writes=True) as connection:
            connection.execute(
                t.delete().where(t.c.series == sa.bindparam("this")), [{"this": row["series"]} for row in rows]
            )
            connection.execute(t.insert(), rows)

    def all(self) -> dict[Series, float]:
        """Return every counter."""
        query = sa.select(tables.counters)
        return dict(self._read_each(tables.counters, query, lambda row: (_series_of(row.series), row.value), "series"))

    def delete_old(self, before: float) -> None:
        """Delete counters that last changed before: those of users and teams that are gone."""
        self._delete(tables.counters, tables.counters.c.at < before)


def _text_of(series: Series) -> str:
    return json.dumps(series, ensure_ascii=False, separators=(",", ":"))


def _series_of(text: str) -> Series:
    name, labels = json.loads(text)
    return name, tuple((key, value) for key, value in labels)


class KindsSeen(StoredRows):
    """Reads and writes which kinds of GPU there have been: how many one workspace could have, and when that was."""

    def all(self) -> dict[str, tuple[int, float]]:
        """Return count and time by kind."""
        query = sa.select(tables.kinds_seen)
        return dict(self._read_each(tables.kinds_seen, query, lambda row: (row.kind, (row.largest, row.at)), "kind"))

    def save(self, seen: Mapping[str, tuple[int, float]]) -> None:
        """Write kinds as :meth:`all` returns them."""
        t = tables.kinds_seen
        rows = [{"kind": kind, "largest": largest, "at": at} for kind, (largest, at) in seen.items()]
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(t.c.kind.in_(list(seen))))
            connection.execute(t.insert(), rows)
