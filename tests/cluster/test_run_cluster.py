"""make run-cluster, whole: hub and workspaces in pods, the GPU that the lease says, and nothing left behind."""

import contextlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests

sys.path.insert(0, str(Path(__file__).parents[1] / "run"))

from launcher import Launcher
from nodes import wait_for
from test_cluster import traces

from demo.colleagues import Hub
from demo.ports import pick_free
from tools.cluster.cluster import Cluster
from tools.cluster.gpus import why_not_nvidia
from tools.cluster.hub import ensure_hub_image

pytestmark = pytest.mark.slow

MODULE = "demo.run_cluster"
STARTS_WITHIN_SECONDS = 600  # the first run on a machine installs, and builds the images
ENDS_WITHIN_SECONDS = 120
SEE = "import subprocess; said = subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True).stdout; "
SEE += "assert said.count('A100') == 2, said"


def answers(launcher):
    with contextlib.suppress(requests.ConnectionError):
        return requests.get(f"{launcher.url}/hub/health", timeout=10).ok
    return False


@pytest.fixture
def launch(cluster, tmp_path):
    started = []

    def start(**settings):
        started.append(Launcher(tmp_path / "data", pick_free(1)[0], MODULE, **{"FAST": "0", **settings}))
        started[-1].wait_until_it_runs(STARTS_WITHIN_SECONDS)
        return started[-1]

    yield start
    for launcher in started:
        if launcher.process.poll() is None:
            launcher.end(signal.SIGTERM, ENDS_WITHIN_SECONDS)


async def test_it_starts_a_cluster_and_a_workspace_in_it_and_ctrl_c_leaves_nothing(one_machine, launch):
    launcher = launch()
    folder = launcher.data / "cluster"
    token = launcher.token_of("alice", launcher.data / "on-cluster")
    hub = Hub(launcher.url, token)
    offers = requests.get(f"{launcher.url}/services/gpu/api/v1/offers", headers=hub.headers, timeout=60).json()[
        "offers"
    ]
    (kind,) = [offer["kind"] for offer in offers if offer["kind"] != "none"]
    told = "of our own simulation" if why_not_nvidia() else "of NVIDIA's simulated driver, by NVIDIA's device plugin"
    assert told in launcher.text()
    assert await hub.start("alice", {"template": "pytorch", "gpu": kind, "count": 2})
    asked = requests.get(f"{launcher.url}/services/gpu/api/v1/workspaces", headers=hub.headers, timeout=60)
    (lease,) = asked.json()["workspaces"]
    assert len(lease["gpus"]) == 2
    assert await hub.run("alice", SEE) == "ok"
    pods = subprocess.run(
        [folder / "kubectl", "get", "pods", "--all-namespaces"], check=True, capture_output=True, text=True
    )
    assert [line.split()[1:4] for line in pods.stdout.splitlines()[1:]] == [
        ["hub", "1/1", "Running"],
        ["jupyter-alice", "1/1", "Running"],
    ]

    assert launcher.end(signal.SIGINT, ENDS_WITHIN_SECONDS) == 0
    assert "All ended, and nothing is left." in launcher.text()
    assert launcher.left() == []
    marks = (Cluster(folder).link, str(launcher.data))
    assert [line for line in traces() if any(mark in line for mark in marks)] == []
    assert list(launcher.data.iterdir()) == []


def test_on_another_cluster_it_keeps_to_a_namespace_of_its_own_and_outlives_hub_and_api_server(
    one_machine, launch, monkeypatch
):
    own = one_machine.own
    everything = ("get", "namespaces,clusterroles,clusterrolebindings,priorityclasses", "--output=name")
    before = set(own.kubectl(*everything).split())
    monkeypatch.setenv("PATH", str(own.folder), prepend=":")  # the cluster's kubectl, if the machine has no other
    launcher = launch(
        GPUSPAWNER_TEST_KUBECONFIG=str(one_machine.kubeconfig),
        GPUSPAWNER_TEST_IMAGE=one_machine.image,
        GPUSPAWNER_TEST_HUB_IMAGE=own.give_image(ensure_hub_image(own.folder)),
        KUBECONFIG="/nonexistent/kubeconfig",
    )
    made = set(own.kubectl(*everything).split()) - before
    (namespace,) = {name.partition("/")[2] for name in made if name.startswith("namespace/")}
    assert namespace.startswith("gpuspawner-run-")
    assert all(namespace in name for name in made)
    with launcher.sign_in("alice", launcher.data / "on-cluster") as session:
        assert session.get(f"{launcher.url}/hub/home").status_code == 200

    in_hub = [own.folder / "kubectl", "exec", "hub", f"--namespace={namespace}", "--", "sh", "-c"]
    # Where the proxy's id outlives its container, JupyterHub ends what has it then: here all, else as chance has it.
    stale = "for file in $(find . -name '*.pid'); do echo 1 > $file; done"
    subprocess.run([*in_hub, stale], check=True)
    kill = "kill -9 $(pgrep -f 'bin/[j]upyterhub')"
    killed = subprocess.run([*in_hub, kill], check=False, capture_output=True, text=True)  # it ends with the container
    # The code is told as long as the kubelet keeps the dead container.
    told = re.compile(r"The hub ended with code (137|unknown)\. Kubernetes starts it again")
    try:
        wait_for(lambda: told.search(launcher.text()), f"it is told, after {killed}")
    except AssertionError as error:
        raise AssertionError(launcher.text()[-3000:]) from error
    wait_for(lambda: answers(launcher), "the hub answers again")

    own.stop_process("kube-apiserver")
    try:
        wait_for(lambda: "The API server does not answer." in launcher.text(), "an outage is told")
    finally:
        own.start_process("kube-apiserver")
    wait_for(lambda: "The API server answers again." in launcher.text(), "its end is told")
    wait_for(lambda: answers(launcher), "the hub is reached again")
    assert launcher.text().count("The API server does not answer.") == 1

    token = launcher.token_of("admin", launcher.data / "on-cluster")
    headers = {"Authorization": f"token {token}"}
    shut_down = {"proxy": True, "servers": False}
    assert requests.post(f"{launcher.url}/hub/api/shutdown", headers=headers, json=shut_down, timeout=60).ok
    assert launcher.process.wait(ENDS_WITHIN_SECONDS) == 1
    assert "The hub ended with code 0; its log says why." in launcher.text()
    assert "ConfigProxy" in launcher.text(), "the end of its log is shown"
    # A busy cluster takes over a minute, after which the launcher says that it is under way.
    wait_for(lambda: not set(own.kubectl(*everything).split()) - before, "all is gone")
    assert launcher.left() == []
