"""How the tables of AMD's and Intel's tools are read: golden ones of our own in their form, and faults."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.waiting import until

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.local import nvidia, processes
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.backends.probes.processes import ProcessTable
from gpuspawner.backends.probes.script import parse_probe, script
from gpuspawner.core.gpus.fleet import GpuKind, Slot
from gpuspawner.core.idle.readings import Sample
from gpuspawner.core.units import MEBIBYTE

POD = ("node/amd.com/gpu/0", "node/amd.com/gpu/1")
AMD_SMI = """\
gpu,gfx_activity,umc_activity,mm_activity,vcn_activity,total_vram,used_vram,free_vram
0,97,12,N/A,"['0', 'N/A']",196592,2048,194544
1,0,0,N/A,"['0', 'N/A']",196592,285,196307
"""
ROCM_SMI = """\

WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

device,GPU use (%),VRAM Total Memory (B),VRAM Total Used Memory (B)
card0,97,206141652992,2147483648
card1,0,206141652992,298844160

"""
XPU_SMI = """\
Timestamp, DeviceId, GPU Utilization (%), GPU Memory Used (MiB)
06:14:46.000,    0,  N/A, 2048.00
06:14:46.000,    1,  N/A, 285.00
06:14:47.000,    0, 97.00, 2048.00
06:14:47.000,    1, 0.00, 285.00
"""
GOLDEN = {"amd-smi": AMD_SMI, "rocm-smi": ROCM_SMI, "xpu-smi": XPU_SMI}
DEVICE = "/dev/kfd"


def told(tool: str, *texts: str, code: int = 0) -> str:
    """Return a probe's output for a tool with these outputs, one for each reading."""
    runs = "".join(
        f"reading {code} {tool}\n" + "".join(f"smi {line}\n" for line in text.rstrip("\n").split("\n"))
        for text in texts
    )
    processes = f"process 10 1 500 0 0\nprocess 11 1 500 0 0\ndevice {DEVICE}\nopen 11 {DEVICE}\n"
    return f"gpuspawner-probe 1 begin\nclock 1000.00 100\n{processes}{runs}gpuspawner-probe 1 end\n"


def parse(text: str, previous: ProcessTable | None = None) -> Sample:
    result = ProbeResult(text, counted=True)
    return parse_probe(result, POD, previous, interval_seconds=60.0, age_seconds=600.0)[0]


@pytest.mark.parametrize("tool", GOLDEN)
def test_output_of_each_tool(tool: str) -> None:
    sample = parse(told(tool, GOLDEN[tool], GOLDEN[tool]))
    assert sample.problem == ""
    first, second = sample.gpus
    assert (first.gpu, first.utilization_percent, first.memory_used_bytes) == (POD[0], 97.0, 2048 * MEBIBYTE)
    assert (second.gpu, second.utilization_percent, second.memory_used_bytes) == (POD[1], 0.0, 285 * MEBIBYTE)
    total = None if tool == "xpu-smi" else 206141652992 if tool == "rocm-smi" else 196592 * MEBIBYTE
    assert {gpu.memory_total_bytes for gpu in sample.gpus} == {total}
    assert [(gpu.problem, gpu.holders, gpu.persistence) for gpu in sample.gpus] == [("", 1, True)] * 2


def test_the_highest_of_several_readings_counts() -> None:
    sample = parse(told("amd-smi", AMD_SMI, AMD_SMI.replace("1,0,0,", "1,55,0,")))
    assert [gpu.utilization_percent for gpu in sample.gpus] == [97.0, 55.0]


def test_the_last_row_of_a_gpu_must_be_known() -> None:
    sample = parse(told("xpu-smi", XPU_SMI.replace("97.00", "N/A")))
    assert [gpu.utilization_percent for gpu in sample.gpus] == [None, 0.0]
    assert "utilization: 'N/A'" in sample.gpus[0].problem


@pytest.mark.parametrize("tool", GOLDEN)
@pytest.mark.parametrize("value", ["N/A", "", "-1", "101", "1e1", "0x10", "+5", "٣", "9" * 400, '"', "nan"])
def test_a_utilization_that_is_no_number_is_unknown_and_never_idle(tool: str, value: str) -> None:
    gpus = parse(told(tool, GOLDEN[tool].replace("97.00" if tool == "xpu-smi" else "97", value))).gpus
    assert any(gpu.utilization_percent is None and gpu.problem for gpu in gpus)
    assert 97.0 not in [gpu.utilization_percent for gpu in gpus]


@pytest.mark.parametrize("tool", GOLDEN)
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("0,", "0,0,", 1) if "card" not in text else text.replace("card0,", "card0,0,"),
        lambda text: "\n".join(line for line in text.split("\n") if "97" not in line),
        lambda text: text + text.strip().split("\n")[-1] + "\n",
        lambda text: text.replace("GPU use (%)", "GPU").replace("GPU Utilization (%)", "GPU").replace("gfx_", ""),
        lambda _text: "",
    ],
    ids=["a cell more", "a GPU less", "a row twice", "another column", "nothing"],
)
def test_an_odd_table_is_unknown(tool: str, change: Callable[[str], str]) -> None:
    sample = parse(told(tool, change(GOLDEN[tool])))
    assert any(gpu.utilization_percent is None and gpu.problem for gpu in sample.gpus)


def test_a_failing_or_missing_tool_is_named() -> None:
    failed = parse(told("amd-smi", "AMDSMI_STATUS_DRIVER_NOT_LOADED", code=34)).gpus[0].problem
    assert failed == "amd-smi failed with exit code 34: 'AMDSMI_STATUS_DRIVER_NOT_LOADED'"
    missing = parse(told("xpu-smi", "sh: xpu-smi: not found", code=127)).gpus[0].problem
    assert missing.startswith("xpu-smi does not exist: ")


@pytest.mark.parametrize("cut", range(0, len(told("amd-smi", AMD_SMI)) - 25, 7))
def test_output_cut_off_anywhere_is_unknown(cut: int) -> None:
    assert parse(told("amd-smi", AMD_SMI)[:cut]).problem


def probed(vendor: str, tools: dict[str, str], folder: Path, shell: str = "sh") -> str:
    """Return the output of the probe script for a vendor with these tools first on the PATH."""
    for name, text in tools.items():
        (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    parameters = {"GPUS": "", "READINGS": "2", "PAUSE": "0.01", "DEVICES": DEVICE, "PIDS": "", "VENDOR": vendor}
    before = "".join(f"GPUSPAWNER_PROBE_{name}='{value}'\n" for name, value in parameters.items())
    ran = subprocess.run(
        [shell, "-s"],
        input=before.encode() + script(),
        env={"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    return ran.stdout.decode()


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize(
    ("vendor", "there"), [("AMD", ["amd-smi", "rocm-smi"]), ("AMD", ["rocm-smi"]), ("Intel", ["xpu-smi"])]
)
def test_the_script_runs_the_first_tool_that_is_there(
    vendor: str, there: list[str], shell: str, tmp_path: Path
) -> None:
    lines = probed(vendor, {name: GOLDEN[name] for name in there}, tmp_path, shell)
    assert f"reading 0 {there[0]}\n" in lines
    assert "nvidia-smi" not in lines
    assert [gpu.utilization_percent for gpu in parse(lines).gpus] == [97.0, 0.0]


def test_without_any_tool_the_last_one_is_named(tmp_path: Path) -> None:
    assert parse(probed("AMD", {}, tmp_path)).gpus[0].problem.startswith("rocm-smi does not exist")


async def test_a_simulated_gpu_of_amd_from_end_to_end(
    start: Callable[..., subprocess.Popen[bytes]], lease_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "find", lambda: None)
    monkeypatch.setattr(nvidia, "has_devices", lambda: False)
    mi300 = GpuKind("mi300", "MI300X", 192 * 2**30, resource="amd.com/gpu")
    backend = LocalBackend([mi300], {"mi300": 2}, tmp_path, pause_seconds=0.05, readings=2)
    gpus = (await backend.fleet()).gpus
    leased = tuple(gpu.id for gpu in gpus)
    assert gpus[0].model == "MI300X (simulated)"
    patch = backend.patch(tuple(Slot(gpu) for gpu in leased))
    start(
        "import threading, time\n"
        "from gpuspawner.backends.local import busy\n"
        "threading.Thread(target=busy, args=(60, 70, [1], 25), daemon=True).start()\n"
        "time.sleep(1)\nprint('\\nup', flush=True)\ntime.sleep(60)",
        PYTHONPATH=str(Path(__file__).parents[2]),
        **{**patch["environment"], "PATH": f"{patch['path_prefix']}:{os.environ['PATH']}"},
    )
    await until(lambda: len([p for p in processes.scan() if p.lease_id == lease_id]) >= 2)
    result = await backend.probe(lease_id, 1, leased, 30.0)
    sample, _table = parse_probe(result, leased, None, interval_seconds=60.0, age_seconds=600.0)
    assert [(gpu.problem, gpu.utilization_percent) for gpu in sample.gpus] == [("", 0.0), ("", 70.0)]
    assert [gpu.memory_used_bytes for gpu in sample.gpus] == [0, 48 * 2**30]
    shown = subprocess.run(
        [nvidia.STAND_IN / "nvidia-smi"], env={**os.environ, **patch["environment"]}, capture_output=True, check=False
    )
    assert shown.stdout == b"No devices were found\n", "nvidia-smi shows NVIDIA's alone"
