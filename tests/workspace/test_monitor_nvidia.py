"""The GPU monitor with nvidia-ml-py on NVIDIA's simulated driver, in every state that its GPUs can have."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.nvidia import machines, simulated_driver, with_devices
from harness.waiting import eventually

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probes.script import parse_probe, script

REPOSITORY = Path(__file__).parents[2]
KEEPER = """
import json, logging, os, sys, time
from pathlib import Path
from gpuspawner.workspace import probe_reports as module
from gpuspawner.workspace.probe_reports import KernelFile
module.EVERY_SECONDS, module.AGAIN_SECONDS = 0.5, 1.0
logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
file, monitor = KernelFile(), module.Monitor(os.environ, logging.getLogger())
monitor.start()
while True:
    file.write([], opened=False, monitor=monitor.document)
    Path(sys.argv[1]).with_suffix(".new").write_text(json.dumps(monitor.document))
    Path(sys.argv[1]).with_suffix(".new").rename(sys.argv[1])
    time.sleep(0.1)
"""


class Workspace:
    """A monitor in a workspace with some of a machine's GPUs."""

    def __init__(self, folder, driver, gpus=None, more=""):
        self.driver, self.file, self.log = driver, folder / "document", folder / "log"
        self.environment = {**driver.environment(), "PYTHONPATH": str(REPOSITORY)}
        if gpus is not None:
            self.environment["GPUSPAWNER_GPUS"] = ",".join(driver.uuids[gpu] for gpu in gpus) + more
        with self.log.open("w") as log:
            command = [sys.executable, "-c", KEEPER, str(self.file)]
            self.keeper = subprocess.Popen(command, env=self.environment, stderr=log)
        self.until(lambda found: found is not None)

    def until(self, met, seconds=30):
        """Wait until the document meets a condition; return what it says of each GPU."""

        def found():
            document = json.loads(self.file.read_text()) if self.file.exists() else None
            gpus = None if document is None else {gpu["uuid"]: gpu for gpu in document["gpus"]}
            return (gpus or True) if met(gpus) else None

        return eventually(found, seconds, "the monitor tells it")

    def until_gpu(self, gpu, met):
        """Wait until what it says of one GPU meets a condition, and return that."""
        uuid = self.driver.uuids[gpu]
        return self.until(lambda gpus: gpus and uuid in gpus and met(gpus[uuid]))[uuid]

    def end(self):
        self.keeper.kill()
        self.keeper.wait()


@pytest.fixture
def workspace(tmp_path):
    started = []

    def start(driver, gpus=None, more=""):
        started.append(Workspace(tmp_path, driver, gpus, more))
        return started[-1]

    yield start
    for one in started:
        one.end()


def seconds_at(gpu, lowest):
    return sum(seconds for percent, seconds, _ in gpu["percents"] if percent >= lowest)


WITH_GPM = {"h100", "b200", "gb200", "gb300"}
"""Machines of the Hopper generation and newer."""
WORDS = {
    "gpm": "is observed by GPM, which misses nothing\n",
    "rates": "is observed by utilization rates, read four times a second: the driver has no sample buffer (GPM: Not "
    "Supported)\n",
}


@pytest.mark.parametrize("profile", machines())
def test_every_machine_is_observed_and_its_health_is_reported(tmp_path, workspace, profile):
    source = "gpm" if profile in WITH_GPM else "rates"
    driver = simulated_driver(tmp_path / "driver", profile, gpus=2)
    driver.set_values(1, memory__used_bytes=3 * 2**30)
    driver.control("temp", "--gpu", "1", "71")
    one = workspace(driver)
    gpu = one.until_gpu(1, lambda gpu: gpu["health"]["celsius"] == 71)
    assert (gpu["source"], gpu["problem"], gpu["joules"]) == (source, "", None)
    command = ["nvidia-smi", "-i", "1", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
    watts = float(subprocess.run(command, env=one.environment, capture_output=True, text=True, check=True).stdout)
    health = {"memory_bytes": 3 * 2**30, "celsius": 71, "watts": watts, "ecc_errors": 0, "xid": None}
    assert gpu["health"] == health
    driver.set_utilization(64, 1)
    one.until_gpu(1, lambda gpu: 64 in {percent for percent, *_ in gpu["percents"]})
    assert {percent for percent, *_ in one.until(bool)[driver.uuids[0]]["percents"]} == {0}
    assert WORDS[source] in one.log.read_text()


def test_half_of_the_time_is_work_where_bursts_and_pauses_take_a_second_each(tmp_path, workspace):
    driver = simulated_driver(tmp_path / "driver", gpus=1)
    driver.set_values(0, dynamic_metrics__utilization="{pattern: burst, gpu_max: 90, burst_period_sec: 1}")
    one = workspace(driver)
    began = time.monotonic()
    gpu = one.until_gpu(0, lambda gpu: seconds_at(gpu, 0) >= 6)
    assert seconds_at(gpu, 50) == pytest.approx(3.0, abs=1.0), time.monotonic() - began
    assert gpu["unseen"] < 2


def test_energy_is_reported_once_its_counter_grows(tmp_path, workspace):
    driver = simulated_driver(tmp_path / "driver", gpus=1)
    driver.set_values(0, power__total_energy_consumption_mj=5_000)
    one = workspace(driver)
    assert one.until_gpu(0, lambda gpu: seconds_at(gpu, 0) > 1.5)["joules"] is None
    driver.set_values(0, power__total_energy_consumption_mj=65_000)
    assert one.until_gpu(0, lambda gpu: gpu["joules"] is not None)["joules"] == 60.0


def test_memory_errors_and_xids_are_reported_and_logged(tmp_path, workspace):
    driver = simulated_driver(tmp_path / "driver", gpus=2)
    one = workspace(driver)
    driver.fail("ecc_uncorrectable", gpu=1, xid=48)
    gpu = one.until_gpu(1, lambda gpu: gpu["health"]["ecc_errors"] and gpu["health"]["xid"])
    assert gpu["health"]["xid"] == 48
    assert gpu["problem"] == "", "it can still be asked"
    eventually(lambda: f"GPU {driver.uuids[1]}: Xid 48 and " in one.log.read_text(), 10)
    assert one.until(bool)[driver.uuids[0]]["health"]["xid"] is None


@pytest.mark.parametrize(("profile", "mode"), [("a100", "lost"), ("a100", "fallen_off_bus"), ("h100", "lost")])
def test_a_gpu_lost_while_in_use_is_unknown_and_the_others_are_observed(tmp_path, workspace, profile, mode):
    driver = simulated_driver(tmp_path / "driver", profile, gpus=3)
    one = workspace(driver, gpus=[0, 1])
    assert set(one.until(lambda gpus: len(gpus) == 2)) == set(driver.uuids[:2])
    driver.fail(mode, gpu=1, xid=79)
    lost = one.until_gpu(1, lambda gpu: gpu["problem"])
    assert lost["problem"] == "GPU is lost"
    begun = seconds_at(one.until(bool)[driver.uuids[0]], 0)
    one.until_gpu(0, lambda gpu: seconds_at(gpu, 0) > begun + 3)  # NVML is started again meanwhile
    driver.set_utilization(50, 0)
    assert one.until_gpu(0, lambda gpu: seconds_at(gpu, 50))["problem"] == ""
    still = one.until_gpu(1, lambda gpu: gpu["unseen"] > lost["unseen"] + 2)
    assert seconds_at(still, 0) == pytest.approx(seconds_at(lost, 0), abs=0.3), "nothing was seen of it"
    driver.reset()
    back = one.until_gpu(1, lambda gpu: not gpu["problem"])
    assert back["unseen"] >= 2
    assert back["since"] > lost["since"]
    log = one.log.read_text()
    for words in (" can't be read: GPU is lost", ": Xid 79", " can be read again"):
        assert f"GPU {driver.uuids[1]}{words}\n" in log
        assert f"GPU {driver.uuids[0]}{words}\n" not in log


def test_a_missing_gpu_is_reported_once_and_the_others_are_observed(tmp_path, workspace):
    driver = simulated_driver(tmp_path / "driver", gpus=1)
    absent = "GPU-ffffffff-0000-0000-0000-000000000000"
    one = workspace(driver, gpus=[0], more=f",{absent}")
    gpus = one.until(lambda gpus: gpus and absent in gpus and seconds_at(gpus[driver.uuids[0]], 0) > 3)
    assert gpus[absent]["problem"]
    assert gpus[absent]["percents"] == []
    assert one.log.read_text().count(f"GPU {absent} can't be read") == 1
    assert f"GPU {absent} can be read again" not in one.log.read_text()


def test_a_driver_that_returns_is_observed_again(tmp_path, workspace):
    driver = simulated_driver(tmp_path / "driver", gpus=1)
    library = driver.libraries / "libnvidia-ml.so.1"
    library.rename(library.with_name("away"))
    environment = {**driver.environment(), "PYTHONPATH": str(REPOSITORY)}
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-c", KEEPER, str(tmp_path / "document")]
        keeper = subprocess.Popen(command, env=environment, stderr=log)
    try:
        eventually(lambda: "are not observed from inside the workspace" in (tmp_path / "log").read_text(), 30)
        assert (tmp_path / "document").read_text() == "null"
        library.with_name("away").rename(library)
        eventually(lambda: driver.uuids[0] in (tmp_path / "document").read_text(), 30)
    finally:
        keeper.kill()
        keeper.wait()


WITHIN = """
"$1" -c "$2" "$3" 2>/dev/null & keeper=$!
while ! grep -q '"rates"' "$3" 2>/dev/null; do sleep 0.1; done
sleep 1
GPUSPAWNER_PROBE_PIDS=$keeper sh -s
kill $keeper
"""


def test_the_probe_uses_the_report_and_the_monitor_holds_no_gpu(tmp_path):
    driver = simulated_driver(tmp_path / "driver", gpus=2)
    driver.set_utilization(64, 1)
    parameters = {
        "GPUSPAWNER_PROBE_GPUS": ",".join(driver.uuids),
        "GPUSPAWNER_PROBE_READINGS": "1",
        "GPUSPAWNER_PROBE_PAUSE": "0",
        "GPUSPAWNER_PROBE_DEVICES": "/dev/nvidia[0-9]*",
        "PYTHONPATH": str(REPOSITORY),
    }
    command = ["sh", "-c", WITHIN, "sh", sys.executable, KEEPER, str(tmp_path / "document")]
    environment = {**driver.environment({"PATH": os.environ["PATH"]}), **parameters}
    told = subprocess.run(
        with_devices(driver, command), input=script(), env=environment, capture_output=True, check=True, timeout=60
    )
    sample, _ = parse_probe(
        ProbeResult(told.stdout.decode()), driver.uuids, None, interval_seconds=60.0, age_seconds=600.0
    )
    assert not sample.problem
    assert [gpu.holders for gpu in sample.gpus] == [0, 0]
    assert [(one.gpu, one.percent) for one in sample.sources] == list(zip(driver.uuids, [0.0, 64.0], strict=True))
    assert all(0 < one.coverage <= 1 for one in sample.sources)
