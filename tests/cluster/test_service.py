"""The service over a real cluster, hub and spawner in front: it measures by exec, and acts on what it measured.

All times of the policy are divided by FAST: 160 s of idleness and 100 s of grace are 16 and 10, the first minute is 6.
"""

import re

import pytest
from gpus import simulated
from kube_hub import KubeHub, eventually

TINY = """
c.KubeSpawner.cmd = ["sh", "-c", "trap exit TERM; python3 -m http.server 8888 & wait"]
c.KubeSpawner.gpu_grace_seconds = 60
c.GPUSpawner.gpu_cluster = {{"devices": "/dev/nvidia-simulated/GPU-*"}}
c.KubeSpawner.volumes = {{"kept": {{"name": "kept", "hostPath": {{"path": {kept!r}, "type": "Directory"}}}}}}
c.KubeSpawner.volume_mounts = {{"kept": {{"name": "kept", "mountPath": "/home/jovyan/kept"}}}}
"""
FAST = 10
IDLE_AND_GRACE_SECONDS = (160 + 100) / FAST
WAIT_SECONDS = 300
POLICIES = """
policies:
  default: {mode: enforce, lifetime: 1s-24h, idle: {below: 5%, for: 160s, sample: 80s, grace: 100s}}
"""
BUSY = "nohup python3 -c 'from gpuspawner.backends.local import busy; busy(600, percent=10)' >/dev/null 2>&1 &"
ON_STOP = """
mkdir -p ~/.gpuspawner
echo 'echo "$GPUSPAWNER_END_REASON in $(hostname):"; cat ~/"$GPUSPAWNER_NOTICE"' >~/.gpuspawner/on-stop
"""
TRAINS = """
cd ~ && cat >train.py <<'END'
import os, pathlib, signal, sys, time

home, step, noticed_at = pathlib.Path.home(), 0, 0


def save(*_):
    time.sleep(2)  # a checkpoint takes its time
    (home / "kept" / "saved").write_text(f"step {step}, noticed at step {noticed_at}")
    sys.exit()


signal.signal(signal.SIGTERM, save)
while True:
    step += 1
    noticed_at = noticed_at or ((home / os.environ["GPUSPAWNER_NOTICE"]).exists() and step)
    time.sleep(0.1)
END
nohup python3 train.py >/dev/null 2>&1 &
"""
"""What catches SIGTERM, in a session of its own as in a terminal: its file is on the home's volume."""
ONE_BUSY = BUSY.replace("nohup", "export GPUSPAWNER_GPUS=${GPUSPAWNER_GPUS%%,*}; nohup")


@pytest.fixture(scope="module")
def gpus(one_machine):
    with simulated(one_machine, 4) as gpus:
        yield gpus


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    folder.chmod(0o777)  # the image's own user writes there
    for above in folder.parents[:2]:
        above.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def hub(one_machine, gpus, kept, tmp_path_factory):
    with one_machine.namespace() as namespace:
        folder, extra = tmp_path_factory.mktemp("hub"), TINY.format(kept=str(kept))
        hub = KubeHub(folder, cluster=one_machine, namespace=namespace, extra=extra, fast=FAST)
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


def test_promise_4_only_what_is_known_to_be_idle_is_reclaimed_and_its_programs_save_first(hub, kept):
    leases = {}
    for user, count, script in (("busy", 1, BUSY), ("half", 2, ONE_BUSY), ("idle", 1, ON_STOP + TRAINS)):
        leases[user] = up(hub, user, count)
        run(hub, user, script)
    warned = eventually(lambda: hub.lease("idle")["warning"], WAIT_SECONDS, "idle's user is warned")
    assert warned["kind"] == "idle"
    pod = hub.pod("idle").metadata.name
    hub.until_ended("idle", "idle", WAIT_SECONDS)
    eventually(lambda: hub.pod("idle") is None, WAIT_SECONDS, "idle's pod is gone")
    assert hub.last_end("idle")["id"] == leases["idle"]["id"]
    page = hub.login("idle").get(f"{hub.url}/services/gpu/workspaces/{leases['idle']['id']}", timeout=60).text
    assert f"idle in {pod}:" in page, "what its user wrote ran in its pod before the end"
    assert "{&#34;ends_at&#34;: " in page, "with the notice that it could read"
    saved = re.fullmatch(r"step (\d+), noticed at step (\d+)", (kept / "saved").read_text())
    assert 0 < int(saved[2]) < int(saved[1]), "it knew before, and saved when it was asked to end"
    for user, percents in (("busy", [10]), ("half", [0, 10])):
        lease = hub.lease(user)
        assert (lease["id"], lease["phase"]) == (leases[user]["id"], "running")
        assert sorted(gpu["utilization_percent"] for gpu in lease["gpus"]) == percents
        hub.stop(user)
        hub.until_ended(user, "stopped", WAIT_SECONDS)


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
    tool = gpus.folder / "nvidia-smi"
    whole = tool.read_text()
    tool.write_text(f"#!/bin/sh\n{script}\n")  # in place: it is mounted into the pod
    try:
        seen = eventually(
            lambda: problem in hub.lease("broken")["gpus"][0]["problem"], WAIT_SECONDS, "why it is not read"
        )
        assert seen
        eventually(lambda: unread_seconds(hub, lease) > IDLE_AND_GRACE_SECONDS, WAIT_SECONDS, "idle, it would be gone")
        assert (hub.lease("broken")["id"], hub.lease("broken")["phase"]) == (lease["id"], "running")
    finally:
        tool.write_text(whole)
    eventually(lambda: hub.lease("broken")["gpus"][0]["state"] == "idle", WAIT_SECONDS, "it is measured again")
    hub.stop("broken")
    eventually(lambda: hub.pod("broken") is None, WAIT_SECONDS, "its pod is gone")
