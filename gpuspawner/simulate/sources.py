"""What sources beside the probe would have told of a generated session: a monitor in the workspace, DCGM exporter."""

from __future__ import annotations

from collections.abc import Iterator

from gpuspawner.core.idle.readings import MonitorReading, OutsideReading
from gpuspawner.core.idle.timeline import Timeline
from gpuspawner.simulate.habits import Sharing
from gpuspawner.simulate.sessions import Session

DRIVER_SECONDS = 1 / 6
"""What one of the driver's samples covers, at the least."""
EXPORTER_SECONDS, READ_SECONDS = 30.0, 1.0
"""How often DCGM exporter looks by itself, and what its utilization covers then. The activity that it tells of MIG
instances is the mean of all that time."""


def by_monitor(session: Session, number: int, since: float, until: float) -> MonitorReading | None:
    """Return what a monitor saw of a GPU; None where NVML tells it nothing, as of MIG devices, or fails."""
    if session.sharing is Sharing.MIG or session.lost.touches(until - 1.0, until):
        return None
    percents = list(_sampled(session.work[number], max(0.0, since), until))
    return MonitorReading(max(percents, default=0.0), until - session.lost.next_end(0.0))


def _sampled(work: Timeline, since: float, until: float) -> Iterator[float]:
    """Yield what the sample shows that met most of each burst, where two share it as badly as can be."""
    at = work.next_begin(since)
    while at is not None and at < until:
        end = min(work.next_end(at), until)
        yield round(work.at(at) * min(1.0, (end - at) / 2 / DRIVER_SECONDS))
        at = work.next_begin(end) if end < until else None


def by_exporter(session: Session, number: int, gpu: str, since: float, until: float) -> OutsideReading | None:
    """Return what DCGM exporter saw of a GPU; None for nothing, and where others compute on it too."""
    if session.sharing is Sharing.SHARED:
        return None
    covers = EXPORTER_SECONDS if session.sharing is Sharing.MIG else READ_SECONDS
    first = int(max(0.0, since) // EXPORTER_SECONDS) + 1
    looks = [EXPORTER_SECONDS * look for look in range(first, int(until // EXPORTER_SECONDS) + 1)]
    work = session.work[number]
    percent = max((work.mean(at - covers, at) for at in looks), default=0.0)
    return OutsideReading(round(percent), gpu, "DCGM exporter") if percent >= 1 else None
