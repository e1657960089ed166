"""The samples of a generated session: those of the probe in the live service, and readings of other sources."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.readings import PROBED, GpuReading, Measure, Sample, SoftReading, Source, SourceReading
from gpuspawner.simulate.habits import Sharing
from gpuspawner.simulate.replay import Step
from gpuspawner.simulate.sessions import Session
from gpuspawner.simulate.timeline import Timeline

DRIVER_SECONDS = 1 / 6
"""The least time that a sample of the driver covers."""
MONITOR_LATE_SECONDS = 5.0
"""How often the monitor looks and writes its readings."""
EXPORTER_SECONDS, EXPORTER_LATE_SECONDS = 30.0, 45.0
"""How often DCGM exporter reads, and the mean delay of its values through Prometheus."""


class Exporter(Enum):
    """The metric that DCGM exporter is configured for."""

    ENGINE = "engine"
    """Engine activity, averaged over the time between two looks, also of each MIG instance."""
    UTILIZATION = "utilization"
    """As it is shipped: the utilization of an instant, of whole devices."""


class Monitor(Enum):
    """What the GPU monitor of a workspace can read."""

    UTILIZATION = "utilization"
    """The driver's samples of utilization. MIG devices have none."""
    GPM = "gpm"
    """The activity of the engines by GPM (Hopper and newer), averaged over the time between two looks, also of each MIG
    device."""


def by_monitor(
    session: Session, number: int, gpu: str, since: float, until: float, reads: Monitor = Monitor.UTILIZATION
) -> list[SourceReading]:
    """Return the readings of a monitor for a GPU, if NVML gives them. On a shared GPU they are those of the device."""
    begin, end = max(0.0, since - MONITOR_LATE_SECONDS), until - MONITOR_LATE_SECONDS
    if session.lost.touches(until - 1.0, until) or end <= begin:
        return []
    is_own = session.sharing is not Sharing.SHARED
    seen = [session.work[number]] if is_own else [session.work[number], session.neighbours]
    coverage = 1.0 - session.lost.integral(begin, end) / (end - begin)
    times = until - begin, until - end
    if reads is Monitor.GPM:
        percent = max(_averaged(work, begin, end) for work in (*seen, session.media))
        return [SourceReading(gpu, Source.MONITOR, Measure.ENGINE, percent, *times, coverage, is_own)]
    if session.sharing is Sharing.MIG:
        return []

    def found(works: list[Timeline], engine: str = "") -> SourceReading:
        percent = max((percent for work in works for percent in _sampled(work, begin, end)), default=0.0)
        own = is_own or bool(engine)
        return SourceReading(gpu, Source.MONITOR, Measure.UTILIZATION, percent, *times, coverage, own, engine)

    return [found(seen), *([found([session.media], "decoder")] if session.media else [])]


def _averaged(work: Timeline, since: float, until: float) -> float:
    """Return the highest average between two looks of the monitor."""
    looks = range(math.ceil((until - since) / MONITOR_LATE_SECONDS)) if work.touches(since, until) else ()
    ends = (until - MONITOR_LATE_SECONDS * look for look in looks)
    return max((work.mean(end - MONITOR_LATE_SECONDS, end) for end in ends), default=0.0)


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
    has_decoder = bool(session.media) and session.sharing is not Sharing.MIG
    return [*told, *([found([session.media], Measure.UTILIZATION, 1.0, "decoder")] if has_decoder else [])]


GIB = 2**30
IDLE_CORES = 0.01
"""CPU use of an idle notebook server and kernel. Measured on JupyterLab 4: 0.002 to 0.01."""
TWITCH_SECONDS, TWITCH_EVERY_SECONDS = 0.5, 600.0


@dataclass(frozen=True)
class Probe:
    """The settings of the probe. The defaults are the local backend's."""

    readings: int = 3
    """Readings of nvidia-smi in one sample. The highest counts."""
    pause_seconds: float = 1.0
    """The pause between two readings."""
    window_seconds: float = 1.0
    """The time that one reading of utilization.gpu covers: at most the last second, by NVIDIA's manual."""
    buffer_seconds: float = 0.0
    """How far the driver's sample buffer reaches back. 0: there is no buffer, as in our captures."""
    buffer_survives: bool = False
    """A GPU without persistence mode keeps its buffer while no process holds it. We expect that it does not. This was
    not measured. If it does, the buffer shows the wake-up of the last sample.
    """
    monitor: Monitor | None = None
    """What the workspace's monitor can read, None without a monitor."""
    exporter: Exporter | None = None
    """The metric of a DCGM exporter that Prometheus scrapes, or None."""
    failing_share: float = 0.01
    """Share of probes that fail without a reason, for example by a time-out. Arbitrary."""


def period_before(looked_at: deque[float], at: float, period_seconds: float) -> float | None:
    """Return the newest sample time that is at least a period old, and drop all times before it.

    If no sample is that old, return the oldest one. Return None if there is no sample.
    """
    while len(looked_at) > 1 and looked_at[1] <= at - period_seconds:
        looked_at.popleft()
    return looked_at[0] if looked_at else None


class GeneratedSampler:
    """Looks at one session as the live service does: call it with the seconds until the next sample is due.

    The session's seed decides all chance.
    """

    def __init__(self, session: Session, policy: IdlePolicy, probe: Probe | None = None) -> None:
        self.session, self.probe = session, probe or Probe()
        self.chance = random.Random(session.seed + 1)  # noqa: S311 - not for secrets
        self.gpus = tuple(f"GPU-{number}" for number in range(len(session.work)))
        # Connections are those of an editor on one's own machine, which come over SSH.
        shown = {"kernel": session.kernel, "terminal": session.terminal, "ssh": session.connected, "editor": Timeline()}
        self.soft = {name: shown[name] for name in PROBED if name in policy.soft_names}
        self.restarts = list(reversed(session.restarts))
        # Rounds and starts do not beat together.
        self.before = self.chance.uniform(-policy.sample_seconds, 0.0)
        self.period_seconds = policy.sample_seconds
        self.looked_at: deque[float] = deque()  # from one period before, as the service keeps its process tables
        self.told_until: float | None = None
        self.began = 0.0

    def resume(self, at: float) -> None:
        """Go on with a new start of the workspace: nothing is known of it, and its process is new."""
        self.before, self.began, self.told_until = at, at, at
        self.looked_at.clear()

    def __call__(self, seconds: float) -> Step | None:
        """Return the next sample, or None if the session has ended."""
        # A round comes a little late: at most 1 s, the service's own tick.
        at = max(0.0, self.before + seconds + self.chance.uniform(0.0, 1.0))
        interval, restarted = at - self.before, False
        while self.restarts and self.restarts[-1].at <= at:
            restart = self.restarts.pop()
            resumed = max(at, restart.at + restart.seconds)
            # Across a restart only the wall clock tells how long the service was away.
            interval, restarted = max(0.0, interval + resumed - at + restart.step_seconds), True
            at = resumed
            self.looked_at.clear()  # a restarted service has no process table to compare with
        if at >= self.session.end:
            return None
        self.before = at
        return Step(at, self._sample(at, interval), restarted)

    def _sample(self, at: float, interval: float) -> Sample:
        session, holders_cores = self.session, None
        if session.faults.touches(at, at + 1.0) or self.chance.random() < self.probe.failing_share:
            return Sample(self.gpus, (), interval, at - self.began, problem="the probe did not end within 20 s")
        # CPU time is cumulative: what passed during failed probes is counted by the next that succeeds.
        before = period_before(self.looked_at, at, self.period_seconds)
        cores = None if before is None else IDLE_CORES + session.cpu.mean(before, at) + self._twitched(before, at)
        if before is not None and cores is not None:
            own = session.cpu if session.holder_cpu is None else session.holder_cpu
            holders_cores = IDLE_CORES + own.mean(before, at) + self._twitched(before, at)
        self.looked_at.append(at)
        lost = session.lost.touches(at, at + 1.0)
        since, numbers = at - interval if self.told_until is None else self.told_until, range(len(self.gpus))
        readings = tuple(self._reading(number, at, holders_cores, lost=lost) for number in numbers)
        sources = tuple(one for number in numbers for one in self._by_sources(number, since, at))
        self.told_until = at
        soft = tuple(SoftReading(name, shown.touches(at - interval, at), name) for name, shown in self.soft.items())
        ended = cores if session.has_short_processes else None if cores is None else 0.0
        return Sample(
            self.gpus, readings, interval, at - self.began, cores, soft, sources=sources, ended_cpu_cores=ended
        )

    def _by_sources(self, number: int, since: float, at: float) -> Iterator[SourceReading]:
        gpu = self.gpus[number]
        if self.probe.monitor is not None:
            yield from by_monitor(self.session, number, gpu, since, at, self.probe.monitor)
        if self.probe.exporter is not None:
            yield from by_exporter(self.session, number, gpu, since, at, self.probe.exporter)

    def _twitched(self, before: float, at: float) -> float:
        count = int(at // TWITCH_EVERY_SECONDS) - int(before // TWITCH_EVERY_SECONDS)
        return TWITCH_SECONDS * count / (at - before) if self.session.twitches else 0.0

    def _reading(self, number: int, at: float, cores: float | None, *, lost: bool) -> GpuReading:
        session = self.session
        shared = session.sharing is not Sharing.EXCLUSIVE
        held = session.held.touches(at - 0.1, at + 0.1)
        seen = held and not session.is_hidden
        woken = not (shared or session.persistence or held)
        percent, buffered, problem = None, None, ""
        if lost:
            problem = "nvidia-smi failed with exit code 255: Failed to initialize NVML: Unknown Error"
        elif session.sharing is Sharing.MIG:
            problem = "utilization: [N/A]"
        else:
            # An idle L40S that was just woken reads this (data/nvidia-smi).
            percent = 100.0 if woken else self._looked(at, session.work[number], session.neighbours)
            buffered = None if shared else self._buffered(number, at, woken=woken)
        buffered_seconds = 0.0 if buffered is None else self.probe.buffer_seconds
        return GpuReading(
            gpu=self.gpus[number],
            utilization_percent=percent,
            memory_used_bytes=None if lost else GIB * session.held.touches(at - 0.1, at + self._span_seconds),
            memory_total_bytes=None if lost else 80 * GIB,
            holders=int(seen),
            holders_cpu_cores=cores if seen else 0.0,
            possible_holders=int(session.has_unreadable),
            possible_cpu_cores=IDLE_CORES if session.has_unreadable else 0.0,
            shared=shared,
            problem=problem,
            buffer_percent=buffered,
            persistence=session.persistence,
            decoder_percent=None if percent is None else self._looked(at, session.media),
            seen_seconds=max(self.probe.readings * self.probe.window_seconds, buffered_seconds),
        )

    @property
    def _span_seconds(self) -> float:
        return (self.probe.readings - 1) * self.probe.pause_seconds

    def _buffered(self, number: int, at: float, *, woken: bool) -> float | None:
        if not self.probe.buffer_seconds or (woken and not self.probe.buffer_survives):
            return None
        if woken:
            return 100.0
        begin = at + self._span_seconds - self.probe.buffer_seconds
        if not (self.session.persistence or self.probe.buffer_survives):
            held = self.session.held
            begin = max(begin, next(start for start, end, _ in reversed(held.spans) if start <= at + 0.1))
        return self.session.work[number].highest(begin, at)

    def _looked(self, at: float, *works: Timeline) -> float:
        window, pause = self.probe.window_seconds, self.probe.pause_seconds
        if not any(work.touches(at - window, at + self._span_seconds) for work in works):
            return 0.0
        looks = [at + reading * pause for reading in range(self.probe.readings)]
        return float(round(min(100.0, max(sum(work.mean(t - window, t) for work in works) for t in looks))))
