"""A real hub whose workspaces are pods in a queue of Volcano itself: started, waiting with a reason, evicted."""

import json

import pytest
from ends import SERVER
from gpus import simulated
from kube_hub import KubeHub, eventually
from kubernetes import client

from gpuspawner.schedulers.pod_queues import NOT_TAKEN
from tools.cluster.build import is_built
from tools.cluster.recipes import VOLCANO
from tools.cluster.volcano import TAKES_ALL, Volcano

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not is_built(VOLCANO), reason="Volcano is not built here: python -m tools.cluster build-all builds it"
    ),
]

QUEUE, RESOURCE = "workspaces", "nvidia.com/gpu"
GROUP, VERSION = "scheduling.volcano.sh", "v1beta1"
QUEUE_NAME = f"{GROUP}/queue-name"
WAIT_SECONDS = 300
GRACE_SECONDS = 15
POD_SECONDS = 20
EXTRA = f"""
c.KubeSpawner.cmd = ["python3", "-c", {SERVER!r}, "stays"]
c.GPUSpawner.gpu_grace_seconds = {GRACE_SECONDS}
"""
CATALOG = f"""
scheduler:
  volcano: {{queue: {QUEUE}, wait: {POD_SECONDS}s}}
"""


@pytest.fixture(scope="module")
def volcano(one_machine):
    volcano = Volcano(one_machine.own)
    volcano.start()
    yield volcano
    volcano.stop()


@pytest.fixture(scope="module")
def hub(one_machine, volcano, tmp_path_factory):
    queue = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Queue", "metadata": {"name": QUEUE}, "spec": {"weight": 1}}
    with simulated(one_machine, 2), one_machine.namespace() as namespace:
        one_machine.own.kubectl("apply", "-f", "-", given=json.dumps(queue))
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=EXTRA)
        hub.catalog.write_text(hub.catalog.read_text() + CATALOG)
        with hub:
            yield hub


def begin(hub, user, count):
    hub.add_user(user)
    hub.begin(user, template="lab", gpu="a100", count=count)


def end(hub, user):
    hub.stop(user)
    hub.until_ended(user, "stopped", WAIT_SECONDS)
    eventually(lambda: hub.pod(user) is None, WAIT_SECONDS, f"the pod of {user} is gone")


def group_of(hub, pod):
    """The PodGroup that Volcano made of a pod."""
    name = pod.metadata.annotations["scheduling.k8s.io/group-name"]
    objects = client.CustomObjectsApi(hub.cluster.api)
    return objects.get_namespaced_custom_object(GROUP, VERSION, hub.namespace, "podgroups", name)


def test_a_workspace_starts_in_its_queue_on_the_gpus_that_volcano_gives(hub):
    begin(hub, "alice", 2)
    lease = hub.until("alice", "running", WAIT_SECONDS)
    pod = hub.pod("alice")
    assert (pod.spec.scheduler_name, group_of(hub, pod)["spec"]["queue"]) == ("volcano", QUEUE)
    assert [gpu["id"] for gpu in lease["gpus"]] == [f"{pod.spec.node_name}/{RESOURCE}/{n}" for n in range(2)]
    end(hub, "alice")


def test_a_pod_without_a_gpu_waits_with_the_reason_and_returns_to_the_queue_after_its_time(hub):
    begin(hub, "alice", 1)
    hub.until("alice", "running", WAIT_SECONDS)
    begin(hub, "bob", 2)
    waits = f"it waits in Volcano's queue {QUEUE}. {NOT_TAKEN}"
    eventually(lambda: waits in hub.lease("bob")["words"], WAIT_SECONDS, "why it waits is told")
    first = hub.pod("bob")
    told = hub.first_steps("bob", f"It waits in Volcano's queue {QUEUE}.")
    assert f"It waits in Volcano's queue {QUEUE}." in told
    asked_at = hub.lease("bob")["asked_at"]

    def put_back():
        return hub.audit(hub.lease("bob")["id"], "requeued")

    (line, *_) = eventually(put_back, WAIT_SECONDS, "its time there is over")
    assert f"It waited {POD_SECONDS} s in Volcano's queue, and is put into it again" in json.dumps(line), line

    def again():
        pod = hub.pod("bob")
        return pod is not None and pod.metadata.uid != first.metadata.uid

    eventually(again, WAIT_SECONDS, "another pod of it waits")
    end(hub, "alice")
    lease = hub.until("bob", "running", WAIT_SECONDS)
    assert lease["asked_at"] == asked_at, "its place is kept"
    end(hub, "bob")


def test_a_workspace_evicted_by_volcano_is_notified_and_returns_to_its_place(hub, volcano):
    volcano.configure(TAKES_ALL)
    begin(hub, "carol", 2)
    lease = hub.until("carol", "running", WAIT_SECONDS)
    scheduling, core = client.SchedulingV1Api(hub.cluster.api), hub.cluster.core
    scheduling.create_priority_class({"metadata": {"name": hub.namespace}, "value": 1000})
    try:
        how = {"schedulerName": "volcano", "priorityClassName": hub.namespace, "annotations": {QUEUE_NAME: QUEUE}}
        hub.cluster.start_pod(hub.namespace, "train", ["sleep", "3600"], {RESOURCE: "2"}, wait=False, **how)
        warning = eventually(lambda: hub.lease("carol")["warning"], WAIT_SECONDS, "she is told while hers still runs")
        assert warning["text"].startswith("The cluster needed its GPU for work with a higher priority."), warning
        ended = hub.until_ended("carol", "preempted", WAIT_SECONDS)
        assert ended["id"] == lease["id"]
        back = eventually(lambda: hub.lease("carol"), WAIT_SECONDS, "she is back in the queue")
        assert back["asked_at"] == lease["asked_at"]
        hub.cluster.wait_for_phase(hub.namespace, "train", "Running")
        core.delete_namespaced_pod("train", hub.namespace, grace_period_seconds=0)
        assert hub.until("carol", "running", WAIT_SECONDS)["id"] == back["id"]
    finally:
        scheduling.delete_priority_class(hub.namespace)
