"""MIG devices of a machine: listed as real machines list them, given one by one, judged by who holds them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.verdicts import judge_sample

from gpuspawner.backends.local import nvidia
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.backends.local.nvidia import MigDevice, mig_devices
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Gpu, GpuKind, Slot
from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.verdicts import SampleKind

Start = Callable[..., "subprocess.Popen[bytes]"]

U0, U1 = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000001"
M0, M1 = "MIG-cccccccc-0000-0000-0000-000000000002", "MIG-dddddddd-0000-0000-0000-000000000003"
LIST = f"""\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: {U0})
  MIG 3g.40gb     Device  0: (UUID: {M0})
  MIG 1g.10gb     Device  1: (UUID: {M1})
GPU 1: NVIDIA H100 80GB HBM3 (UUID: {U1})
"""
ROWS = f"""\
0, {U0}, NVIDIA H100 80GB HBM3, Enabled, 81559, 11125, 0
1, {U1}, NVIDIA H100 80GB HBM3, Disabled, 81559, 0, 0
"""
PROBED = f"0, {U0}, NVIDIA H100 80GB HBM3, Enabled, [N/A], 11125, 81559, 433.78"
KINDS = [
    GpuKind("h100", "H100", 80 * 2**30, match="NVIDIA H100*"),
    GpuKind("large", "3/7 of an H100", 40 * 2**30, match="NVIDIA-H100-*-MIG-3g.40gb"),
    GpuKind("small", "1/7 of an H100", 10 * 2**30, match="*-MIG-1g.10gb"),
]
SLEEP = "import time; print('up', flush=True); time.sleep(60)"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LocalBackend]:
    """Make a machine whose nvidia-smi prints these lists, rows and processes, and probes."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setattr(nvidia, "has_devices", lambda: True)

    def machine(listed: str = LIST, rows: str = ROWS, apps: str = "") -> LocalBackend:
        for name, text in {"list": listed, "rows": rows, "apps": apps, "probed": f"{PROBED}\n"}.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        script = f"""#!/bin/sh
        case $* in
        -L) cat {tmp_path}/list ;;
        *compute*) cat {tmp_path}/apps ;;
        "-i {U0} --query-gpu"*) cat {tmp_path}/probed ;;
        -i*) exit 6 ;;
        *) cat {tmp_path}/rows ;;
        esac
        """
        (tmp_path / "bin" / "nvidia-smi").write_text(script, encoding="utf-8")
        (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
        return LocalBackend(KINDS, {}, tmp_path, readings=1)

    return machine


def test_output_of_real_mig_machines_is_parsed(capture: dict[str, list[str]]) -> None:
    found = mig_devices("\n".join(capture["capabilities :: list (-L)"]))
    header, row = capture["idle :: query-gpu (csv, what the exporter parses)"][:2]
    real = dict(zip(header.split(", "), row.split(", "), strict=True))
    (devices,) = found.values()
    assert bool(devices) == (real["mig.mode.current"] == "Enabled")
    assert len({device.uuid for device in devices}) == len(devices)
    assert all(10 * 1000**3 <= device.memory_bytes <= 71 * 1000**3 for device in devices)


def test_a_list_that_is_not_understood_is_no_list() -> None:
    assert mig_devices(LIST)[U0] == (MigDevice(M0, 0, "3g.40gb"), MigDevice(M1, 1, "1g.10gb"))
    for text in (
        LIST.replace("Device  1", "Dev"),
        LIST[: LIST.index(M1) + 9],
        "  MIG 1g.10gb     Device  1: (UUID: MIG-1)",
    ):
        with pytest.raises(Unavailable, match="not understood"):
            mig_devices(text)


async def test_each_mig_device_is_offered_as_a_kind_of_its_own(machine: Callable[..., LocalBackend]) -> None:
    backend, node = machine(), os.uname().nodename
    assert (await backend.fleet()).gpus == (
        Gpu(M0, "large", node, 0, "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40 * 1000**3),
        Gpu(M1, "small", node, 0, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10 * 1000**3),
        Gpu(U1, "h100", node, 1, "NVIDIA H100 80GB HBM3", 81559 * 2**20),
    )
    assert backend.patch((Slot(M1),))["environment"]["CUDA_VISIBLE_DEVICES"] == M1


async def test_the_holder_of_one_mig_device_is_no_stranger_on_its_gpu(
    machine: Callable[..., LocalBackend], start: Start, lease_id: str
) -> None:
    """The driver lists processes by the whole GPU: every workspace with a part of it may own them."""
    own = start(SLEEP, GPUSPAWNER_GPUS=M0)
    assert not any(gpu.foreign for gpu in (await machine(apps=f"{U0}, {own.pid}\n").fleet()).gpus)
    astray = start(SLEEP, lease=f"{lease_id}-2", GPUSPAWNER_GPUS=U1)
    seen = (await machine(apps=f"{U0}, {own.pid}\n{U0}, {astray.pid}\n").fleet()).gpus
    assert [gpu.foreign for gpu in seen] == [True, True, False]
    assert f"of workspace {lease_id}-2" in seen[0].note


async def test_a_mig_device_is_judged_by_who_holds_its_gpu(
    machine: Callable[..., LocalBackend], start: Start, lease_id: str
) -> None:
    backend = machine()
    await backend.fleet()
    start(SLEEP, GPUSPAWNER_GPUS=M1, PATH=os.environ["PATH"])
    result = await backend.probe(lease_id, 1, (M1,), 20.0)
    assert result.devices == {M1: U0}
    held = result.text.replace(
        "reading 0", f"device /dev/nvidia0\ndriver GPU UUID: {U0}\ndriver Device Minor: 0\nreading 0"
    )
    sample, _ = parse_probe(
        type(result)(held, devices=result.devices), (M1,), None, interval_seconds=60, age_seconds=600
    )
    (reading,) = sample.gpus
    assert (reading.gpu, reading.shared, reading.utilization_percent, reading.holders) == (M1, True, None, 0)
    assert reading.memory_used_bytes is None, "that of the whole GPU is not its own"
    judged = judge_sample(sample, IdlePolicy(soft_names=()), 60.0)
    assert (judged.kind, judged.because) == (SampleKind.IDLE, "GPU 0 held by no process")
