"""Every reading that a bug report of the notes tells of, by its number: what we make of it.

The reports are of other projects (peers.md, gpu-scheduling.md). Where a report is of a signal that we do not read at
all, the case says by what we judge instead.
"""

from __future__ import annotations

import pytest
from harness.verdicts import judge_sample

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.fake import probe_text
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.idle.evidence import read_evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import Sample, SoftReading
from gpuspawner.core.idle.verdicts import SampleKind, Streak, Verdict, judge
from gpuspawner.core.units import MEBIBYTE

A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000001"
POLICY = IdlePolicy()
BUSY, UNKNOWN, SOFT, IDLE = SampleKind.BUSY, SampleKind.UNKNOWN, SampleKind.SOFT, SampleKind.IDLE
HEAD = "gpuspawner-probe 1 begin\nclock 1060.00 100\n"
END = "gpuspawner-probe 1 end\n"


def sampled(text: str, *, leased: tuple[str, ...] = (A,), shared: bool = False, cpu_ticks: int = 0) -> Sample:
    """Parse a probe after an earlier one of the same process, a minute and ``cpu_ticks`` hundredths of CPU before."""
    before = probe_text(dict.fromkeys(leased, 0), clock_seconds=1000.0, holders=leased)
    sharing = frozenset(leased if shared else ())
    _, table = parse_probe(ProbeResult(before), leased, None, interval_seconds=60.0, age_seconds=600.0, shared=sharing)
    now = text.replace("process 100 1 1000 0 0", f"process 100 1 1000 {cpu_ticks} 0")
    seen = parse_probe(ProbeResult(now), leased, table, interval_seconds=60.0, age_seconds=660.0, shared=sharing)
    return seen[0]


def reading(percent: int | str, *, held: bool = True, memory_mib: int = 1024, **more: object) -> str:
    return probe_text({A: percent}, clock_seconds=1060.0, memory_mib=memory_mib, holders=[A] if held else [], **more)  # type: ignore[arg-type]


def kind_of(seen: Sample, since_busy_seconds: float = 60.0) -> SampleKind:
    return judge_sample(seen, POLICY, since_busy_seconds).kind


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("Failed to initialize NVML: Unknown Error", id="after a systemd reload"),
        pytest.param("Failed to initialize NVML: Driver/library version mismatch", id="after a driver update"),
        pytest.param("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", id="no driver"),
    ],
)
def test_nvidia_container_toolkit_48_nvml_is_lost_while_jobs_go_on(text: str) -> None:
    """A failing sample is unknown, however long it fails, and never idle."""
    lost = f"{HEAD}process 100 1 1000 0 0\ndevice /dev/nvidia0\nreading 255\nsmi {text}\n{END}"
    seen = sampled(lost)
    assert text[:30] in seen.gpus[0].problem
    assert kind_of(seen) is UNKNOWN
    streak = Streak(mode=Mode.ENFORCE)
    for _ in range(24 * 60):
        streak, verdict = judge(streak, read_evidence(seen, POLICY), POLICY, Mode.ENFORCE)
        assert verdict is Verdict.NONE
    assert streak.idle_seconds == 0


@pytest.mark.parametrize("value", ["[N/A]", "N/A", "[Not Supported]", "[Insufficient Permissions]"])
def test_mig_utilization_is_no_zero(value: str) -> None:
    """Hazards, MIG: ``utilization.*`` is ``[N/A]``, idle and loaded alike; gpu-pruner's fallback metric reads 0."""
    assert kind_of(sampled(reading(value))) is UNKNOWN
    assert kind_of(sampled(reading(value), shared=True, cpu_ticks=3000)) is BUSY, "its holders' CPU judges"
    assert kind_of(sampled(reading(value), shared=True)) is IDLE


def test_mig_memory_may_be_forbidden() -> None:
    """Hazards, MIG: ``memory.*`` may be ``[Insufficient Permissions]``: unknown, and utilization still counts."""
    text = reading(0).replace(" 1024, 81920,", " [Insufficient Permissions], [Insufficient Permissions],")
    seen = sampled(text)
    assert (seen.gpus[0].utilization_percent, seen.gpus[0].memory_used_bytes) == (0.0, None)
    assert kind_of(seen) is IDLE


def test_time_slicing_shows_the_neighbours_work() -> None:
    """Hazards, time-slicing and MPS: with a busy neighbor a workspace that holds the GPU is unknown, never idle."""
    assert kind_of(sampled(reading(100), shared=True)) is UNKNOWN
    assert kind_of(sampled(reading(100, held=False), shared=True)) is IDLE
    assert kind_of(sampled(reading(0), shared=True, cpu_ticks=3000)) is BUSY


def test_an_empty_process_list_is_no_proof() -> None:
    """Hazards: the process list is empty without hostPID. We do not read it: open device files and memory count."""
    assert kind_of(sampled(reading(97))) is BUSY
    unseen = reading(97, held=False).replace(f"device /simulated/{A}\n", "")
    seen = sampled(unseen)
    assert seen.gpus[0].holders is None
    assert kind_of(seen) is BUSY


def test_a_gpu_woken_by_nvidia_smi_itself_is_idle() -> None:
    """Captures: the idle L40S without persistence mode reads 100 %, with 0 MiB and no process."""
    assert kind_of(sampled(reading(100, held=False, memory_mib=0, persistence="Disabled"))) is IDLE
    assert kind_of(sampled(reading(100, held=False, memory_mib=3, persistence="Disabled"))) is BUSY
    assert kind_of(sampled(reading(100, held=False, memory_mib=0, persistence="Enabled"))) is BUSY
    assert kind_of(sampled(reading(100, held=False, memory_mib=0, persistence="[N/A]"))) is BUSY


def test_persistence_a_slow_driver_is_unknown() -> None:
    """Cost: driver start-up takes 1 to 3 s a GPU; sixteen of them can outlast the probe's deadline."""
    late = ProbeResult(problem="the probe did not end within 20 s")
    assert kind_of(parse_probe(late, (A,), None, interval_seconds=60.0, age_seconds=600.0)[0]) is UNKNOWN


def test_dcgm_56_no_profiling_counter_is_asked_for() -> None:
    """DCGM#56: profiling metrics take a lock that Nsight needs. The probe asks plain nvidia-smi."""
    from gpuspawner.backends.probes.script import script  # noqa: PLC0415 - for this one case

    assert b"dcgm" not in script().lower()
    assert b"nvidia-smi" in script()


@pytest.mark.parametrize("percent", [5, 30, 100])
def test_gpu_pruner_one_idle_gpu_of_several_is_not_an_idle_workspace(percent: int) -> None:
    """gpu-pruner groups by GPU: one idle one stops the pod. dstack's policy too."""
    text = probe_text({A: 0, B: percent}, clock_seconds=1060.0, memory_mib=1024, holders=[A, B])
    assert kind_of(sampled(text, leased=(A, B))) is BUSY


def test_gpu_pruner_a_window_with_holes_is_not_a_whole_one() -> None:
    """gpu-pruner and dstack count a partial window as full: 30 min with one reading."""
    idle = sampled(reading(0))
    streak, verdict = judge(
        Streak(mode=Mode.ENFORCE),
        read_evidence(Sample(idle.leased, idle.gpus, 1800.0, 3600.0, 0.0), POLICY),
        POLICY,
        Mode.ENFORCE,
    )
    assert (verdict, streak.idle_seconds) == (Verdict.NONE, 90.0)


@pytest.mark.parametrize(
    ("report", "since_busy_seconds"),
    [
        pytest.param("jupyterhub#1498", 0.0, id="jupyterhub#1498 busy kernel, browser closed"),
        pytest.param("idle-culler#10", 3600.0, id="idle-culler#10 busy, and no traffic"),
        pytest.param("idle-culler#43", 3600.0, id="idle-culler#43 busy, and no traffic"),
        pytest.param("idle-culler#55", 86400.0, id="idle-culler#55 busy for days"),
        pytest.param("kubeflow#7186", 3600.0, id="kubeflow#7186 work in a terminal"),
        pytest.param("kubeflow#6920", 3600.0, id="kubeflow#6920 VS Code: no kernel at all"),
        pytest.param("jupyterhub-ssh#26", 3600.0, id="jupyterhub-ssh#26 work over SSH"),
    ],
)
def test_work_without_traffic_kernel_or_terminal_is_work(report: str, since_busy_seconds: float) -> None:
    """Workspaces that activity cullers stop: the sample has no signal of Jupyter, and needs none."""
    seen = sampled(reading(60))
    assert not any(one.active for one in seen.soft)
    assert kind_of(seen, since_busy_seconds) is BUSY, report


@pytest.mark.parametrize("report", ["nebari#1902", "2i2c#2232", "coder#12012"])
def test_an_open_tab_or_connection_holds_no_idle_gpu(report: str) -> None:
    """Workspaces that activity cullers never stop: traffic and connections do not count in the default policy."""
    idle = sampled(reading(0))
    soft = tuple(SoftReading(name, active=True, words=name) for name in ("ssh", "editor", "kernel"))
    seen = Sample(idle.leased, idle.gpus, 60.0, 600.0, idle.cpu_cores, soft)
    assert kind_of(seen) is IDLE, report


def test_coder_10841_lunch_is_warned_of_before_anything_ends() -> None:
    """coder#10841: 30 idle minutes begin a grace of ten, in which work saves the workspace."""
    idle, verdicts, streak = sampled(reading(0)), [], Streak(mode=Mode.ENFORCE)
    for _ in range(35):
        streak, verdict = judge(streak, read_evidence(idle, POLICY), POLICY, Mode.ENFORCE)
        verdicts.append(verdict)
    assert verdicts.count(Verdict.BEGIN_GRACE) == 1
    assert Verdict.RECLAIM not in verdicts
    streak, verdict = judge(streak, read_evidence(sampled(reading(80)), POLICY), POLICY, Mode.ENFORCE)
    assert (verdict, streak.idle_seconds) == (Verdict.END_GRACE, 0.0)


def test_kubeflow_6648_a_new_start_is_not_stopped_for_the_idleness_before_it() -> None:
    """kubeflow#6648: culled again right after its restart, by the stamp of the run before."""
    young = sampled(reading(0))
    young = Sample(young.leased, young.gpus, 60.0, 30.0, 0.0)
    assert judge(Streak(), read_evidence(young, POLICY), POLICY, Mode.ENFORCE)[0].idle_seconds == 0
    assert kind_of(young) is UNKNOWN


@pytest.mark.parametrize("percent", [3, 4])
def test_work_missed_by_a_look_a_minute_costs_cpu(percent: int) -> None:
    """Sampling error: a job at 3 % of the time is missed by 30 samples 40 % of the time. Its CPU time is not."""
    assert kind_of(sampled(reading(0), cpu_ticks=int(60 * percent))) is SOFT


@pytest.mark.parametrize(
    "cell",
    ["Requested functionality has been deprecated", "[GPU requires reset]", "[Unknown Error]", "ERR!", "[GPU is lost]"],
)
def test_sentences_where_a_number_stood_are_unknown(cell: str) -> None:
    """Captures: deprecated fields print sentences; a fallen GPU prints brackets."""
    assert kind_of(sampled(reading(cell))) is UNKNOWN


def test_memory_is_in_mebibytes() -> None:
    """Captures: units are in the header or the cell, depending on ``nounits``. A cell with a unit is no number."""
    assert sampled(reading(0, memory_mib=2)).gpus[0].memory_used_bytes == 2 * MEBIBYTE
    assert sampled(reading(0).replace(" 1024,", " 1024 MiB,")).gpus[0].memory_used_bytes is None
