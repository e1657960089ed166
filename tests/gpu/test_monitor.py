"""The GPU monitor on a real GPU: what it sees of short bursts, what it costs, and whether it wakes an idle GPU.

It takes ten minutes (GPU_MONITOR_SECONDS for less) and writes the results as ``monitor.json`` next to the golden
files.
On simulated GPUs there is nothing to measure: ``tests/workspace/test_monitor_run.py`` is for those.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu_machine import ROOT, real_gpus

from gpuspawner.backends.probes.script import parse_probe

SECONDS = float(os.environ.get("GPU_MONITOR_SECONDS", "600"))
REST_SECONDS, LOOK_SECONDS, PROBE_SECONDS = 20, 5.0, 60.0
BELOW_PERCENT = 5.0
FOLLOWS = """
import json, logging, os, time
from gpuspawner.workspace.probe_reports import EVERY_SECONDS, Monitor
monitor = Monitor(os.environ, logging.getLogger())
monitor.start()
while True:
    time.sleep(EVERY_SECONDS)
    times = os.times()
    print(json.dumps([monitor.document, times.user + times.system]), flush=True)
"""

pytestmark = pytest.mark.skipif(not real_gpus(), reason="it measures a real GPU, and this machine has none")


def watts():
    """The power that the first GPU draws, on average over some seconds."""
    command = ["nvidia-smi", "-i", "0", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
    drawn = []
    for _ in range(REST_SECONDS):
        drawn.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        time.sleep(1)
    return sum(drawn) / len(drawn)


def resident_kib(pid):
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def seen_by_monitor(burst, told):
    """Return whether a monitor counted a burst. A value of GPM is the average of the seconds since the last look."""
    begin, end = burst
    return any(
        (percent > 0 and begin <= last <= end + LOOK_SECONDS + 1.5)
        if gpu["source"] == "gpm"
        else (percent >= BELOW_PERCENT and begin <= last <= end + 1.5)
        for document, _ in told
        for gpu in (document or {"gpus": []})["gpus"]
        for percent, _, last in gpu["percents"]
    )


async def test_bursts_of_a_fraction_of_a_second(machine, golden):
    before = await asyncio.to_thread(watts)
    lease = await machine.up("alice")
    environment = {**machine.environments[lease.id], "PYTHONPATH": str(ROOT)}
    follows = subprocess.Popen([sys.executable, "-c", FOLLOWS], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        after = await asyncio.to_thread(watts)
        bursts, probed = machine.load("bursts", lease), []
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            begin = time.clock_gettime(time.CLOCK_BOOTTIME)
            gpus = tuple(slot.gpu for slot in lease.slots)
            result = await machine.backend.probe(lease.id, lease.attempt, gpus, 60.0)
            sample, _ = parse_probe(result, gpus, None, interval_seconds=PROBE_SECONDS, age_seconds=600.0)
            percent = max((one.highest_percent or 0.0 for one in sample.gpus), default=0.0)
            probed.append((begin, time.clock_gettime(time.CLOCK_BOOTTIME), percent))
            await asyncio.sleep(PROBE_SECONDS)
        resident = resident_kib(follows.pid)
        await asyncio.sleep(2 * LOOK_SECONDS)
        bursts.kill()
        lines = bursts.communicate()[0].splitlines()
    finally:
        follows.kill()
        told = [json.loads(line) for line in follows.communicate()[0].splitlines()]
    happened = [tuple(map(float, line.split()[1:])) for line in lines if line.startswith("BURST ")]
    by_monitor = sum(seen_by_monitor(burst, told) for burst in happened)
    by_script = sum(
        any(percent >= BELOW_PERCENT and begin - 1 <= burst[1] and burst[0] <= end for begin, end, percent in probed)
        for burst in happened
    )
    found = {
        "gpu": real_gpus()[0].name,
        "source": told[-1][0]["gpus"][0]["source"],
        "bursts": len(happened),
        "seen_by_monitor": by_monitor,
        "seen_by_script": by_script,
        "monitor_cores": (told[-1][1] - told[0][1]) / (LOOK_SECONDS * (len(told) - 1)),
        "monitor_resident_kib": resident,
        "watts_before": before,
        "watts_with_monitor": after,
        "joules": told[-1][0]["gpus"][0]["joules"],
    }
    (golden / "monitor.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    assert by_monitor >= 0.95 * len(happened), found
    assert found["monitor_cores"] < 0.002, found
