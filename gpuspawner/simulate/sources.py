"""Readings of other sources for a generated session: a monitor in the workspace, and DCGM exporter."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from gpuspawner.core.idle.readings import Measure, Source, SourceReading
from gpuspawner.simulate.habits import Sharing
from gpuspawner.simulate.sessions import Session
from gpuspawner.simulate.timeline import Timeline

DRIVER_SECONDS = 1 / 6
"""The least time that a sample of the driver covers."""
MONITOR_LATE_SECONDS = 5.0
"""How often the monitor writes its readings."""
EXPORTER_SECONDS, EXPORTER_LATE_SECONDS = 30.0, 45.0
"""How often DCGM exporter reads, and the mean delay of its values through Prometheus."""


class Exporter(Enum):
    """The metric that DCGM exporter is configured for."""

    ENGINE = "engine"
    """Engine activity, averaged over the time between two looks, also of each MIG instance."""
    UTILIZATION = "utilization"
    """As it is shipped: the utilization of an instant, of whole devices."""


def by_monitor(session: Session, number: int, gpu: str, since: float, until: float) -> list[SourceReading]:
    """Return the readings of a monitor for a GPU, if NVML gives them. MIG devices have no readings.

    On a shared GPU they are the utilization of the workspace's own processes, if the session's driver has it.
    """
    begin, end = max(0.0, since - MONITOR_LATE_SECONDS), until - MONITOR_LATE_SECONDS
    if session.sharing is Sharing.MIG or session.lost.touches(until - 1.0, until) or end <= begin:
        return []
    is_own = session.sharing is Sharing.EXCLUSIVE or session.has_process_utilization
    seen = [session.work[number]] if is_own else [session.work[number], session.neighbours]
    coverage = 1.0 - session.lost.integral(begin, end) / (end - begin)

    def found(works: list[Timeline], engine: str = "") -> SourceReading:
        percent = max((percent for work in works for percent in _sampled(work, begin, end)), default=0.0)
        times = until - begin, until - end
        own = is_own or bool(engine)
        return SourceReading(gpu, Source.MONITOR, Measure.UTILIZATION, percent, *times, coverage, own, engine)

    return [found(seen), *([found([session.media], "decoder")] if session.media else [])]


def _sampled(work: Timeline, since: float, until: float) -> Iterator[float]:
    at = work.next_begin(since)
    while at is not None and at < until:
        end = min(work.next_end(at), until)
        yield round(work.at(at) * min(1.0, (end - at) / 2 / DRIVER_SECONDS))
        at = work.next_begin(end) if end < until else None


def by_exporter(
    session: Session, number: int, gpu: str, since: float, until: float, tells: Exporter
) -> list[SourceReading]:
    """Return the readings of DCGM exporter for a GPU, as they come through Prometheus."""
    last = int(max(0.0, until - EXPORTER_LATE_SECONDS) // EXPORTER_SECONDS)
    first = min(last, int(max(0.0, since - EXPORTER_LATE_SECONDS) // EXPORTER_SECONDS) + 1)
    looks = [EXPORTER_SECONDS * look for look in range(max(1, first), last + 1)]  # the newest is told again
    if not looks:
        return []
    is_own = session.sharing is not Sharing.SHARED
    seen = [session.work[number]] if is_own else [session.work[number], session.neighbours]
    times = until - looks[0] + EXPORTER_SECONDS, until - looks[-1]

    def found(works: list[Timeline], measure: Measure, covers_seconds: float, engine: str = "") -> SourceReading:
        percent = max(min(100.0, sum(work.mean(at - covers_seconds, at) for work in works)) for at in looks)
        if measure is Measure.UTILIZATION:
            percent = round(percent)
        coverage = covers_seconds / EXPORTER_SECONDS
        return SourceReading(gpu, Source.EXPORTER, measure, percent, *times, coverage, is_own, engine)

    told = []
    if tells is Exporter.ENGINE:
        told.append(found(seen, Measure.ENGINE, EXPORTER_SECONDS))
    elif session.sharing is not Sharing.MIG:
        told.append(found(seen, Measure.UTILIZATION, 1.0))
    return [*told, *([found([session.media], Measure.UTILIZATION, 1.0, "decoder")] if session.media else [])]
