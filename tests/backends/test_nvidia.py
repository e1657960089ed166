"""GPUs of this machine, by NVIDIA's own nvidia-smi on NVIDIA's simulated driver."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from harness.nvidia import simulated_driver
from harness.waiting import until

from gpuspawner.backends.local import nvidia, processes
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Gpu, GpuKind, Slot
from tools.nvidia import SimulatedDriver

Start = Callable[..., "subprocess.Popen[bytes]"]

A100 = GpuKind("a100", "A100 40 GB", 40 * 2**30, match="NVIDIA-A100-SXM4-40GB")
H100 = GpuKind("h100", "H100", 80 * 2**30, match="NVIDIA-H100-*")
HALF = GpuKind("half", "Half an A100", 20 * 2**30, match="NVIDIA-*", of="a100", shares=2)
KINDS = [HALF, A100, H100]
NAME = "NVIDIA A100-SXM4-40GB"
ROW = f"0, GPU-aaaaaaaa-0000-0000-0000-000000000000, {NAME}, Disabled, 40960, 0, 0"
SLEEP = "import time; print('up', flush=True); time.sleep(60)"


def _lives(process: Path) -> bool:
    try:
        return (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedDriver:
    """This machine has two A100, by NVIDIA's own nvidia-smi on the simulated driver."""
    driver = simulated_driver(tmp_path / "driver", gpus=2)
    monkeypatch.setenv("PATH", f"{nvidia.STAND_IN}:{driver.programs}:/bin:/usr/bin")
    monkeypatch.setattr(nvidia, "has_devices", lambda: True)
    return driver


@pytest.fixture
def backend(driver: SimulatedDriver, tmp_path: Path) -> LocalBackend:
    return LocalBackend(KINDS, {}, tmp_path)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LocalBackend]:
    """Make a machine whose nvidia-smi is this shell script: for what the real one does not do on demand."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{nvidia.STAND_IN}:{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setattr(nvidia, "has_devices", lambda: True)

    def tool(script: str) -> LocalBackend:
        (tmp_path / "bin" / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
        return LocalBackend(KINDS, {}, tmp_path)

    return tool


def compute(driver: SimulatedDriver, pid: int, gpu: int = 0) -> None:
    """Let the driver list a compute process on a GPU."""
    driver.set_values(gpu, processes=f"[{{pid: {pid}, used_memory_mib: 300}}]")


async def test_gpus_are_listed_and_matched(backend: LocalBackend, driver: SimulatedDriver) -> None:
    fleet = await backend.fleet()
    assert fleet.complete
    node, memory_bytes = os.uname().nodename, 40 * 2**30
    assert fleet.gpus == tuple(
        Gpu(uuid, "a100", node, index, NAME, memory_bytes, domains=("NVLink 0", "NUMA 0"))
        for index, uuid in enumerate(driver.uuids)
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA-A100-SXM4-40GB", "a100"),
        ("nvidia a100 sxm4 40gb", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", ""),
        ("", ""),
    ],
)
def test_matching_takes_spaces_and_dashes_alike(name: str, kind: str) -> None:
    assert nvidia.matching_kind(name, KINDS) == kind


def test_the_names_of_real_machines_can_be_matched(capture: dict[str, list[str]]) -> None:
    header, row = capture["idle :: query-gpu (csv, what the exporter parses)"][:2]
    name = dict(zip(header.split(", "), row.split(", "), strict=True))["name"]
    assert nvidia.matching_kind(name, [GpuKind("k", "K", 1, match=name.replace(" ", "-"))]) == "k"


async def test_gpus_of_a_driver_that_is_too_old_are_not_of_the_kind(backend: LocalBackend) -> None:
    kind = GpuKind("new", "New", 1, match="*A100*")
    backend.use_kinds([replace(kind, driver="550", cuda="12.4"), GpuKind("any", "Any", 1, match="*H100*")])
    assert [gpu.pool for gpu in (await backend.fleet()).gpus] == ["new"] * 2
    backend.use_kinds([replace(kind, cuda="99.0")])
    (first, _) = (await backend.fleet()).gpus
    assert first.pool == ""
    assert re.fullmatch(r"the driver [0-9.]+ supports CUDA up to [0-9.]+, and the kind new needs CUDA 99.0", first.note)


async def test_gpus_are_matched_to_the_kinds_of_now(backend: LocalBackend) -> None:
    assert [gpu.pool for gpu in (await backend.fleet()).gpus] == ["a100"] * 2
    backend.use_kinds([GpuKind("new", "New", 1, match="*A100*")])
    assert [gpu.pool for gpu in (await backend.fleet()).gpus] == ["new"] * 2


@pytest.mark.parametrize("mode", ["lost", "fallen_off_bus"])
async def test_a_lost_gpu_is_not_granted_and_has_a_note(
    backend: LocalBackend, driver: SimulatedDriver, mode: str
) -> None:
    driver.fail(mode, gpu=1, xid=79)
    first, lost = (await backend.fleet()).gpus
    assert (first.healthy, first.note) == (True, "")
    assert (lost.healthy, lost.pool) == (False, "a100")
    assert lost.note == "the driver has lost it: look for its Xid in dmesg, then reset it or restart the machine"
    driver.reset()
    assert all(gpu.healthy for gpu in (await backend.fleet()).gpus)


async def test_a_gpu_with_memory_errors_is_not_granted_until_it_is_reset(
    backend: LocalBackend, driver: SimulatedDriver
) -> None:
    driver.fail("ecc_uncorrectable", gpu=0, xid=48)
    first, second = (await backend.fleet()).gpus
    assert (first.healthy, second.healthy) == (False, True)
    assert re.fullmatch(
        r"it had \d+ memory errors that could not be corrected since its driver was loaded: "
        "reset it once no workspace uses it",
        first.note,
    )
    driver.reset()
    assert all(gpu.healthy for gpu in (await backend.fleet()).gpus)


async def test_a_gpu_in_mig_mode_without_a_mig_device_has_a_note(
    backend: LocalBackend, driver: SimulatedDriver
) -> None:
    driver.set_values(0, mig__mode_current="enabled")
    first, second = (await backend.fleet()).gpus
    assert (first.healthy, second.healthy) == (False, True)
    assert first.note.startswith("MIG mode is on without a MIG device")


async def test_a_process_without_a_lease_is_foreign(backend: LocalBackend, driver: SimulatedDriver) -> None:
    compute(driver, os.getpid())
    gpu, other = (await backend.fleet()).gpus
    assert (gpu.foreign, other.foreign) == (True, False)
    assert gpu.note == f"process {os.getpid()}, which no lease gave it to, computes on it"


async def test_a_leases_own_process_is_not_foreign(
    backend: LocalBackend, driver: SimulatedDriver, start: Start
) -> None:
    compute(driver, start(SLEEP, GPUSPAWNER_GPUS=",".join(driver.uuids)).pid)
    assert [(gpu.foreign, gpu.note) for gpu in (await backend.fleet()).gpus] == [(False, "")] * 2


async def test_a_workspace_on_a_gpu_that_is_not_its_own_is_foreign(
    backend: LocalBackend, driver: SimulatedDriver, start: Start
) -> None:
    process = start(SLEEP, GPUSPAWNER_GPUS=driver.uuids[1])
    compute(driver, process.pid, gpu=0)
    gpu = (await backend.fleet()).gpus[0]
    assert gpu.foreign
    lease = processes.environment(process.pid)["GPUSPAWNER_LEASE_ID"]
    assert gpu.note == f"process {process.pid} of workspace {lease}, which has other GPUs, computes on it"


async def test_a_workspace_cannot_give_itself_a_gpu(
    backend: LocalBackend, driver: SimulatedDriver, start: Start
) -> None:
    start(SLEEP, GPUSPAWNER_GPUS=driver.uuids[1])
    compute(driver, start(SLEEP, GPUSPAWNER_GPUS=driver.uuids[0]).pid, gpu=0)
    assert (await backend.fleet()).gpus[0].foreign


async def seen_foreign(backend: LocalBackend) -> tuple[Gpu, ...]:
    """Return the GPUs once the first one is foreign: the driver shows a change within a second."""

    async def look() -> tuple[Gpu, ...]:
        gpus = (await backend.fleet()).gpus
        return gpus if gpus[0].foreign else ()

    return await until(look)


async def test_memory_without_a_known_process_is_foreign_unless_leased(
    backend: LocalBackend, driver: SimulatedDriver, start: Start
) -> None:
    driver.set_values(0, memory__used_bytes=501 * 2**20)
    driver.set_values(1, memory__used_bytes=500 * 2**20)
    first, second = await seen_foreign(backend)
    assert (first.foreign, second.foreign) == (True, False)
    assert first.note == "501 MiB of its memory are in use although no workspace has it"
    start(SLEEP, GPUSPAWNER_GPUS=driver.uuids[0])
    assert not (await backend.fleet()).gpus[0].foreign


async def test_an_ended_process_has_no_owner(backend: LocalBackend, driver: SimulatedDriver) -> None:
    compute(driver, 4194305)
    assert not (await backend.fleet()).gpus[0].foreign


async def test_memory_of_processes_that_cannot_be_seen_from_here_is_foreign(
    backend: LocalBackend, driver: SimulatedDriver, start: Start
) -> None:
    """In a container the driver may list pids of the host: they belong to no process here."""
    compute(driver, 4194305, gpu=0)
    for gpu in (0, 1):
        driver.set_values(gpu, memory__used_bytes=501 * 2**20)
    first, second = await seen_foreign(backend)
    assert (first.foreign, first.note) == (True, "501 MiB of its memory are in use although no workspace has it")
    assert not second.foreign, "the driver lists computing processes, and there are none here"
    start(SLEEP, GPUSPAWNER_GPUS=driver.uuids[0])
    assert not (await backend.fleet()).gpus[0].foreign


async def test_promise_4_a_driver_that_is_gone_is_unavailable(backend: LocalBackend, driver: SimulatedDriver) -> None:
    await backend.fleet()
    driver.remove_library()
    with pytest.raises(
        Unavailable, match=r"exit code 12: \"NVIDIA-SMI couldn't find libnvidia-ml\.so.*Nothing is granted"
    ):
        await backend.fleet()


async def test_promise_4_a_tool_that_is_replaced_is_unavailable_and_then_found_elsewhere(
    backend: LocalBackend, driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await backend.fleet()
    tool = driver.programs / "nvidia-smi"
    tool.chmod(0o644)
    with pytest.raises(Unavailable, match=r"could not be started \(Permission denied\)\. Nothing is granted"):
        await backend.fleet()
    tool.chmod(0o755)
    programs = driver.programs.rename(driver.programs.with_name("replaced"))
    with pytest.raises(Unavailable, match="could not be started"):
        await backend.fleet()
    monkeypatch.setenv("PATH", f"{nvidia.STAND_IN}:{programs}:/bin:/usr/bin")
    assert await backend.fleet() == before


async def test_promise_4_domains_that_could_not_be_read_are_read_again(
    backend: LocalBackend, driver: SimulatedDriver
) -> None:
    tool = driver.programs / "nvidia-smi"
    text = tool.read_text(encoding="utf-8")
    tool.write_text(text.replace("\n", "\n[ $1 = topo ] && exit 9\n", 1), encoding="utf-8")
    assert [gpu.domains for gpu in (await backend.fleet()).gpus] == [(), ()]
    tool.write_text(text, encoding="utf-8")
    assert [gpu.domains for gpu in (await backend.fleet()).gpus] == [("NVLink 0", "NUMA 0")] * 2


async def test_a_tool_that_prints_without_end_is_unavailable(
    tool: Callable[[str], LocalBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "TIMEOUT_SECONDS", 20)
    with pytest.raises(Unavailable, match="printed more than 1048576 bytes"):
        await tool("exec cat /dev/zero").fleet()


@pytest.mark.parametrize(
    "row",
    [ROW[:30], "0, GPU-nonsense, NVIDIA A100, Disabled, 1, 1, 0", "[Unknown Error], " + ROW[3:]],
    ids=["half-line", "no-uuid", "no-index"],
)
async def test_a_row_that_is_not_understood_is_unavailable(tool: Callable[[str], LocalBackend], row: str) -> None:
    with pytest.raises(Unavailable, match="not understood"):
        await tool(f"echo '{row}'").fleet()


async def test_a_hanging_tool_is_unavailable(
    tool: Callable[[str], LocalBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "TIMEOUT_SECONDS", 0.3)
    with pytest.raises(Unavailable, match="did not answer"):
        await tool("exec sleep 60").fleet()


async def test_a_hanging_tool_and_its_children_are_gone_once_it_is_reported(
    tool: Callable[[str], LocalBackend], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nvidia, "TIMEOUT_SECONDS", 0.5)
    with pytest.raises(Unavailable, match="did not answer"):
        await tool(f"sleep 61 &\necho $! $$ >{tmp_path}/pids\nsleep 61").fleet()
    child, own = (Path("/proc") / pid for pid in (tmp_path / "pids").read_text(encoding="utf-8").split())
    assert not own.exists(), "asyncio would warn of it, if not now"
    await until(lambda: not _lives(child))  # it is killed, and dies once it is its turn


async def test_real_gpus_that_fail_never_turn_into_simulated_ones(driver: SimulatedDriver, tmp_path: Path) -> None:
    backend = LocalBackend(KINDS, {"a100": 4}, tmp_path)
    library = driver.libraries / "libnvidia-ml.so.1"
    library.rename(library.with_name("away"))
    with pytest.raises(Unavailable):
        await backend.fleet()
    library.with_name("away").rename(library)
    assert [gpu.simulated for gpu in (await backend.fleet()).gpus] == [False, False]


async def test_the_patch_shows_a_workspace_only_its_own_gpus(backend: LocalBackend, driver: SimulatedDriver) -> None:
    await backend.fleet()
    first, second = driver.uuids
    patch = backend.patch((Slot(first), Slot(second), Slot(first)))
    assert patch["path_prefix"] == ""
    assert patch["environment"]["CUDA_VISIBLE_DEVICES"] == f"{first},{second}"
    none = backend.patch(())["environment"]
    assert (none["CUDA_VISIBLE_DEVICES"], none["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")
    assert "GPUSPAWNER_SIMULATED_DIR" not in none
