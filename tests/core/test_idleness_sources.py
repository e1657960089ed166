"""Sources that see all of the time: what they prove, and that adding one never makes a right verdict wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from evidence_builders import (
    BUSY,
    IDLE,
    LOW,
    POLICY,
    SOFT,
    UNKNOWN,
    exclusive,
    exported,
    gpu_of,
    judged,
    kind_of,
    monitored,
    sample,
    shared,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuspawner.core.idle.evidence import LATEST_SECONDS, read_evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import GpuReading, GpuState, Measure, Sample, SourceReading
from gpuspawner.core.idle.verdicts import SampleKind, Streak, Verdict, judge

COMPUTING = exclusive(0.0, holders_cpu_cores=2.0)
ASYNCHRONOUS = shared(1, 0.0, utilization_percent=60.0)
INSTANT = {"measure": Measure.UTILIZATION, "coverage": 1 / 30}


@pytest.mark.parametrize(
    ("seen", "because"),
    [
        pytest.param(sample(LOW, sources=(monitored(1),)), "GPU 0 at 1 % by the workspace's monitor", id="monitor"),
        pytest.param(
            sample(LOW, sources=(monitored(0.2, measure=Measure.ENGINE),)),
            "GPU 0 at 0.2 % by the workspace's monitor",
            id="monitor by GPM",
        ),
        pytest.param(sample(LOW, sources=(exported(0.02),)), "GPU 0 at 0.02 % by DCGM exporter", id="engine activity"),
        pytest.param(sample(LOW, sources=(exported(1, **INSTANT),)), "GPU 0 at 1 % by DCGM exporter", id="utilization"),
        pytest.param(
            sample(LOW, sources=(monitored(30, engine="decoder"),)),
            "GPU 0 (decoder) at 30 % by the workspace's monitor",
            id="its decoder",
        ),
        pytest.param(
            sample(LOW, sources=(exported(60, gpu=""),)), "GPU 0 at 60 % by DCGM exporter", id="its pod's only GPU"
        ),
        pytest.param(
            sample(LOW, exclusive(0, "b"), sources=(exported(60, gpu="b"),)), "GPU 1 at 60 % by DCGM exporter", id="b"
        ),
        pytest.param(
            sample(LOW, exclusive(0, "b"), sources=(exported(60, gpu=""),)),
            "a GPU at 60 % by DCGM exporter",
            id="one of two of its pod",
        ),
        pytest.param(
            sample(leased=("a",), problem="it hangs", sources=(exported(5),)),
            "GPU 0 at 5 % by DCGM exporter",
            id="the probe failed",
        ),
        pytest.param(sample(exclusive(97), sources=(exported(5),)), "GPU 0 at 97 %", id="seen by the probe too"),
        pytest.param(
            sample(exclusive(None), sources=(monitored(5),)),
            "GPU 0 at 5 % by the workspace's monitor",
            id="nvidia-smi failed",
        ),
        pytest.param(
            sample(shared(1, 0.0), sources=(monitored(5),)),
            "GPU 0 at 5 % by the workspace's monitor",
            id="its own processes on a shared GPU",
        ),
    ],
)
def test_work_that_any_source_saw_is_use(seen: Sample, because: str) -> None:
    assert judged(seen, 7200.0) == (BUSY, because)


@pytest.mark.parametrize("percent", [0.0, 0.99, math.nan, -1.0, 101.0])
def test_less_than_one_percent_of_utilization_is_no_work(percent: float) -> None:
    assert kind_of(sample(LOW, sources=(monitored(percent),))) is IDLE
    assert kind_of(sample(LOW, sources=(monitored(0.6),)), policy=replace(POLICY, below_percent=0.5)) is BUSY


@pytest.mark.parametrize(
    ("reading", "without"),
    [
        pytest.param(COMPUTING, SOFT, id="its processes compute on the CPU"),
        pytest.param(exclusive(0.0, holders=None), UNKNOWN, id="its processes are unknown"),
        pytest.param(exclusive(None), UNKNOWN, id="nvidia-smi failed"),
        pytest.param(ASYNCHRONOUS, UNKNOWN, id="a neighbour or itself uses the device"),
        pytest.param(shared(None, None), UNKNOWN, id="MIG, its processes are unknown"),
    ],
)
def test_a_source_that_covers_the_time_shows_that_nothing_worked(reading: GpuReading, without: SampleKind) -> None:
    assert kind_of(sample(reading)) is without
    for covering in (monitored(0), exported(0), exported(0, gpu="")):
        assert kind_of(sample(reading, sources=(covering,))) is IDLE


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(monitored(0, coverage=0.79), id="it saw too little"),
        pytest.param(exported(0, **INSTANT), id="it saw an instant"),
        pytest.param(monitored(0, engine="decoder"), id="it saw the decoder only"),
        pytest.param(exported(0, end_seconds=LATEST_SECONDS + 1), id="it is too late"),
        pytest.param(monitored(0, gpu="b"), id="it saw another GPU"),
        pytest.param(exported(0, is_own=False), id="it saw a device that others use too"),
    ],
)
def test_a_source_that_does_not_cover_the_time_shows_nothing(told: SourceReading) -> None:
    for reading, kind in ((COMPUTING, SOFT), (ASYNCHRONOUS, UNKNOWN)):
        assert kind_of(sample(reading, sources=(told,))) is kind


def test_work_on_a_device_that_others_use_too_may_be_the_workspaces_own() -> None:
    device = monitored(40, is_own=False)
    seen = sample(shared(1, 0.0), sources=(device,))
    assert judged(seen) == (UNKNOWN, "GPU 0 at 40 % by the workspace's monitor, perhaps by others")
    assert gpu_of(seen).may_work
    assert kind_of(sample(shared(0, None), sources=(device,))) is IDLE, "it holds nothing there"
    assert kind_of(sample(shared(1, 0.0, utilization_percent=0.0), sources=(replace(device, percent=0.0),))) is IDLE


def test_use_of_a_shared_device_sets_the_idle_time_to_0_and_what_can_t_be_read_pauses_it() -> None:
    streak = Streak(idle_seconds=900.0, observed_seconds=900.0, since_busy_seconds=9000.0, mode=Mode.ENFORCE)
    for reading, idle_seconds in ((ASYNCHRONOUS, 0.0), (shared(None, None), 900.0)):
        after, _ = judge(streak, read_evidence(sample(reading), POLICY), POLICY, Mode.ENFORCE)
        assert (after.kind, after.idle_seconds) == (UNKNOWN, idle_seconds)


PERCENTS = st.sampled_from([0.0, 0.0, 0.0, 0.3, 3.0, 80.0])
SOURCES = st.builds(
    SourceReading,
    gpu=st.sampled_from(["a", "", "b"]),
    source=st.sampled_from([monitored(0).source, exported(0).source]),
    measure=st.sampled_from(Measure),
    percent=PERCENTS,
    begin_seconds=st.just(90.0),
    end_seconds=st.sampled_from([0.0, 60.0, 600.0]),
    coverage=st.sampled_from([0.0, 0.03, 0.79, 0.8, 1.0]),
    is_own=st.booleans(),
    engine=st.sampled_from(["", "", "encoder"]),
)
GPUS = st.sampled_from(
    [
        LOW,
        exclusive(97.0),
        exclusive(None),
        COMPUTING,
        ASYNCHRONOUS,
        shared(0, None),
        shared(1, 0.0),
        shared(None, None),
    ]
)


def rank(seen: Sample, since_busy_seconds: float) -> int:
    """How much a sample protects: busy, what sets the idle time to 0, what pauses it, idle."""
    if read_evidence(seen, POLICY).may_work(GpuState.UNKNOWN):
        return max(2, rank_of(kind_of(seen, since_busy_seconds)))
    return rank_of(kind_of(seen, since_busy_seconds))


def rank_of(kind: SampleKind) -> int:
    return (IDLE, UNKNOWN, SOFT, BUSY).index(kind)


@given(reading=GPUS, sources=st.lists(SOURCES, max_size=3), more=SOURCES, since=st.sampled_from([60.0, 3600.0, 9000.0]))
def test_only_a_covering_source_makes_a_gpu_idle_and_none_hides_work(
    reading: GpuReading, sources: list[SourceReading], more: SourceReading, since: float
) -> None:
    """Adding a source never hides what others saw. Only one that covers all of the time makes a GPU idle."""
    before = sample(reading, leased=("a",), sources=tuple(sources))
    after = replace(before, sources=(*sources, more))
    covers = more.coverage >= POLICY.coverage and more.end_seconds <= LATEST_SECONDS and not more.engine
    if kind_of(before, since) is BUSY:
        assert kind_of(after, since) is BUSY
    elif not (covers and more.gpu != "b"):
        assert rank(after, since) >= rank(before, since)


RARELY = st.sampled_from([False, False, False, False, False, False, False, True])
LIFE = st.lists(st.tuples(RARELY, st.booleans()), min_size=30, max_size=90)
NAMES = st.sampled_from(["monitor", "GPM", "exporter", "instant", "cpu"])
SHORT = IdlePolicy(for_seconds=600.0, grace_seconds=180.0, soft_seconds=600.0)


@settings(max_examples=400)
@given(life=LIFE, reading=GPUS, known=st.sets(NAMES), added=NAMES)
def test_adding_a_source_that_tells_the_truth_never_turns_a_right_verdict_wrong(
    life: list[tuple[bool, bool]], reading: GpuReading, known: set[str], added: str
) -> None:
    """A workspace that fewer sources leave alone until then is not stopped by more within its use."""
    fewer, more = (stop_of(life, reading, sources) for sources in (known, known | {added}))
    if more is not None and any(used for used, _ in life[max(0, more - 11) : more + 1]):
        assert fewer is not None
        assert fewer <= more


def stop_of(life: list[tuple[bool, bool]], reading: GpuReading, sources: set[str]) -> int | None:
    """Return the minute in which a workspace is stopped. Each minute it is used or not, and an instant shows it or not.

    The probe always reads the same.
    """
    streak, policy = Streak(mode=Mode.ENFORCE), replace(SHORT, soft_names=("cpu",) if "cpu" in sources else ())
    for minute, (used, shown) in enumerate(life):
        told = {
            "monitor": monitored(50.0 if used else 0.0),
            "GPM": monitored(0.2 if used else 0.0, measure=Measure.ENGINE),
            "exporter": exported(50.0 if used else 0.0),
            "instant": exported(50.0 if used and shown else 0.0, **INSTANT),
        }
        found = sample(
            reading,
            leased=("a",),
            sources=tuple(told[name] for name in sorted(sources & set(told))),
            cpu_cores=1.0 if used else 0.0,
        )
        streak, verdict = judge(streak, read_evidence(found, policy), policy, Mode.ENFORCE)
        if verdict is Verdict.RECLAIM:
            return minute
    return None
