"""The stand-in nvidia-smi, run as a workspace runs it, against the forms of real captures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.waiting import eventually

from gpuspawner.backends.local import nvidia, records, simulated

UUIDS = tuple(f"GPU-51a00000-0000-0000-0000-{index:012x}" for index in range(3))
NAME = "A100 80 GB (simulated)"
Smi = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    simulated.create(tmp_path, [records.SimulatedGpu(uuid, NAME, 80 * 2**30, "8.0") for uuid in UUIDS])
    return {
        "GPUSPAWNER_SIMULATED_DIR": str(tmp_path),
        "GPUSPAWNER_GPUS": ",".join(UUIDS[:2]),
        "GPUSPAWNER_PYTHON": sys.executable,
        "PATH": f"{nvidia.STAND_IN}:{os.environ['PATH']}",
    }


@pytest.fixture
def smi(environment: dict[str, str]) -> Smi:
    def smi(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = ["nvidia-smi", *arguments]
        where = {**environment, **variables}
        return subprocess.run(command, env=where, capture_output=True, text=True, check=False, timeout=20)

    return smi


@pytest.fixture
def busy_gpu_1(environment: dict[str, str], tmp_path: Path) -> Iterator[int]:
    """Hold the second GPU at 70 % with half its memory; the holder's pid."""
    command = [sys.executable, "-I", "-S", str(simulated.__file__), str(tmp_path), UUIDS[1], "70", "50"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holding\n"
        yield process.pid
        process.kill()


def shape(line: str) -> str:
    """Return a table's line with its contents blanked: what is left is where the columns stand."""
    return re.sub(r"[^|+=-]", " ", line) if set(line) - set("|+-= ") else line


def test_the_table_has_the_columns_of_the_real_one(smi: Smi, busy_gpu_1: int, h200: dict[str, list[str]]) -> None:
    ours = smi().stdout.splitlines()
    real = h200["load :: nvidia-smi (default table)"]
    assert re.fullmatch(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ 123]\d \d\d:\d\d:\d\d \d{4}       ", ours[0])
    assert ours[1:8] == real[1:8]
    assert [shape(line)[:42] for line in ours[8:12]] == [shape(line)[:42] for line in real[8:12]]
    for mine, theirs in zip(ours[8:12], real[8:12], strict=True):
        assert [i for i, c in enumerate(mine) if c in "|+"] == [i for i, c in enumerate(theirs) if c in "|+"]
    assert ours[8].index("On ") == real[8].index("On ")
    assert ours[9].index("W /") == real[9].index("W /")
    assert ours[9].index("MiB /") == real[9].index("MiB /")
    assert ours[9].index("Default") == real[9].index("Default")
    processes = ours.index("|" + " Processes:".ljust(89) + "|")
    theirs = real.index("|" + " Processes:".ljust(89) + "|")
    assert ours[processes - 1 : processes + 4] == real[theirs - 1 : theirs + 4]
    worker, real_worker = ours[processes + 4], real[theirs + 4]
    assert worker.index(f"{busy_gpu_1} ") + len(str(busy_gpu_1)) == real_worker.index("10291") + 5
    assert worker.index("MiB |") == real_worker.index("MiB |")
    assert {len(line) for line in ours[1:] if line} == {91}
    assert f"|   1  {NAME}" in ours[12]
    assert "40960MiB /  81920MiB |     70% " in ours[13]


def test_without_processes_the_table_is_that_of_the_real_tool(smi: Smi, h200: dict[str, list[str]]) -> None:
    assert smi().stdout.splitlines()[-2:] == h200["idle :: nvidia-smi (default table)"][-2:]


def test_listing(smi: Smi, h200: dict[str, list[str]]) -> None:
    pattern = r"GPU (\d): (.+) \(UUID: (GPU-[0-9a-f-]{36})\)"
    ours = [re.fullmatch(pattern, line) for line in smi("-L").stdout.splitlines()]
    assert [match and match.groups() for match in ours] == [("0", NAME, UUIDS[0]), ("1", NAME, UUIDS[1])]
    assert re.fullmatch(pattern, h200["capabilities :: list (-L)"][0])


def test_every_field_shown_has_the_real_ones_name_and_unit(smi: Smi, h200: dict[str, list[str]]) -> None:
    from gpuspawner.backends.local.standin.query import FIELDS  # noqa: PLC0415 - the stand-in's own

    real_header, real_row = h200["load :: query-gpu (csv, what the exporter parses)"][:2]
    real = dict(zip(real_header.split(", "), real_row.split(", "), strict=True))
    shown = smi("--query-gpu=" + ",".join(FIELDS), "--format=csv").stdout.splitlines()
    header, row = shown[0].split(", "), shown[1].split(", ")
    assert set(header) <= set(real)
    for name, value in zip(header, row, strict=True):
        theirs = real[name]
        if value.startswith("[") or theirs.startswith("["):
            continue
        assert re.sub(r"[\d.]+", "0", value).split(" ")[1:] == re.sub(r"[\d.]+", "0", theirs).split(" ")[1:] or (
            name in {"name", "timestamp", "clocks_event_reasons.active"} or not theirs[0].isdigit()
        ), name


def test_commands_of_the_probe(smi: Smi, busy_gpu_1: int) -> None:
    fields = "index,uuid,name,mig.mode.current,utilization.gpu,memory.used,memory.total,persistence_mode"
    done = smi("-i", UUIDS[1], f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    assert done.stdout == f"1, {UUIDS[1]}, {NAME}, Disabled, 70, 40960, 81920, Enabled\n"
    with_units = smi("--query-gpu=utilization.gpu,clocks.gr,gpu_name,count", "--format=csv", "--id=1").stdout
    assert with_units == f"utilization.gpu [%], clocks.current.graphics [MHz], name, count\n70 %, 1410 MHz, {NAME}, 1\n"


def test_compute_apps(smi: Smi, busy_gpu_1: int, h200: dict[str, list[str]]) -> None:
    fields = "timestamp,gpu_name,gpu_bus_id,gpu_serial,gpu_uuid,pid,process_name,used_gpu_memory"
    header, row = smi(f"--query-compute-apps={fields}", "--format=csv").stdout.splitlines()
    real = h200["load :: query-compute-apps (per-process)"]
    assert header == real[0]
    assert row.split(", ")[5] == str(busy_gpu_1)
    assert row.split(", ")[7] == "40960 MiB"
    assert len(row.split(", ")) == len(real[1].split(", "))
    assert smi("--query-compute-apps=pid", "--format=csv,noheader", "-i", "0").stdout == ""


def keys(lines: list[str]) -> list[tuple[int, str]]:
    """Return indent and label of each line of a report, in order, with the column of the colon."""
    return [(len(line) - len(line.lstrip()), line.partition(" : ")[0].strip()) for line in lines if line.strip()]


def test_the_report_is_a_part_of_the_real_one_in_its_order(
    smi: Smi, busy_gpu_1: int, h200: dict[str, list[str]]
) -> None:
    ours, real = smi("-q", "-i", "1").stdout.splitlines(), h200["load :: query (-q)"]
    rest = iter(key for key in keys(real) if not key[1].startswith("GPU 0"))
    for key in keys(ours):
        assert key[1].startswith("GPU 0") or key in rest, key
    columns = {line.index(" : ") for line in real if " : " in line}
    assert {line.index(" : ") for line in ours if " : " in line} == columns
    assert "        GPU                                            : 70 %" in ours


def test_parts_of_the_report(smi: Smi) -> None:
    shown = smi("-q", "-d", "UTILIZATION,memory", "-i", "0").stdout
    assert "    Utilization\n" in shown
    assert "    FB Memory Usage\n" in shown
    assert "Temperature" not in shown
    refused = smi("-q", "-d", "NONSENSE")
    assert (refused.returncode, "NONSENSE" in refused.stdout) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--query-gpu=index,nonsense", "--format=csv"], 2, 'Field "nonsense" is not a valid field to query.'),
        (["--query-compute-apps=foo", "--format=csv"], 2, 'Field "foo" is not a valid field to query.'),
        (["--query-gpu=index"], 2, "Invalid combination of input arguments"),
        (["--format=csv"], 2, "Invalid combination of input arguments"),
        (["--query-gpu=index", "--format=json"], 2, "--format=json"),
        (["--nonsense"], 2, "Option --nonsense is not recognized. Please run 'nvidia-smi -h'."),
        (["dmon"], 2, "Option dmon is not recognized."),
        (["-l", "x"], 2, "whole number"),
        (["-i", "2"], 6, "No devices were found"),
        (["-i", UUIDS[2]], 6, "No devices were found"),
        (["-h"], 0, "stand-in for simulated GPUs"),
        (["--version"], 0, "NVIDIA-SMI version  : "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_answers(smi: Smi, arguments: list[str], code: int, said: str) -> None:
    done = smi(*arguments)
    assert (done.returncode, done.stderr) == (code, "")
    assert said in done.stdout


@pytest.mark.parametrize("gpus", ["", "GPU-nonsense", "../../etc/passwd", ",,,"])
def test_a_workspace_without_gpus_sees_none(smi: Smi, gpus: str) -> None:
    done = smi(GPUSPAWNER_GPUS=gpus)
    assert (done.returncode, done.stdout) == (6, "No devices were found\n")


@pytest.mark.parametrize("option", [["-lms", "50"], ["--loop-ms=50"]])
def test_loop(environment: dict[str, str], option: list[str]) -> None:
    command = ["nvidia-smi", "-L", *option]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        process.stdout.close()
        assert process.wait(10) == 0, "it ends quietly when its output is no longer read"
    assert lines == lines[:2] * 3


def test_loop_in_seconds(environment: dict[str, str]) -> None:
    began = time.monotonic()
    with subprocess.Popen(["nvidia-smi", "-L", "-l1"], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        process.kill()
    assert 0.9 < time.monotonic() - began < 10


BUFFER = re.compile(
    r"    GPU Utilization Samples\n"
    r"        Duration +: 16\.50 sec\n"
    r"        Number of Samples +: 99\n"
    r"        Max +: ([0-9]+) %\n"
    r"        Min +: ([0-9]+) %\n"
    r"        Avg +: ([0-9]+) %\n"
)


def test_its_sample_buffer_remembers_a_burst_that_is_over(smi: Smi, environment: dict[str, str]) -> None:
    def buffer(number: int) -> tuple[int, ...]:
        found = BUFFER.findall(smi("-i", UUIDS[number], "-q", "-d", "UTILIZATION").stdout)
        assert len(found) == 1
        return tuple(map(int, found[0]))

    assert buffer(1) == (0, 0, 0)
    code = "from gpuspawner.backends.local import busy; busy(1.5, percent=10, gpus=[1])"
    where = {**environment, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], env=where, check=True, capture_output=True)
    highest, lowest, average = buffer(1)
    assert smi("-i", UUIDS[1], "--query-gpu=utilization.gpu", "--format=csv,noheader").stdout == "0 %\n"
    assert (highest, lowest) == (10, 0)
    assert average < highest
    assert buffer(0) == (0, 0, 0), "the other GPU's is its own"
    assert "Samples" not in smi("-q").stdout, "only -d shows it"


def test_its_sample_buffer_shows_current_work(smi: Smi, busy_gpu_1: int) -> None:
    shown = r"Samples\n.*\n.*\n +Max +: 70 %"
    eventually(lambda: re.search(shown, smi("-i", "1", "-q", "-d", "UTILIZATION").stdout), what=shown)


def test_it_starts_without_slow_imports() -> None:
    """Four starts a sample: these took two thirds of each."""
    run = nvidia.STAND_IN.parent / "standin" / "run.py"
    command = [sys.executable, "-I", "-S", "-X", "importtime", str(run), "-L"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, env={}).stderr
    imported = {line.rpartition("|")[2].strip() for line in said.splitlines()}
    assert "gpuspawner.backends.local.standin.query" in imported
    assert not imported & {"typing", "re", "json", "pathlib", "datetime", "contextlib", "subprocess"}
