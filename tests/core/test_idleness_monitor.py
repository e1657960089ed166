"""What only the workspace's own GPU monitor saw: it counts for a while, and whoever forges it gains hours, not days."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evidence_builders import BUSY, IDLE, SOFT, UNKNOWN, exclusive, sample, shared

from gpuspawner.core.idle.evidence import classify
from gpuspawner.core.idle.idleness import Streak, Verdict, judge, next_sample_seconds
from gpuspawner.core.idle.policy import IdlePolicy, Mode
from gpuspawner.core.idle.readings import GpuReading, MonitorReading, OutsideReading, Sample

POLICY = IdlePolicy()
HOUR = 3600.0
SEEN = MonitorReading(90.0, gapless_seconds=HOUR)


def watched(percent: float | None = 0.0, monitor: MonitorReading | None = SEEN, **more: object) -> GpuReading:
    return replace(exclusive(percent, **more), monitor=monitor)


def test_work_that_the_probe_missed_is_busy_and_says_who_saw_it() -> None:
    seen = classify(sample(watched()), POLICY, HOUR, HOUR)
    assert (seen.kind, seen.because, seen.alone) == (BUSY, "GPU 0 at 90 % by the workspace's monitor", True)
    assert seen.gpus[0].because == seen.because


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(sample(watched(80.0)), id="the probe"),
        pytest.param(sample(watched(), outside=(OutsideReading(70.0, "a", "DCGM exporter"),)), id="DCGM exporter"),
    ],
)
def test_what_is_seen_from_outside_too_is_proved(found: Sample) -> None:
    seen = classify(found, POLICY, 9 * HOUR, 9 * HOUR)
    assert (seen.kind, seen.alone, "monitor" in seen.because) == (BUSY, False, False)


@pytest.mark.parametrize("monitor", [None, MonitorReading(None), MonitorReading(4.9), MonitorReading(float("nan"))])
@pytest.mark.parametrize("percent", [0.0, 80.0, None])
def test_a_quiet_one_or_none_changes_nothing(monitor: MonitorReading | None, percent: float | None) -> None:
    with_it = classify(sample(watched(percent, monitor)), POLICY, HOUR, 9 * HOUR)
    assert with_it == classify(sample(exclusive(percent)), POLICY, HOUR, 9 * HOUR)


def test_it_counts_where_nvidia_smi_fails_but_not_on_a_shared_gpu_nor_switched_off() -> None:
    assert classify(sample(watched(None)), POLICY, HOUR, HOUR).kind is BUSY
    assert classify(sample(watched(None)), POLICY, HOUR, 5 * HOUR).kind is UNKNOWN
    neighbours = replace(shared(1, 0.0), monitor=SEEN)
    assert classify(sample(neighbours), POLICY, HOUR, HOUR).kind is IDLE
    assert classify(sample(watched()), replace(POLICY, monitor_seconds=0.0), HOUR, 0.0).kind is IDLE


def test_after_its_hours_it_is_softer_evidence_with_the_budget_of_cpu() -> None:
    for since_busy, kind in ((600.0, SOFT), (2 * HOUR, IDLE)):
        seen = classify(sample(watched()), POLICY, since_busy, 4 * HOUR + 1)
        words = "GPU 0 at 0 %, GPU 0 at 90 % by the workspace's monitor, and by nothing else"
        assert (seen.kind, seen.because) == (kind, words)


def played(seconds: float, *, proved_every: float | None = None) -> tuple[float | None, float]:
    """Return when a workspace is stopped that nothing but its monitor sees, and how many samples a minute that took."""
    streak, at, count, proved_at = Streak(mode=Mode.ENFORCE), 0.0, 0, 0.0
    while at < seconds:
        step = next_sample_seconds(streak, POLICY)
        at, count = at + step, count + 1
        proves = proved_every is not None and at - proved_at >= proved_every
        proved_at = at if proves else proved_at
        found = sample(watched(90.0 if proves else 0.0), interval_seconds=step, age_seconds=at + 100)
        streak, verdict = judge(streak, found, POLICY, Mode.ENFORCE)
        if verdict is Verdict.RECLAIM:
            return at, 60 * count / at
    return None, 60 * count / at


def test_a_forged_one_holds_a_workspace_for_its_hours_and_no_longer() -> None:
    stopped_at, _ = played(48 * HOUR)
    assert stopped_at is not None
    assert 4 * HOUR < stopped_at < 6 * HOUR


def test_work_that_is_proved_now_and_then_is_never_stopped_nor_looked_at_closely() -> None:
    stopped_at, samples_a_minute = played(48 * HOUR, proved_every=1.9 * HOUR)
    assert (stopped_at, samples_a_minute < 1.1) == (None, True)


def test_before_its_hours_are_over_it_is_looked_at_closely() -> None:
    streak, _ = judge(Streak(since_proved_seconds=HOUR), sample(watched()), POLICY, Mode.ENFORCE)
    assert next_sample_seconds(streak, POLICY) == POLICY.sample_seconds
    streak, _ = judge(replace(streak, since_proved_seconds=2 * HOUR), sample(watched()), POLICY, Mode.ENFORCE)
    assert next_sample_seconds(streak, POLICY) == 5.0
