"""The reading of the probe's output: one correct text, and the same text with one fault at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.fake import probe_text
from gpuspawner.backends.probes.processes import ProcessTable, ProcessTime
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.idle.readings import Sample
from gpuspawner.core.units import MEBIBYTE

A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000001"
GOLDEN = f"""\
gpuspawner-probe 1 begin
clock 1000.00 100
process 10 1 500 1200 300
process 11 10 600 400 0
device /dev/nvidia0
device /dev/nvidia3
driver GPU UUID: \t {B}
driver Device Minor: \t 0
driver GPU UUID: \t {A}
driver Device Minor: \t 3
open 11 /dev/nvidia3
open 11 /dev/nvidia3
reading 0
smi 0, {A}, NVIDIA H200, Disabled, 12, 1024, 143771, 77.71
smi 1, {B}, NVIDIA H200, Disabled, 0, 0, 143771, 77.71
reading 0
smi 0, {A}, NVIDIA H200, Disabled, 97, 2048, 143771, 627.40
smi 1, {B}, NVIDIA H200, Disabled, 1, 0, 143771, 77.71
gpuspawner-probe 1 end
"""
ROW = f"smi 0, {A}, NVIDIA H200, Disabled, 97, 2048, 143771, 627.40"


def parse(text: str, leased: tuple[str, ...] = (A, B), previous: ProcessTable | None = None) -> Sample:
    return parse_probe(ProbeResult(text), leased, previous, interval_seconds=60.0, age_seconds=600.0)[0]


def test_golden() -> None:
    sample, table = parse_probe(
        ProbeResult(GOLDEN), (A, B), None, interval_seconds=60.0, age_seconds=600.0, shared=frozenset({B})
    )
    assert not sample.problem
    first, second = sample.gpus
    assert (first.gpu, first.utilization_percent, first.memory_used_bytes) == (A, 97.0, 2048 * MEBIBYTE)
    assert (first.memory_total_bytes, first.holders, first.shared, first.problem) == (143771 * MEBIBYTE, 1, False, "")
    assert (second.gpu, second.utilization_percent, second.memory_used_bytes, second.holders) == (B, 1.0, 0, 0)
    assert second.shared
    assert sample.cpu_cores is None, "CPU use needs a probe before"
    assert first.holders_cpu_cores is None
    assert table is not None
    assert replace(table, monitor_state=None) == ProcessTable(
        1000.0, 100, {(10, 500): ProcessTime(1, 1200, 300), (11, 600): ProcessTime(10, 400, 0)}
    )


@pytest.mark.parametrize(
    "value",
    [
        "[N/A]",
        "[Unknown Error]",
        "[Insufficient Permissions]",
        "[GPU requires reset]",
        "[Not Supported]",
        "N/A",
        "",
        "ERR!",
        "101",
        "-1",
        "1e1",
        "0x10",
        "9.5",
        "+5",
        "٣",  # a digit to int(), none to nvidia-smi
        "5 %",
        "nan",
        "9" * 400,
    ],
)
def test_a_utilization_that_is_no_number_is_unknown(value: str) -> None:
    sample = parse(GOLDEN.replace(ROW, ROW.replace(" 97,", f" {value},")))
    first, second = sample.gpus
    assert first.utilization_percent is None
    assert first.problem.startswith("utilization: ")
    assert first.memory_used_bytes == 2048 * MEBIBYTE
    assert second.utilization_percent == 1.0, "one GPU's fault is not the other's"


@pytest.mark.parametrize("value", ["[N/A]", "[Insufficient Permissions]", "143772", "1,5", "-3", ""])
def test_memory_that_is_no_number_or_more_than_all_is_unknown(value: str) -> None:
    first = parse(GOLDEN.replace(ROW, ROW.replace(" 2048,", f" {value},"))).gpus[0]
    assert first.memory_used_bytes is None
    assert first.problem


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(f"smi 0, {A}, NVIDIA H200, Disab", id="half-line"),
        pytest.param(f"smi 0, {A}", id="quarter-line"),
        pytest.param(ROW.replace("627.40", "627,40"), id="decimal-comma"),
        pytest.param(ROW + ", 3", id="one-more"),
        pytest.param(ROW.replace("smi 0", "smi warning 0"), id="noise-glued-on"),
        pytest.param(f"smi 0, {A}, , , , , , ", id="empty-values"),
    ],
)
def test_an_odd_row_makes_its_values_unknown(row: str) -> None:
    first = parse(GOLDEN.replace(ROW, row)).gpus[0]
    assert (first.utilization_percent, first.memory_used_bytes) == (None, None)
    assert first.problem


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param("reading 0", "reading 127", "nvidia-smi does not exist", id="absent"),
        pytest.param("reading 0", "reading 9", "exit code 9", id="failed"),
        pytest.param(ROW + "\n", "", "listed it 1 times in 2 readings", id="missing-once"),
        pytest.param(ROW, f"{ROW}\n{ROW}", "listed it 3 times in 2 readings", id="listed-twice"),
        pytest.param("reading 0\n", "", "nvidia-smi was not run", id="never-run"),
    ],
)
def test_a_failing_nvidia_smi_is_unknown(old: str, new: str, said: str) -> None:
    first = parse(GOLDEN.replace(old, new)).gpus[0]
    assert first.utilization_percent is None
    assert said in first.problem


def test_the_error_text_of_nvidia_smi_is_reported() -> None:
    lost = "Unable to determine the device handle for GPU0: 0000:83:00.0: Unknown Error"
    text = GOLDEN.replace("reading 0", f"reading 15\nsmi {lost}")
    assert "Unable to determine the device handle" in parse(text).gpus[0].problem


def test_noise_before_the_rows_changes_nothing() -> None:
    noisy = GOLDEN.replace("reading 0\n", "reading 0\nsmi WARNING: infoROM is corrupted at gpu 0000:83:00.0\nsmi \n")
    assert parse(noisy) == parse(GOLDEN)
    assert parse("bash: warning: setlocale\r\n" + GOLDEN.replace("\n", "\r\n")) == parse(GOLDEN)


@pytest.mark.parametrize("end", range(0, len(GOLDEN) - 2, 37))
def test_output_cut_off_anywhere_is_unknown(end: int) -> None:
    sample = parse(GOLDEN[:end])
    assert sample.problem
    assert sample.gpus == ()


def test_mig() -> None:
    row = f"smi 0, {A}, NVIDIA H100 80GB HBM3, Enabled, [N/A], 11125, 81559, 433.78"
    first = parse(GOLDEN.replace(ROW, row)).gpus[0]
    assert (first.utilization_percent, first.memory_used_bytes) == (None, 11125 * MEBIBYTE)


def test_more_and_fewer_gpus_than_leased_are_shown() -> None:
    sample = parse(GOLDEN, leased=(A,))
    assert [gpu.gpu for gpu in sample.gpus] == [A, B]
    other = "GPU-cccccccc-0000-0000-0000-000000000002"
    sample = parse(GOLDEN, leased=(A, B, other))
    assert sample.gpus[2].utilization_percent is None
    assert "listed it 0 times" in sample.gpus[2].problem


def test_two_shares_of_one_gpu_are_one_gpu() -> None:
    assert [gpu.gpu for gpu in parse(GOLDEN, leased=(A, A, B)).gpus] == [A, B]


def test_sixteen_gpus() -> None:
    uuids = tuple(f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(16))
    rows = "".join(f"smi {n}, {u}, Tesla V100, [N/A], {n}, {n}, 32768, 40.00\n" for n, u in enumerate(uuids))
    text = f"gpuspawner-probe 1 begin\nclock 1.00 100\nreading 0\n{rows}gpuspawner-probe 1 end\n"
    assert [gpu.utilization_percent for gpu in parse(text, leased=uuids).gpus] == list(map(float, range(16)))


def test_an_impossible_number_of_gpus_is_rejected_without_waiting_for_the_reading() -> None:
    """A workspace's own nvidia-smi prints what its user likes: 1 MiB of rows once took the whole service hours."""
    uuids = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(15_000)]
    text = GOLDEN.replace("reading 0\n", "reading 0\n" + "".join(f"smi 0, {uuid}\n" for uuid in uuids), 1)
    sample, table = parse_probe(ProbeResult(text), (A, B), None, interval_seconds=60.0, age_seconds=600.0)
    assert sample.problem == "nvidia-smi listed 15002 GPUs, more than the 64 that a machine may have"
    assert (sample.gpus, table is None) == ((), False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("device /dev/nvidia0\ndevice /dev/nvidia3\n", "", id="no-device-visible"),
        pytest.param("open 11", "hidden\nopen 11", id="processes-of-other-users-hidden"),
        pytest.param("clock 1000.00 100\n", "", id="no-clock"),
        pytest.param("process 11 10 600 400 0", "process 11 10 6", id="half-a-process"),
        pytest.param("open 11 /dev/nvidia3", "open 11 /dev/nvidia7", id="a-device-the-driver-does-not-tell"),
        pytest.param("Device Minor: \t 3", "Device Minor: \t ?", id="no-minor"),
    ],
)
def test_holders_are_unknown(old: str, new: str) -> None:
    first = parse(GOLDEN.replace(old, new)).gpus[0]
    assert first.holders is None
    assert first.holders_cpu_cores is None
    assert first.problem
    assert first.utilization_percent == 97.0, "utilization is known all the same"


def test_a_problem_of_the_whole_probe_is_kept_and_keeps_the_table() -> None:
    table = ProcessTable(1.0, 100, {})
    failed = ProbeResult(problem="the probe did not end within 10 s")
    sample, kept = parse_probe(failed, (A,), table, interval_seconds=60.0, age_seconds=600.0)
    assert (sample.problem, sample.gpus, kept) == (failed.problem, (), table)


class TestCpu:
    def cores(self, before: dict[tuple[int, int], ProcessTime], after: dict[tuple[int, int], ProcessTime]) -> float:
        cores = ProcessTable(160.0, 100, after).cores_since(ProcessTable(100.0, 100, before))
        assert cores is not None
        return round(sum(cores.values()), 6)

    def test_the_average_between_two_probes(self) -> None:
        assert self.cores({(1, 5): ProcessTime(0, 1000, 0)}, {(1, 5): ProcessTime(0, 4000, 0)}) == 0.5

    def test_a_new_process_counts_whole(self) -> None:
        assert self.cores({}, {(1, 5): ProcessTime(0, 600, 0)}) == 0.1

    def test_a_pid_used_again_is_a_new_process(self) -> None:
        assert self.cores({(1, 5): ProcessTime(0, 90000, 0)}, {(1, 9): ProcessTime(0, 600, 0)}) == 0.1

    def test_an_ended_child_is_not_counted_twice(self) -> None:
        before = {(1, 5): ProcessTime(0, 0, 0), (2, 6): ProcessTime(1, 3000, 0)}
        assert self.cores(before, {(1, 5): ProcessTime(0, 0, 3600)}) == 0.1

    def test_it_is_never_negative(self) -> None:
        before = {(1, 5): ProcessTime(0, 50, 50), (2, 6): ProcessTime(1, 3000, 0)}
        assert self.cores(before, {(1, 5): ProcessTime(0, 40, 50)}) == 0.0

    def test_a_clock_that_does_not_advance_is_unknown(self) -> None:
        table = ProcessTable(100.0, 100, {})
        assert table.cores_since(table) is None
        assert table.cores_since(None) is None

    def test_holders_and_all(self) -> None:
        before = ProcessTable(940.0, 100, {(10, 500): ProcessTime(1, 600, 300), (11, 600): ProcessTime(10, 100, 0)})
        sample = parse(GOLDEN, previous=before)
        assert sample.cpu_cores == pytest.approx(0.15)
        assert sample.gpus[0].holders_cpu_cores == pytest.approx(0.05)
        assert sample.gpus[1].holders_cpu_cores == 0.0

    def test_a_holder_without_its_own_line_has_unknown_gpu_use(self) -> None:
        before = ProcessTable(940.0, 100, {})
        gpu = parse(GOLDEN.replace("open 11", "open 12"), previous=before).gpus[0]
        assert (gpu.holders, gpu.holders_cpu_cores) == (1, None)


POD = ("node/nvidia.com/gpu/0", "node/nvidia.com/gpu/3")


def in_a_pod(percents, leased=POD, *, shared=False, **more):
    """The reading of a pod's GPUs, whose names the lease does not know."""
    result = ProbeResult(probe_text(percents, **more), counted=True, shared=shared)
    sample, _ = parse_probe(result, leased, None, interval_seconds=60, age_seconds=600)
    return [(gpu.gpu, gpu.utilization_percent, gpu.shared, gpu.problem) for gpu in sample.gpus]


U0, U1, U2 = (f"GPU-0000000{number}-0000-0000-0000-000000000000" for number in range(3))


def test_gpus_that_only_count_are_the_leased_ones_in_nvidia_smis_order():
    assert in_a_pod({U1: 90, U0: 0}) == [(POD[0], 90.0, False, ""), (POD[1], 0.0, False, "")]


def test_one_gpu_more_than_leased_is_seen_under_its_own_name():
    assert [gpu for gpu, *_ in in_a_pod({U0: 0, U1: 0, U2: 0})] == [*POD, U2]


def test_one_gpu_less_than_leased_is_unknown():
    seen = in_a_pod({U0: 0})
    assert seen[0] == (POD[0], 0.0, False, "")
    assert seen[1][1] is None
    assert "listed it 0 times" in seen[1][3]


def test_two_parts_of_one_device_are_listed_once_and_shared():
    assert in_a_pod({U0: 40}, shared=True) == [(POD[0], 40.0, True, ""), (POD[1], 40.0, True, "")]


def test_parts_of_which_nothing_is_listed_are_unknown():
    assert [percent for _, percent, *_ in in_a_pod({}, shared=True)] == [None, None]


def test_a_pods_gpu_is_held_by_processes_with_its_device_open():
    result = ProbeResult(probe_text({U0: 0, U1: 0}, holders=[U1]), counted=True)
    sample, _ = parse_probe(result, POD, None, interval_seconds=60, age_seconds=600)
    assert [gpu.holders for gpu in sample.gpus] == [0, 1]


def with_cores(text: str, **ticks: int) -> Sample:
    """Return the second of two samples a minute apart, in which processes 10 and 11 used the given ticks."""
    _, table = parse_probe(ProbeResult(text), (A, B), None, interval_seconds=60.0, age_seconds=600.0)
    later = text.replace("clock 1000.00", "clock 1060.00")
    later = later.replace("500 1200 300", f"500 {1200 + ticks.get('p10', 0)} 300")
    later = later.replace("600 400 0", f"600 {400 + ticks.get('p11', 0)} 0")
    return parse(later, previous=table)


def test_a_process_whose_files_cannot_be_listed_may_hold_every_gpu_and_its_cpu_use_is_known() -> None:
    text = GOLDEN.replace("process 11", "unreadable 10\nprocess 11")
    first, second = with_cores(text, p10=600, p11=60).gpus
    assert (first.holders, first.possible_holders, first.problem) == (1, 1, "")
    assert (first.holders_cpu_cores, first.possible_cpu_cores) == (0.01, 0.1)
    assert (second.holders, second.possible_holders) == (0, 0), "without memory in use, no process has a context there"
    used = text.replace(" 0, 143771, 77.71", " 3, 143771, 77.71")
    second = with_cores(used, p10=600).gpus[1]
    assert (second.holders, second.possible_holders, second.possible_cpu_cores) == (0, 1, 0.1)
    (only, _) = with_cores(GOLDEN.replace("process 11", "unreadable 11\nprocess 11")).gpus
    assert (only.holders, only.possible_holders) == (1, 0), "the files of it that could be listed prove more"
    assert parse(text).gpus[0].possible_cpu_cores is None, "CPU use needs a probe before"


def test_where_no_open_files_could_be_listed_every_process_may_hold_every_gpu() -> None:
    text = GOLDEN.replace("open 11 /dev/nvidia3\n", "").replace("process 11", "unreadable 0\nprocess 11")
    text = text.replace(" 0, 143771, 77.71", " 3, 143771, 77.71")
    for gpu in with_cores(text, p10=60, p11=60).gpus:
        assert (gpu.holders, gpu.possible_holders, gpu.possible_cpu_cores) == (0, 2, 0.02)


def test_a_program_that_only_reads_gpu_state_holds_no_gpu_unless_it_computes() -> None:
    observing = GOLDEN.replace("process 10", "observes 11\nprocess 10")
    assert [gpu.holders for gpu in parse(observing).gpus] == [0, 0]
    assert [gpu.holders for gpu in parse(observing.replace("reading 0", "computes 11\nreading 0", 1)).gpus] == [1, 0]
    unreadable = observing.replace("open 11 /dev/nvidia3\n", "").replace("process 11", "unreadable 11\nprocess 11")
    assert [(gpu.holders, gpu.possible_holders) for gpu in parse(unreadable).gpus] == [(0, 0), (0, 0)]


def test_encoder_and_decoder_are_the_highest_of_all_readings() -> None:
    text = GOLDEN.replace(" 77.71\n", " 77.71, 3, [N/A]\n").replace(ROW, f"{ROW}, 72, 5")
    first, second = parse(text.replace("12, 1024, 143771, 77.71, 3", "12, 1024, 143771, 77.71, 80")).gpus
    assert (first.encoder_percent, first.decoder_percent, first.problem) == (80.0, 5.0, "")
    assert (second.encoder_percent, second.decoder_percent, second.problem) == (3.0, None, "")
    assert (second.utilization_percent, second.highest_percent) == (1.0, 3.0)
    older = GOLDEN.replace("NVIDIA H200, Disabled, ", "NVIDIA H200, ")
    assert [(gpu.utilization_percent, gpu.encoder_percent) for gpu in parse(older).gpus] == [(97.0, None), (1.0, None)]


def test_a_probe_that_may_open_too_few_files_reports_it() -> None:
    sample, table = parse_probe(
        ProbeResult("gpuspawner-probe 1 begin\nfiles 8\ngpuspawner-probe 1 end\n"),
        (A,),
        None,
        interval_seconds=60.0,
        age_seconds=600.0,
    )
    assert sample.problem == "a process of the workspace may have 8 files open, too few for the probe"
    assert table is None
