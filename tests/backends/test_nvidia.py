"""Real GPUs, through a tool that prints what the real one does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.waiting import until

from gpuspawner.backends.local import nvidia, processes
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Gpu, GpuKind, Slot

Start = Callable[..., "subprocess.Popen[bytes]"]

A100 = GpuKind("a100", "A100 80 GB", 80 * 2**30, match="NVIDIA-A100-SXM4-80GB")
H100 = GpuKind("h100", "H100", 80 * 2**30, match="NVIDIA-H100-*")
HALF = GpuKind("half", "Half an A100", 40 * 2**30, match="NVIDIA-*", of="a100", shares=2)
KINDS = [HALF, A100, H100]
U0, U1 = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000001"
A100_ROW = f"0, {U0}, NVIDIA A100-SXM4-80GB, Disabled, 81920, 0"
SLEEP = "import time; print('up', flush=True); time.sleep(60)"


def _lives(process: Path) -> bool:
    try:
        return (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LocalBackend]:
    """Make a machine whose nvidia-smi prints these rows and processes."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{nvidia.STAND_IN}:{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setattr(nvidia, "has_devices", lambda: True)

    def machine(rows: str, apps: str = "", code: int = 0, simulated: dict[str, int] | None = None) -> LocalBackend:
        (tmp_path / "rows").write_text(rows, encoding="utf-8")
        (tmp_path / "apps").write_text(apps, encoding="utf-8")
        script = f"#!/bin/sh\ncase $1 in *compute*) cat {tmp_path}/apps;; *) cat {tmp_path}/rows; exit {code};; esac\n"
        (tmp_path / "bin" / "nvidia-smi").write_text(script, encoding="utf-8")
        (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
        return LocalBackend(KINDS, simulated or {}, tmp_path)

    return machine


async def test_gpus_are_listed_and_matched(machine: Callable[..., LocalBackend]) -> None:
    fleet = await machine(f"{A100_ROW}\n1, {U1}, Tesla T4, [N/A], 15360, 3\n").fleet()
    assert fleet.complete
    assert fleet.gpus == (
        Gpu(U0, "a100", os.uname().nodename, 0, "NVIDIA A100-SXM4-80GB", 80 * 2**30),
        Gpu(U1, "", os.uname().nodename, 1, "Tesla T4", 15 * 2**30),
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA-A100-SXM4-80GB", "a100"),
        ("nvidia a100 sxm4 80gb", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", ""),
        ("", ""),
    ],
)
def test_matching_takes_spaces_and_dashes_alike(name: str, kind: str) -> None:
    assert nvidia.matching(name, KINDS) == kind


def test_the_names_of_real_machines_can_be_matched(capture: dict[str, list[str]]) -> None:
    header, row = capture["idle :: query-gpu (csv, what the exporter parses)"][:2]
    name = dict(zip(header.split(", "), row.split(", "), strict=True))["name"]
    assert nvidia.matching(name, [GpuKind("k", "K", 1, match=name.replace(" ", "-"))]) == "k"


async def test_gpus_are_matched_to_the_kinds_of_now(machine: Callable[..., LocalBackend]) -> None:
    backend = machine(A100_ROW)
    assert [gpu.pool for gpu in (await backend.fleet()).gpus] == ["a100"]
    backend.use_kinds([GpuKind("new", "New", 1, match="*A100*")])
    assert [gpu.pool for gpu in (await backend.fleet()).gpus] == ["new"]


async def test_a_gpu_that_cannot_be_given_says_why(machine: Callable[..., LocalBackend]) -> None:
    row = A100_ROW.replace("81920, 0", "[GPU requires reset], [GPU requires reset]")
    (gpu,) = (await machine(row).fleet()).gpus
    assert (gpu.healthy, gpu.note) == (False, "nvidia-smi cannot read it: it may need a reset")


async def test_a_process_without_a_lease_is_foreign(machine: Callable[..., LocalBackend]) -> None:
    (gpu,) = (await machine(A100_ROW, f"{U0}, {os.getpid()}\n").fleet()).gpus
    assert gpu.foreign
    assert gpu.note == f"process {os.getpid()}, which no lease gave it to, computes on it"


async def test_a_leases_own_process_is_not_foreign(machine: Callable[..., LocalBackend], start: Start) -> None:
    process = start(SLEEP, GPUSPAWNER_GPUS=f"{U1},{U0}")
    (gpu,) = (await machine(A100_ROW, f"{U0}, {process.pid}\n").fleet()).gpus
    assert (gpu.foreign, gpu.note) == (False, "")


async def test_a_workspace_on_a_gpu_that_is_not_its_own_is_foreign(
    machine: Callable[..., LocalBackend], start: Start
) -> None:
    process = start(SLEEP, GPUSPAWNER_GPUS=U1)
    (gpu,) = (await machine(A100_ROW, f"{U0}, {process.pid}\n").fleet()).gpus
    assert gpu.foreign
    lease = processes.environment(process.pid)["GPUSPAWNER_LEASE_ID"]
    assert gpu.note == f"process {process.pid} of workspace {lease}, which has other GPUs, computes on it"


async def test_a_workspace_cannot_give_itself_a_gpu(machine: Callable[..., LocalBackend], start: Start) -> None:
    start(SLEEP, GPUSPAWNER_GPUS=U1)
    later = start(SLEEP, GPUSPAWNER_GPUS=U0)
    (gpu,) = (await machine(A100_ROW, f"{U0}, {later.pid}\n").fleet()).gpus
    assert gpu.foreign


async def test_memory_without_a_known_process_is_foreign_unless_leased(
    machine: Callable[..., LocalBackend], start: Start
) -> None:
    used = A100_ROW.replace("81920, 0", "81920, 501")
    (gpu,) = (await machine(used).fleet()).gpus
    assert gpu.foreign
    assert "501 MiB" in gpu.note
    assert not (await machine(A100_ROW.replace("81920, 0", "81920, 500")).fleet()).gpus[0].foreign
    start(SLEEP, GPUSPAWNER_GPUS=U0)
    assert not (await machine(used).fleet()).gpus[0].foreign


async def test_a_process_that_has_ended_is_nobody(machine: Callable[..., LocalBackend]) -> None:
    (gpu,) = (await machine(A100_ROW, f"{U0}, 4194305\n{U0}, [N/A]\n").fleet()).gpus
    assert not gpu.foreign


async def test_memory_of_processes_that_cannot_be_seen_from_here_is_foreign(
    machine: Callable[..., LocalBackend], start: Start
) -> None:
    """In a container the driver may list the pids of the host: they are nobody's here."""
    used = A100_ROW.replace("81920, 0", "81920, 501")
    (gpu,) = (await machine(used, f"{U0}, 4194305\n").fleet()).gpus
    assert (gpu.foreign, gpu.note) == (True, "501 MiB of it are in use although no workspace has it")
    assert not (await machine(used, f"{U1}, 4194305\n").fleet()).gpus[0].foreign, "it lists who computes: nobody here"
    start(SLEEP, GPUSPAWNER_GPUS=U0)
    assert not (await machine(used, f"{U0}, 4194305\n").fleet()).gpus[0].foreign


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\n", 18, "exit code 18: 'Failed to initialize"),
        (A100_ROW[:30], 0, "not understood"),
        ("0, GPU-nonsense, NVIDIA A100, Disabled, 1, 1", 0, "not understood"),
        ("[Unknown Error], " + A100_ROW[3:], 0, "not understood"),
    ],
    ids=["fails", "half-line", "no-uuid", "no-index"],
)
async def test_what_cannot_be_read_is_unavailable(
    machine: Callable[..., LocalBackend], rows: str, code: int, said: str
) -> None:
    with pytest.raises(Unavailable, match=said):
        await machine(rows, code=code).fleet()


async def test_a_hanging_tool_is_unavailable(
    machine: Callable[..., LocalBackend], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend = machine("")
    monkeypatch.setattr(nvidia, "TIMEOUT_SECONDS", 0.3)
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    with pytest.raises(Unavailable, match="did not answer"):
        await backend.fleet()


async def test_a_hanging_tool_is_gone_with_all_it_started_once_that_is_told(
    machine: Callable[..., LocalBackend], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend = machine("")
    monkeypatch.setattr(nvidia, "TIMEOUT_SECONDS", 0.5)
    script = f"#!/bin/sh\nsleep 61 &\necho $! $$ >{tmp_path}/pids\nsleep 61\n"
    (tmp_path / "bin" / "nvidia-smi").write_text(script, encoding="utf-8")
    with pytest.raises(Unavailable, match="did not answer"):
        await backend.fleet()
    child, own = (Path("/proc") / pid for pid in (tmp_path / "pids").read_text(encoding="utf-8").split())
    assert not own.exists(), "asyncio would warn of it, if not now"
    await until(lambda: not _lives(child))  # it is killed, and dies once it is its turn


async def test_real_gpus_that_fail_never_turn_into_simulated_ones(machine: Callable[..., LocalBackend]) -> None:
    backend = machine("NVML lost", code=9, simulated={"a100": 4})
    with pytest.raises(Unavailable):
        await backend.fleet()
    machine(A100_ROW)
    assert [gpu.simulated for gpu in (await backend.fleet()).gpus] == [False]


async def test_the_patch_shows_a_workspace_its_own_gpus_alone(machine: Callable[..., LocalBackend]) -> None:
    backend = machine(A100_ROW)
    await backend.fleet()
    patch = backend.patch((Slot(U0), Slot(U1), Slot(U0)))
    assert patch["path_prefix"] == ""
    assert patch["environment"]["CUDA_VISIBLE_DEVICES"] == f"{U0},{U1}"
    none = backend.patch(())["environment"]
    assert (none["CUDA_VISIBLE_DEVICES"], none["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")
    assert "GPUSPAWNER_SIMULATED_DIR" not in none
