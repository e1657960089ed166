"""The GPU monitor on simulated GPUs, by the real nvidia-ml-py, as the probe of the workspace reads it."""

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from harness.verdicts import judge_sample
from harness.waiting import until

from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.readings import Measure
from gpuspawner.core.idle.verdicts import SampleKind

REPOSITORY = Path(__file__).parents[2]
POLICY = IdlePolicy(soft_names=())
KEEPER = """
import logging, os, sys, time
from gpuspawner.workspace.probe_reports import KernelFile
from gpuspawner.workspace import probe_reports as module
module.EVERY_SECONDS = module.AGAIN_SECONDS = 0.3
file, monitor = KernelFile(), module.Monitor(os.environ, logging.getLogger())
monitor.start()
while True:
    file.write([], opened=False, monitor=monitor.document)
    time.sleep(0.1)
"""
BURST = "import sys; from gpuspawner.backends.local import busy; busy(float(sys.argv[1]), percent=90)"
FORGER = """
import json, os, sys, time
file = os.memfd_create("gpuspawner-kernels")
told = json.loads(sys.argv[1])
while True:
    uptime = float(open("/proc/uptime").read().split()[0])
    kernels = {"begin": 1, "pid": os.getpid(), "uptime": uptime, "kernels": [], "opened": False, "end": 1}
    lines = [json.dumps(kernels), json.dumps({"begin": 1, "pid": os.getpid(), "uptime": uptime, "end": 1, **told})]
    os.pwrite(file, ("\\n".join(lines) + "\\n").encode(), 0)
    time.sleep(0.5)
"""


class World:
    """A workspace with a simulated GPU, and what the probe tells of it."""

    def __init__(self, folder, nvml):
        kind = GpuKind("t4", "T4", 16 * 2**30)
        self.folder, self.lease, self.started = folder / "simulated-gpus", uuid.uuid4().hex, []
        self.backend = LocalBackend([kind], {"t4": 1}, folder, pause_seconds=0.1)
        self.nvml, self.table, self.probed_at = nvml, None, None

    async def begin(self):
        (gpu,) = (await self.backend.fleet()).gpus
        self.gpu = gpu.id
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "LD_LIBRARY_PATH": str(self.nvml),
            "GPUSPAWNER_LEASE_ID": self.lease,
            "GPUSPAWNER_ATTEMPT": "1",
            "GPUSPAWNER_GPUS": self.gpu,
            "GPUSPAWNER_SIMULATED_DIR": str(self.folder),
            "GPUSPAWNER_PYTHON": sys.executable,
            "PATH": f"{REPOSITORY}/gpuspawner/backends/local/bin:{os.environ['PATH']}",
        }

    def start(self, code, *arguments):
        command = [sys.executable, "-c", code, *arguments]
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL)
        self.started.append(process)
        return process

    def end(self, process):
        process.kill()
        process.wait()
        self.started.remove(process)

    def burst(self, seconds=0.2):
        subprocess.run(
            [sys.executable, "-c", BURST, str(seconds)], env=self.environment, stdout=subprocess.DEVNULL, check=True
        )

    async def probe(self):
        """Return the sample of a probe without the driver's buffer in nvidia-smi."""
        result = await self.backend.probe(self.lease, 1, (self.gpu,), 60.0)
        self.text = result.text
        text = "\n".join(line for line in result.text.splitlines() if not line.startswith("buffer "))
        now = time.monotonic()
        interval = 1.0 if self.probed_at is None else now - self.probed_at
        sample, self.table = parse_probe(
            replace(result, text=text), (self.gpu,), self.table, interval_seconds=interval, age_seconds=600.0
        )
        self.probed_at = now
        assert not sample.problem
        return sample

    async def eventually(self, found):
        async def look():
            sample = await self.probe()
            return sample if found(sample) else None

        return await until(look)


def monitor_of(sample):
    return next(iter(sample.sources), None)


def follows(sample):
    return monitor_of(sample) is not None


LONG_SECONDS = 1.0
"""A burst above the limit of the policy, also where a busy machine makes the period of a sample several seconds."""


def saw_work(sample):
    return follows(sample) and monitor_of(sample).percent >= POLICY.below_percent


@pytest.fixture
async def workspace(tmp_path, nvml):
    world = World(tmp_path, nvml)
    await world.begin()
    world.start("import time; time.sleep(600)")  # the oldest process, by which a probe gets its environment
    yield world
    assert await world.backend.end(world.lease)
    for process in world.started:
        process.wait()


async def test_a_burst_of_a_fifth_of_a_second_between_two_probes_is_busy_and_its_keeper_holds_nothing(workspace):
    keeper = workspace.start(KEEPER)
    idle = await workspace.eventually(follows)
    assert f"open {keeper.pid} " in workspace.text
    assert idle.gpus[0].holders == 0, "that the keeper has it open is no use"
    assert monitor_of(idle).percent == 0.0
    workspace.burst()
    sample = await workspace.eventually(saw_work)
    assert (sample.gpus[0].utilization_percent, sample.gpus[0].holders) == (0.0, 0), "over when nvidia-smi looked"
    seen = judge_sample(sample, POLICY, 0.0)
    assert seen.kind is SampleKind.BUSY
    assert seen.because.endswith("% by the workspace's monitor")
    await workspace.eventually(lambda found: follows(found) and monitor_of(found).percent == 0.0)

    workspace.end(keeper)
    gone = await workspace.probe()
    assert (monitor_of(gone), gone.gpus[0].holders) == (None, 0)
    workspace.start(KEEPER)
    await workspace.eventually(follows)
    workspace.burst()
    await workspace.eventually(saw_work)


async def test_work_of_a_fraction_of_a_percent_is_seen_by_gpm_and_by_nothing_else(workspace):
    """NVML rounds 0.3 % of utilization to 0."""
    (workspace.folder / "gpm").write_text("0")
    workspace.start(KEEPER)
    await workspace.eventually(lambda found: follows(found) and monitor_of(found).measure is Measure.ENGINE)
    assert judge_sample(await workspace.probe(), POLICY, 0.0).kind is SampleKind.IDLE
    (workspace.folder / "activity").write_text("0.25")
    sample = await workspace.eventually(lambda found: follows(found) and monitor_of(found).percent > 0)
    assert sample.gpus[0].utilization_percent == 0.0
    seen = judge_sample(sample, POLICY, 0.0)
    assert (seen.kind, seen.because) == (SampleKind.BUSY, "GPU 0 at 0.3 % by the workspace's monitor")


@pytest.mark.parametrize("source", ["samples", "rates"])
async def test_a_gpu_that_only_encodes_video_is_at_work(workspace, source):
    if source == "rates":
        (workspace.folder / "no-samples").write_text("1")
    workspace.start(KEEPER)
    await workspace.eventually(lambda found: follows(found) and monitor_of(found).percent in {None, 0.0})
    (workspace.folder / "encoder").write_text("72")
    sample = await workspace.eventually(saw_work)
    assert monitor_of(sample).percent == 72.0
    assert f'"source":"{source}"' in workspace.text
    assert sample.gpus[0].utilization_percent == 0.0
    (workspace.folder / "no-samples").unlink(missing_ok=True)
    await workspace.eventually(lambda _: '"source":"samples"' in workspace.text)


async def test_a_failed_nvml_is_tried_again(workspace):
    workspace.start(KEEPER)
    await workspace.eventually(follows)
    (workspace.folder / "nvml").write_text("999")
    await asyncio.sleep(1)
    workspace.burst()
    (workspace.folder / "nvml").unlink()
    await workspace.eventually(saw_work)


@pytest.mark.parametrize("changes", [{}, {"end": 2}, {"uptime": 5.0}], ids=["quiet", "torn", "of another boot"])
async def test_a_forged_file_does_not_change_the_probe(workspace, changes):
    quiet = {"uuid": workspace.gpu, "since": 0, "unseen": 0, "percents": [[0, 9000.0, 1.0]], "joules": None}
    workspace.start(BURST, "600")
    busy = await workspace.eventually(lambda x: (x.gpus[0].utilization_percent, x.gpus[0].holders) == (90, 1))
    workspace.start(FORGER, json.dumps({"gpus": [quiet], **changes}))
    sample = await workspace.eventually(lambda found: found.opened is False)
    assert follows(sample) is not bool(changes)
    measured = {"holders_cpu_cores": 0.0, "seen_seconds": 0.0}  # they differ from look to look
    assert replace(sample.gpus[0], **measured) == replace(busy.gpus[0], **measured)
    assert judge_sample(sample, POLICY, 0.0).kind is SampleKind.BUSY


async def test_a_real_jupyter_server_keeps_its_monitor_over_kernel_restarts_and_resets_it_at_its_own_restart(
    workspace, bare_server
):
    environment = {name: value for name, value in workspace.environment.items() if name.startswith(("GPU", "LD_"))}
    server = bare_server(**environment)
    await workspace.eventually(follows)
    kernel = await asyncio.to_thread(server.post, "api/kernels")
    workspace.burst(LONG_SECONDS)
    sample = await workspace.eventually(saw_work)
    assert (sample.gpus[0].holders, sample.opened) == (0, False)

    await asyncio.to_thread(server.post, f"api/kernels/{kernel['id']}/restart")
    workspace.burst(LONG_SECONDS)
    after = await workspace.eventually(saw_work)
    assert monitor_of(after).coverage == 1.0, "nothing was missed meanwhile"
    server.end()
    gone = await workspace.eventually(lambda found: not follows(found))
    assert judge_sample(gone, POLICY, 0.0).kind is not SampleKind.BUSY
    bare_server(**environment)
    await workspace.eventually(follows)
    workspace.burst(LONG_SECONDS)
    await workspace.eventually(saw_work)
