"""Spawners of other packages below the mixin: DockerSpawner by its API, SystemdSpawner by its command line."""

import os
import shlex
import sys
from pathlib import Path

import pytest
import systemd
from docker_daemon import Daemon
from harness.hub import TINY, eventually

DOCKER = f"""
c.JupyterHub.spawner_class = "docker"
c.DockerSpawner.image = "lab:1"
c.DockerSpawner.cmd = [{sys.executable!r}, {str(TINY)!r}]
c.DockerSpawner.remove = True
c.DockerSpawner.extra_host_config = {{"runtime": "nvidia"}}
c.DockerSpawner.env_keep = []
"""
SYSTEMD = """
import systemdspawner.systemd
systemdspawner.systemd.RUN_ROOT = {folder!r}
c.JupyterHub.spawner_class = "systemd"
c.SystemdSpawner.cmd = [{python!r}, {tiny!r}]
c.SystemdSpawner.username_template = "root"
c.SystemdSpawner.user_workingdir = {folder!r}
c.SystemdSpawner.unit_name_template = "jupyter-{{USERNAME}}"
"""


@pytest.fixture(scope="module")
def daemon():
    made = Daemon()
    yield made
    made.close()


@pytest.fixture
def hub(shared_hub, daemon):
    """A hub of containers, with a user."""
    shared = shared_hub(extra=DOCKER, environment_of_hub={"DOCKER_HOST": daemon.address})
    shared.add_user("alice")
    return shared


def test_dockerspawner_starts_a_container_with_the_leases_gpu_and_ends_it(hub, daemon):
    hub.begin("alice", gpu="a100", count=1)
    lease = hub.until("alice", "running")
    container = daemon.made[-1]
    gpus = ",".join(gpu["id"] for gpu in lease["gpus"])
    assert container.environment["NVIDIA_VISIBLE_DEVICES"] == container.environment["CUDA_VISIBLE_DEVICES"] == gpus
    assert container.asked["HostConfig"]["Runtime"] == "nvidia", "the administrator's own settings stay"
    hub.stop("alice")
    hub.until_ended("alice", "stopped")
    assert not daemon.kept


def test_a_container_that_ends_by_itself_gives_its_gpu_back(hub, daemon):
    hub.begin("alice", gpu="a100", count=1)
    hub.until("alice", "running")
    daemon.made[-1].stop()
    hub.until_ended("alice", "failed")


def test_a_container_is_removed_when_its_user_stops_it_on_our_pages(hub, daemon):
    hub.begin("alice", gpu="a100", count=1)
    lease = hub.until("alice", "running")
    hub.act("alice", lease["id"], "stop")
    eventually(lambda: not daemon.kept, 60, "the container is removed")
    eventually(lambda: hub.server("alice") is None, 60, "the hub knows")


def test_without_a_docker_daemon_users_read_what_was_tried_and_the_log_has_dockers_words(hub, daemon):
    daemon.close()
    hub.begin("alice", gpu="a100", count=1)
    end = hub.until_ended("alice", "failed")["end"]
    told = f"{end['message']} {end['details']}"
    assert (
        "The hub tried to start your server by DockerSpawner, and that failed. Start it again in some minutes." in told
    )
    assert "Connection" not in told
    assert "docker" not in told
    assert "Connection refused" in hub.log.read_text()


def test_systemdspawner_starts_a_unit_with_the_leases_gpu_and_ends_it(new_hub, tmp_path):
    units = systemd.install(tmp_path / "units")
    extra = SYSTEMD.format(folder=str(units), python=sys.executable, tiny=str(TINY))
    hub = new_hub(extra=extra, environment_of_hub={"PATH": f"{units}:{os.environ['PATH']}"})
    hub.add_user("alice")
    hub.begin("alice", gpu="a100", count=1)
    lease = hub.until("alice", "running")
    arguments = (units / "jupyter-alice.arguments").read_text().splitlines()
    assert arguments[:4] == ["--unit", "jupyter-alice", "--working-directory", str(units)]
    assert arguments[-2:] == [sys.executable, str(TINY)]
    lines = shlex.split((units / "jupyter-alice.env").read_text())
    inside = dict(line.split("=", 1) for line in lines)
    assert inside["CUDA_VISIBLE_DEVICES"] == ",".join(gpu["id"] for gpu in lease["gpus"])
    assert inside["GPUSPAWNER_LEASE_ID"] == lease["id"]
    assert not any("CUDA_VISIBLE_DEVICES" in word for word in arguments), "nothing of it is on a command line"
    hub.stop("alice")
    hub.until_ended("alice", "stopped")
    assert not Path(units / "jupyter-alice.pid").exists()
