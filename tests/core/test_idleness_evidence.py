"""What one sample proves, by the four ordered rules of the design's section 7."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from evidence_builders import (
    BUSY,
    IDLE,
    KERNEL,
    LOW,
    POLICY,
    QUIET,
    SOFT,
    SSH,
    UNKNOWN,
    UNREAD,
    WOKEN,
    exclusive,
    sample,
    shared,
)
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.idle.evidence import SampleKind, classify
from gpuspawner.core.idle.readings import PROBED, GpuReading, OutsideReading, Sample, SoftReading


@pytest.mark.parametrize(
    ("seen", "kind", "because"),
    [
        pytest.param(sample(exclusive(97)), BUSY, "GPU 0 at 97 %", id="in use"),
        pytest.param(sample(exclusive(5)), BUSY, "GPU 0 at 5 %", id="at the threshold"),
        pytest.param(sample(exclusive(4.99)), IDLE, "GPU 0 at 4.99 %", id="just below the threshold"),
        pytest.param(sample(LOW, exclusive(40, "b")), BUSY, "GPU 1 at 40 %", id="one of two in use"),
        pytest.param(sample(LOW, exclusive(0, "b")), IDLE, "GPU 0 at 1 %, GPU 1 at 0 %", id="both of two low"),
        pytest.param(
            sample(exclusive(100, **WOKEN)),
            IDLE,
            "GPU 0 at 100 %, but held by no process: nvidia-smi itself wakes it",
            id="woken by us",
        ),
        pytest.param(sample(exclusive(100, **{**WOKEN, "persistence": True})), BUSY, "GPU 0 at 100 %", id="ended"),
        pytest.param(sample(exclusive(100, **{**WOKEN, "persistence": None})), BUSY, "GPU 0 at 100 %", id="mode?"),
        pytest.param(sample(exclusive(0, buffer_percent=97)), BUSY, "GPU 0 at 97 %", id="in use before the probe"),
        pytest.param(
            sample(exclusive(0, buffer_percent=97, holders=0, memory_used_bytes=0, persistence=True)),
            BUSY,
            "GPU 0 at 97 %",
            id="used before the probe by a process that has ended",
        ),
        pytest.param(sample(exclusive(100, **{**WOKEN, "holders": None})), BUSY, "GPU 0 at 100 %", id="holders?"),
        pytest.param(
            sample(exclusive(100, **{**WOKEN, "memory_used_bytes": None})), BUSY, "GPU 0 at 100 %", id="memory?"
        ),
        pytest.param(
            sample(exclusive(100, **{**WOKEN, "memory_used_bytes": 1})), BUSY, "GPU 0 at 100 %", id="memory used"
        ),
        pytest.param(sample(exclusive(100, **{**WOKEN, "holders": 1})), BUSY, "GPU 0 at 100 %", id="held"),
        pytest.param(sample(exclusive(97), age_seconds=1), BUSY, "GPU 0 at 97 %", id="young but in use"),
        pytest.param(sample(exclusive(97), cpu_cores=None), BUSY, "GPU 0 at 97 %", id="in use, CPU unknown"),
        pytest.param(sample(exclusive(97), exclusive(None, "b")), BUSY, "GPU 0 at 97 %", id="in use beside unknown"),
        pytest.param(sample(exclusive(97), LOW), BUSY, "GPU 0 at 97 %", id="listed twice, once in use"),
        pytest.param(sample(shared(1, 0.11)), BUSY, "GPU 0's processes at 0.11 cores", id="shared, holders compute"),
        pytest.param(sample(shared(1, 0.02)), IDLE, "GPU 0's processes at 0.02 cores", id="shared, at rest"),
        pytest.param(
            sample(shared(1, 0.2), interval_seconds=5.0), IDLE, "GPU 0's processes at 0.2 cores", id="shared, a twitch"
        ),
        pytest.param(
            sample(shared(1, 0.3), interval_seconds=5.0), BUSY, "GPU 0's processes at 0.3 cores", id="shared, a burst"
        ),
        pytest.param(sample(shared(0, None)), IDLE, "GPU 0 held by no process", id="shared, no holder"),
    ],
)
def test_busy_or_idle(seen: Sample, kind: SampleKind, because: str) -> None:
    judged = classify(seen, POLICY, 60.0)
    assert (judged.kind, judged.because) == (kind, because)


@pytest.mark.parametrize(
    ("seen", "because"),
    [
        pytest.param(sample(exclusive(None, problem="[N/A]")), "GPU 0 can't be read ([N/A])", id="bracketed"),
        pytest.param(sample(exclusive(None)), "GPU 0 can't be read (no utilization)", id="no value, no problem named"),
        pytest.param(sample(exclusive(math.nan)), "GPU 0 can't be read (no utilization)", id="not a number"),
        pytest.param(sample(exclusive(101)), "GPU 0 can't be read (no utilization)", id="over 100 %"),
        pytest.param(sample(exclusive(-1)), "GPU 0 can't be read (no utilization)", id="negative"),
        pytest.param(
            sample(LOW, exclusive(None, "b", problem="[N/A]")), "GPU 1 can't be read ([N/A])", id="one of two N/A"
        ),
        pytest.param(sample(LOW, leased=("a", "b")), "GPU 1 can't be read (it is not listed)", id="fewer than leased"),
        pytest.param(sample(LOW, exclusive(0, "x"), leased=("a",)), "x is seen, not leased", id="more than leased"),
        pytest.param(
            sample(LOW, exclusive(90, "x"), leased=("a",)), "x is seen, not leased", id="work on another's GPU"
        ),
        pytest.param(sample(LOW, LOW, leased=("a",)), "GPU 0 can't be read (it is listed twice)", id="listed twice"),
        pytest.param(
            sample(leased=("a", "b"), problem="nvidia-smi timed out"),
            "the workspace can't be read (nvidia-smi timed out)",
            id="probe failed",
        ),
        pytest.param(
            sample(exclusive(97), exclusive(0, "x"), leased=("a",), problem="output cut short"),
            "the workspace can't be read (output cut short)",
            id="nothing of a failed probe is believed",
        ),
        pytest.param(
            sample(shared(None, 0.0)), "GPU 0 can't be read (its processes are unknown)", id="shared, holders unknown"
        ),
        pytest.param(
            sample(shared(None, None, problem="no /dev/nvidia*")),
            "GPU 0 can't be read (no /dev/nvidia*)",
            id="shared, no device visible",
        ),
        pytest.param(
            sample(shared(1, None)),
            "GPU 0 can't be read (its processes' CPU use is unknown)",
            id="shared, holders' CPU unknown",
        ),
        pytest.param(
            sample(shared(1, math.nan)),
            "GPU 0 can't be read (its processes' CPU use is unknown)",
            id="shared, holders' CPU not a number",
        ),
        pytest.param(sample(LOW, age_seconds=12), "it started less than 1 min ago", id="too young"),
        pytest.param(sample(LOW, cpu_cores=None), "the workspace's CPU use can't be read", id="CPU unknown"),
        pytest.param(sample(LOW, cpu_cores=math.nan), "the workspace's CPU use can't be read", id="CPU no number"),
        pytest.param(sample(), "no GPU is leased", id="no GPU"),
        pytest.param(sample(problem="frozen"), "no GPU is leased", id="no GPU, probe failed"),
    ],
)
def test_unknown(seen: Sample, because: str) -> None:
    judged = classify(seen, POLICY, 60.0)
    assert (judged.kind, judged.because, judged.peak_percent) == (UNKNOWN, because, None)


@pytest.mark.parametrize(
    ("seen", "since_busy_seconds", "kind", "because"),
    [
        pytest.param(sample(LOW, cpu_cores=1.4), 60, SOFT, "CPU at 1.4 cores, GPU 0 at 1 %", id="CPU"),
        pytest.param(sample(LOW, cpu_cores=1.4), 3600, SOFT, "CPU at 1.4 cores, GPU 0 at 1 %", id="CPU, last moment"),
        pytest.param(sample(LOW, cpu_cores=1.4), 3601, IDLE, "GPU 0 at 1 %", id="CPU, budget spent"),
        pytest.param(sample(LOW, cpu_cores=0.1), 60, IDLE, "GPU 0 at 1 %", id="CPU at its bound"),
        pytest.param(sample(LOW, cpu_cores=None), 3601, IDLE, "GPU 0 at 1 %", id="CPU unknown, but no longer counts"),
        pytest.param(sample(LOW, soft=(KERNEL,)), 600, SOFT, "kernel train.ipynb busy, GPU 0 at 1 %", id="kernel"),
        pytest.param(
            sample(LOW, soft=(KERNEL,)),
            601,
            IDLE,
            "GPU 0 at 1 %, kernel train.ipynb busy (counts no longer)",
            id="kernel, budget spent",
        ),
        pytest.param(sample(LOW, soft=(SSH, QUIET)), 60, IDLE, "GPU 0 at 1 %", id="not counted by the policy"),
        pytest.param(
            sample(LOW, cpu_cores=2, soft=(KERNEL,)),
            60,
            SOFT,
            "CPU at 2 cores, kernel train.ipynb busy, GPU 0 at 1 %",
            id="two at once",
        ),
        pytest.param(
            sample(LOW, cpu_cores=2, soft=(KERNEL,)), 601, SOFT, "CPU at 2 cores, GPU 0 at 1 %", id="one spent, one not"
        ),
        pytest.param(
            sample(LOW, soft=(replace(QUIET, words="kernels quiet"),)),
            60,
            IDLE,
            "GPU 0 at 1 %, kernels quiet",
            id="what counts and is quiet is told",
        ),
        pytest.param(
            sample(LOW, soft=(UNREAD,)),
            600,
            UNKNOWN,
            "the state of its kernels can't be read (no extension)",
            id="kernels unknown",
        ),
        pytest.param(
            sample(LOW, soft=()), 600, UNKNOWN, "the state of its kernels can't be read", id="nothing said of kernels"
        ),
        pytest.param(sample(LOW, soft=(UNREAD,)), 601, IDLE, "GPU 0 at 1 %", id="kernels unknown, budget spent"),
        pytest.param(
            sample(LOW, cpu_cores=2, soft=(UNREAD,)),
            60,
            SOFT,
            "CPU at 2 cores, GPU 0 at 1 %",
            id="one seen, one unknown",
        ),
        pytest.param(
            sample(exclusive(None), cpu_cores=2),
            60,
            UNKNOWN,
            "GPU 0 can't be read (no utilization)",
            id="unknown first",
        ),
    ],
)
def test_softer_evidence_has_a_budget(seen: Sample, since_busy_seconds: float, kind: SampleKind, because: str) -> None:
    judged = classify(seen, POLICY, since_busy_seconds)
    assert (judged.kind, judged.because) == (kind, because)


def test_two_shares_of_one_device_are_one_device() -> None:
    seen = sample(shared(0, None), leased=("a", "a"))
    assert classify(seen, POLICY, 60.0).kind is IDLE


def test_each_gpu_has_its_own_word() -> None:
    seen = sample(exclusive(97), exclusive(None, "b", problem="[N/A]"), exclusive(2, "c"))
    assert [(one.gpu, one.kind) for one in classify(seen, POLICY, 60.0).gpus] == [
        ("a", BUSY),
        ("b", UNKNOWN),
        ("c", IDLE),
    ]


def test_a_workspace_too_young_does_not_make_its_gpus_unreadable() -> None:
    judged = classify(sample(LOW, age_seconds=59.9), POLICY, 59.9)
    assert (judged.kind, judged.gpus[0].kind) == (UNKNOWN, IDLE)
    assert classify(sample(LOW, age_seconds=60.0), POLICY, 60.0).kind is IDLE


@pytest.mark.parametrize(
    ("gpus", "peak_percent"),
    [
        pytest.param((exclusive(1), exclusive(3, "b")), 3, id="the highest of several"),
        pytest.param((exclusive(1), exclusive(100, "b", **WOKEN)), 100, id="the woken one too"),
        pytest.param((exclusive(1), exclusive(5, "b", **WOKEN)), 5, id="at the threshold too"),
        pytest.param((exclusive(1), exclusive(0, "b", buffer_percent=99.0, **WOKEN)), 99, id="nor less than a buffer"),
        pytest.param((exclusive(1), shared(0, None, "b", utilization_percent=4)), 1, id="not the neighbours'"),
        pytest.param((shared(0, None),), None, id="none measured"),
    ],
)
def test_the_peak_is_all_that_was_read(gpus: tuple[GpuReading, ...], peak_percent: float | None) -> None:
    assert classify(sample(*gpus), POLICY, 60.0).peak_percent == peak_percent


NUMBERS = st.one_of(st.none(), st.just(math.nan), st.floats(-1, 101))
READINGS = st.builds(
    GpuReading,
    gpu=st.sampled_from("abc"),
    utilization_percent=NUMBERS,
    memory_used_bytes=st.sampled_from([None, 0, 2**30]),
    holders=st.sampled_from([None, 0, 2]),
    holders_cpu_cores=NUMBERS,
    shared=st.booleans(),
)
SAMPLES = st.builds(
    Sample,
    leased=st.lists(st.sampled_from("ab"), unique=True).map(tuple),
    gpus=st.lists(READINGS, max_size=3).map(tuple),
    interval_seconds=st.just(60.0),
    age_seconds=st.sampled_from([0.0, 3600.0]),
    cpu_cores=NUMBERS,
    soft=st.lists(
        st.builds(SoftReading, st.sampled_from(PROBED), st.sampled_from([None, False, True])),
        unique_by=lambda reading: reading.name,
    ).map(tuple),
    hub_idle_seconds=st.sampled_from([None, -5.0, 30.0, 7200.0]),
    problem=st.sampled_from(["", "timed out"]),
)


def is_known_low(reading: GpuReading) -> bool:
    """Say again, in other words, when one GPU is known not to be worked on."""
    if reading.shared:
        cores = reading.holders_cpu_cores
        return reading.holders == 0 or (reading.holders is not None and cores is not None and 0 <= cores <= 0.1)
    percent = reading.utilization_percent
    woken = reading.holders == 0 and reading.memory_used_bytes == 0
    return percent is not None and (0 <= percent < 5 or (woken and 5 <= percent <= 100))


@given(SAMPLES, st.floats(0, 7200))
def test_promise_4_a_sample_is_idle_only_if_every_leased_gpu_is_known_to_be(seen: Sample, since: float) -> None:
    all_known_low = (
        bool(seen.leased)
        and not seen.problem
        and seen.age_seconds >= 60
        and sorted(reading.gpu for reading in seen.gpus) == sorted(seen.leased)
        and all(map(is_known_low, seen.gpus))
    )
    kind = classify(seen, POLICY, since).kind
    assert (kind in {IDLE, SOFT}) <= all_known_low
    if all_known_low and since > 3600:
        assert kind is IDLE  # no budget is left, so nothing shields it


@given(SAMPLES, st.floats(0, 7200))
def test_losing_a_reading_never_makes_a_workspace_idle(seen: Sample, since: float) -> None:
    before = classify(seen, POLICY, since).kind
    for index, reading in enumerate(seen.gpus):
        for lost in (
            replace(reading, utilization_percent=None, holders=None),
            replace(reading, holders=None, holders_cpu_cores=None),
            replace(reading, memory_used_bytes=None),
        ):
            gpus = (*seen.gpus[:index], lost, *seen.gpus[index + 1 :])
            if classify(replace(seen, gpus=gpus), POLICY, since).kind is IDLE:
                assert before is IDLE


def by_dcgm(percent, gpu=""):
    return OutsideReading(percent, gpu, "DCGM exporter")


@pytest.mark.parametrize(
    ("seen", "because"),
    [
        pytest.param(sample(LOW, outside=(by_dcgm(60),)), "GPU 0 at 60 % by DCGM exporter", id="its only GPU"),
        pytest.param(
            sample(LOW, exclusive(0, "b"), outside=(by_dcgm(60, "b"),)), "GPU 1 at 60 % by DCGM exporter", id="by name"
        ),
        pytest.param(
            sample(LOW, exclusive(0, "b"), outside=(by_dcgm(60),)), "a GPU at 60 % by DCGM exporter", id="one of two"
        ),
        pytest.param(
            replace(sample(LOW, outside=(by_dcgm(5),)), problem="it hangs"),
            "GPU 0 at 5 % by DCGM exporter",
            id="the probe failed",
        ),
        pytest.param(sample(exclusive(97), outside=(by_dcgm(5),)), "GPU 0 at 97 %", id="seen by both"),
    ],
)
def test_work_that_somebody_outside_saw_is_work(seen, because):
    found = classify(seen, POLICY, 0.0)
    assert (found.kind, found.because) == (BUSY, because)
    assert (BUSY in {gpu.kind for gpu in found.gpus}) == ("a GPU" not in because)


@given(
    reading=st.sampled_from([LOW, exclusive(97), exclusive(None), exclusive(100, **WOKEN), shared(0, 0.0)]),
    percents=st.lists(st.one_of(st.floats(), st.floats(0, 4.9)), max_size=3),
    problem=st.sampled_from(["", "it hangs"]),
)
def test_who_looks_from_outside_can_only_save(reading, percents, problem):
    own = replace(sample(reading), problem=problem)
    seen = replace(own, outside=tuple(by_dcgm(percent) for percent in percents))
    if any(5 <= percent <= 100 for percent in percents):
        assert classify(seen, POLICY, 0.0).kind is BUSY
    else:
        assert classify(seen, POLICY, 0.0) == classify(own, POLICY, 0.0)
