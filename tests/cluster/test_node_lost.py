"""A node is lost: its workspaces keep their leases until the node is known to be gone, and then come back."""

import os
import signal

import pytest
from ends import SERVER
from fake_nodes import fake_nodes
from gpus import simulated
from kube_hub import KubeHub, eventually

from tools.cluster.settings import NODE

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300
"""Kubernetes itself calls a node lost after 50 s."""
EXTRA = f"""
c.KubeSpawner.cmd = ["python3", "-c", {SERVER!r}]
lost = {{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}}
c.KubeSpawner.tolerations = [{{**lost, "tolerationSeconds": 5}}]  # Kubernetes' own is 300
"""


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    # If all nodes are lost, Kubernetes blames its own network and evicts nothing. So one node stays.
    with (
        fake_nodes(one_machine, 1, gpus=0, labels={}),
        simulated(one_machine, 2),
        one_machine.namespace() as namespace,
    ):
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=EXTRA)
        hub.catalog.write_text(hub.catalog.read_text().replace("mode: observe", "mode: observe, idle: {sample: 8s}"))
        with hub:
            yield hub


@pytest.fixture
def silence(one_machine):
    """Freeze the node's kubelet. Return a function that continues it; the end of the test does so too."""
    kubelet = one_machine.own.processes["kubelet"]

    def go_on():
        os.kill(kubelet, signal.SIGCONT)

    def stop():
        os.kill(kubelet, signal.SIGSTOP)
        return go_on

    yield stop
    go_on()
    eventually(lambda: ready(one_machine), WAIT_SECONDS, "the node is ready again")


def ready(cluster):
    """Return whether Kubernetes gets heartbeats of the node and schedules pods on it."""
    node = cluster.core.read_node(NODE)
    heard = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)
    return heard and not node.spec.taints


def device(hub, user):
    """The GPU that a user's workspace sees."""
    code, printed, said = hub.cluster.run_in(hub.namespace, hub.pod(user).metadata.name, "nvidia-smi", "-L")
    assert code == 0, said
    return printed


def test_promise_1_the_workspace_of_a_lost_node_is_told_held_and_doubled_nowhere(hub, one_machine, silence):
    def read():
        return browser.get(f"{hub.url}/services/gpu/workspaces/{lease['id']}", timeout=60).text

    hub.add_user("alice", "bob")
    browser = hub.login("alice")
    hub.begin("alice", template="lab", gpu="a100", count=1)
    lease = hub.until("alice", "running", WAIT_SECONDS)
    pod = hub.pod("alice")
    go_on = silence()
    eventually(lambda: not ready(one_machine), WAIT_SECONDS, "Kubernetes misses the node")
    eventually(lambda: hub.gpu("/offers")["offers"][0]["free"] == 0, WAIT_SECONDS, "the other GPU is offered no more")
    hub.begin("bob", template="lab", gpu="a100", count=1)
    hub.until("bob", "queued", WAIT_SECONDS)
    eventually(lambda: "Its node was lost or taken out of service." in read(), WAIT_SECONDS, "alice reads of it")
    assert "It returns to the queue before later requests of its priority, and starts again by itself." in read()
    held = "may not answer. Nobody else gets its GPUs before it is gone."
    eventually(lambda: held in read(), WAIT_SECONDS, "alice reads that it is held")
    eventually(lambda: f"its node {NODE} is not ready" in read(), WAIT_SECONDS, "alice reads why nothing is measured")
    assert (hub.lease("alice")["id"], hub.lease("alice")["phase"]) == (lease["id"], "running"), "unseen is not gone"
    assert hub.pod("alice").metadata.uid == pod.metadata.uid
    assert hub.lease("bob")["phase"] in {"queued", "parked"}
    assert hub.pod("bob") is None
    go_on()
    end = hub.until_ended("alice", "preempted", WAIT_SECONDS)
    assert (end["id"], end["end"]["by"]) == (lease["id"], "cluster")
    assert "Its node was lost or taken out of service." in end["end"]["message"]
    again = hub.until("alice", "running", WAIT_SECONDS)
    assert (again["id"] != lease["id"], again["asked_at"]) == (True, lease["asked_at"])
    hub.until("bob", "running", WAIT_SECONDS)
    assert hub.pod("alice").metadata.uid != pod.metadata.uid
    assert len(hub.cluster.core.list_namespaced_pod(hub.namespace).items) == len(hub.workspaces()) == 2
    assert device(hub, "alice") != device(hub, "bob")
    for user in ("alice", "bob"):
        hub.stop(user)
        hub.until_ended(user, "stopped", WAIT_SECONDS)
