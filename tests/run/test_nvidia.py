"""NVIDIA's simulated driver as tests and `make run` start it: by NVIDIA's own nvidia-smi."""

import subprocess

import pytest
from harness.nvidia import require_files, simulated_driver, with_devices

from tools.nvidia import RELEASES, VARIABLE, SimulatedDriver, find_files, profiles
from tools.progress import StepError

ALL_VALUES = "index,uuid,utilization.gpu,memory.used,persistence_mode"


def asked(driver, *arguments, within=lambda command: command):
    command = within(["nvidia-smi", *arguments])
    return subprocess.run(command, env=driver.environment(), capture_output=True, text=True, check=False)


def rows(driver):
    told = asked(driver, f"--query-gpu={ALL_VALUES}", "--format=csv,noheader,nounits")
    return [line.split(", ") for line in told.stdout.splitlines()]


def test_without_its_folder_one_sentence_says_how_to_get_it(tmp_path):
    with pytest.raises(StepError, match=rf"is not in {tmp_path}: build it .* name its folder by {VARIABLE}\."):
        find_files({VARIABLE: str(tmp_path)})


@pytest.mark.parametrize("release", RELEASES)
def test_it_is_what_was_asked_for(tmp_path, release):
    driver = simulated_driver(tmp_path, "l40s", gpus=3, release=release)
    assert [row[:2] for row in rows(driver)] == [[str(index), uuid] for index, uuid in enumerate(driver.uuids)]
    assert f"NVIDIA-SMI {RELEASES[release].driver}" in asked(driver).stdout
    assert f"Driver Version: {RELEASES[release].driver}" in asked(driver).stdout
    assert f"CUDA Version: {RELEASES[release].cuda}" in asked(driver).stdout


def test_its_state_changes_while_it_runs(tmp_path):
    driver = simulated_driver(tmp_path, gpus=2)
    driver.set_utilization(64, gpu=1)
    driver.set_values(0, memory__used_bytes=2**30, persistence_mode="disabled")
    driver.fail("ecc_uncorrectable", gpu=0, xid=48)
    assert [row[2:] for row in rows(driver)] == [["0", "1024", "Disabled"], ["64", "0", "Enabled"]]
    driver.fail("lost", gpu=1)
    assert rows(driver)[1][2] == "[GPU is lost]"
    driver.reset()
    assert [row[2:] for row in rows(driver)] == [["0", "0", "Enabled"]] * 2
    driver.remove_library()
    assert "couldn't find libnvidia-ml.so" in asked(driver).stdout
    with pytest.raises(StepError, match=r"util --gpu 2 5: --gpu index 2 out of range"):
        driver.set_utilization(5, gpu=2)


def test_device_files_can_be_held_open_and_the_machines_own_stay(tmp_path):
    driver = simulated_driver(tmp_path, gpus=2)
    script = "exec 3</dev/nvidia1; ls -l /proc/$$/fd; cat /proc/driver/nvidia/gpus/*/information; ls /dev/nvidia*"
    told = subprocess.run(with_devices(driver, ["sh", "-c", script]), capture_output=True, text=True, check=True).stdout
    assert "3 -> /dev/nvidia1" in told
    assert told.count("GPU UUID") == 2
    assert f"GPU UUID: \t {driver.uuids[1]}" in told
    assert "/dev/nvidia-uvm" in told
    assert "/dev/nvidia2" not in told
    assert not subprocess.run("ls /dev/nvidia*", shell=True, capture_output=True, text=True, check=False).stdout


def test_a_machine_that_is_not_known_is_refused_with_those_that_are(tmp_path):
    files = require_files()
    with pytest.raises(StepError, match="mars is no simulated machine: choose a100, b200") as refused:
        SimulatedDriver.on_machine(files, tmp_path, "mars")
    assert all(name in str(refused.value) for name in profiles(files))
