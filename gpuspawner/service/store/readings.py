"""Readings of GPUs, and the last output of failed servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from gpuspawner.core.leases.reports import KEPT_SECONDS as OUTPUT_SECONDS
from gpuspawner.service.store import tables
from gpuspawner.service.store.database.dialects import WholePart
from gpuspawner.service.store.rows import DamagedRows, Row, StoredRows, Transactions

RAW_SECONDS = 24 * 3600.0
"""Raw readings are kept this long."""
MAXIMA_SECONDS = 30 * 24 * 3600.0
"""Ten-minute maxima are kept this long."""
BUCKET_SECONDS = 600.0


@dataclass(frozen=True)
class ReadingRow:
    """One reading of one GPU as stored. ``seconds`` is the time that it covers.

    ``gpu`` is "" for a workspace without a GPU. ``kept`` readings led to a stop. ``utilization_percent`` is the highest
    measured value. ``cpu_cores`` is of the whole workspace. ``sources`` are the readings of the workspace's monitor and
    of DCGM exporter. ``soft`` is the soft evidence, null if it was not read: ``active`` and ``words`` of evidence that
    was active (true) or unknown (null). Other evidence was inactive. The other fields are those of
    ``core.idle.readings``.
    """

    lease: str
    at: float
    seconds: float
    gpu: str
    utilization_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    kind: str
    because: str
    kept: bool = False
    shared: bool = False
    holders: int | None = None
    holders_cpu_cores: float | None = None
    cpu_cores: float | None = None
    soft: dict[str, dict[str, Any]] | None = None
    buffer_percent: float | None = None
    persistence: bool | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None
    possible_holders: int = 0
    possible_cpu_cores: float | None = None
    seen_seconds: float = 0.0
    ended_cpu_cores: float | None = None
    sources: list[dict[str, Any]] | None = None
    host_memory_bytes: int | None = None


class Readings(StoredRows):
    """Reads, writes and thins readings."""

    def __init__(self, transaction: Transactions, damaged: DamagedRows) -> None:
        """Read and write by the store's transactions."""
        super().__init__(transaction, damaged)
        self._thinned_to: float | None = None

    @staticmethod
    def write(connection: sa.Connection, rows: Iterable[ReadingRow], kept: Iterable[tuple[str, float]]) -> None:
        """Write readings in a transaction that has begun.

        ``kept`` are ids of leases and times: their readings since then are kept as long as their audit.
        """
        if values := [asdict(row) for row in rows]:
            connection.execute(tables.readings.insert(), values)
        t = tables.readings.c
        for lease_id, since in kept:
            where = (t.lease == lease_id) & (t.at >= since)
            connection.execute(tables.readings.update().where(where).values(kept=True))

    def of_lease(self, lease_id: str, since: float = 0.0) -> list[ReadingRow]:
        """Return the readings of one lease, oldest first."""
        t = tables.readings.c
        query = sa.select(tables.readings).where(t.lease == lease_id, t.at >= since).order_by(t.at, t.number)
        return self._read_each(tables.readings, query, _reading_of, t.soft, t.sources, key="number")

    def use_by_minute(self, lease_ids: Sequence[str], since: float) -> dict[str, list[tuple[float, float]]]:
        """Return the mean GPU use of each known minute by lease: the end of the minute, and percent."""
        t, minute = tables.readings.c, WholePart(tables.readings.c.at / 60.0)
        known = t.lease.in_(lease_ids) & (t.at >= since) & t.utilization_percent.is_not(None) & (t.kind != "unknown")
        query = sa.select(t.lease, minute, sa.func.avg(t.utilization_percent)).where(known)
        found: dict[str, list[tuple[float, float]]] = {}
        with self._transaction() as connection:
            for lease, number, percent in connection.execute(query.group_by(t.lease, minute).order_by(t.lease, minute)):
                found.setdefault(lease, []).append((60.0 * (number + 1), float(percent)))
        return found

    def thin(self, now: float, at_once_seconds: float = MAXIMA_SECONDS) -> bool:
        """Keep raw readings for a day and ten-minute maxima for 30 days. Readings that led to a stop stay.

        One call covers ``at_once_seconds`` from the end of the last call. A month of a thousand workspaces would take a
        quarter of a minute, in which no other write is possible. Return whether there is more to thin.
        """
        r, until = tables.readings.c, now - RAW_SECONDS
        begin = now - MAXIMA_SECONDS if self._thinned_to is None else self._thinned_to
        end = min(begin + at_once_seconds, until)
        old = (r.at >= begin - begin % BUCKET_SECONDS) & (r.at < end) & ~r.kept
        # Each GPU keeps one row in a bucket: preferably busy, then with the highest reading, then the latest.
        rank = sa.func.row_number().over(
            partition_by=(r.lease, r.gpu, WholePart(r.at / BUCKET_SECONDS)),
            order_by=(
                sa.case((r.kind == "busy", 0), else_=1),
                sa.func.coalesce(r.utilization_percent, -1.0).desc(),
                r.number.desc(),
            ),
        )
        ranked = sa.select(r.number, rank.label("rank")).where(old).subquery()
        with self._transaction(writes=True) as connection:
            connection.execute(tables.readings.delete().where((r.at < now - MAXIMA_SECONDS) & ~r.kept))
            connection.execute(
                tables.readings.delete().where(r.number.in_(sa.select(ranked.c.number).where(ranked.c.rank > 1)))
            )
        self._thinned_to = end
        return end < until


def _reading_of(row: Row) -> ReadingRow:
    """Return a stored reading. Raises ValueError if its evidence is damaged."""
    for name, kind in (("soft", dict), ("sources", list)):
        evidence = row[name]
        parts = evidence.values() if isinstance(evidence, dict) else evidence
        if evidence is not None and not (isinstance(evidence, kind) and all(isinstance(one, dict) for one in parts)):
            raise ValueError(f"{name} is damaged")
    return ReadingRow(**{name: value for name, value in row.items() if name != "number"})


@dataclass(frozen=True)
class OutputRow:
    """The last output of a lease's server, masked by ``leases.reports.shown``.

    ``shared`` is whether administrators may read it.
    """

    lease: str
    at: float
    text: str
    shared: bool = False


class Outputs(StoredRows):
    """Reads and writes outputs. They are not part of leases or audit, so no list of these shows them."""

    def save(self, row: OutputRow) -> None:
        """Write the output of a lease, in place of an earlier one."""
        self._save(tables.outputs, [asdict(row)])

    def get(self, lease_id: str, now: float) -> OutputRow | None:
        """Return the output of a lease, None without one or once it is too old."""
        t = tables.outputs.c
        query = sa.select(tables.outputs).where(t.lease == lease_id, t.at >= now - OUTPUT_SECONDS)
        rows = self._read_each(tables.outputs, query, lambda row: OutputRow(**row), key="lease")
        return rows[0] if rows else None

    def write_shared(self, connection: sa.Connection, lease_id: str) -> None:
        """Let administrators read the output of a lease, in a transaction."""
        connection.execute(tables.outputs.update().where(tables.outputs.c.lease == lease_id).values(shared=True))
