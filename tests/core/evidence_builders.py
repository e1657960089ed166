"""Samples of one workspace, as the tests of evidence write them."""

from __future__ import annotations

from gpuspawner.core.idle.evidence import GpuEvidence, read_evidence
from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.readings import GpuReading, Measure, Sample, SoftReading, Source, SourceReading
from gpuspawner.core.idle.verdicts import SampleKind, Streak, classify

POLICY = IdlePolicy(soft_names=("cpu", "kernel"))
BUSY, UNKNOWN, SOFT, IDLE = SampleKind.BUSY, SampleKind.UNKNOWN, SampleKind.SOFT, SampleKind.IDLE


QUIET = SoftReading("kernel", active=False)
KERNEL = SoftReading("kernel", active=True, words="kernel train.ipynb busy")
SSH = SoftReading("ssh", active=True, words="an SSH session")
UNREAD = SoftReading("kernel", active=None, words="no extension")
GIB = 2**30


def exclusive(percent: float | None, gpu: str = "a", **more) -> GpuReading:
    usual = {"memory_used_bytes": GIB, "holders": 1, "holders_cpu_cores": 0.0}
    return GpuReading(gpu, percent, **{**usual, **more})


def shared(holders: int | None, cores: float | None, gpu: str = "a", **more) -> GpuReading:
    return GpuReading(gpu, holders=holders, holders_cpu_cores=cores, shared=True, **more)


def sample(*gpus: GpuReading, leased: tuple[str, ...] | None = None, **more) -> Sample:
    names = tuple(gpu.gpu for gpu in gpus) if leased is None else leased
    usual = {"interval_seconds": 60.0, "age_seconds": 3600.0, "cpu_cores": 0.0, "soft": (QUIET,)}
    return Sample(names, gpus, **{**usual, **more})


def monitored(percent: float, coverage: float = 1.0, **more) -> SourceReading:
    usual = {"gpu": "a", "begin_seconds": 65.0, "end_seconds": 5.0, "measure": Measure.UTILIZATION}
    return SourceReading(source=Source.MONITOR, percent=percent, coverage=coverage, **{**usual, **more})


def exported(percent: float, coverage: float = 1.0, **more) -> SourceReading:
    usual = {"gpu": "a", "begin_seconds": 120.0, "end_seconds": 60.0, "measure": Measure.ENGINE}
    return SourceReading(source=Source.EXPORTER, percent=percent, coverage=coverage, **{**usual, **more})


def judged(seen: Sample, since_busy_seconds: float = 60.0, policy: IdlePolicy = POLICY) -> tuple[SampleKind, str]:
    """Classify a sample of one minute that comes this long after the last GPU work."""
    before = Streak(since_busy_seconds=since_busy_seconds - min(seen.interval_seconds, 90.0))
    return classify(before, read_evidence(seen, policy), policy)


def kind_of(seen: Sample, since_busy_seconds: float = 60.0, policy: IdlePolicy = POLICY) -> SampleKind:
    return judged(seen, since_busy_seconds, policy)[0]


def gpu_of(seen: Sample, policy: IdlePolicy = POLICY) -> GpuEvidence:
    """Return the evidence about the first GPU of a sample."""
    return read_evidence(seen, policy).gpus[0]


LOW = exclusive(1.0)
WOKEN = {"holders": 0, "memory_used_bytes": 0, "persistence": False}
"""A reading of an unused GPU without persistence mode."""
