"""kube-scheduler takes a workspace's GPUs for training: its user is told first, and it comes back where it stood."""

import pytest
from ends import SERVER, told
from gpus import simulated
from kube_hub import KubeHub, eventually
from kubernetes import client

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300
GRACE_SECONDS = 20
EXTRA = f"""
c.KubeSpawner.cmd = ["python3", "-c", {SERVER!r}, "stays"]
c.GPUSpawner.gpu_grace_seconds = {GRACE_SECONDS}
"""
TEMPLATE = "  leaves: {extends: lab, policy: leaves}\n"
POLICY = "  leaves: {mode: observe, lifetime: 1s-24h, preemption: {back_in_queue: false}}\n"


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    with simulated(one_machine, 2), one_machine.namespace() as namespace:
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=EXTRA)
        text = hub.catalog.read_text().replace("policies:\n", f"{TEMPLATE}policies:\n")
        hub.catalog.write_text(text + POLICY)
        try:
            yield hub.start()
        finally:
            hub.close()


@pytest.fixture
def train(hub):
    """Return a function that starts a pod of higher priority which needs every GPU. The pod ends with the test."""
    scheduling, core = client.SchedulingV1Api(hub.cluster.api), hub.cluster.core
    scheduling.create_priority_class({"metadata": {"name": hub.namespace}, "value": 1000})

    def end():
        core.delete_collection_namespaced_pod(
            hub.namespace, field_selector="metadata.name=train", grace_period_seconds=0
        )

    def start():
        gpus = {"nvidia.com/gpu": "2"}
        hub.cluster.start_pod(
            hub.namespace, "train", ["sleep", "3600"], gpus, wait=False, priorityClassName=hub.namespace
        )
        return end

    yield start
    end()
    scheduling.delete_priority_class(hub.namespace)


def up(hub, user, **options):
    hub.add_user(user)
    hub.begin(user, gpu="a100", count=1, **options)
    return hub.until(user, "running", WAIT_SECONDS)


def until_train_runs(hub):
    def runs():
        return hub.cluster.core.read_namespaced_pod("train", hub.namespace).status.phase == "Running"

    eventually(runs, WAIT_SECONDS, "the training runs")


def test_where_its_policy_says_so_it_does_not_return(hub, train):
    lease = up(hub, "bob", template="leaves")
    train()
    warning = eventually(lambda: hub.lease("bob")["warning"], WAIT_SECONDS, "bob is told")
    assert "queue" not in warning["text"]
    ended = hub.until_ended("bob", "preempted", WAIT_SECONDS)
    assert ended["id"] == lease["id"]
    until_train_runs(hub)
    assert not [lease for lease in hub.workspaces() if lease["user"] == "bob"]
    assert "The cluster needed its GPU for work with a higher priority." in told(hub, "bob")
