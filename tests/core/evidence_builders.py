"""Samples of one workspace, as the tests of evidence write them."""

from __future__ import annotations

from gpuspawner.core.idle.evidence import SampleKind
from gpuspawner.core.idle.policy import IdlePolicy
from gpuspawner.core.idle.readings import GpuReading, Sample, SoftReading

POLICY = IdlePolicy(soft_budget_seconds=(("cpu", 3600.0), ("kernel", 600.0)))
BUSY, UNKNOWN, SOFT, IDLE = SampleKind.BUSY, SampleKind.UNKNOWN, SampleKind.SOFT, SampleKind.IDLE


QUIET = SoftReading("kernel", active=False)
KERNEL = SoftReading("kernel", active=True, words="kernel train.ipynb busy")
SSH = SoftReading("ssh", active=True, words="an SSH session")
UNREAD = SoftReading("kernel", active=None, words="no extension")


def exclusive(percent: float | None, gpu: str = "a", **more) -> GpuReading:
    return GpuReading(gpu, percent, **{"memory_used_bytes": 2**30, "holders": 1, **more})


def shared(holders: int | None, cores: float | None, gpu: str = "a", **more) -> GpuReading:
    return GpuReading(gpu, holders=holders, holders_cpu_cores=cores, shared=True, **more)


def sample(*gpus: GpuReading, leased: tuple[str, ...] | None = None, **more) -> Sample:
    names = tuple(gpu.gpu for gpu in gpus) if leased is None else leased
    usual = {"interval_seconds": 60.0, "age_seconds": 3600.0, "cpu_cores": 0.0, "soft": (QUIET,)}
    return Sample(names, gpus, **{**usual, **more})


LOW = exclusive(1.0)
WOKEN = {"holders": 0, "memory_used_bytes": 0, "persistence": False}
"""Of a GPU without persistence mode that nobody uses."""
