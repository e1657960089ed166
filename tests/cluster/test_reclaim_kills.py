"""The service is killed at each step on the way to a reclaim and of the reclaim itself: it ends the workspace once.

All times of the policy are divided by FAST: 200 s of idleness and 150 s of grace are 20 and 15, the first minute is 6.
"""

import pytest
from ends import SERVER
from gpus import simulated
from kills import STEPS, arm, kills
from kube_hub import KubeHub, eventually

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300
FAST = 10
POLICIES = """
policies:
  default: {mode: enforce, lifetime: 1s-24h, idle: {below: 5%, for: 200s, sample: 80s, grace: 150s}}
"""


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    with simulated(one_machine, 1), one_machine.namespace() as namespace:
        hub = KubeHub(
            folder,
            cluster=one_machine,
            namespace=namespace,
            extra=f"c.KubeSpawner.cmd = ['python3', '-c', {SERVER!r}]",
            planted=kills(folder, "gpuspawner.backends.kubernetes.backend", "KubernetesBackend"),
            fast=FAST,
            settings={"stop_retry_seconds": 1},
        )
        hub.catalog.write_text(hub.catalog.read_text().partition("policies:")[0] + POLICIES)
        with hub:
            yield hub


def restarted(hub):
    """Kill the service; return alice's workspace as the next one shows it."""
    (killed,) = hub.service_pids()
    hub.kill_service()
    eventually(lambda: killed not in hub.service_pids(), WAIT_SECONDS, "the service is killed")
    return eventually(lambda: hub.lease("alice"), WAIT_SECONDS, "the service is back")


def test_promise_3_a_service_killed_at_each_step_of_a_reclaim_ends_it_once(hub):
    hub.add_user("alice")
    hub.begin("alice", template="lab", gpu="a100", count=1)
    lease = hub.until("alice", "running", WAIT_SECONDS)
    idle = eventually(lambda: hub.lease("alice")["idle"]["idle_seconds"], WAIT_SECONDS, "idleness is counted")
    assert restarted(hub)["idle"]["idle_seconds"] >= idle, "the streak is kept"
    hub.until("alice", "reclaiming", WAIT_SECONDS)
    armed = [arm(hub.folder, step) for step in STEPS]
    assert restarted(hub)["phase"] == "reclaiming", "the grace is kept"
    assert hub.until_ended("alice", "idle", WAIT_SECONDS)["id"] == lease["id"]
    assert [file.name for file in armed if file.exists()] == [], "the service was killed at each step"
    assert [line["fields"]["reason"] for line in hub.audit(lease["id"], "stop")] == ["idle"]
    assert len(hub.audit(lease["id"], "warned")) == 1
    assert hub.pod("alice") is None
    assert hub.server("alice") is None
    assert hub.gpu(f"/workspaces/{lease['id']}/readings")["readings"], "the readings behind the stop are kept"
