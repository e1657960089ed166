"""The probe with NVIDIA's own nvidia-smi, of two versions, on every simulated machine and in every state.

One probe looks at all GPUs of a machine, each in a state of its own.
"""

import os
import subprocess
from dataclasses import replace
from typing import NamedTuple

import pytest
from harness.nvidia import machines, simulated_driver, with_devices
from harness.verdicts import judge_sample

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probes.script import parse_probe, script
from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.verdicts import SampleKind
from tools.nvidia import RELEASES

GIB = 2**30
BUSY, IDLE, UNKNOWN = SampleKind.BUSY, SampleKind.IDLE, SampleKind.UNKNOWN
HOLDER = 'sleep 60 3<"$1" & holder=$!; GPUSPAWNER_PROBE_PIDS=$holder sh -s; kill $holder'


class State(NamedTuple):
    """The state of a GPU, and the probe's reading of it."""

    percent: int = 0
    values: dict = {}  # noqa: RUF012 - never changed
    failure: str = ""
    throttle: str = ""
    seen_percent: float | None = 0.0
    used_bytes: int | None = 0
    persistence: bool = True
    kind: SampleKind = IDLE
    problem: str = ""


LOST = {"seen_percent": None, "used_bytes": None, "kind": UNKNOWN, "problem": "the driver answers '[GPU is lost]'"}
STATES = {
    "at work": State(percent=64, seen_percent=64.0, kind=BUSY),
    "at rest": State(),
    "memory only": State(values={"memory__used_bytes": 3 * GIB}, used_bytes=3 * GIB),
    "lost": State(failure="lost", **LOST),
    "fallen off the bus": State(percent=64, failure="fallen_off_bus", **LOST),
    "uncorrectable ECC": State(percent=30, failure="ecc_uncorrectable", seen_percent=30.0, kind=BUSY),
    "throttled": State(percent=7, throttle="hw_thermal_slowdown", seen_percent=7.0, kind=BUSY),
    "woken by the probe": State(
        percent=100, values={"persistence_mode": "disabled"}, persistence=False, seen_percent=100.0
    ),
}


def put(driver, gpu, state):
    """Bring a GPU into a state."""
    if state.percent:
        driver.set_utilization(state.percent, gpu)
    if state.values:
        driver.set_values(gpu, **state.values)
    if state.throttle:
        driver.control("throttle", "--gpu", str(gpu), state.throttle)
    if state.failure:
        driver.fail(state.failure, gpu)


def probed(driver, gpus, held=0):
    """Run the probe while a process holds a GPU, and return its sample. The lease has these GPUs."""
    uuids = tuple(driver.uuids[gpu] for gpu in gpus)
    parameters = {
        "GPUSPAWNER_PROBE_GPUS": ",".join(uuids),
        "GPUSPAWNER_PROBE_READINGS": "1",
        "GPUSPAWNER_PROBE_PAUSE": "0",
        "GPUSPAWNER_PROBE_DEVICES": "/dev/nvidia[0-9]*",
    }
    command = with_devices(driver, ["sh", "-c", HOLDER, "sh", f"/dev/nvidia{held}"])
    environment = {**driver.environment({"PATH": os.environ["PATH"]}), **parameters}
    told = subprocess.run(command, input=script(), env=environment, capture_output=True, check=True)
    sample, _ = parse_probe(ProbeResult(told.stdout.decode()), uuids, None, interval_seconds=60.0, age_seconds=600.0)
    assert not sample.problem, told.stdout.decode()
    return sample


def judged(sample, gpu):
    """Return the sample's evidence about one GPU that is leased alone."""
    alone = replace(sample, leased=(gpu.gpu,), gpus=(gpu,))
    return judge_sample(
        alone, IdlePolicy(soft_names=()), 7200.0
    )  # the first probe knows no CPU use: the budget is spent


@pytest.fixture(
    scope="module", params=[(machine, release) for machine in machines() for release in RELEASES], ids="-".join
)
def driver(request, tmp_path_factory):
    machine, release = request.param
    return simulated_driver(tmp_path_factory.mktemp("driver"), machine, release=release)


def test_each_gpu_is_seen_in_its_own_state(driver):
    names = list(STATES)
    while names:
        driver.reset()
        chosen, names = names[: len(driver.uuids)], names[len(driver.uuids) :]
        for gpu, name in enumerate(chosen):
            put(driver, gpu, STATES[name])
        sample = probed(driver, range(len(chosen)), held=2)
        assert [gpu.gpu for gpu in sample.gpus] == list(driver.uuids)[: len(chosen)]
        for number, name in enumerate(chosen):
            gpu, state = sample.gpus[number], STATES[name]
            assert (gpu.utilization_percent, gpu.memory_used_bytes) == (state.seen_percent, state.used_bytes), name
            assert (gpu.persistence, gpu.holders) == (state.persistence, int(number == 2)), name
            assert (state.problem in gpu.problem, bool(gpu.problem)) == (True, bool(state.problem)), name
            assert gpu.buffer_percent is None, "this driver has no sample buffer"
            assert judged(sample, gpu).kind is state.kind, name


def test_one_gpu_by_its_uuid_and_all_in_mig_mode(driver):
    last = len(driver.uuids) - 1
    driver.reset()
    driver.set_utilization(64, last)
    (gpu,) = probed(driver, [last], held=last).gpus
    assert (gpu.gpu, gpu.utilization_percent, gpu.holders) == (driver.uuids[last], 64.0, 1)
    driver.reset()
    driver.set_values(mig__mode_current="enabled")
    assert [gpu.holders for gpu in probed(driver, [0, last], held=last).gpus] == [0, 1]


@pytest.mark.parametrize("release", RELEASES)
def test_a_machine_with_one_gpu(tmp_path, release):
    driver = simulated_driver(tmp_path, "t4", gpus=1, release=release)
    (gpu,) = probed(driver, [0]).gpus
    assert (gpu.utilization_percent, gpu.memory_total_bytes, gpu.holders, gpu.problem) == (0.0, 16 * GIB, 1, "")


@pytest.mark.parametrize("release", RELEASES)
def test_promise_4_a_driver_that_is_gone_is_unknown(tmp_path, release):
    driver = simulated_driver(tmp_path, gpus=1, release=release)
    driver.remove_library()
    sample = probed(driver, [0])
    (gpu,) = sample.gpus
    assert gpu.utilization_percent is None
    assert gpu.problem.startswith("nvidia-smi failed with exit code 12: \"NVIDIA-SMI couldn't find libnvidia-ml.so")
    assert judged(sample, gpu).kind is UNKNOWN


def test_promise_4_a_gpu_whose_device_file_is_gone_is_unknown(tmp_path):
    """As in a container that lost its devices: the library then hides the GPU."""
    driver = simulated_driver(tmp_path, gpus=3)
    (driver.folder / "dev" / "nvidia1").unlink()
    sample = probed(driver, [0, 1])
    assert [judged(sample, gpu).kind for gpu in sample.gpus] == [IDLE, UNKNOWN]
    assert sample.gpus[1].problem.startswith("nvidia-smi listed it 0 times")
    (alone,) = probed(driver, [0]).gpus
    assert (alone.utilization_percent, alone.holders) == (0.0, 1)
