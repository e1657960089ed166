"""What may have been work of a GPU, between its readings or in what they show: soft, for a time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from evidence_builders import IDLE, LOW, POLICY, SOFT, WOKEN, exclusive, sample, shared

from gpuspawner.core.idle.evidence import SampleKind, classify
from gpuspawner.core.idle.readings import GpuReading, Sample


@pytest.mark.parametrize(
    ("seen", "since_busy_seconds", "kind", "because"),
    [
        pytest.param(
            sample(exclusive(0, holders_cpu_cores=0.05)),
            60,
            SOFT,
            "GPU 0 at 0 % and its processes at 0.05 cores",
            id="three seconds of a minute",
        ),
        pytest.param(
            sample(exclusive(0, holders_cpu_cores=0.05)),
            7200,
            SOFT,
            "GPU 0 at 0 % and its processes at 0.05 cores",
            id="twice the budget of CPU",
        ),
        pytest.param(
            sample(exclusive(0, holders_cpu_cores=0.05)),
            7201,
            IDLE,
            "GPU 0 at 0 % and its processes at 0.05 cores",
            id="budget spent, still told",
        ),
        pytest.param(sample(shared(1, 0.1)), 60, SOFT, "GPU 0's processes at 0.1 cores", id="shared"),
        pytest.param(
            sample(LOW, exclusive(0, "b", holders_cpu_cores=0.05)),
            60,
            SOFT,
            "GPU 0 at 1 %, GPU 1 at 0 % and its processes at 0.05 cores",
            id="one of two",
        ),
    ],
)
def test_processes_that_hold_a_low_gpu_and_compute_may_use_it_between_two_readings(
    seen: Sample, since_busy_seconds: float, kind: SampleKind, because: str
) -> None:
    judged = classify(seen, POLICY, since_busy_seconds)
    assert (judged.kind, judged.because, judged.perhaps) == (kind, because, True)


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(sample(exclusive(0, holders_cpu_cores=0.02)), id="an idle kernel"),
        pytest.param(
            sample(exclusive(0, holders_cpu_cores=0.2), interval_seconds=5.0), id="a twitch, looked at closely"
        ),
        pytest.param(sample(exclusive(0, holders=0, holders_cpu_cores=0.0), cpu_cores=0.02), id="no process holds it"),
        pytest.param(sample(exclusive(0, holders=None), cpu_cores=9.0), id="holders unknown"),
        pytest.param(sample(exclusive(0, holders_cpu_cores=math.nan)), id="not a number"),
    ],
)
def test_and_else_they_may_not(seen: Sample) -> None:
    assert not classify(seen, POLICY, 60.0).perhaps


@pytest.mark.parametrize(
    ("reading", "counts_seconds", "because"),
    [
        pytest.param(
            exclusive(0, holders=0, holders_cpu_cores=0.0),
            3600.0,
            "GPU 0 at 0 % and the workspace's processes, of which some may have ended, at 0.05 cores",
            id="a process that has ended may have used it",
        ),
        pytest.param(
            exclusive(100, **WOKEN),
            3600.0,
            "GPU 0 at 100 %, but held by no process: nvidia-smi itself wakes it"
            " and the workspace's processes, of which some may have ended, at 0.05 cores",
            id="or be hidden by the waking",
        ),
        pytest.param(
            shared(0, None),
            3600.0,
            "GPU 0 held by no process and the workspace's processes, of which some may have ended, at 0.05 cores",
            id="a shared one too",
        ),
        pytest.param(
            exclusive(0, buffer_percent=97.0, **WOKEN),
            7200.0,
            "GPU 0 at 97 % before it was read, held by no process now",
            id="what woke it the last time may stand in the buffer",
        ),
    ],
)
def test_what_may_have_been_work_counts_for_a_time(reading: GpuReading, counts_seconds: float, because: str) -> None:
    for since_busy_seconds, kind in ((counts_seconds, SOFT), (counts_seconds + 1, IDLE)):
        judged = classify(sample(reading, cpu_cores=0.05), POLICY, since_busy_seconds)
        assert (judged.kind, judged.because.startswith(because), judged.perhaps) == (kind, True, True)


def test_where_cpu_does_not_count_they_hold_nothing() -> None:
    seen = sample(exclusive(0, holders_cpu_cores=0.05))
    assert classify(seen, replace(POLICY, soft_budget_seconds=()), 0.0).kind is IDLE


@pytest.mark.parametrize(
    ("seen", "since_busy_seconds", "kind", "anew"),
    [
        pytest.param(shared(1, 0.0, utilization_percent=60.0), 7200, SOFT, True, id="for its time"),
        pytest.param(
            shared(1, 0.0, utilization_percent=60.0), 7201, IDLE, False, id="no longer: it is found in the end"
        ),
        pytest.param(shared(1, 0.0, utilization_percent=4.0), 60, IDLE, False, id="the device does nothing"),
        pytest.param(shared(1, 0.0, utilization_percent=math.nan), 60, IDLE, False, id="nobody knows"),
        pytest.param(shared(0, 0.0, utilization_percent=60.0), 60, IDLE, False, id="nothing of it holds the device"),
    ],
)
def test_work_of_a_whole_device_that_it_shares_may_be_its_own(
    seen: GpuReading, since_busy_seconds: float, kind: SampleKind, anew: bool
) -> None:
    found = classify(sample(seen), POLICY, since_busy_seconds)
    assert (found.kind, found.anew, found.perhaps) == (kind, anew, False), "a closer look would tell nothing more"
    if kind is SOFT:
        assert found.because == "GPU 0's processes at 0 cores on a GPU at 60 %, perhaps by others"
