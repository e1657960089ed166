"""NVIDIA's simulated driver for tests. Without its folder they are skipped."""

from functools import cache

import pytest

from tools.nvidia import RELEASES, SimulatedDriver, ensure_nvidia_smi, find_files, profiles
from tools.progress import StepError


def require_files(suite="bookworm"):
    """Return the folder of NVIDIA's programs, or skip the test and say how to get them."""
    try:
        files = find_files()
        ensure_nvidia_smi(files, suite)
    except StepError as error:
        pytest.skip(str(error))
    return files


def simulated_driver(folder, profile="a100", gpus=None, release="550", **system):
    """Return a driver for processes of this machine, or skip the test."""
    files = require_files(RELEASES[release].suite)
    return SimulatedDriver.on_machine(files, folder, profile, gpus, release, **system)


@cache
def _can_show_devices(driver):
    return driver.can_show_devices()


def with_devices(driver, command):
    """Return the command so that it has the driver's device files, or skip the test where that is not allowed."""
    if not _can_show_devices(driver):
        pytest.skip("this user may not make a mount namespace, in which device files are shown: run it as root")
    return driver.with_devices(command)


def machines():
    """Return the names of all machines that can be simulated; one whose tests are skipped where there is no folder."""
    try:
        return profiles(find_files())
    except StepError:
        return ["a100"]
