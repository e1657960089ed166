"""The probe script itself, with real processes and every fault of nvidia-smi and the machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.programs import needs
from harness.waiting import until

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.local import backend as local_backend
from gpuspawner.backends.local import nvidia, processes
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.backends.probes.processes import ProcessTable
from gpuspawner.backends.probes.script import parse_probe, script
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.idle.readings import Sample

Start = Callable[..., "subprocess.Popen[bytes]"]

A100 = GpuKind("a100", "A100 80 GB", 80 * 2**30)
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
SLEEP = "import time; print('up', flush=True); time.sleep(60)"


@pytest.fixture
async def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalBackend:
    monkeypatch.setattr(nvidia, "find", lambda: None)
    monkeypatch.setattr(nvidia, "has_devices", lambda: False)
    backend = LocalBackend([A100], {"a100": 2}, tmp_path / "da[t]a dir", pause_seconds=0.05, readings=2)
    await backend.fleet()
    return backend


@pytest.fixture
async def uuids(backend: LocalBackend) -> tuple[str, ...]:
    return tuple(gpu.id for gpu in (await backend.fleet()).gpus)


@pytest.fixture
def tool(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Return the environment of a workspace whose nvidia-smi is this shell script."""

    def tool(script: str) -> dict[str, str]:
        folder = tmp_path / "tools"
        folder.mkdir()
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / "nvidia-smi").chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}"}

    return tool


def sample_of(result: ProbeResult, leased: tuple[str, ...], previous: ProcessTable | None = None) -> Sample:
    return parse_probe(result, leased, previous, interval_seconds=60.0, age_seconds=600.0)[0]


def row(uuid: str, percent: str = "42") -> str:
    return f"0, {uuid}, Test GPU, [N/A], {percent}, 100, 2000, [N/A]"


async def test_a_simulated_gpu_from_end_to_end(
    backend: LocalBackend, uuids: tuple[str, ...], start: Start, lease_id: str
) -> None:
    patch = backend.patch(())
    environment = {
        **patch["environment"],
        "GPUSPAWNER_GPUS": ",".join(uuids),
        "PATH": f"{patch['path_prefix']}:{os.environ['PATH']}",
    }
    worker = start(
        "import sys, threading, time\n"
        "from gpuspawner.backends.local import busy\n"
        "threading.Thread(target=busy, args=(30, 60, [1], 25), daemon=True).start()\n"
        "time.sleep(1)\nprint('\\nup', flush=True)\ntime.sleep(60)",
        PYTHONPATH=str(Path(__file__).parents[2]),
        **environment,
    )
    await until(lambda: len([p for p in processes.scan() if p.lease_id == lease_id]) >= 2)
    first, table = parse_probe(
        await backend.probe(lease_id, 1, uuids, 10.0), uuids, None, interval_seconds=60.0, age_seconds=600.0
    )
    await asyncio.sleep(0.5)
    second = sample_of(await backend.probe(lease_id, 1, uuids, 10.0), uuids, table)
    assert not first.problem
    assert [gpu.problem for gpu in second.gpus] == ["", ""]
    assert [gpu.utilization_percent for gpu in second.gpus] == [0.0, 60.0]
    assert [gpu.holders for gpu in second.gpus] == [0, 1]
    assert [gpu.memory_used_bytes for gpu in second.gpus] == [0, 20 * 2**30]
    assert second.cpu_cores is not None
    assert second.cpu_cores > 0
    # On a busy machine busy() gets little of a core.
    assert second.gpus[0].holders_cpu_cores == 0.0
    assert second.gpus[1].holders_cpu_cores is not None
    assert 0.0 < second.gpus[1].holders_cpu_cores < 1.2
    assert await backend.end(lease_id), "busy() ends with its workspace"
    assert worker.wait(5) < 0


async def test_a_workspace_without_gpus_reports_its_cpu(backend: LocalBackend, start: Start, lease_id: str) -> None:
    start("print('up', flush=True)\nwhile True: pass")
    _, table = parse_probe(await backend.probe(lease_id, 1, (), 10.0), (), None, interval_seconds=1, age_seconds=1)
    await asyncio.sleep(0.5)
    sample = sample_of(await backend.probe(lease_id, 1, (), 10.0), (), table)
    assert (sample.gpus, sample.problem) == ((), "")
    assert sample.cpu_cores is not None
    assert 0.1 < sample.cpu_cores < 1.5


async def test_the_probe_is_no_part_of_the_workspace(
    backend: LocalBackend, uuids: tuple[str, ...], start: Start, lease_id: str, tool: Callable[[str], dict[str, str]]
) -> None:
    process = start(SLEEP, **tool('env >"${0%/*}/seen"; exec sleep 60'))
    probe = asyncio.create_task(backend.probe(lease_id, 1, uuids, 2.0))
    await until((_tools(process.pid) / "seen").exists)
    assert [running.pids for running in await backend.workspaces() if running.lease_id == lease_id] == [(process.pid,)]
    assert (await backend.probe(lease_id, 1, uuids, 2.0)).problem == "the last probe has not ended yet"
    assert (await probe).problem == "the probe did not end within 2 s"
    assert "GPUSPAWNER_PROBE=1" in (_tools(process.pid) / "seen").read_text(encoding="utf-8")


async def test_processes_left_by_a_users_nvidia_smi_are_not_the_workspaces_and_end_with_it(
    backend: LocalBackend, uuids: tuple[str, ...], start: Start, lease_id: str, tool: Callable[[str], dict[str, str]]
) -> None:
    device = next(backend._folder.glob("GPU-*"))
    leave = (
        "cd ${0%/*}; [ -e left ] && exit 3\n"
        """setsid sh -c 'trap "" TERM HUP; echo $$ >left; exec sleep 600' """
        f"<'{device}' >/dev/null 2>&1 &\n"
        "until [ -s left ]; do sleep 0.05; done; exit 3"
    )
    process = start(SLEEP, **tool(leave))
    seen = sample_of(await backend.probe(lease_id, 1, uuids, 10.0), uuids)
    pid = int((_tools(process.pid) / "left").read_text(encoding="utf-8"))
    left_behind = [found for found in processes.scan() if found.pid == pid]
    assert [(found.lease_id, found.probes) for found in left_behind] == [(lease_id, True)]
    again = sample_of(await backend.probe(lease_id, 1, uuids, 10.0), uuids)
    assert [gpu.holders for gpu in (*seen.gpus, *again.gpus)] == [0] * 4
    assert [running.pids for running in await backend.workspaces() if running.lease_id == lease_id] == [(process.pid,)]
    backend._grace_seconds = 0.2
    assert await backend.end(lease_id)
    assert not processes.is_alive(left_behind[0])


async def test_a_hanging_nvidia_smi_is_killed_with_all_it_started(
    backend: LocalBackend, uuids: tuple[str, ...], start: Start, lease_id: str, tool: Callable[[str], dict[str, str]]
) -> None:
    process = start(SLEEP, **tool('sleep 61 & echo "$! $$" >"${0%/*}/pids"; sleep 61'))
    result = await backend.probe(lease_id, 1, uuids, 1.0)
    assert result == ProbeResult(problem="the probe did not end within 1 s")
    for pid in (_tools(process.pid) / "pids").read_text(encoding="utf-8").split():
        await until(lambda pid=pid: not Path(f"/proc/{pid}").exists() or _is_zombie(int(pid)), what="it is killed")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        pytest.param("exit 3", "nvidia-smi failed with exit code 3", id="fails"),
        pytest.param(
            "echo 'Failed to initialize NVML: Unknown Error'; exit 255", "Failed to initialize", id="nvml-lost"
        ),
        pytest.param("kill -9 $$", "exit code 137", id="killed"),
        pytest.param("echo 'No devices were found'; exit 6", "No devices were found", id="no-devices"),
        pytest.param("exit 0", "listed it 0 times", id="silent"),
        pytest.param("printf '0, {a}, Test GP'", "not understood", id="half-line"),
        pytest.param("echo '0, {a}, Test GPU, [N/A], [N/A], 1, 2, 3'", "utilization: '[N/A]'", id="not-available"),
        pytest.param("echo '0, {a}, Test GPU, [N/A], 42, 1, 2, 39,32'", "not understood", id="decimal-comma"),
        pytest.param("echo 'gpuspawner-probe 1 end'; echo 'reading 0'", "listed it 0 times", id="forges-the-marker"),
    ],
)
async def test_a_faulty_nvidia_smi_is_unknown_with_the_reason(
    backend: LocalBackend,
    uuids: tuple[str, ...],
    start: Start,
    lease_id: str,
    tool: Callable[[str], dict[str, str]],
    script: str,
    said: str,
) -> None:
    start(SLEEP, **tool(script.replace("{a}", uuids[0])))
    (gpu,) = sample_of(await backend.probe(lease_id, 1, uuids[:1], 10.0), uuids[:1]).gpus
    assert gpu.utilization_percent is None
    assert said in gpu.problem


async def test_the_highest_of_several_readings_counts_and_stderr_is_no_fault(
    backend: LocalBackend, uuids: tuple[str, ...], start: Start, lease_id: str, tool: Callable[[str], dict[str, str]]
) -> None:
    script = (
        'echo "warning: infoROM is corrupted" >&2; n="${0%/*}/n"; [ -e "$n" ] && percent=3 || percent=93; : >"$n";'
        f'echo "{row(uuids[0], "$percent")}"'
    )
    start(SLEEP, **tool(script))
    (gpu,) = sample_of(await backend.probe(lease_id, 1, uuids[:1], 10.0), uuids[:1]).gpus
    assert (gpu.utilization_percent, gpu.problem) == (93.0, "")


async def test_only_the_leased_gpus_are_queried(
    backend: LocalBackend, uuids: tuple[str, ...], start: Start, lease_id: str, tool: Callable[[str], dict[str, str]]
) -> None:
    process = start(SLEEP, **tool('echo "$* $LC_ALL" >>"${0%/*}/arguments"'), LC_ALL="de_DE.UTF-8")
    await backend.probe(lease_id, 1, uuids, 10.0)
    asked = (_tools(process.pid) / "arguments").read_text(encoding="utf-8").splitlines()
    assert [line.split()[:2] for line in asked] == [["-i", ",".join(uuids)]] * 3
    assert asked[-1].endswith("-q -d UTILIZATION C"), "the sample buffer last: it has seen what fell between"
    assert {line.split()[-1] for line in asked} == {"C"}, "no decimal commas"


async def test_ten_megabytes_are_too_much(
    backend: LocalBackend, uuids: tuple[str, ...], start: Start, lease_id: str, tool: Callable[[str], dict[str, str]]
) -> None:
    start(SLEEP, **tool("yes 0123456789012345678901234567890123456789012345678901234567890123 | head -c 10485760"))
    result = await backend.probe(lease_id, 1, uuids, 20.0)
    assert result.problem == f"the probe printed more than {processes.MAX_OUTPUT_BYTES} bytes"


async def test_no_nvidia_smi_at_all(
    backend: LocalBackend, uuids: tuple[str, ...], start: Start, lease_id: str, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("ls", "sleep"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    start(SLEEP, PATH=str(tmp_path / "bin"))
    (gpu,) = sample_of(await backend.probe(lease_id, 1, uuids[:1], 10.0), uuids[:1]).gpus
    assert "nvidia-smi does not exist" in gpu.problem
    assert gpu.holders == 0


LS = {
    "an image without ls": "",
    "an ls that is killed on its way": 'echo "/proc/self/fd:"; kill -9 $$',
    "an ls that lists nothing": "exit 2",
    "an ls that writes otherwise": """echo '"/proc/self/fd":'""",
}


@pytest.mark.parametrize("ls", LS.values(), ids=LS)
async def test_promise_4_every_process_may_hold_a_gpu_where_open_files_could_not_be_listed(
    backend: LocalBackend, uuids: tuple[str, ...], start: Start, lease_id: str, tmp_path: Path, ls: str
) -> None:
    """A shared GPU has no other evidence: an unobserved process would not count as its holder."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sleep").symlink_to("/bin/sleep")
    if ls:
        (tmp_path / "bin" / "ls").write_text(f"#!/bin/sh\n{ls}\n", encoding="utf-8")
        (tmp_path / "bin" / "ls").chmod(0o755)
    start(SLEEP, PATH=str(tmp_path / "bin"))
    (gpu,) = sample_of(await backend.probe(lease_id, 1, uuids[:1], 10.0), uuids[:1]).gpus
    assert gpu.possible_holders == 1, "the workspace's one process"
    assert (gpu.holders, gpu.possible_cpu_cores) == (0, None), "its CPU use is unknown before a second probe"


@pytest.mark.parametrize(("name", "value"), [("QUOTING_STYLE", "c"), ("TIME_STYLE", "long_iso")])
async def test_promise_4_what_an_image_tells_its_own_ls_hides_no_holder(
    backend: LocalBackend, uuids: tuple[str, ...], start: Start, lease_id: str, name: str, value: str
) -> None:
    patch = backend.patch(())
    start(
        "import sys, threading, time\n"
        "from gpuspawner.backends.local import busy\n"
        "threading.Thread(target=busy, args=(30, 60, [0], 25), daemon=True).start()\n"
        "time.sleep(1)\nprint('\\nup', flush=True)\ntime.sleep(60)",
        PYTHONPATH=str(Path(__file__).parents[2]),
        **{**patch["environment"], "GPUSPAWNER_GPUS": uuids[0], name: value},
    )
    (gpu,) = sample_of(await backend.probe(lease_id, 1, uuids[:1], 10.0), uuids[:1]).gpus
    assert gpu.holders == 1


async def test_a_workspace_that_is_gone(backend: LocalBackend, lease_id: str) -> None:
    assert (await backend.probe(lease_id, 1, (), 1.0)).problem == "the workspace has no process"


async def test_a_failing_shell_is_reported(
    backend: LocalBackend, start: Start, lease_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(SLEEP)
    monkeypatch.setattr(local_backend, "probe_script", lambda: b"echo 'no such thing' >&2; exit 4")
    assert (await backend.probe(lease_id, 1, (), 5.0)).problem == "the probe failed with exit code 4: 'no such thing'"


def run_in(shell: str, **parameters: str) -> tuple[str, int]:
    """Run the script in a shell without readings unless they are asked for. Return its output and its pid."""
    told = {f"GPUSPAWNER_PROBE_{name}": value for name, value in {"READINGS": "0", "PAUSE": "0", **parameters}.items()}
    environment = {**told, "PATH": os.environ["PATH"]}
    with subprocess.Popen([*shell.split(), "-s"], env=environment, **PIPES) as process:
        stdout, stderr = process.communicate(script(), timeout=20)
    assert (process.returncode, stderr) == (0, b"")
    return stdout.decode(), process.pid


def sample_in(shell: str, **parameters: str) -> tuple[Sample, ProcessTable | None]:
    printed, _ = run_in(shell, **parameters)
    return parse_probe(ProbeResult(printed), (), None, interval_seconds=1, age_seconds=1)


SHELLS = ["dash", "bash --posix", pytest.param("busybox sh", marks=needs("busybox"))]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_runs_in_every_shell_that_images_have(shell: str) -> None:
    printed, probe_pid = run_in(shell, PIDS="all", READINGS="1", DEVICES="/dev/nul[l]")
    lines = printed.splitlines()
    assert lines[0] == "gpuspawner-probe 1 begin"
    assert lines[-1] == "gpuspawner-probe 1 end"
    assert "device /dev/null" in lines
    sample, table = parse_probe(ProbeResult(printed), (), None, interval_seconds=1, age_seconds=1)
    assert not sample.problem
    assert table is not None
    assert os.getpid() in {pid for pid, _ in table.times}
    assert probe_pid not in {pid for pid, _ in table.times}, "the probe's own processes do not count"
    assert probe_pid not in {time.ppid for time in table.times.values()}


CGROUPS = {
    "kills, version 2": ({"memory.events": "low 0\nhigh 0\nmax 41\noom 3\noom_kill 3\noom_group_kill 0\n"}, (3, None)),
    "kills, version 1": ({"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"}, (2, None)),
    "none killed": ({"memory.events": "oom_kill 0\n"}, (0, None)),
    "no number of kills": ({"memory.events": "oom_kill lots\n"}, (None, None)),
    "version 2": ({"memory.current": "900\n", "memory.stat": "anon 500\ninactive_file 300\n"}, (None, 600)),
    "version 2 without caches": ({"memory.current": "900\n"}, (None, 900)),
    "version 1": (
        {"memory/memory.usage_in_bytes": "700\n", "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 200\n"},
        (None, 500),
    ),
    "no number of bytes": ({"memory.current": "lots\n"}, (None, None)),
    "less than caches": ({"memory.current": "1\n", "memory.stat": "inactive_file 300\n"}, (None, None)),
    "not visible": ({}, (None, None)),
}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("case", CGROUPS)
def test_a_pod_reports_its_memory_without_caches_and_its_kills_for_memory(
    shell: str, case: str, tmp_path: Path
) -> None:
    files, told = CGROUPS[case]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    sample, table = sample_in(shell, PIDS="all", CGROUP=str(tmp_path))
    assert (sample.memory_kills, sample.host_memory_bytes) == told
    assert (table is None) == (case == "no number of kills"), "else processes are known in any case"


@pytest.mark.parametrize("shell", SHELLS)
def test_processes_on_a_machine_report_their_resident_memory(shell: str) -> None:
    large = [sys.executable, "-c", "held = b'x' * 60_000_000; print('up', flush=True); input()"]
    with subprocess.Popen(large, **PIPES) as held:
        assert held.stdout.readline() == b"up\n"
        sample, _ = sample_in(shell, PIDS=f"{held.pid} 999999999")
        held.communicate(b"\n", timeout=20)
    assert sample.host_memory_bytes is not None
    assert 60_000_000 < sample.host_memory_bytes < 200_000_000


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line_end", ["\n", "\\n", "\\012"], ids=["a line end", "as echo reads it", "in octal"])
def test_the_name_of_a_file_prints_no_lines_of_its_own(shell: str, line_end: str, tmp_path: Path) -> None:
    """Other users of a trust domain may make files in the folder of simulated GPUs: they would change every probe."""
    forged = ("clock 1.00 100", "unreadable 1", "gpuspawner-probe 1 end")
    (tmp_path / "GPU-true").touch()
    path = tmp_path / line_end.join(("GPU-forged", *forged, "-n"))
    path.touch()
    with path.open():
        printed, _ = run_in(shell, PIDS=str(os.getpid()), READINGS="1", DEVICES=f"{tmp_path}/GPU-*")
    lines = printed.splitlines()
    assert [line for line in lines if line in forged] == ["gpuspawner-probe 1 end"]
    assert f"device {tmp_path}/GPU-true" in lines
    assert lines[-1] == "gpuspawner-probe 1 end"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_the_probe_runs_as_the_workspaces_user(lease_id: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["/bin/sleep", "60"], env={"GPUSPAWNER_LEASE_ID": lease_id, "PATH": os.environ["PATH"]}, user=65534, group=65534
    )
    try:
        assert processes._as_user(process.pid) == {"user": 65534, "group": 65534, "extra_groups": []}
        backend = LocalBackend([], {}, tmp_path)
        assert not (await backend.probe(lease_id, 0, (), 5.0)).problem
    finally:
        process.kill()
        process.wait()


def _tools(pid: int) -> Path:
    return Path(processes.environment(pid)["PATH"].split(":")[0])


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "ZX"
