"""GPM on a real GPU of the Hopper generation or newer: an idle one reads 0, and tiny kernels read more.

It takes a minute and a half and writes the results as ``gpm.json`` next to the golden files. What GPM reads under a
profiler, and of a MIG device in a container, is not tested here.
"""

import asyncio
import json
import os
import subprocess
import sys
import time

import pytest
from gpu_machine import ROOT, real_gpus

PHASE_SECONDS = 20
READS = """
import sys, time
import pynvml
from gpuspawner.workspace.nvml import Nvml
nvml = Nvml(None)
uuid = nvml.uuids[0]
print(nvml.without_gpm.get(uuid, ""), flush=True)
while nvml.has_gpm(uuid):
    activity = nvml.activity(uuid)
    print(time.monotonic(), activity, nvml.rate(uuid), flush=True)
    time.sleep(1.0)
print(nvml.without_gpm[uuid], flush=True)
"""

pytestmark = pytest.mark.skipif(not real_gpus(), reason="it measures a real GPU, and this machine has none")


async def test_an_idle_gpu_reads_0_and_tiny_kernels_read_more(machine, golden):
    lease = await machine.up("alice")
    environment = {**machine.environments[lease.id], "PYTHONPATH": str(ROOT)}
    reads = subprocess.Popen([sys.executable, "-c", READS], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        if why := reads.stdout.readline().strip():
            pytest.skip(f"{real_gpus()[0].name} has no GPM: {why}")
        phases = {}
        for phase in ("unused", "rest", "tiny"):
            load = machine.load(phase, lease) if phase != "unused" else None
            await asyncio.sleep(2)  # the reading that covers the load's start is over
            begin = time.monotonic()
            await asyncio.sleep(PHASE_SECONDS)
            phases[phase] = begin, time.monotonic()
            if load is not None:
                machine.end(load)
    finally:
        reads.kill()
        lines = [line.split() for line in reads.communicate()[0].splitlines()]
    read = [(float(one[0]), float(one[1]), int(one[2])) for one in lines if len(one) == 3 and one[1] != "None"]
    found = {
        phase: [(activity, rate) for at, activity, rate in read if begin + 1 < at < end]
        for phase, (begin, end) in phases.items()
    }
    described = {"gpu": real_gpus()[0].name, "uid": os.getuid(), **found}
    (golden / "gpm.json").write_text(json.dumps(described, indent=1), encoding="utf-8")
    assert all(len(values) > PHASE_SECONDS / 2 for values in found.values()), described
    assert {activity for phase in ("unused", "rest") for activity, _ in found[phase]} == {0.0}, described
    assert all(0 < activity < 5 for activity, _ in found["tiny"]), described
