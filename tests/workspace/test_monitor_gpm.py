"""The GPU monitor by GPM, with the real nvidia-ml-py on a library of the tests: whole GPUs, MIG devices, refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.waiting import eventually

REPOSITORY = Path(__file__).parents[2]
GPU = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
MIG = [f"MIG-{letter * 8}-0000-0000-0000-000000000000" for letter in "bcd"]
NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST = "3", "4", "15"
KEEPER = """
import json, logging, sys, time
from pathlib import Path
from gpuspawner.workspace import probe_reports as module
module.EVERY_SECONDS, module.RATES_SECONDS, module.AGAIN_SECONDS = 0.3, 0.1, 1.0
logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
file, names = Path(sys.argv[1]), sys.argv[2:]
monitor = module.Monitor({module.GPUS: ",".join(names)} if names else {}, logging.getLogger())
monitor.start()
while True:
    file.with_suffix(".new").write_text(json.dumps(monitor.document))
    file.with_suffix(".new").rename(file)
    time.sleep(0.05)
"""
FREED = """
import pynvml
from gpuspawner.workspace.nvml import Nvml
nvml = Nvml(None)
assert nvml.uuids and all(nvml.has_gpm(uuid) for uuid in nvml.uuids)
before = pynvml.nvmlLib.standinOpenSamples()
nvml.close()
print(before, pynvml.nvmlLib.standinOpenSamples())
"""


FEWER = """
from gpuspawner.workspace import nvml
nvml.MOST_GPUS = 2
print(*nvml.Nvml(None).uuids)
"""


class Observed:
    """A machine with one GPU, and the document of a monitor there."""

    def __init__(self, folder, nvml):
        self.folder, self.file, self.log = folder, folder / "document", folder / "log"
        (folder / GPU).touch()
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "LD_LIBRARY_PATH": str(nvml),
            "GPUSPAWNER_SIMULATED_DIR": str(folder),
            "GPUSPAWNER_GPUS": GPU,
        }
        self.keepers = []

    def set(self, **values):
        for name, value in values.items():
            (self.folder / name.replace("_", "-")).write_text(str(value))

    def follow(self, *names):
        with self.log.open("w") as log:
            command = [sys.executable, "-c", KEEPER, str(self.file), *names]
            self.keepers.append(subprocess.Popen(command, env=self.environment, stderr=log))

    def run(self, code):
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout

    def until(self, met, uuid=GPU):
        """Wait until the report of a GPU meets a condition, and return it."""

        def found():
            document = json.loads(self.file.read_text()) if self.file.exists() else None
            gpus = {gpu["uuid"]: gpu for gpu in document["gpus"]} if document else {}
            return gpus[uuid] if uuid in gpus and met(gpus[uuid]) else None

        return eventually(found, 20, f"the monitor tells it: {self.log.read_text()}")

    def logs(self, words):
        eventually(lambda: words in self.log.read_text(), 20, words)


@pytest.fixture
def machine(tmp_path, nvml):
    one = Observed(tmp_path, nvml)
    yield one
    for keeper in one.keepers:
        keeper.kill()
        keeper.wait()


def percents(gpu):
    return {percent for percent, *_ in gpu["percents"]}


def by(source):
    return lambda gpu: gpu["source"] == source and percents(gpu)


def test_gpm_is_the_first_source_and_tells_fractions_and_the_decoder(machine):
    machine.set(gpm=0)
    machine.follow(GPU)
    idle = machine.until(by("gpm"))
    assert (percents(idle), idle["unseen"]) == ({0.0}, pytest.approx(0.0, abs=0.2))
    machine.logs(f"GPU {GPU} is observed by GPM, which misses nothing\n")
    machine.set(activity=0.01)
    machine.until(lambda gpu: 0.1 in percents(gpu))
    machine.set(activity=37.4, decoder=80)
    machine.until(lambda gpu: 80 in percents(gpu))
    (machine.folder / "decoder").unlink()
    machine.until(lambda gpu: 37 in percents(gpu))


def test_what_the_drivers_samples_show_counts_where_gpm_is_stuck_at_0(machine):
    machine.set(gpm=0, encoder=40)
    machine.follow(GPU)
    gpu = machine.until(lambda gpu: 40 in percents(gpu))
    assert (gpu["source"], gpu["unseen"]) == ("gpm", pytest.approx(0.0, abs=0.2))


@pytest.mark.parametrize(
    ("code", "why"),
    [("", "Not Supported"), (NOT_SUPPORTED, "Not Supported"), (NO_PERMISSION, "Insufficient Permissions")],
    ids=["older GPU", "not for this GPU", "refused"],
)
def test_a_gpu_without_gpm_is_observed_as_before(machine, code, why):
    if code:
        machine.set(gpm=code)
    machine.set(encoder=40)
    machine.follow(GPU)
    # The first report may have the samples from before the encoder's.
    assert machine.until(lambda gpu: 40 in percents(gpu))["source"] == "samples"
    machine.logs(f"GPU {GPU} is observed by the driver's sample buffer (GPM: {why})\n")
    assert "can't be read" not in machine.log.read_text()


@pytest.mark.parametrize("value", ["nan", "-1", "4294967295"])
def test_an_activity_that_is_no_percentage_is_not_known(machine, value):
    machine.set(gpm=0, activity=value)
    machine.follow(GPU)
    assert percents(machine.until(by("samples"))) == {0}
    machine.logs("(GPM: the driver returned no activity)")


def test_gpm_that_is_lost_while_it_runs_is_replaced_without_a_gap(machine):
    machine.set(gpm=0)
    machine.follow(GPU)
    machine.until(by("gpm"))
    machine.set(gpm=GPU_IS_LOST, encoder=40)
    later = machine.until(lambda gpu: 40 in percents(gpu))
    assert (later["source"], later["problem"]) == ("samples", "")
    assert later["unseen"] == pytest.approx(0.0, abs=0.2)


@pytest.mark.parametrize("names", [(), (MIG[0], MIG[1])], ids=["all that a pod sees", "those of a lease"])
def test_each_mig_device_has_the_activity_of_its_own_gpu_instance(machine, names):
    machine.set(gpm=0, mig=f"{MIG[0]} 3 2 2\n{MIG[1]} 5 1 1\n", activity_3=0.02)
    machine.follow(*names)
    busy = machine.until(lambda gpu: 0.1 in percents(gpu), MIG[0])
    idle = machine.until(by("gpm"), MIG[1])
    assert (busy["gpu"], busy["source"], idle["gpu"], percents(idle)) == (GPU, "gpm", GPU, {0.0})
    if not names:
        whole = machine.until(bool)
        assert (whole["gpu"], whole["source"], whole["percents"]) == ("", None, []), "it is not read as a whole"
    assert "can't be read" not in machine.log.read_text()


def test_a_mig_device_without_gpm_is_not_observed(machine):
    machine.set(mig=f"{MIG[0]} 3 2 2\n")
    machine.follow(MIG[0])
    machine.logs(f"GPU {MIG[0]} is not observed (GPM: Not Supported)\n")
    gpu = machine.until(bool, MIG[0])
    assert (gpu["source"], gpu["percents"], gpu["problem"]) == (None, [], "")


def test_a_refused_mig_device_is_not_observed_and_a_part_of_a_gpu_instance_neither(machine):
    machine.set(gpm=NO_PERMISSION, mig=f"{MIG[0]} 3 2 2\n{MIG[1]} 5 1 3\n")
    machine.follow(MIG[0], MIG[1])
    machine.logs(f"GPU {MIG[0]} is not observed (GPM: Insufficient Permissions)\n")
    machine.logs(f"GPU {MIG[1]} is not observed (GPM: other MIG devices may share its GPU instance)\n")
    assert machine.until(bool, MIG[0])["problem"] == ""


def test_a_lost_mig_device_is_unknown_until_it_answers_again(machine):
    machine.set(gpm=0, mig=f"{MIG[0]} 3 2 2\n")
    machine.follow(MIG[0])
    begun = machine.until(by("gpm"), MIG[0])
    machine.set(gpm=GPU_IS_LOST)
    lost = machine.until(lambda gpu: gpu["problem"], MIG[0])
    assert lost["problem"] == "GPU is lost"
    assert lost["since"] > begun["since"] + 0.2, "nothing is known of it now"
    machine.set(gpm=0, activity_3=50)
    machine.until(lambda gpu: not gpu["problem"] and 50 in percents(gpu), MIG[0])
    assert "(GPM: " not in machine.log.read_text()


def test_a_mig_device_whose_activity_is_not_known_for_a_time_is_missed_for_this_time_only(machine):
    machine.set(gpm=0, mig=f"{MIG[0]} 3 2 2\n")
    machine.follow(MIG[0])
    machine.until(by("gpm"), MIG[0])
    machine.set(activity_3="nan")
    machine.until(lambda gpu: gpu["unseen"] > 0.5, MIG[0])
    machine.set(activity_3=7)
    gpu = machine.until(lambda gpu: 7 in percents(gpu), MIG[0])
    assert (gpu["source"], gpu["problem"], percents(gpu)) == ("gpm", "", {0.0, 7})


def test_samples_are_freed(machine):
    machine.set(gpm=0)
    assert machine.run(FREED) == "2 0\n"


def test_no_more_mig_devices_are_reported_than_the_service_reads(machine):
    machine.set(mig=f"{MIG[0]} 3 2 2\n{MIG[1]} 5 1 1\n")
    assert machine.run(FEWER) == f"{GPU} {MIG[0]}\n"
