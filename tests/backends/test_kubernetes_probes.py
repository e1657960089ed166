"""Probes that hang wait for each other alone, and what a probe starts ends with it."""

import asyncio
import json
import subprocess
import sys

import pytest
from harness.programs import needs

from gpuspawner.backends.kubernetes.api import ExecResult
from gpuspawner.backends.kubernetes.backend import Prober
from gpuspawner.backends.kubernetes.pods import Pod
from gpuspawner.backends.kubernetes.settings import ClusterSettings

FIRST_PROCESS = """
import ctypes, json, os, pathlib, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # it gets what loses its parent, as a container's first process does
probe = sys.stdin.buffer.read()
ended = [subprocess.run(sys.argv[1:], input=probe, stdout=-1, start_new_session=True).returncode for _ in range(3)]
children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
print(json.dumps([ended, children]))
"""
NEVER_SECONDS = 3600.0
"""The deadline of a probe that is meant to be still under way when a test looks."""


class Kubelets:
    """An API whose execs answer at once, but for the pods named in ``hanging``. ``running`` are those under way."""

    def __init__(self):
        self.hanging, self.running = set(), []

    async def execute(self, _namespace, pod, *_what):
        self.running.append(pod)
        try:
            if pod in self.hanging:
                await asyncio.Event().wait()
            return ExecResult("out", "", 0)
        finally:
            self.running.remove(pod)


def pods(node, *names):
    return [Pod(f"uid-{name}", "jhub", name, node=node) for name in names]


async def settled():
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.fixture
def kubelets():
    return Kubelets()


@pytest.fixture
async def hang(kubelets):
    """Let these pods hang: once to their deadline, then on and on until the test's end."""
    tasks = []

    async def hang(prober, *those):
        kubelets.hanging.update(pod.name for pod in those)
        told = await asyncio.gather(*(prober.probe(pod, 1, 0.01) for pod in those))
        assert {result.problem for result in told} == {"the probe did not end within 0.01 s"}
        tasks.extend(asyncio.create_task(prober.probe(pod, 1, NEVER_SECONDS)) for pod in those)
        await settled()

    yield hang
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("limits", "node"),
    [
        pytest.param({"probes_at_once": 2}, "another", id="in all"),
        pytest.param({"probes_per_node": 2}, "node", id="on their own node"),
    ],
)
async def test_a_hanging_probe_takes_no_slot_of_others(kubelets, hang, limits, node):
    prober = Prober(kubelets, ClusterSettings("jhub", **limits))
    await hang(prober, *pods("node", *"abcdef"))
    assert len(kubelets.running) == 2, "bounded among themselves"
    (fine,) = pods(node, "fine")
    for _ in range(3):
        assert (await asyncio.wait_for(prober.probe(fine, 1, 60.0), 60)).text == "out"


async def test_a_recovered_probe_is_treated_like_the_others(kubelets, hang):
    prober = Prober(kubelets, ClusterSettings("jhub", probes_per_node=1))
    well, *stuck = pods("node", *"abc")
    kubelets.hanging.add(well.name)
    await prober.probe(well, 1, 0.01)
    kubelets.hanging.clear()
    assert (await prober.probe(well, 1, 60.0)).text == "out"
    await hang(prober, *stuck)
    assert kubelets.running, "the place of those that hang is taken"
    assert (await asyncio.wait_for(prober.probe(well, 1, 60.0), 60)).text == "out"


async def test_scripts_that_last_leave_connections_to_others_and_none_loses_its_time_by_waiting(kubelets):
    prober = Prober(kubelets, ClusterSettings("jhub", scripts_at_once=2))
    *stopped, probed = pods("node", *"abcdef")
    kubelets.hanging.update(pod.name for pod in stopped)
    scripts = [asyncio.create_task(prober.run_script(pod, b"", 0.3)) for pod in stopped[:2]]
    await settled()
    late = asyncio.create_task(prober.run_script(stopped[2], b"", NEVER_SECONDS))
    await settled()
    assert kubelets.running == ["a", "b"]
    assert (await prober.probe(probed, 1, 60.0)).text == "out"
    assert {one.problem for one in await asyncio.gather(*scripts)} == {"the script did not end within 0.3 s"}
    await settled()
    assert kubelets.running == ["c"], "its turn"
    late.cancel()


async def test_nothing_is_kept_about_pods_and_nodes_that_are_gone(kubelets):
    prober = Prober(kubelets, ClusterSettings("jhub"))
    gone, stays = pods("gone", "a")[0], pods("stays", "b")[0]
    kubelets.hanging.update("ab")
    await asyncio.gather(prober.probe(gone, 1, 0.01), prober.probe(stays, 1, 0.01))
    prober.forget_except([stays])
    assert prober._failed == {stays.uid}
    assert (prober._probing, [len(slots._on_node) for slots in (prober._slots, prober._slow_slots)]) == (set(), [0, 0])


@pytest.mark.parametrize("shell", [["sh"], ["bash"], pytest.param(["busybox", "sh"], marks=needs("busybox"))])
def test_a_probe_leaves_nothing_for_the_containers_first_process_to_reap(kubelets, shell):
    script = Prober(kubelets, ClusterSettings("jhub"))._stdin(Pod("u", "n", "p"), 0, 60.0)
    command = [sys.executable, "-c", FIRST_PROCESS, *shell, "-s"]
    told = subprocess.run(command, input=script, capture_output=True, check=True, timeout=60)
    assert json.loads(told.stdout) == [[0, 0, 0], []], "a day of them would fill what a pod may have of processes"


@pytest.mark.parametrize(
    ("resource", "vendor", "devices"),
    [
        ("nvidia.com/gpu", "NVIDIA", "'/dev/nvidia[0-9]*'"),
        ("amd.com/gpu", "AMD", "/dev/kfd"),
        ("gpu.intel.com/xe", "Intel", "'/dev/dri/renderD*'"),
        ("example.com/gpu", "NVIDIA", "'/dev/nvidia[0-9]*'"),
    ],
)
def test_a_pod_is_probed_with_the_tool_of_its_gpus_vendor(kubelets, resource, vendor, devices):
    pod = Pod("u", "n", "p", requests={resource: 1})
    script = Prober(kubelets, ClusterSettings("jhub"))._stdin(pod, 1, 60.0).decode()
    assert f"GPUSPAWNER_PROBE_VENDOR={vendor}\n" in script
    assert f"GPUSPAWNER_PROBE_DEVICES={devices}\n" in script
