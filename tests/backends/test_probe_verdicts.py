"""The verdict on every way to hold a GPU, from the probe's text in the forms of real machines: busy, idle, unknown.

Each way is probed twice, a minute apart: what its processes computed between is what they used since the first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest
from harness.verdicts import judge_sample

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probes.processes import ProcessTable
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.readings import Sample
from gpuspawner.core.idle.verdicts import SampleKind

A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000001"
SLICE = "MIG-cccccccc-0000-0000-0000-000000000002"
SIBLING = "MIG-dddddddd-0000-0000-0000-000000000003"
POD = "node-1/nvidia.com/gpu/0"
POLICY = IdlePolicy(soft_names=())
BUSY, UNKNOWN, IDLE, SOFT = SampleKind.BUSY, SampleKind.UNKNOWN, SampleKind.IDLE, SampleKind.SOFT
AT_REST, COMPUTES = 2, 3000
"""Hundredths of a second of CPU in a minute: what an idle kernel takes, and half a core."""

WHOLE = ProbeResult()
"""Whole GPUs under the names that the lease knows."""


@dataclass(frozen=True)
class Way:
    """One way to hold GPUs, and what the second probe finds there."""

    leased: tuple[str, ...]
    rows: tuple[str, ...]
    shared: frozenset[str] = frozenset()
    result: ProbeResult = WHOLE
    holds: tuple[int, ...] = (0,)
    """Device numbers that the workspace's process has open."""
    ticks: int = AT_REST
    code: int = 0
    minors: dict[int, str] = field(default_factory=lambda: {0: A, 1: B})


def row(uuid: str, percent: str, used: str = "2048", *, mig: str = "Disabled", index: int = 0, mode: str = "") -> str:
    return f"{index}, {uuid}, NVIDIA H100 80GB HBM3, {mig}, {percent}, {used}, 81559, {mode or 'Enabled'}"


def text_of(way: Way, clock_seconds: float, ticks: int) -> str:
    lines = ["gpuspawner-probe 1 begin", f"clock {clock_seconds:.2f} 100", f"process 100 1 1000 {ticks} 0"]
    lines += [f"device /dev/nvidia{minor}" for minor in way.minors]
    for minor, uuid in way.minors.items():
        lines += [f"driver GPU UUID: \t {uuid}", f"driver Device Minor: \t {minor}"]
    lines += [f"open 100 /dev/nvidia{minor}" for minor in way.holds]
    lines += [f"reading {way.code}", *(f"smi {one}" for one in way.rows), "gpuspawner-probe 1 end", ""]
    return "\n".join(lines)


def sample_of(way: Way, line: str = "") -> Sample:
    """Return the sample of the second probe. ``line`` is an additional line of its output."""
    table: ProcessTable | None = None
    for clock_seconds, ticks in ((1000.0, 500), (1060.0, 500 + way.ticks)):
        text = text_of(way, clock_seconds, ticks)
        result = replace(
            way.result, text=text.replace("gpuspawner-probe 1 end", f"{line}\ngpuspawner-probe 1 end".lstrip())
        )
        sample, table = parse_probe(
            result, way.leased, table, interval_seconds=60.0, age_seconds=600.0, shared=way.shared
        )
    return sample


EXCLUSIVE = Way((A,), (row(A, "0"),))
SEVERAL = Way((A, B), (row(A, "0"), row(B, "0", "0", index=1)))
SLICED = replace(EXCLUSIVE, shared=frozenset({A}))
REPLICA = Way((POD,), (row(A, "0"),), result=ProbeResult(counted=True, shared=True))
MIG = Way((SLICE,), (row(A, "[N/A]", "11125", mig="Enabled"),), result=ProbeResult(devices={SLICE: A}))
MIG_POD = replace(MIG, leased=("node-1/nvidia.com/mig-1g.10gb/0",), result=ProbeResult(counted=True, shared=True))
NONE = Way((), (), holds=(), minors={})


@pytest.mark.parametrize(
    ("way", "kind", "because"),
    [
        pytest.param(replace(EXCLUSIVE, rows=(row(A, "97"),)), BUSY, "GPU 0 at 97 %", id="exclusive-busy"),
        pytest.param(EXCLUSIVE, IDLE, "GPU 0 at 0 %", id="exclusive-idle"),
        pytest.param(
            replace(EXCLUSIVE, rows=(row(A, "[Unknown Error]"),)), UNKNOWN, "[Unknown Error]", id="exclusive-unknown"
        ),
        pytest.param(
            replace(EXCLUSIVE, rows=("Failed to initialize NVML: Unknown Error",), code=255),
            UNKNOWN,
            "exit code 255",
            id="exclusive-nvml-lost",
        ),
        pytest.param(
            replace(EXCLUSIVE, rows=(row(A, "100", "0", mode="Disabled"),), holds=()),
            IDLE,
            "nvidia-smi itself wakes it",
            id="exclusive-woken",
        ),
        pytest.param(
            replace(EXCLUSIVE, rows=(row(A, "100", "0"),), holds=()), BUSY, "GPU 0 at 100 %", id="exclusive-just-ended"
        ),
        pytest.param(
            replace(SEVERAL, rows=(SEVERAL.rows[0], row(B, "31", index=1))), BUSY, "GPU 1 at 31 %", id="several-busy"
        ),
        pytest.param(SEVERAL, IDLE, "GPU 0 at 0 %, GPU 1 at 0 %", id="several-idle"),
        pytest.param(
            replace(SEVERAL, rows=(SEVERAL.rows[0], row(B, "[N/A]", index=1))),
            UNKNOWN,
            "GPU 1 can't be read",
            id="several-unknown",
        ),
        pytest.param(replace(SEVERAL, rows=SEVERAL.rows[:1]), UNKNOWN, "GPU 1 can't be read", id="several-one-lost"),
        pytest.param(
            replace(SLICED, rows=(row(A, "0"),), ticks=COMPUTES),
            BUSY,
            "the processes of GPU 0 at 0.5 cores",
            id="time-sliced-busy",
        ),
        pytest.param(replace(SLICED, rows=(row(A, "100"),)), UNKNOWN, "perhaps by others", id="time-sliced-neighbour"),
        pytest.param(replace(SLICED, holds=()), IDLE, "held by no process", id="time-sliced-idle-unheld"),
        pytest.param(
            replace(SLICED, minors={0: B}, holds=(1,)), UNKNOWN, "driver does not tell", id="time-sliced-unknown"
        ),
        pytest.param(replace(REPLICA, ticks=COMPUTES), BUSY, "the processes of GPU 0 at 0.5 cores", id="mps-busy"),
        pytest.param(replace(REPLICA, rows=(row(A, "100"),)), UNKNOWN, "perhaps by others", id="mps-neighbour"),
        pytest.param(replace(REPLICA, minors={}, holds=()), UNKNOWN, "no GPU device file", id="mps-unknown"),
        pytest.param(replace(MIG, ticks=COMPUTES), BUSY, "the processes of GPU 0 at 0.5 cores", id="mig-busy"),
        pytest.param(MIG, IDLE, "the processes of GPU 0 at 0 cores", id="mig-idle"),
        pytest.param(replace(MIG, holds=()), IDLE, "held by no process", id="mig-idle-unheld"),
        pytest.param(replace(MIG, minors={}, holds=()), UNKNOWN, "no GPU device file", id="mig-unknown"),
        pytest.param(
            replace(MIG, leased=(SLICE, SIBLING), result=ProbeResult(devices={SLICE: A, SIBLING: A}), ticks=COMPUTES),
            BUSY,
            "the processes of GPU 0 at 0.5 cores, the processes of GPU 1 at 0.5 cores",
            id="mig-several-busy",
        ),
        pytest.param(replace(MIG, result=WHOLE), UNKNOWN, "can't be read", id="mig-unknown-whose-device-nobody-tells"),
        pytest.param(
            replace(MIG_POD, ticks=COMPUTES), BUSY, "the processes of GPU 0 at 0.5 cores", id="mig-in-a-pod-busy"
        ),
        pytest.param(MIG_POD, IDLE, "the processes of GPU 0 at 0 cores", id="mig-in-a-pod-idle"),
        pytest.param(replace(MIG_POD, minors={}, holds=()), UNKNOWN, "no GPU device file", id="mig-in-a-pod-unknown"),
        pytest.param(
            replace(SEVERAL, leased=(A,), rows=(row(A, "97"), SEVERAL.rows[1])), BUSY, "at 97 %", id="not-leased-busy"
        ),
        pytest.param(replace(SEVERAL, leased=(A,)), UNKNOWN, f"{B} is seen, not leased", id="not-leased-idle"),
        pytest.param(
            replace(SEVERAL, leased=(A,), rows=(SEVERAL.rows[0], row(B, "97", index=1))),
            UNKNOWN,
            f"{B} is seen, not leased",
            id="not-leased-works-there",
        ),
        pytest.param(
            replace(NONE, rows=(row(A, "97"),), minors={0: A}, holds=(0,)),
            UNKNOWN,
            "seen, not leased",
            id="none-foreign",
        ),
    ],
)
def test_verdict(way: Way, kind: SampleKind, because: str) -> None:
    judged = judge_sample(sample_of(way), POLICY, 60.0)
    assert judged.kind is kind, judged.because
    assert because in judged.because


def kernels(*, busy: bool | None, idle_seconds: float = 900.0, uptime: float = 1059.0) -> str:
    one = {"name": "train.ipynb", "busy": busy, "idle_seconds": idle_seconds}
    return "kernels 100 " + json.dumps({"begin": 7, "pid": 100, "uptime": uptime, "kernels": [one], "end": 7})


@pytest.mark.parametrize(
    ("line", "ticks", "kind", "because"),
    [
        pytest.param(kernels(busy=True), AT_REST, BUSY, "kernel train.ipynb busy", id="none-busy-kernel"),
        pytest.param(kernels(busy=False), COMPUTES, BUSY, "CPU at 0.5 cores", id="none-busy-cpu"),
        pytest.param("ssh 200", AT_REST, BUSY, "an SSH session is open", id="none-busy-ssh"),
        pytest.param(kernels(busy=False), AT_REST, IDLE, "kernels quiet", id="none-idle"),
        pytest.param(kernels(busy=None), AT_REST, UNKNOWN, "does not report its state", id="none-unknown-kernel"),
        pytest.param(
            kernels(busy=False, uptime=900.0), AT_REST, UNKNOWN, "has reported nothing for 160 s", id="none-stale"
        ),
        pytest.param("kernels 100 {", AT_REST, UNKNOWN, "is not understood", id="none-half-a-line"),
    ],
)
def test_verdict_on_a_workspace_without_gpus(line: str, ticks: int, kind: SampleKind, because: str) -> None:
    sample = sample_of(replace(NONE, ticks=ticks), line)
    assert (sample.gpus, sample.problem) == ((), "")
    seen = replace(sample, hub_idle_seconds=900.0)
    judged = judge_sample(seen, replace(POLICY, by_activity=True), 600.0)
    assert judged.kind is kind, judged.because
    assert because in judged.because


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(EXCLUSIVE, id="exclusive"),
        pytest.param(SEVERAL, id="several"),
        pytest.param(SLICED, id="time-sliced"),
        pytest.param(REPLICA, id="mps"),
        pytest.param(MIG, id="mig"),
        pytest.param(MIG_POD, id="mig-in-a-pod"),
        pytest.param(NONE, id="none"),
    ],
)
@pytest.mark.parametrize(
    "result",
    [
        pytest.param(ProbeResult(problem="the probe did not end within 20 s"), id="time-out"),
        pytest.param(ProbeResult(problem="the cluster refused the probe: forbidden"), id="refused"),
        pytest.param(ProbeResult(problem="the kubelet does not answer"), id="kubelet-away"),
        pytest.param(ProbeResult(text="gpuspawner-probe 1 begin\nclock 10"), id="half"),
        pytest.param(ProbeResult(), id="nothing"),
    ],
)
def test_a_failed_probe_is_unknown_with_any_holders(way: Way, result: ProbeResult) -> None:
    whole = replace(result, counted=way.result.counted, shared=way.result.shared, devices=way.result.devices)
    sample, _ = parse_probe(whole, way.leased, None, interval_seconds=60.0, age_seconds=600.0, shared=way.shared)
    assert sample.problem
    assert judge_sample(sample, POLICY, 60.0).kind is UNKNOWN
