"""Helpers for tests of streaks: samples by one word each, passed to `judge` once in each period."""

from __future__ import annotations

from collections.abc import Iterable

from gpuspawner.core.idle.evidence import Evidence, read_evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import GpuReading, Sample
from gpuspawner.core.idle.verdicts import Streak, Verdict, judge

POLICY = IdlePolicy()
FAST = IdlePolicy(for_seconds=30, sample_seconds=1, grace_seconds=5, start_up_seconds=1)
OBSERVE, WARN, ENFORCE = Mode.OBSERVE, Mode.WARN, Mode.ENFORCE
NONE, BEGIN, GRACE = Verdict.NONE, Verdict.BEGIN_GRACE, Verdict.GRACE
END, RECLAIM = Verdict.END_GRACE, Verdict.RECLAIM
FRESH = Streak()
PERCENT = {"idle": 1.0, "busy": 97.0, "unknown": None, "soft": 1.0}


def evidence(kind: str, interval_seconds: float = 60.0, percent: float | None = None) -> Evidence:
    percent = PERCENT[kind] if percent is None else percent
    reading = GpuReading("a", percent, 2**30, holders=1, holders_cpu_cores=0.0)
    cores = 2.0 if kind == "soft" else 0.0
    return read_evidence(Sample(("a",), (reading,), interval_seconds, age_seconds=86400.0, cpu_cores=cores), POLICY)


def play(
    kinds: Iterable[str], *, streak: Streak = FRESH, mode: Mode = ENFORCE, policy: IdlePolicy = POLICY
) -> tuple[Streak, list[Verdict]]:
    """Judge one sample a period, and return the last streak and all verdicts."""
    verdicts = []
    for kind in kinds:
        streak, verdict = judge(streak, evidence(kind, policy.sample_seconds), policy, mode)
        verdicts.append(verdict)
    return streak, verdicts


def hidden(interval_seconds: float = 60.0) -> Evidence:
    """The GPU reads 0, and a process that holds it used CPU."""
    reading = GpuReading("a", 0.0, 2**30, holders=1, holders_cpu_cores=0.05)
    return read_evidence(Sample(("a",), (reading,), interval_seconds, age_seconds=86400.0, cpu_cores=0.05), POLICY)
