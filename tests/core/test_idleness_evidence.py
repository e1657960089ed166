"""The proof of one sample: by each source, for each GPU, and for the workspace."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from evidence_builders import (
    BUSY,
    GIB,
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
    gpu_of,
    judged,
    kind_of,
    monitored,
    sample,
    shared,
)
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.idle.evidence import read_evidence
from gpuspawner.core.idle.readings import PROBED, GpuReading, GpuState, Sample, SoftReading
from gpuspawner.core.idle.verdicts import SampleKind


@pytest.mark.parametrize(
    ("seen", "kind", "because"),
    [
        pytest.param(sample(exclusive(97)), BUSY, "GPU 0 at 97 %", id="in use"),
        pytest.param(sample(exclusive(5)), BUSY, "GPU 0 at 5 %", id="at the threshold"),
        pytest.param(sample(exclusive(4.99)), IDLE, "GPU 0 at 4.99 %", id="just below the threshold"),
        pytest.param(sample(LOW, exclusive(40, "b")), BUSY, "GPU 1 at 40 %", id="one of two in use"),
        pytest.param(sample(LOW, exclusive(0, "b")), IDLE, "GPU 0 at 1 %, GPU 1 at 0 %", id="both of two low"),
        pytest.param(
            sample(exclusive(3), *(exclusive(0, gpu) for gpu in "bcd")),
            IDLE,
            "GPU 0 at 3 %, GPUs 1 to 3 at 0 %",
            id="three with one reading",
        ),
        pytest.param(sample(exclusive(1, encoder_percent=72)), BUSY, "GPU 0 at 72 %", id="its encoder in use"),
        pytest.param(sample(exclusive(1, decoder_percent=20)), BUSY, "GPU 0 at 20 %", id="its decoder in use"),
        pytest.param(
            sample(exclusive(100, **WOKEN)),
            IDLE,
            "GPU 0 at 100 %, but held by no process: nvidia-smi itself wakes it",
            id="woken by us",
        ),
        pytest.param(
            sample(exclusive(100, possible_holders=1, **WOKEN)),
            IDLE,
            "GPU 0 at 100 %, but held by no process: nvidia-smi itself wakes it",
            id="woken by us, with a process that can't be read",
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
        pytest.param(sample(exclusive(97), exclusive(None, "b")), BUSY, "GPU 0 at 97 %", id="in use and unknown"),
        pytest.param(sample(shared(1, 0.03)), BUSY, "the processes of GPU 0 at 0.03 cores", id="shared, computing"),
        pytest.param(
            sample(shared(0, 0.0, possible_holders=2, possible_cpu_cores=0.03)),
            BUSY,
            "the processes of GPU 0 at 0.03 cores",
            id="shared, processes that can't be read compute",
        ),
        pytest.param(sample(shared(1, 0.02)), IDLE, "the processes of GPU 0 at 0.02 cores", id="shared, at rest"),
        pytest.param(
            sample(shared(1, 0.01, possible_holders=1, possible_cpu_cores=0.0)),
            IDLE,
            "the processes of GPU 0 at 0.01 cores",
            id="shared, idle, with a process that can't be read",
        ),
        pytest.param(sample(shared(0, None)), IDLE, "GPU 0 held by no process", id="shared, no holder"),
        pytest.param(
            sample(shared(0, None, utilization_percent=90.0)), IDLE, "GPU 0 held by no process", id="with neighbours"
        ),
    ],
)
def test_busy_or_idle(seen: Sample, kind: SampleKind, because: str) -> None:
    assert judged(seen) == (kind, because)


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
        *(
            pytest.param(
                sample(shared(1, cores)),
                "GPU 0 can't be read (the CPU use of its processes is unknown)",
                id=f"shared, CPU use of its holders {cores}",
            )
            for cores in (None, math.nan)
        ),
        pytest.param(
            sample(shared(1, 0.0, possible_holders=1, possible_cpu_cores=None)),
            "GPU 0 can't be read (the CPU use of its processes is unknown)",
            id="shared, CPU use of a possible holder unknown",
        ),
        pytest.param(
            sample(shared(1, 0.0, utilization_percent=60.0)),
            "GPU 0 at 60 %, perhaps by others",
            id="shared, in use by a neighbour or by itself",
        ),
        pytest.param(
            sample(shared(0, 0.0, possible_holders=1, utilization_percent=60.0)),
            "GPU 0 at 60 %, perhaps by others",
            id="shared, in use, with a process that can't be read",
        ),
        pytest.param(sample(LOW, age_seconds=12), "it started less than 1 min ago", id="too young"),
        pytest.param(sample(LOW, cpu_cores=None), "the workspace's CPU use can't be read", id="CPU unknown"),
        pytest.param(sample(LOW, cpu_cores=math.nan), "the workspace's CPU use can't be read", id="CPU no number"),
        pytest.param(sample(), "no GPU is leased", id="no GPU"),
        pytest.param(sample(problem="frozen"), "no GPU is leased", id="no GPU, probe failed"),
    ],
)
def test_unknown(seen: Sample, because: str) -> None:
    assert judged(seen) == (UNKNOWN, because)


@pytest.mark.parametrize(
    ("seen", "since_busy_seconds", "kind", "because"),
    [
        pytest.param(sample(LOW, cpu_cores=1.4), 60, SOFT, "CPU at 1.4 cores, GPU 0 at 1 %", id="CPU"),
        pytest.param(sample(LOW, cpu_cores=1.4), 3600, SOFT, "CPU at 1.4 cores, GPU 0 at 1 %", id="CPU, last moment"),
        pytest.param(
            sample(LOW, cpu_cores=1.4), 3601, IDLE, "GPU 0 at 1 %, CPU at 1.4 cores (no longer counts)", id="CPU, spent"
        ),
        pytest.param(sample(LOW, cpu_cores=0.1), 60, IDLE, "GPU 0 at 1 %", id="CPU at its bound"),
        pytest.param(sample(LOW, cpu_cores=None), 3601, IDLE, "GPU 0 at 1 %", id="CPU unknown, but no longer counts"),
        pytest.param(sample(LOW, soft=(KERNEL,)), 3600, SOFT, "kernel train.ipynb busy, GPU 0 at 1 %", id="kernel"),
        pytest.param(
            sample(LOW, soft=(KERNEL,)),
            3601,
            IDLE,
            "GPU 0 at 1 %, kernel train.ipynb busy (no longer counts)",
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
        pytest.param(sample(LOW, soft=(UNREAD,)), 3601, IDLE, "GPU 0 at 1 %", id="kernels unknown, budget spent"),
        pytest.param(
            sample(LOW, cpu_cores=2, soft=(UNREAD,)), 60, SOFT, "CPU at 2 cores, GPU 0 at 1 %", id="one seen, one not"
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
def test_soft_evidence_has_a_budget(seen: Sample, since_busy_seconds: float, kind: SampleKind, because: str) -> None:
    assert judged(seen, since_busy_seconds) == (kind, because)


@pytest.mark.parametrize(
    ("reading", "cores", "because"),
    [
        pytest.param(
            exclusive(0, holders_cpu_cores=0.05), 0.05, "the processes of GPU 0 at 0.05 cores", id="its processes work"
        ),
        pytest.param(
            exclusive(0, possible_holders=1, possible_cpu_cores=0.05),
            0.05,
            "the processes of GPU 0 at 0.05 cores",
            id="a process works that can't be read and may hold it",
        ),
        pytest.param(
            exclusive(0, holders=None, memory_used_bytes=0),
            0.0,
            "GPU 0 can't be read (its processes are unknown)",
            id="holders unknown, no memory in use",
        ),
        pytest.param(
            exclusive(0, holders_cpu_cores=math.nan),
            0.0,
            "GPU 0 can't be read (the CPU use of its processes is unknown)",
            id="their CPU use unknown",
        ),
        pytest.param(
            exclusive(0, holders=0, memory_used_bytes=0),
            0.05,
            "processes that have ended may have used GPU 0",
            id="a process has ended",
        ),
        pytest.param(
            exclusive(100, **WOKEN),
            0.05,
            "processes that have ended may have used GPU 0",
            id="a process has ended, and we woke it",
        ),
        pytest.param(
            exclusive(100, buffer_percent=97.0, **WOKEN), 0.0, "GPU 0 held by no process", id="it worked before"
        ),
        pytest.param(
            exclusive(0, holders=0, memory_used_bytes=GIB),
            0.0,
            "a process of another container uses its memory",
            id="a side container",
        ),
    ],
)
def test_work_that_may_have_been_missed_counts_for_the_soft_budget(
    reading: GpuReading, cores: float, because: str
) -> None:
    seen = sample(reading, cpu_cores=cores)
    assert gpu_of(seen).may_work
    kind, why = judged(seen, 3600.0)
    assert (kind, why.endswith(f", but {because}")) == (SOFT, True)
    assert kind_of(seen, 3601.0) is IDLE


@pytest.mark.parametrize("memory_bytes", [GIB, None])
@pytest.mark.parametrize("since_busy_seconds", [60.0, 3601.0])
def test_promise_4_memory_in_use_by_unknown_processes_is_unknown_and_never_idle(
    memory_bytes: int | None, since_busy_seconds: float
) -> None:
    seen = sample(exclusive(0, holders=None, memory_used_bytes=memory_bytes))
    assert judged(seen, since_busy_seconds) == (UNKNOWN, "GPU 0 can't be read (its processes are unknown)")
    covered = exclusive(0, holders=None, memory_used_bytes=memory_bytes, seen_seconds=60.0)
    assert kind_of(sample(covered), since_busy_seconds) is IDLE, "the driver's buffer saw all of the time"
    assert kind_of(replace(seen, sources=(monitored(0),)), since_busy_seconds) is IDLE, "so did the monitor"
    assert kind_of(replace(seen, sources=(monitored(0, 0.5),)), since_busy_seconds) is UNKNOWN


@pytest.mark.parametrize("percent", [0.0, 60.0, None])
def test_processes_that_have_ended_may_have_used_a_shared_gpu(percent: float | None) -> None:
    ended = sample(shared(0, None, utilization_percent=percent), ended_cpu_cores=0.05)
    assert (kind_of(ended), gpu_of(ended).may_work) == (UNKNOWN, True)
    alive = sample(shared(0, None, utilization_percent=percent), ended_cpu_cores=0.0, cpu_cores=0.05)
    assert kind_of(alive) is IDLE, "a process that lives and does not hold it has not used it"
    device = monitored(40, is_own=False)
    assert (kind_of(replace(ended, sources=(device,))), kind_of(replace(alive, sources=(device,)))) == (UNKNOWN, IDLE)


def test_unreadable_processes_without_memory_on_the_gpu_do_not_hold_it() -> None:
    seen = sample(exclusive(0, holders=0, memory_used_bytes=0, possible_holders=1, possible_cpu_cores=0.01))
    assert judged(seen) == (IDLE, "GPU 0 at 0 %")
    assert not gpu_of(seen).may_work


def test_a_buffer_that_reaches_back_to_the_sample_before_leaves_nothing_unseen() -> None:
    seen = exclusive(0, holders_cpu_cores=0.05, buffer_percent=0.0, seen_seconds=17.0)
    assert gpu_of(sample(seen, interval_seconds=15.0, cpu_cores=0.05)).may_work is False
    assert gpu_of(sample(seen, interval_seconds=60.0, cpu_cores=0.05)).may_work is True


def test_two_shares_of_one_device_are_one_device() -> None:
    assert kind_of(sample(shared(0, None), leased=("a", "a"))) is IDLE


def test_each_gpu_has_its_own_state() -> None:
    seen = sample(exclusive(97), exclusive(None, "b", problem="[N/A]"), exclusive(2, "c"))
    assert [(one.gpu, one.state.value) for one in read_evidence(seen, POLICY).gpus] == [
        ("a", "busy"),
        ("b", "unknown"),
        ("c", "idle"),
    ]


def test_a_workspace_too_young_does_not_make_its_gpus_unreadable() -> None:
    seen = sample(LOW, age_seconds=59.9)
    assert (kind_of(seen), gpu_of(seen).state) == (UNKNOWN, GpuState.IDLE)
    assert kind_of(sample(LOW, age_seconds=60.0)) is IDLE


@pytest.mark.parametrize(
    ("gpus", "peak_percent"),
    [
        pytest.param((exclusive(1), exclusive(3, "b")), 3, id="the highest of several"),
        pytest.param((exclusive(1), exclusive(100, "b", **WOKEN)), 100, id="the woken one too"),
        pytest.param((exclusive(1), exclusive(0, "b", buffer_percent=99.0, **WOKEN)), 99, id="nor less than a buffer"),
        pytest.param((exclusive(1), shared(0, None, "b", utilization_percent=4)), 1, id="not the neighbours'"),
        pytest.param((shared(0, None),), None, id="none measured"),
    ],
)
def test_the_peak_is_all_that_was_read(gpus: tuple[GpuReading, ...], peak_percent: float | None) -> None:
    assert read_evidence(sample(*gpus), POLICY).peak_percent == peak_percent


NUMBERS = st.one_of(st.none(), st.just(math.nan), st.floats(-1, 101))
READINGS = st.builds(
    GpuReading,
    gpu=st.sampled_from("abc"),
    utilization_percent=NUMBERS,
    memory_used_bytes=st.sampled_from([None, 0, GIB]),
    holders=st.sampled_from([None, 0, 2]),
    holders_cpu_cores=NUMBERS,
    possible_holders=st.sampled_from([0, 1]),
    possible_cpu_cores=NUMBERS,
    shared=st.booleans(),
    persistence=st.sampled_from([None, False, True]),
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


def is_known_low(reading: GpuReading, *, ended: bool) -> bool:
    """Say again, in other words, when nothing is seen of work on a GPU."""
    percent = reading.utilization_percent
    low = percent is not None and 0 <= percent < 5
    if reading.shared:
        cores = (reading.holders_cpu_cores, reading.possible_cpu_cores)
        at_rest = all(one is not None and not math.isnan(one) for one in cores) and 0 <= sum(cores) <= 0.02
        unheld = reading.holders == 0 and reading.possible_holders == 0 and not ended
        unread = percent is None or not 0 <= percent <= 100
        return unheld or (reading.holders is not None and at_rest and (low or unread))
    woken = reading.holders == 0 and reading.memory_used_bytes == 0 and reading.persistence is False
    return low or (woken and percent is not None and 5 <= percent <= 100)


@given(SAMPLES, st.floats(60, 7200))
def test_promise_4_a_sample_is_idle_only_if_every_leased_gpu_is_known_to_be(seen: Sample, since: float) -> None:
    all_known_low = (
        bool(seen.leased)
        and not seen.problem
        and seen.age_seconds >= 60
        and sorted(reading.gpu for reading in seen.gpus) == sorted(seen.leased)
        and all(is_known_low(one, ended=(seen.cpu_cores or 0.0) > 0.02) for one in seen.gpus)
    )
    kind = kind_of(seen, since)
    assert (kind in {IDLE, SOFT}) <= all_known_low
    if all_known_low and since > 3600:
        assert kind is IDLE  # no budget is left, so nothing shields it


@given(SAMPLES, st.floats(60, 7200))
def test_losing_a_reading_never_makes_a_workspace_idle(seen: Sample, since: float) -> None:
    before = kind_of(seen, since)
    for index, reading in enumerate(seen.gpus):
        for lost in (
            replace(reading, utilization_percent=None, holders=None),
            replace(reading, holders=None, holders_cpu_cores=None),
            replace(reading, memory_used_bytes=None),
            replace(reading, possible_holders=1, possible_cpu_cores=None),
        ):
            gpus = (*seen.gpus[:index], lost, *seen.gpus[index + 1 :])
            if kind_of(replace(seen, gpus=gpus), since) is IDLE:
                assert before is IDLE
