"""A batch scheduler that owns the queue decides for pods of a real cluster: the reference server, by the contract."""

import pytest
from batch import NAME, Batch
from gpus import simulated
from kube_hub import KubeHub, eventually

from tools.cluster.settings import NODE

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300
INVENTORY = """
clusters:
  - {{name: here, near: true, price: {{a100: 2.0}}, nodes: {{{node}: {{a100: 2}}}}}}
"""


@pytest.fixture
def batch(one_machine, tmp_path):
    with simulated(one_machine, 2):
        batch = Batch(tmp_path, INVENTORY.format(node=NODE))
        batch.start()
        yield batch
        batch.kill()


@pytest.fixture
def hub(one_machine, batch, tmp_path_factory):
    with one_machine.namespace() as namespace:
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace)
        named = batch.named(f"http://127.0.0.1:{hub.service_port}")
        hub.catalog.write_text(hub.catalog.read_text() + named)
        with hub:
            yield hub


def test_its_grants_are_pods_and_training_takes_them_after_notice_and_gives_them_back(hub, batch):
    asked = {"template": "lab", "gpu": "a100", "count": 1}
    for user in ("alice", "bob", "carol"):
        hub.add_user(user)
        hub.begin(user, **asked)
        if user != "carol":
            hub.until(user, "running", WAIT_SECONDS)
    alice = hub.lease("alice")
    eventually(lambda: f"{NAME} says" in hub.lease("carol")["queue"]["sentence"], WAIT_SECONDS, "its words are shown")
    assert hub.pod("carol") is None, "no pod is made before it grants"

    batch.train(id="llm", kind="a100", count=2, lasts_seconds=20)
    warned = eventually(lambda: hub.lease("alice")["warning"], WAIT_SECONDS, "alice is warned")
    assert (warned["kind"], batch.states(hub)[alice["id"]]["preemption"]["words"] in warned["text"]) == ("claim", True)
    for user in ("alice", "bob"):
        assert hub.until_ended(user, "made room", WAIT_SECONDS)["end"]["at"] >= warned["ends_at"] - 1
        eventually(lambda user=user: hub.pod(user) is None, WAIT_SECONDS, "its pod is gone")
    assert hub.lease("alice")["asked_at"] == alice["asked_at"], "it keeps its place"
    hub.until("alice", "running", WAIT_SECONDS)
    assert hub.pod("alice").status.phase == "Running", "the training is over: it has a pod again"
