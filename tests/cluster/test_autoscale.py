"""A pool scaled to zero: a pod waits for its node, which the test starts as an autoscaler would; on a real cluster."""

import pytest
from gpus import simulated
from kube_hub import KubeHub, eventually

pytestmark = pytest.mark.slow

CATALOG = """
version: 1
gpus:
  a100:
    title: A100
    match: NVIDIA-A100-SXM4-40GB
    memory: 80GiB
    autoscale: {max: 2, each: 2, start: START}
templates:
  lab:
    title: Lab
    gpus: {a100: 1-8}
    bounds: {cpu: 0.1-2, memory: 128MiB-2GiB, lifetime: 1s-24h}
    default: {cpu: 0.2, memory: 512MiB, lifetime: 8h}
policies:
  default: {mode: observe, lifetime: 1s-24h}
"""
LABEL = "nvidia.com/gpu.product"


@pytest.fixture
def a_hub(one_machine, namespace, tmp_path):
    hubs = []

    def make(start, **settings):
        extra = 'c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]'
        hub = KubeHub(tmp_path, cluster=one_machine, namespace=namespace, extra=extra, wait=600, settings=settings)
        hub.catalog.write_text(CATALOG.replace("START", start))
        hubs.append(hub)
        return hub.start()

    yield make
    for hub in hubs:
        hub.close()


def pending(hub, user):
    """The user's pod, once kube-scheduler has found no node for it."""

    def look():
        pod = hub.pod(user)
        told = [c.reason for c in pod.status.conditions or () if c.type == "PodScheduled"] if pod else []
        return pod if told == ["Unschedulable"] else None

    return eventually(look, 300, f"{user}'s pod waits for a node")


def offer(hub):
    return hub.gpu("/offers")["offers"][0]


def test_a_node_that_is_not_there_is_offered_waited_for_and_used_once_it_is(a_hub):
    hub = a_hub("10m")
    hub.add_user("alice", "bob", "carol")
    found = eventually(lambda: offer(hub)["free"] is not None and offer(hub), 300, "the fleet is seen")
    assert (found["free"], found["total"]) == (0, 0)
    assert found["note"] == "none running, a node starts in about 10 min"
    hub.begin("alice", template="lab", gpu="a100", count=1)
    hub.begin("bob", template="lab", gpu="a100", count=1)
    for user in ("alice", "bob"):
        terms = pending(hub, user).spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
        wanted, off_spot = terms.node_selector_terms[0].match_expressions
        assert (off_spot.key, off_spot.operator) == ("karpenter.sh/capacity-type", "NotIn")
        assert (wanted.key, wanted.values) == (LABEL, ["NVIDIA-A100-SXM4-40GB"])
        assert "a node starts for it, in about 10 min" in hub.lease(user)["words"]
    hub.begin("carol", template="lab", gpu="a100", count=1)
    eventually(lambda: hub.lease("carol")["queue"], 300, "carol waits: both GPUs of the only node are promised")
    with simulated(hub.cluster, 2):
        leases = [hub.until(user, "running", 300) for user in ("alice", "bob")]
        assert {gpu["id"].split("/")[0] for lease in leases for gpu in lease["gpus"]} == {"gpu-node"}
        assert hub.lease("carol")["phase"] in {"queued", "parked"}
        for user in ("alice", "bob"):
            hub.stop(user)
            hub.until_ended(user, "stopped", 120)
        hub.until("carol", "running", 300)
        hub.stop("carol")
        hub.until_ended("carol", "stopped", 120)


def test_a_pool_that_gives_no_node_sends_back_to_the_queue_with_the_reason_and_is_tried_again(a_hub):
    hub = a_hub("2s", no_room_seconds=1.0, no_room_wait_seconds=5.0)
    hub.add_user("dora")
    eventually(lambda: offer(hub)["free"] is not None, 300, "the fleet is seen")
    hub.begin("dora", template="lab", gpu="a100", count=2)
    first = pending(hub, "dora")
    lease = hub.lease("dora")["id"]
    (told,) = eventually(lambda: hub.audit(lease, "requeued"), 300, "dora is sent back")[:1]
    assert told["why"].startswith("No node came within 4 s: 0/1 nodes are available")
    again = eventually(
        lambda: (pod := hub.pod("dora")) and pod.metadata.uid != first.metadata.uid, 300, "it is tried again"
    )
    assert again
    with simulated(hub.cluster, 2):
        assert hub.until("dora", "running", 300)["id"] == lease
        hub.stop("dora")
        hub.until_ended("dora", "stopped", 120)
