"""Simulated fleets, and which machine gets one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuspawner.backends.base import Backend
from gpuspawner.backends.local import nvidia, simulated
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import GpuKind, Slot

KINDS = [
    GpuKind("a100", "A100 80 GB", 80 * 2**30, compute="8.0"),
    GpuKind("t4", "T4 16 GB", 16 * 2**30),
    GpuKind("half", "Half an A100", 40 * 2**30, of="a100", shares=2),
]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without GPUs, whose hub itself runs with the stand-in on its PATH."""
    monkeypatch.setenv("PATH", f"{nvidia.STAND_IN}:{tmp_path / 'bin'}")
    monkeypatch.setattr(nvidia, "has_devices", lambda: False)
    (tmp_path / "bin").mkdir()
    return tmp_path


async def test_a_simulated_fleet_is_always_the_same(bare: Path) -> None:
    fleet = await LocalBackend(KINDS, {"a100": 2, "t4": 1}, bare).fleet()
    assert fleet.complete
    assert [(gpu.pool, gpu.index, gpu.model) for gpu in fleet.gpus] == [
        ("a100", 0, "A100 80 GB (simulated)"),
        ("a100", 1, "A100 80 GB (simulated)"),
        ("t4", 2, "T4 16 GB (simulated)"),
    ]
    assert all(gpu.simulated and gpu.healthy for gpu in fleet.gpus)
    assert len({gpu.id for gpu in fleet.gpus}) == 3
    again = await LocalBackend(KINDS, {"t4": 1, "a100": 3}, bare).fleet()
    assert {gpu.id for gpu in fleet.gpus} < {gpu.id for gpu in again.gpus}


async def test_simulated_gpus_stay_what_they_were_made_as(bare: Path) -> None:
    backend = LocalBackend(KINDS, {"a100": 2}, bare)
    before = (await backend.fleet()).gpus
    backend.use_kinds([])
    assert (await backend.fleet()).gpus == before


async def test_two_hubs_on_one_machine_simulate_other_gpus(bare: Path) -> None:
    first, second = [await LocalBackend(KINDS, {"a100": 2}, bare / name).fleet() for name in ("first", "second")]
    assert not {gpu.id for gpu in first.gpus} & {gpu.id for gpu in second.gpus}


async def test_a_broken_tool_without_devices_is_no_gpu(bare: Path) -> None:
    (bare / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho no driver\nexit 9\n", encoding="utf-8")
    (bare / "bin" / "nvidia-smi").chmod(0o755)
    assert len((await LocalBackend(KINDS, {"t4": 1}, bare).fleet()).gpus) == 1


async def test_without_simulation_there_are_no_gpus(bare: Path) -> None:
    fleet = await LocalBackend(KINDS, {}, bare).fleet()
    assert (fleet.gpus, fleet.complete) == ((), True)


async def test_devices_without_a_tool_are_unavailable(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "has_devices", lambda: True)
    with pytest.raises(Unavailable, match="no nvidia-smi"):
        await LocalBackend(KINDS, {"t4": 1}, bare).fleet()


async def test_files_that_cannot_be_written_are_unavailable(bare: Path) -> None:
    (bare / "simulated-gpus").write_text("", encoding="utf-8")
    with pytest.raises(Unavailable, match="cannot be written"):
        await LocalBackend(KINDS, {"t4": 1}, bare).fleet()


async def test_the_patch_is_plain_json_and_puts_the_stand_in_first(bare: Path) -> None:
    backend: Backend = LocalBackend(KINDS, {"a100": 2}, bare)
    gpus = (await backend.fleet()).gpus
    patch = backend.patch((Slot(gpus[1].id),))
    assert json.loads(json.dumps(patch)) == patch
    assert os.access(Path(patch["path_prefix"]) / "nvidia-smi", os.X_OK)
    assert patch["environment"]["GPUSPAWNER_GPUS"] == gpus[1].id
    assert Path(patch["environment"]["GPUSPAWNER_SIMULATED_DIR"], gpus[1].id).is_file()
    none = backend.patch(())
    assert none["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert none["path_prefix"] == patch["path_prefix"], "there nvidia-smi says that there is no GPU"


def test_devices_are_those_files_that_name_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert not nvidia.has_devices(tmp_path)
    (tmp_path / "nvidia7").touch()
    assert nvidia.has_devices(tmp_path)


@pytest.fixture
def hold(bare: Path) -> Iterator[Callable[..., int]]:
    """Hold a simulated GPU of the machine by a process with these variables; its pid."""
    holders = []

    def hold(gpu: str, **variables: str) -> int:
        command = [sys.executable, "-I", "-S", str(simulated.__file__), str(bare / "simulated-gpus"), gpu, "0", "1"]
        environment = {**os.environ, **variables}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        holders.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"holding\n"
        return process.pid

    yield hold
    for process in holders:
        process.communicate()


async def test_a_simulated_gpu_held_without_a_lease_is_foreign(
    bare: Path, hold: Callable[..., int], lease_id: str
) -> None:
    backend = LocalBackend(KINDS, {"a100": 4}, bare)
    own, other, stranger, free = (gpu.id for gpu in (await backend.fleet()).gpus)
    leased = {"GPUSPAWNER_LEASE_ID": lease_id, "GPUSPAWNER_GPUS": own}
    hold(own, **leased)
    astray, nobodys = hold(other, **leased), hold(stranger)
    assert {gpu.id: gpu.note for gpu in (await backend.fleet()).gpus} == {
        own: "",
        other: f"process {astray} of workspace {lease_id}, which has other GPUs, computes on it",
        stranger: f"process {nobodys}, which no lease gave it to, computes on it",
        free: "",
    }
    assert [gpu.foreign for gpu in (await backend.fleet()).gpus] == [False, True, True, False]
