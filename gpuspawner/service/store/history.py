"""The history by which starts are estimated: estimates with their outcome, and the idle times of workspaces.

Requests, starts and ends with their reasons are the leases themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

import sqlalchemy as sa

from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.queue.calibration import MOST_OUTCOMES, NEAR_SECONDS, EstimateOutcome
from gpuspawner.service.store import tables
from gpuspawner.service.store.personal import OwnedRows
from gpuspawner.service.store.rows import MAX_NUMBER, StoredRows, owner_columns, read_with_damaged_json

HISTORY_SECONDS = 90 * 86400.0
"""Older history is deleted. Arbitrary: a cluster changes within a quarter."""
MOST_REPORTED = 50_000
"""The most estimates that a report counts, the newest."""
AT_ONCE = 500
"""The most ids in one query."""


@dataclass(frozen=True)
class WaitingTimes:
    """Starts of a period that had to wait and had an estimate. Times are None if there were none."""

    count: int = 0
    right: int = 0
    """Starts that came within ten minutes of the first estimate."""
    median_seconds: float | None = None
    ninth_seconds: float | None = None
    """Nine of ten waited no longer."""
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
        """Return how long the starts of a period waited, and how many came when they were first estimated."""
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

    def delete_old(self, now: float) -> None:
        """Delete estimates that are too old."""
        self._delete(tables.estimates, tables.estimates.c.at < now - HISTORY_SECONDS)


_ENDLESS = ("high_seconds", "to_seconds", "actual_seconds")
"""Columns in which null stands for infinite."""


def _row(outcome: EstimateOutcome) -> dict[str, Any]:
    row = asdict(outcome)
    return {**row, **{name: None for name in _ENDLESS if row[name] == inf}}


def _outcome(row: sa.RowMapping) -> EstimateOutcome:
    values = {name: row[name] for name in EstimateOutcome.__dataclass_fields__}
    return EstimateOutcome(**{**values, **{name: inf for name in _ENDLESS if values[name] is None}})


def _without_open_range(outcome: EstimateOutcome, waited_seconds: float) -> EstimateOutcome:
    is_open = outcome.actual_seconds == inf and waited_seconds <= outcome.to_seconds
    return replace(outcome, to_seconds=inf) if is_open else outcome


class IdleTraces(OwnedRows):
    """Reads and writes the idle time of each workspace with GPUs at each ten minutes of its age, in seconds."""

    table = tables.idle_traces

    def save(self, traces: Iterable[tuple[Lease, Sequence[float]]], at: float) -> None:
        """Write the traces of workspaces, in place of what was stored of them."""
        t = tables.idle_traces
        rows = [
            {**owner_columns(lease.key.owner), "lease": lease.id, "at": at, "idle": list(map(round, idle))}
            for lease, idle in traces
        ]
        with self._transaction(writes=True) as connection:
            connection.execute(
                t.delete().where(t.c.lease == sa.bindparam("this")), [{"this": x["lease"]} for x in rows]
            )
            connection.execute(t.insert(), rows)

    def of(self, lease_ids: Sequence[str]) -> dict[str, tuple[float, ...]]:
        """Return the traces of these leases by id."""
        t, found = tables.idle_traces.c, dict[str, tuple[float, ...]]()
        for first in range(0, len(lease_ids), AT_ONCE):
            query = sa.select(t.lease, t.idle).where(t.lease.in_(lease_ids[first : first + AT_ONCE]))
            with self._transaction() as connection:
                rows = read_with_damaged_json(connection, query, t.idle)
            found |= dict(
                self._damaged.read(tables.idle_traces, rows, lambda row: (row.lease, (*map(float, row.idle),)), "lease")
            )
        return found

    def delete_old(self, now: float) -> None:
        """Delete traces that are too old."""
        self._delete(tables.idle_traces, tables.idle_traces.c.at < now - HISTORY_SECONDS)
