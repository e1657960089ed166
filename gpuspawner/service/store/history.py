"""The history of the service: estimates with their outcome, idle times of workspaces, counters, and kinds of GPU.

Requests, starts and ends with their reasons are the leases themselves.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from typing import Any

import sqlalchemy as sa

from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.queue.calibration import MOST_OUTCOMES, NEAR_SECONDS, EstimateOutcome
from gpuspawner.service.store import tables
from gpuspawner.service.store.rows import MAX_NUMBER, Row, StoredRows, owner_columns

HISTORY_SECONDS = 90 * 86400.0
"""Older history is deleted. Arbitrary: a cluster changes within a quarter."""
MOST_REPORTED = 50_000
"""The most estimates that a report counts, the newest."""
AT_ONCE = 500
"""The largest number of ids in one query."""


@dataclass(frozen=True)
class WaitingTimes:
    """Starts of a period that had to wait and had an estimate. Times are None if there were none."""

    count: int = 0
    right: int = 0
    """Starts that came within ten minutes of the first estimate."""
    median_seconds: float | None = None
    ninth_seconds: float | None = None
    """Nine of ten starts waited no longer."""
    longest_seconds: float | None = None


class Estimates(StoredRows):
    """Reads and writes estimates. Their outcome is null until the request starts."""

    def add(self, made: Mapping[str, EstimateOutcome], at: float, new: Collection[str]) -> None:
        """Write estimates by lease id, made at the same time. ``new`` are requests without an earlier estimate."""
        rows = [
            {**_row(outcome), "lease": lease_id, "at": at, "is_first": lease_id in new}
            for lease_id, outcome in made.items()
        ]
        with self._transaction(writes=True) as connection:
            connection.execute(tables.estimates.insert(), rows)

    def start(self, lease_id: str, at: float) -> None:
        """Write when a request started, as the outcome of its estimates."""
        t = tables.estimates
        with self._transaction(writes=True) as connection:
            where = (t.c.lease == lease_id) & t.c.actual_seconds.is_(None)
            connection.execute(t.update().where(where).values(actual_seconds=at - t.c.at))

    def withdraw(self, lease_ids: Collection[str]) -> None:
        """Delete the estimates of requests that were withdrawn before they started."""
        t = tables.estimates.c
        self._delete(tables.estimates, t.lease.in_(list(lease_ids)) & t.actual_seconds.is_(None))

    def pending(self) -> dict[str, list[tuple[float, EstimateOutcome]]]:
        """Return the estimates of requests that still wait, with their times, by lease id."""
        t, found = tables.estimates.c, dict[str, list[tuple[float, EstimateOutcome]]]()
        query = sa.select(tables.estimates).where(t.actual_seconds.is_(None)).order_by(t.number)
        made = self._read_each(
            tables.estimates, query, lambda row: (row["lease"], (row["at"], _outcome(row))), key="number"
        )
        for lease_id, one in made:
            found.setdefault(lease_id, []).append(one)
        return found

    def latest(self) -> list[EstimateOutcome]:
        """Return the latest outcomes, oldest first."""
        t = tables.estimates.c
        query = sa.select(tables.estimates).where(t.actual_seconds.is_not(None))
        query = query.order_by(t.number.desc()).limit(MOST_OUTCOMES)
        return self._read_each(tables.estimates, query, _outcome, key="number")[::-1]

    def outcomes(self, since: float, until: float) -> list[EstimateOutcome]:
        """Return the outcomes of a period. A request that is overdue at its end has an infinite wait.

        An overdue request whose range has not ended yet has no range.
        """
        t = tables.estimates.c
        is_over = t.actual_seconds.is_not(None) | (t.at + t.point_seconds + NEAR_SECONDS < until)
        query = sa.select(tables.estimates).where((t.at >= since) & (t.at < until) & is_over)
        query = query.order_by(t.number.desc()).limit(MOST_REPORTED)
        return self._read_each(
            tables.estimates, query, lambda row: _without_open_range(_outcome(row), until - row["at"]), key="number"
        )

    def waiting_times(self, since: float, until: float) -> WaitingTimes:
        """Return how long the starts of a period waited, and how many came at their first estimate."""
        t = tables.estimates.c
        within = (t.at >= since) & (t.at < until) & t.is_first & (t.actual_seconds <= MAX_NUMBER)
        is_near = sa.func.abs(t.actual_seconds - t.point_seconds) <= NEAR_SECONDS
        counted = sa.select(
            sa.func.count(), sa.func.sum(sa.case((is_near, 1), else_=0)), sa.func.max(t.actual_seconds)
        ).where(within)
        ranked = sa.select(t.actual_seconds).where(within).order_by(t.actual_seconds).limit(1)
        with self._transaction() as connection:
            count, right, longest = connection.execute(counted).one()
            if not count:
                return WaitingTimes()
            median, ninth = (connection.scalar(ranked.offset(int(share * (count - 1)))) for share in (0.5, 0.9))
        return WaitingTimes(count, int(right), median, ninth, longest)


_ENDLESS = ("high_seconds", "to_seconds", "actual_seconds")
"""Columns in which null means infinite."""


def _row(outcome: EstimateOutcome) -> dict[str, Any]:
    row = asdict(outcome)
    return {**row, **{name: None for name in _ENDLESS if row[name] == inf}}


def _outcome(row: Row) -> EstimateOutcome:
    values = {name: row[name] for name in EstimateOutcome.__dataclass_fields__}
    return EstimateOutcome(**{**values, **{name: inf for name in _ENDLESS if values[name] is None}})


def _without_open_range(outcome: EstimateOutcome, waited_seconds: float) -> EstimateOutcome:
    is_open = outcome.actual_seconds == inf and waited_seconds <= outcome.to_seconds
    return replace(outcome, to_seconds=inf) if is_open else outcome


class IdleTraces(StoredRows):
    """Reads and writes the idle time of each workspace with GPUs at each ten minutes of its age, in seconds."""

    def save(self, traces: Iterable[tuple[Lease, Sequence[float]]], at: float) -> None:
        """Write the traces of workspaces, in place of their stored traces."""
        rows = [
            {**owner_columns(lease.key.owner), "lease": lease.id, "at": at, "idle": list(map(round, idle))}
            for lease, idle in traces
        ]
        self._save(tables.idle_traces, rows)

    def of(self, lease_ids: Sequence[str]) -> dict[str, tuple[float, ...]]:
        """Return the traces of these leases by id."""
        t, found = tables.idle_traces.c, dict[str, tuple[float, ...]]()
        for first in range(0, len(lease_ids), AT_ONCE):
            query = sa.select(t.lease, t.idle).where(t.lease.in_(lease_ids[first : first + AT_ONCE]))
            found |= dict(self._read_each(tables.idle_traces, query, _trace_of, t.idle, key="lease"))
        return found


def _trace_of(row: Row) -> tuple[str, tuple[float, ...]]:
    return row["lease"], tuple(map(float, row["idle"]))


Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name, and its labels by name."""


class Counters(StoredRows):
    """Reads and writes counters of metrics, so that a new service continues where the one before it ended."""

    def save(self, values: Mapping[Series, float], at: float) -> None:
        """Write counters, in place of their stored values."""
        text_of = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
        rows = [{"series": text_of(series), "value": value, "at": at} for series, value in values.items()]
        self._save(tables.counters, rows)

    def all(self) -> dict[Series, float]:
        """Return every counter."""
        found = self._read_each(tables.counters, sa.select(tables.counters), _counter_of, key="series")
        return dict(found)


def _counter_of(row: Row) -> tuple[Series, float]:
    name, labels = json.loads(row["series"])
    return (name, tuple((key, value) for key, value in labels)), row["value"]


class KindsSeen(StoredRows):
    """Reads and writes, for each kind of GPU, the most that one workspace could have, and when."""

    def all(self) -> dict[str, tuple[int, float]]:
        """Return count and time by kind."""
        found = self._read_each(tables.kinds_seen, sa.select(tables.kinds_seen), dict, key="kind")
        return {row["kind"]: (row["largest"], row["at"]) for row in found}

    def save(self, seen: Mapping[str, tuple[int, float]]) -> None:
        """Write kinds as :meth:`all` returns them."""
        rows = [{"kind": kind, "largest": largest, "at": at} for kind, (largest, at) in seen.items()]
        self._save(tables.kinds_seen, rows)
