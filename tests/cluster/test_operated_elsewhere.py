"""`gpuspawner kube operate` with a real hub and service on a real cluster: killed at each step, and two at once."""

import os
import signal
import subprocess
import sys
import time

import pytest
import requests
import yaml
from custom import Typed, hub_with_requests, names
from gpus import simulated
from harness.hub import pick_free
from kube_hub import eventually
from nodes import ROOT, wait_for
from test_requests import WAIT_SECONDS, ask, gone, seen, until

pytestmark = pytest.mark.slow

ELSEWHERE = 'c.KubeSpawner.gpu_cluster["operated_elsewhere"] = True\n'


class Operators:
    """Processes of `gpuspawner kube operate` for one hub."""

    def __init__(self, hub):
        self.hub, self.running = hub, []
        self.look_at(hub.namespace)
        # A copy: the service's processes are found by the folder of its own.
        (hub.folder / "operator.secret").write_text((hub.folder / "gpu" / "secret").read_text())

    def look_at(self, namespace):
        """Have those that start from now on see the requests of this namespace."""
        told = {
            "namespace": self.hub.namespace,
            "kubeconfig": str(self.hub.cluster.kubeconfig),
            "custom_resources": namespace,
        }
        (self.hub.folder / "operator.yaml").write_text(yaml.safe_dump(told))

    def start(self):
        (port,) = pick_free(1)
        command = [sys.executable, "-m", "gpuspawner.cli", "kube", "operate", f"--listen=127.0.0.1:{port}"]
        command += [f"--service-url=http://{self.hub.cluster.own.host_address}:{self.hub.service_port}"]
        command += [f"--secret-file={self.hub.folder}/operator.secret", f"--cluster={self.hub.folder}/operator.yaml"]
        path = self.hub.folder / f"operator-{port}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        process.health, process.log = f"http://127.0.0.1:{port}/healthz", path
        self.running.append(process)
        return process

    def kill(self, number=signal.SIGKILL):
        process = self.running.pop(0)
        os.kill(process.pid, number)
        return process.wait(30)


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    with simulated(one_machine, 2), hub_with_requests(one_machine, tmp_path_factory.mktemp, ELSEWHERE) as hub:
        yield hub


@pytest.fixture
def kubectl(one_machine, hub):
    return Typed(one_machine, hub.namespace)


@pytest.fixture
def operators(hub):
    operators = Operators(hub)
    yield operators
    while operators.running:
        operators.kill()


def test_killed_at_each_step_it_converges_and_without_it_nothing_is_asked_for(hub, kubectl, operators):
    hub.add_user("kay")
    ask(kubectl, "kay", user="kay", template="lab", gpu="a100", count=1)
    uid = seen(kubectl, "kay")["metadata"]["uid"].replace("-", "")

    def another():
        operators.kill()
        operators.start()

    first = operators.start()
    wait_for(lambda: seen(kubectl, "kay")["metadata"].get("finalizers"), "it is held", WAIT_SECONDS)
    assert requests.get(first.health, timeout=20).status_code == 200
    another()
    wait_for(lambda: seen(kubectl, "kay").get("status", {}).get("lease") == uid, "it is asked for", WAIT_SECONDS)
    another()
    until(kubectl, "kay", "Running")
    assert [one["id"] for one in hub.workspaces(ended=50) if one["user"] == "kay"] == [uid], "it was asked for once"
    hub.begin("kay", "api", template="cpu")
    listed = wait_for(lambda: [name for name in names(kubectl) if name.startswith("ws-")], "the other is listed")
    another()
    kubectl("patch", "gvm", "kay", "--type=merge", '--patch={"spec":{"lifetime":"10h"}}')
    wait_for(
        lambda: [one for one in seen(kubectl, "kay")["status"]["conditions"] if one["type"] == "LifetimeExtended"],
        "what came of it",
        WAIT_SECONDS,
    )
    hub.kill_service()
    kubectl("delete", "gvm", "kay", "--wait=false")
    another()
    gone(kubectl, "kay")
    assert hub.until_ended("kay", "stopped", WAIT_SECONDS)["id"] == uid
    assert operators.kill(signal.SIGTERM) == 0, "asked to end, it ends"
    kubectl("delete", "gvm", *listed, "--wait=false")
    ask(kubectl, "later", user="kay", template="cpu")
    operators.start()
    until(kubectl, "later", "Running")
    second = operators.start()
    eventually(lambda: "leads. This one waits" in second.log.read_text(), WAIT_SECONDS, "one of two leads")
    operators.kill()
    kubectl("delete", "gvm", "--all", "--wait=false")
    wait_for(lambda: not names(kubectl), "the other one has taken over", WAIT_SECONDS)
    assert not hub.workspaces()


def test_a_namespace_that_is_deleted_with_its_requests_goes_and_stops_nothing(hub, kubectl, operators, one_machine):
    hub.add_user("nora", "olaf")
    going = f"{hub.namespace}-going"
    kubectl("create", "namespace", going)
    theirs = Typed(one_machine, going)
    operators.look_at(going)
    operator = operators.start()
    ask(theirs, "nora", user="nora", template="cpu")
    hub.begin("olaf", template="cpu")
    hub.until("olaf", "running", WAIT_SECONDS)
    until(theirs, "nora", "Running")
    of_olaf = f"ws-{hub.lease('olaf')['id'][:12]}"
    wait_for(lambda: of_olaf in names(theirs), "the other one is listed", WAIT_SECONDS)
    before = {user: (hub.lease(user)["id"], hub.pod(user).metadata.uid) for user in ("nora", "olaf")}
    assert all(seen(theirs, name)["metadata"]["finalizers"] for name in ("nora", of_olaf))
    kubectl("delete", "namespace", going, "--timeout=120s")  # it waits: finalizers hold nothing
    time.sleep(10)  # five rounds without it
    assert {user: (hub.lease(user)["id"], hub.pod(user).metadata.uid) for user in before} == before
    assert {hub.lease(user)["phase"] for user in before} == {"running"}
    assert requests.get(operator.health, timeout=20).status_code == 200
    for user in before:
        hub.stop(user)
        hub.until_ended(user, "stopped", WAIT_SECONDS)
