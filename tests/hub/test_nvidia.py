"""A real hub on NVIDIA's simulated driver: idleness, a lost GPU, a driver that is gone, and a start on each machine."""

import json
import os
import shlex
import subprocess
import sys

import pytest
import requests
from harness.hub import RealHub, eventually
from harness.nvidia import machines, simulated_driver, with_devices

from gpuspawner.catalog import load_catalog

CATALOG = """
version: 1
gpus: {a100: {title: A100, match: NVIDIA A100-*, memory: 40GiB}}
templates: {lab: {gpus: {a100: 1-2}}}
policies:
  default:
    mode: enforce
    idle: {below: 5%, for: 2m, sample: 40s, grace: 100s}
"""
FAST = 20
"""Two minutes of idleness and 100 s of grace are 6 s and 5 s."""


@pytest.fixture
def a_hub(tmp_path):
    """Make a hub whose machine has GPUs of a simulated driver, with device files that its processes can hold open."""
    started = []

    def make(driver, catalog, **settings):
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {shlex.join(with_devices(driver, [sys.executable]))} "$@"\n')
        python.chmod(0o755)
        path = f"{driver.programs}{os.pathsep}{os.environ['PATH']}"
        hub = RealHub(tmp_path, python=str(python), real=True, environment_of_hub={"PATH": path}, **settings)
        hub.catalog.write_text(catalog)
        started.append(hub)
        return hub.start()

    yield make
    for hub in started:
        hub.close()


def until_idle_is(hub, user, state, seconds=60):
    """Wait until a workspace is judged so; return what is said of it."""
    return eventually(
        lambda: (idle := hub.lease(user)["idle"]) and idle["state"] == state and idle, seconds, f"{user} is {state}"
    )


def test_a_workspace_is_busy_then_unknown_while_its_gpu_is_lost_then_idle_warned_and_stopped(tmp_path, a_hub):
    driver = simulated_driver(tmp_path / "driver", gpus=2)
    hub = a_hub(driver, CATALOG, fast=FAST)
    hub.add_user("ann")
    driver.set_utilization(64)
    hub.begin("ann")
    hub.until("ann", "running")
    assert "at 64 %" in until_idle_is(hub, "ann", "busy")["because"]

    (gpu,) = hub.lease("ann")["gpus"]
    index = driver.uuids.index(gpu["id"])
    driver.fail("lost", gpu=index, xid=79)
    unknown = until_idle_is(hub, "ann", "unknown")
    assert "[GPU is lost]" in unknown["because"]
    assert unknown["idle_seconds"] == 0
    eventually(lambda: "its GPU is unhealthy" in json.dumps(hub.lease("ann")["warning"]), 30, "its user is told")

    driver.reset()
    driver.set_utilization(0)
    warned = hub.until("ann", "reclaiming")
    assert "at 0 %" in warned["idle"]["because"]
    library = driver.libraries / "libnvidia-ml.so.1"
    library.rename(library.with_name("away"))
    paused = until_idle_is(hub, "ann", "grace_paused")
    assert "find libnvidia-ml.so" in paused["because"], "without its driver the grace does not pass"
    library.with_name("away").rename(library)
    hub.until_ended("ann", "idle")


def test_a_lost_gpu_and_a_driver_that_is_gone_are_not_granted_and_the_administrator_reads_why(tmp_path, a_hub):
    driver = simulated_driver(tmp_path / "driver", gpus=2)
    hub = a_hub(driver, CATALOG)
    hub.add_user("ann", "bob")
    hub.begin("ann")
    (gpu,) = hub.until("ann", "running")["gpus"]
    other = 1 - driver.uuids.index(gpu["id"])
    driver.fail("fallen_off_bus", gpu=other)
    admin = hub.login("admin")

    def console():
        pages = ("console/", "console/gpus")
        return "".join(admin.get(f"{hub.url}/services/gpu/{page}", timeout=20).text for page in pages)

    eventually(lambda: "the driver has lost it" in console(), 30, "the console says why")
    hub.begin("bob")
    hub.until("bob", "queued")
    library = driver.libraries / "libnvidia-ml.so.1"
    library.rename(library.with_name("away"))
    eventually(lambda: "couldn" in console() and "find libnvidia-ml.so" in console(), 30, "the console says it")
    assert hub.lease("ann")["phase"] == "running", "nothing is concluded of a driver that is gone"
    library.with_name("away").rename(library)
    driver.reset()
    assert [one["id"] for one in hub.until("bob", "running")["gpus"]] == [driver.uuids[other]]


def test_several_gpus_are_of_one_numa_node_although_others_come_first(tmp_path, a_hub):
    driver = simulated_driver(tmp_path / "driver", gpus=8)  # all linked, four on each NUMA node
    catalog = CATALOG.replace("lab: {gpus: {a100: 1-2}}", "lab: {gpus: {a100: 1-8}, topology: require}")
    hub = a_hub(driver, catalog)
    hub.add_user("ann", "bob")
    hub.begin("bob", count=3)
    hub.until("bob", "running")
    hub.begin("ann", count=2)
    granted = [driver.uuids.index(gpu["id"]) for gpu in hub.until("ann", "running")["gpus"]]
    assert granted == [4, 5], "GPU 3 is free, but alone on its NUMA node"


def test_a_workspace_starts_with_the_catalog_that_init_writes_on_each_machine(tmp_path, a_hub):
    first, *others = machines()
    driver = simulated_driver(tmp_path / "driver", first, gpus=2)
    hub = a_hub(driver, written_by_init(driver))
    hub.add_user("ann")
    start_and_end(hub, driver)
    for profile in others:
        driver = simulated_driver(tmp_path / "driver", profile, gpus=2)
        new = hub.catalog.with_suffix(".new")
        new.write_text(written_by_init(driver))
        new.replace(hub.catalog)  # the service reads no half of it
        start_and_end(hub, driver)


def written_by_init(driver):
    command = [sys.executable, "-m", "gpuspawner.cli", "server", "init", "-"]
    return subprocess.run(command, env=driver.environment(), capture_output=True, text=True, check=True).stdout


def start_and_end(hub, driver):
    """Start a workspace with both GPUs of the catalog's kind once they are offered, and end it."""
    (kind,) = load_catalog(hub.catalog).gpus
    headers = {"Authorization": f"token {hub.api('POST', '/users/ann/tokens', {}).json()['token']}"}

    def free():
        answer = requests.get(f"{hub.url}/services/gpu/api/v1/offers", headers=headers, timeout=20)
        return {one["kind"]: one["free"] for one in answer.json()["offers"]}

    eventually(lambda: free() == {kind: 2}, 60, f"two {kind} are offered")
    answer = hub.begin("ann", template="gpu", gpu=kind, count=2)
    assert answer.status_code in {201, 202}, answer.text
    lease = hub.until("ann", "running")
    assert {gpu["id"] for gpu in lease["gpus"]} == set(driver.uuids)
    assert set(hub.environment(lease["id"])["CUDA_VISIBLE_DEVICES"].split(",")) == set(driver.uuids)
    hub.end(lease["id"])
    eventually(lambda: not hub.workspaces() and hub.server("ann") is None, 60, "it has ended, and the hub knows")
