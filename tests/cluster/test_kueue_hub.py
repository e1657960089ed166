"""A real hub whose workspaces are pods that Kueue admits: what it lends is taken back with notice, and given again."""

import json

import pytest
from gpus import simulated
from kube_hub import KubeHub, eventually

from tools.cluster.kueue import Kueue
from tools.cluster.settings import NODE

pytestmark = pytest.mark.slow

API, RESOURCE = "kueue.x-k8s.io/v1beta2", "nvidia.com/gpu"
HOST = "kubernetes.io/hostname"
WAIT_SECONDS = 300
POLICY = "mode: observe, preemption: {grace: 8s, protected: 0s}"
CATALOG = """
scheduler:
  kueue: {queue: ours, users: {carol: theirs}}
"""


def objects(namespace):
    """One flavor, this node's, with a topology; two queues in a cohort with a GPU each; and the way to them."""
    flavor = {"nodeLabels": {"kubernetes.io/os": "linux"}, "topologyName": "nodes"}
    found = [
        {"kind": "Topology", "metadata": {"name": "nodes"}, "spec": {"levels": [{"nodeLabel": HOST}]}},
        {"kind": "ResourceFlavor", "metadata": {"name": "here"}, "spec": flavor},
    ]
    quota = {"name": "here", "resources": [{"name": RESOURCE, "nominalQuota": 1}]}
    for name in ("ours", "theirs"):
        spec = {
            "cohortName": "all",
            "namespaceSelector": {},
            "preemption": {"reclaimWithinCohort": "Any"},
            "resourceGroups": [{"coveredResources": [RESOURCE], "flavors": [quota]}],
        }
        found.append({"kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec})
        local = {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterQueue": name}}
        found.append({"kind": "LocalQueue", **local})
    return [{"apiVersion": API, **one} for one in found]


@pytest.fixture
def hub(one_machine, tmp_path_factory):
    kueue = Kueue(one_machine.own)
    kueue.start()
    with simulated(one_machine, 2), one_machine.namespace() as namespace:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects(namespace)}
        one_machine.own.kubectl("apply", "-f", "-", given=json.dumps(listed))
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace)
        hub.catalog.write_text(hub.catalog.read_text().replace("mode: observe", POLICY) + CATALOG)
        try:
            yield hub.start()
        finally:
            hub.close()
            kueue.stop()


def test_borrowed_gpus_are_taken_back_with_notice_and_return(hub):
    asked = {"template": "lab", "gpu": "a100", "count": 1}
    for user in ("alice", "bob"):
        hub.add_user(user)
        hub.begin(user, **asked)
        hub.until(user, "running", WAIT_SECONDS)
    for user in ("alice", "bob"):  # both fit on the node only where Kueue counts neither of them twice
        assert hub.pod(user).spec.node_selector == {HOST: NODE, "kubernetes.io/os": "linux"}
    before = {user: hub.lease(user) for user in ("alice", "bob")}
    hub.add_user("carol")
    hub.begin("carol", **asked)
    says = eventually(lambda: hub.lease("carol")["queue"]["sentence"], WAIT_SECONDS, "why she waits is told")
    assert "Kueue" in says, says
    assert hub.pod("carol") is None, "no pod is made before Kueue admits it"

    def warned():
        return next((user for user in before if hub.lease(user)["warning"]), None)

    victim = eventually(warned, WAIT_SECONDS, "one of them is warned")
    warning = hub.lease(victim)["warning"]
    assert "their owners need them back" in warning["text"], warning
    assert hub.until_ended(victim, "made room", WAIT_SECONDS)["end"]["at"] >= warning["ends_at"] - 1
    hub.until("carol", "running", WAIT_SECONDS)
    (other,) = before.keys() - {victim}
    assert hub.lease(other)["id"] == before[other]["id"], "the other goes on"
    assert hub.lease(victim)["asked_at"] == before[victim]["asked_at"], "it keeps its place"
    assert hub.pod(victim) is None
    hub.stop("carol")
    hub.until(victim, "running", WAIT_SECONDS)
    assert hub.pod(victim).status.phase == "Running"
