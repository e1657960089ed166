"""The classification of one sample of a workspace, for tests of sources of samples."""

from __future__ import annotations

from typing import NamedTuple

from gpuspawner.core.idle.evidence import GpuEvidence, read_evidence
from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.readings import Sample
from gpuspawner.core.idle.verdicts import SampleKind, Streak, classify


class SessionResult(NamedTuple):
    """The kind of a sample, and the reason."""

    kind: SampleKind
    because: str
    gpus: tuple[GpuEvidence, ...]


def judge_sample(sample: Sample, policy: IdlePolicy, since_busy_seconds: float = 60.0) -> SessionResult:
    """Classify a sample that comes ``since_busy_seconds`` after the last GPU work."""
    evidence = read_evidence(sample, policy)
    before = Streak(since_busy_seconds=since_busy_seconds - min(sample.interval_seconds, 1.5 * policy.sample_seconds))
    return SessionResult(*classify(before, evidence, policy), evidence.gpus)
