"""The service over a real cluster, hub and spawner in front: it measures by exec, and acts on what it measured.

All times of the policy are divided by FAST: 160 s of idleness and 100 s of grace are 16 and 10, the first minute is 6.
"""

import contextlib

import pytest
from gpus import simulated
from kube_hub import KubeHub, eventually

pytestmark = pytest.mark.slow

TINY = """
c.KubeSpawner.cmd = ["sh", "-c", "trap exit TERM; python3 -m http.server 8888 & wait"]
c.KubeSpawner.gpu_grace_seconds = 60
"""
FAST = 10
IDLE_AND_GRACE_SECONDS = (160 + 100) / FAST
WAIT_SECONDS = 300
POLICIES = """
policies:
  default: {mode: enforce, lifetime: 1s-24h, idle: {below: 5%, for: 160s, sample: 80s, grace: 100s}}
"""


@pytest.fixture(scope="module")
def gpus(one_machine):
    with simulated(one_machine, 4) as gpus:
        yield gpus


@pytest.fixture(scope="module")
def hub(one_machine, gpus, tmp_path_factory):
    with one_machine.namespace() as namespace:
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=TINY, fast=FAST)
        catalog = hub.catalog.read_text().partition("policies:")[0] + POLICIES
        hub.catalog.write_text(catalog)
        try:
            yield hub.start()
        finally:
            hub.close()


def up(hub, user, count=1):
    hub.add_user(user)
    asked = {"template": "lab", "gpu": "a100", "count": count}
    # The hub may still be busy with the end of the one before, when its pod is gone already.
    eventually(lambda: hub.begin(user, **asked).status_code in {201, 202}, WAIT_SECONDS, "the hub takes the start")
    return hub.until(user, "running", WAIT_SECONDS)


def unread_seconds(hub, lease):
    """For how long all that was tried to read of a workspace failed."""
    times = [
        one["at"] for one in hub.gpu(f"/workspaces/{lease['id']}/readings")["readings"] if one["kind"] == "unknown"
    ]
    return times[-1] - times[0]


def run(hub, user, script):
    code, printed, said = hub.cluster.run_in(hub.namespace, hub.pod(user).metadata.name, "sh", "-c", script)
    assert code == 0, said
    return printed


def replace(tool, content):
    """Write a program in place, as it is mounted into the pod; a probe may be running it."""

    def written():
        with contextlib.suppress(OSError):
            return tool.write_bytes(content)

    eventually(written, WAIT_SECONDS, "no probe runs the program")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        pytest.param(
            "echo Driver not loaded.; exit 9", "nvidia-smi failed with exit code 9: 'Driver not loaded.'", id="fails"
        ),
        pytest.param("exec sleep 300", "the probe did not end within 20 s", id="hangs"),
    ],
)
def test_promise_4_what_cannot_be_measured_lives_and_is_reported(hub, gpus, script, problem):
    lease = up(hub, "broken")
    whole = gpus.tool.read_bytes()
    try:
        replace(gpus.tool, f"#!/bin/sh\n{script}\n".encode())
        seen = eventually(
            lambda: problem in hub.lease("broken")["gpus"][0]["problem"], WAIT_SECONDS, "why it is not read"
        )
        assert seen
        eventually(lambda: unread_seconds(hub, lease) > IDLE_AND_GRACE_SECONDS, WAIT_SECONDS, "idle, it would be gone")
        assert (hub.lease("broken")["id"], hub.lease("broken")["phase"]) == (lease["id"], "running")
    finally:
        replace(gpus.tool, whole)
    eventually(lambda: hub.lease("broken")["gpus"][0]["state"] == "idle", WAIT_SECONDS, "it is measured again")
    hub.stop("broken")
    eventually(lambda: hub.pod("broken") is None, WAIT_SECONDS, "its pod is gone")
