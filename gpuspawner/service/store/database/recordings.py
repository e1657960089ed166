"""Reads the recorded history of a service that may be running, without any effect on the service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from gpuspawner.core import events
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.idle.readings import CPU, PROBED, GpuReading, GpuState, Sample, SoftReading, Source, SourceReading
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.store import ReadingRow, tables
from gpuspawner.service.store.database.dialects import engine_to_read
from gpuspawner.service.store.readings import BUCKET_SECONDS, RAW_SECONDS
from gpuspawner.simulate.replay import Step
from gpuspawner.simulate.timeline import Timeline, merged

_lease_json: TypeAdapter[Lease] = TypeAdapter(Lease)
_source_json: TypeAdapter[SourceReading] = TypeAdapter(SourceReading)


@dataclass(frozen=True)
class RecordedLease:
    """A lease that ran, and its readings, oldest first. Times in seconds since the epoch."""

    lease: Lease
    rows: tuple[ReadingRow, ...]
    start: float
    end: float
    absent_until: float | None = None
    """The time until which the user had not opened the workspace, if it was granted while they were away. None if they
    were present, or if it is unknown."""

    def opened(self, at: float) -> bool | None:
        """Return whether the user had opened the workspace by then, None if unknown."""
        if self.absent_until is None:
            return None
        return False if at < self.absent_until else True if self.lease.claimed_at is not None else None

    @property
    def gpus(self) -> tuple[str, ...]:
        """Its GPUs, each once."""
        return tuple(dict.fromkeys(slot.gpu for slot in self.lease.slots)) or tuple(
            dict.fromkeys(row.gpu for row in self.rows)
        )


def read_recordings(
    url: str, since: float, told: Callable[[int, int], None], password_file: Path | None = None
) -> Iterator[RecordedLease]:
    """Yield each lease with GPU readings after ``since``, ordered by its first reading.

    ``told`` is called with the number of leases that were read, and with their total.

    Raises:
        Unavailable: the database does not exist or has another version.
        ValueError: ``url`` is not the address of a database.
    """
    engine = engine_to_read(url, password_file)
    columns = [c for c in tables.readings.c if c.name != "number"]
    query = sa.select(*columns).order_by(tables.readings.c.at, tables.readings.c.number)
    first = sa.select(tables.readings.c.lease).where(tables.readings.c.at >= since, tables.readings.c.gpu != "")
    first = first.group_by(tables.readings.c.lease).order_by(sa.func.min(tables.readings.c.at))
    over = sa.select(sa.func.max(tables.audit.c.at)).where(tables.audit.c.action == events.NobodyCameYet.name)
    try:
        with engine.connect() as connection:
            names = list(connection.scalars(first))
            for number, name in enumerate(names):
                told(number, len(names))
                where = (tables.readings.c.lease == name) & (tables.readings.c.at >= since)
                rows = tuple(ReadingRow(**row) for row in connection.execute(query.where(where)).mappings())
                document = connection.scalar(sa.select(tables.leases.c.document).where(tables.leases.c.id == name))
                over_at = connection.scalar(over.where(tables.audit.c.lease == name))
                if document is not None:
                    yield _recorded(_lease_json.validate_python(document), rows, since, over_at)
    except (sa.exc.SQLAlchemyError, ValueError, TypeError) as error:  # no database, a cut one, rows that say nothing
        why = str(getattr(error, "orig", error)).splitlines()[0]
        if "no such column" in why or "does not exist" in why:
            raise Unavailable(
                f"The history was written by another version of gpuspawner ({why}). Start the service once: "
                "it brings its database up to date."
            ) from error
        foreign = "no such table" in why or "not a database" in why
        remedy = " It is not gpuspawner's: name the database that its service writes." if foreign else ""
        raise Unavailable(f"The history cannot be read ({why}).{remedy}") from error
    finally:
        engine.dispose()


def _recorded(lease: Lease, rows: tuple[ReadingRow, ...], since: float, over_at: float | None) -> RecordedLease:
    began = rows[0].at - rows[0].seconds
    start = max(lease.running_at if lease.running_at is not None else began, since)
    end = max(rows[-1].at, lease.ended_at or 0.0)
    nobody = lease.arrival is not None or lease.reason is ExitReason.NOBODY_CAME
    last = end if nobody else over_at  # the last time without the user
    absent_until = lease.claimed_at if lease.claimed_at is not None else None if last is None else last + 1.0
    seen = lease.running_at is not None and lease.running_at >= since  # otherwise the beginning is unknown
    return RecordedLease(lease, rows, min(start, began), end, absent_until if seen else None)


def busy_timeline(history: RecordedLease, period_seconds: float, now: float) -> Timeline:
    """Return when any GPU was busy, in seconds since the start, as the policy judged each measurement at its time.

    Readings older than a day are stored for ten minutes each, as in :func:`replay_steps`. Work in them lasts ten
    minutes. The rest is unknown.
    """
    return merged(
        Timeline([(max(0.0, at - seconds - history.start), at - history.start, 1.0)])
        for at, seconds, rows in _instants(history, period_seconds, now)
        if at > history.start and any(row.kind == GpuState.BUSY.value for row in rows.values())
    )


def missing_evidence(history: RecordedLease) -> frozenset[str]:
    """Return the names of soft evidence without any recorded reading."""
    cpu = () if any(row.cpu_cores is not None for row in history.rows) else (CPU,)
    return frozenset((*cpu, *(() if any(row.soft is not None for row in history.rows) else PROBED)))


def replay_steps(history: RecordedLease, period_seconds: float, now: float) -> Iterator[Step]:
    """Yield the samples of a history. Their ``at`` counts from its start.

    For readings older than a day, only the highest of each ten minutes is stored. It is repeated at the sampling period
    for the whole ten minutes. Unknown readings within them are lost.
    """
    before: float | None = None
    for at, _, rows in _instants(history, period_seconds, now):
        if before is not None and at <= before:
            continue
        interval = period_seconds if before is None else at - before
        yield Step(at - history.start, _sample(history, rows, interval, at))
        before = at


def _instants(
    history: RecordedLease, period_seconds: float, now: float
) -> Iterator[tuple[float, float, dict[str, ReadingRow]]]:
    """Yield each time at which the workspace was sampled, the seconds it covers, and the reading of each GPU."""
    raw_from = now - RAW_SECONDS - BUCKET_SECONDS  # a bucket is thinned whole only once all of it is old
    thinned = [row for row in history.rows if row.at < raw_from and not row.kept]
    whole = [row for row in history.rows if row.at >= raw_from or row.kept]
    whole_buckets = {int(row.at / BUCKET_SECONDS) for row in whole}
    for bucket, rows in groupby(thinned, lambda row: int(row.at / BUCKET_SECONDS)):
        if bucket in whole_buckets:
            continue
        of_gpu = {row.gpu: row for row in sorted(rows, key=_strength)}
        begin = max(bucket * BUCKET_SECONDS, history.start)
        end = min((bucket + 1) * BUCKET_SECONDS, history.end)
        count = max(1, round((end - begin) / period_seconds))
        for number in range(1, count + 1):
            yield begin + (end - begin) * number / count, (end - begin) / count, of_gpu
    for at, rows in groupby(whole, lambda row: row.at):
        of_gpu = {row.gpu: row for row in rows}
        yield at, max(row.seconds for row in of_gpu.values()), of_gpu


def _strength(row: ReadingRow) -> tuple[bool, float]:
    """Return a sort key by which the last row of a GPU represents the ten minutes."""
    return row.kind == GpuState.BUSY.value, -1.0 if row.utilization_percent is None else row.utilization_percent


def _sample(history: RecordedLease, rows: dict[str, ReadingRow], interval: float, at: float) -> Sample:
    known = [row for row in rows.values() if row.cpu_cores is not None]
    return Sample(
        leased=history.gpus,
        gpus=tuple(_reading(row) for row in rows.values()),
        interval_seconds=interval,
        age_seconds=max(0.0, at - history.start),
        cpu_cores=known[0].cpu_cores if known else None,
        ended_cpu_cores=known[0].ended_cpu_cores if known else None,
        opened=history.opened(at),
        soft=_soft(next((row.soft for row in rows.values() if row.soft is not None), None)),
        sources=tuple(
            dict.fromkeys(_source_json.validate_python(one) for row in rows.values() for one in row.sources or ())
        ),
    )


def _soft(stored: dict[str, dict[str, Any]] | None) -> tuple[SoftReading, ...]:
    """Return the soft evidence of a sample. Evidence that is not stored was inactive, unless no evidence was read."""
    if stored is None:
        return ()
    return tuple(SoftReading(name, **stored.get(name, {"active": False})) for name in PROBED)


def _reading(row: ReadingRow) -> GpuReading:
    return GpuReading(
        gpu=row.gpu,
        utilization_percent=row.utilization_percent,
        memory_used_bytes=row.memory_used_bytes,
        memory_total_bytes=row.memory_total_bytes,
        holders=row.holders,
        holders_cpu_cores=row.holders_cpu_cores,
        shared=row.shared,
        problem=row.because if row.kind == GpuState.UNKNOWN.value else "",
        buffer_percent=row.buffer_percent,
        persistence=row.persistence,
        encoder_percent=row.encoder_percent,
        decoder_percent=row.decoder_percent,
        possible_holders=row.possible_holders,
        possible_cpu_cores=row.possible_cpu_cores,
        seen_seconds=row.seen_seconds,
    )


def _without(source: Source) -> Callable[[Sample], Sample]:
    return lambda sample: replace(sample, sources=tuple(one for one in sample.sources if one.source is not source))


SOURCES: dict[str, Callable[[Sample], Sample]] = {
    "the workspaces' own monitors": _without(Source.MONITOR),
    Source.EXPORTER.value: _without(Source.EXPORTER),
}
"""The sources in addition to the probe. Each function returns a sample without its source."""


class RecordedSamples:
    """The sample source of :func:`simulate.replay.simulate`. It returns samples at their recorded times."""

    def __init__(self, steps: Iterable[Step]) -> None:
        """Begin at the first sample."""
        self._rest = iter(steps)
        self._from = 0.0

    def __call__(self, seconds: float) -> Step | None:  # noqa: ARG002 - the samples have their own times
        """Return the next sample."""
        return next((step for step in self._rest if step.at >= self._from), None)

    def resume(self, at: float) -> None:
        """Skip earlier samples."""
        self._from = at
