"""The driver's sample buffer: read strictly, it may only add use."""

from __future__ import annotations

import pytest
from harness.verdicts import judge_sample

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probes.gpu_tools import ENCODER, GPU, Buffer, read_reports
from gpuspawner.backends.probes.processes import ProcessTable
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.idle.evidence import read_evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import Sample
from gpuspawner.core.idle.verdicts import SampleKind, Streak, Verdict, judge

A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000001"
REPORT = """\

==============NVSMI LOG==============

Timestamp                                              : Fri Jul  3 22:11:09 2026
Driver Version                                         : 590.48.01
CUDA Version                                           : 13.1

Attached GPUs                                          : 1
GPU 00000000:83:00.0
    Utilization
        GPU                                            : 0 %
        Memory                                         : 0 %
    GPU Utilization Samples
        Duration                                       : 16.59 sec
        Number of Samples                              : 99
        Max                                            : 97 %
        Min                                            : 0 %
        Avg                                            : 31 %
    Memory Utilization Samples
        Duration                                       : 16.59 sec
        Number of Samples                              : 99
        Max                                            : 12 %
        Min                                            : 0 %
        Avg                                            : 3 %
"""


def probe(report: str, percent: str = "0", clock_seconds: float = 1000.0, gpus: tuple[str, ...] = (A,)) -> ProbeResult:
    rows = [f"smi {n}, {gpu}, NVIDIA H200, Disabled, {percent}, 900, 143771, Enabled" for n, gpu in enumerate(gpus)]
    lines = ["gpuspawner-probe 1 begin", f"clock {clock_seconds:.2f} 100", "process 10 1 500 100 0"]
    lines += ["device /dev/nvidia0", f"driver GPU UUID: {A}", "driver Device Minor: 0", "open 10 /dev/nvidia0"]
    lines += [f"from {clock_seconds:.2f}", "reading 0", *rows, *(f"buffer {line}" for line in report.splitlines())]
    lines += [f"until {clock_seconds + 3:.2f}", "gpuspawner-probe 1 end"]
    return ProbeResult("\n".join(lines))


def read(
    report: str, *, percent: str = "0", seconds: float = 60.0, age: float = 600.0, previous: ProcessTable | None = None
) -> Sample:
    return parse_probe(probe(report, percent), (A,), previous, interval_seconds=seconds, age_seconds=age)[0]


def highest(sample: Sample) -> float | None:
    return sample.gpus[0].highest_percent


def test_it_tells_the_maximum_of_its_time() -> None:
    assert [report.buffers for report in read_reports(REPORT.splitlines())] == [{GPU: Buffer(16.59, 97.0)}]
    two = REPORT + REPORT[REPORT.index("GPU 0000") :].replace(":83:", ":84:").replace("97 %", "40 %")
    assert [report.buffers[GPU].max_percent for report in read_reports(two.splitlines())] == [97.0, 40.0]


def test_use_between_two_readings_makes_it_busy() -> None:
    sample = read(REPORT)
    assert highest(sample) == 97.0
    assert judge_sample(sample, IdlePolicy(), 60.0).kind is SampleKind.BUSY
    assert highest(read(REPORT, percent="99")) == 99.0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("16.59 sec", "18446744073709.22 sec", id="the duration that drivers are known to print"),
        pytest.param("16.59 sec", "0.00 sec", id="no duration"),
        pytest.param("16.59 sec", "601.00 sec", id="ten minutes"),
        pytest.param("16.59 sec", "-1.00 sec", id="a negative one"),
        pytest.param("16.59 sec", "16,59 sec", id="a decimal comma"),
        pytest.param("16.59 sec", "16590 ms", id="another unit"),
        pytest.param("16.59 sec", "Not Found", id="none found"),
        pytest.param("16.59 sec", "N/A", id="not available"),
        pytest.param(": 99\n", ": 0\n", id="no samples"),
        pytest.param(": 99\n", ": 4294967295\n", id="a count of nonsense"),
        pytest.param(": 99\n", ": Not Found\n", id="no count"),
        pytest.param("97 %", "101 %", id="over 100 %"),
        pytest.param("97 %", "[N/A]", id="no maximum"),
        pytest.param("97 %", "30 %", id="a maximum below the average"),
        pytest.param("97 %", "97 %\n        Max                                            : 0 %", id="two of them"),
        pytest.param("        Avg                                            : 31 %\n", "", id="cut off"),
        pytest.param("GPU Utilization Samples", "GPU Utilization", id="another title"),
        pytest.param("GPU 00000000:83:00.0\n", "", id="nobody's"),
        pytest.param("GPU 00000000:83:00.0\n", "GPU 00000000:82:00.0\nGPU 00000000:83:00.0\n", id="one GPU too many"),
        pytest.param(REPORT, "", id="nothing"),
        pytest.param(REPORT, "Invalid combination of input arguments.", id="a driver that knows no -d"),
    ],
)
def test_nonsense_is_unsupported_and_leaves_the_readings_as_they_are(old: str, new: str) -> None:
    sample = read(REPORT.replace(old, new, 1))
    assert (highest(sample), sample.gpus[0].problem) == (0.0, "")
    # The first probe knows no CPU use: the soft budget is spent.
    assert judge_sample(sample, IdlePolicy(soft_names=()), 7200.0).kind is SampleKind.IDLE


def test_an_unknown_reading_stays_unknown() -> None:
    """Nobody knows what a low buffer would have hidden, and a high one comes back with the next reading."""
    assert highest(read(REPORT, percent="[N/A]")) is None


@pytest.mark.parametrize(
    "told",
    [
        pytest.param((0, 97, 97, 97, 0), id="one burst, seen three times"),
        pytest.param((97, 97, 97, 97, 97), id="equal bursts, of which no two can be told apart"),
        pytest.param((97, 60, 60, 0, 40), id="lower ones"),
    ],
)
def test_a_burst_counts_for_as_long_as_the_buffer_tells_it(told: tuple[int, ...]) -> None:
    """Looking closely, every 5 s, a buffer of 16 s shows one several times: it may as well be another, as high."""
    table: ProcessTable | None = None
    seen = []
    for number, peak in enumerate(told):
        report = REPORT.replace("31 %", "0 %").replace("97 %", f"{peak} %")
        result = probe(report, clock_seconds=1000.0 + 5 * number)
        sample, table = parse_probe(result, (A,), table, interval_seconds=5.0, age_seconds=600.0)
        seen.append(highest(sample))
    assert seen == list(told)


@pytest.mark.parametrize("length_seconds", [75.0, 100.0])
def test_bursts_of_one_height_keep_a_workspace_and_its_end_is_noticed_soon(length_seconds: float) -> None:
    """A burst every 70 s that no reading sees, for two hours; then nothing."""
    policy, report = IdlePolicy(soft_names=()), REPORT.replace("16.59", f"{length_seconds:.2f}")
    streak, table, last = Streak(), None, 70 * 103
    for now in range(60, 4 * 3600, 60):
        burst = min(now // 70 * 70, last)
        told = report if now - burst <= length_seconds else report.replace("31 %", "0 %").replace("97 %", "0 %")
        result = probe(told, clock_seconds=1000.0 + now)
        sample, table = parse_probe(result, (A,), table, interval_seconds=60.0, age_seconds=600.0 + now)
        streak, verdict = judge(streak, read_evidence(sample, policy), policy, Mode.ENFORCE)
        if verdict is Verdict.BEGIN_GRACE:
            break
    assert policy.for_seconds <= now - last <= policy.for_seconds + length_seconds + policy.sample_seconds


def test_earlier_gpu_work_of_another_workspace_does_not_count_here() -> None:
    assert highest(read(REPORT, age=10.0)) == 0.0
    assert highest(read(REPORT, age=17.0)) == 97.0, "by then it is told whole, and is its own"


@pytest.mark.parametrize(
    ("mode", "length_seconds", "kind", "because"),
    [
        ("Disabled", 2.9, SampleKind.IDLE, "GPU 0 at 97 %, but held by no process: nvidia-smi itself wakes it"),
        ("Disabled", 3.1, SampleKind.SOFT, "GPU 0 at 97 % before it was read, but GPU 0 held by no process"),
        ("Enabled", 2.9, SampleKind.BUSY, "GPU 0 at 97 %"),
        ("Enabled", 16.59, SampleKind.BUSY, "GPU 0 at 97 %"),
    ],
)
def test_only_the_seconds_of_the_probe_excuse_what_a_buffer_tells(
    mode: str, length_seconds: float, kind: SampleKind, because: str
) -> None:
    """Without persistence mode the buffer contains the tool's own start, and an ended process too."""
    text = probe(REPORT.replace("16.59", f"{length_seconds:.2f}")).text
    text = text.replace("open 10 /dev/nvidia0\n", "").replace(" 900, ", " 0, ").replace("Enabled", mode)
    sample, _ = parse_probe(ProbeResult(text), (A,), None, interval_seconds=60.0, age_seconds=600.0)
    seen = judge_sample(sample, IdlePolicy(soft_names=()), 60.0)
    assert (seen.kind, seen.because, sample.gpus[0].highest_percent) == (kind, because, 97.0)


def test_two_gpus_are_told_in_the_order_of_their_readings() -> None:
    two = REPORT + REPORT[REPORT.index("GPU 0000") :].replace(":83:", ":84:").replace("97 %", "40 %")
    sample, _ = parse_probe(probe(two, gpus=(A, B)), (B, A), None, interval_seconds=60.0, age_seconds=600.0)
    assert {gpu.gpu: gpu.highest_percent for gpu in sample.gpus} == {A: 97.0, B: 40.0}


VIDEO = REPORT.replace(
    "        Memory                                         : 0 %\n",
    "        Memory                                         : 0 %\n"
    "        Encoder                                        : 41 %\n"
    "        Decoder                                        : N/A\n",
    1,
) + REPORT[REPORT.index("    GPU Util") : REPORT.index("    Memory Util")].replace("GPU", "ENC").replace("97", "88")


def test_it_tells_the_encoder_and_the_decoder_too() -> None:
    (report,) = read_reports(VIDEO.splitlines())
    assert (report.encoder_percent, report.decoder_percent) == (41.0, None)
    assert report.buffers == {GPU: Buffer(16.59, 97.0), ENCODER: Buffer(16.59, 88.0)}
    quiet = VIDEO.replace("97 %", "31 %").replace("31 %", "0 %")
    (gpu,) = read(quiet).gpus
    assert (gpu.utilization_percent, gpu.encoder_percent, gpu.buffer_percent, gpu.highest_percent) == (0, 41, 88, 88)


def test_a_short_buffer_of_the_encoder_is_one_more_reading_of_it() -> None:
    short = VIDEO.replace("16.59 sec", "2.50 sec").replace("97 %", "31 %").replace("31 %", "0 %")
    (gpu,) = read(short).gpus
    assert (gpu.utilization_percent, gpu.encoder_percent, gpu.buffer_percent) == (0, 88, None)


def test_it_says_how_much_of_the_time_was_seen() -> None:
    assert read(REPORT).gpus[0].seen_seconds == 16.59
    assert read(REPORT, seconds=5.0).gpus[0].seen_seconds == 5.0
    assert read(REPORT.replace("16.59 sec", "N/A")).gpus[0].seen_seconds == pytest.approx(1 / 6), "of one reading"
    assert read(REPORT, percent="[N/A]").gpus[0].seen_seconds == 0.0
