"""A workspace that the cluster ends: until when its server is kept, and what its user reads."""

import json
import time

import pytest
import requests
from ends import SERVER, tell, told
from kube_hub import KubeHub, eventually

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300
SCRATCH = """
c.KubeSpawner.volumes = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]
c.KubeSpawner.volume_mounts = [{"name": "scratch", "mountPath": "/scratch"}]
c.KubeSpawner.gpu_grace_seconds = 20
"""


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    extra = f"c.KubeSpawner.cmd = ['python3', '-c', {SERVER!r}, 'ends']\n{SCRATCH}"
    with one_machine.namespace() as namespace:
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=extra)
        with hub:
            yield hub


def up(hub, user, **options):
    hub.add_user(user)
    hub.begin(user, **{"template": "cpu", **options})
    return hub.until(user, "running", WAIT_SECONDS)


def test_a_server_that_wrote_too_much_is_evicted_and_its_user_is_told(hub):
    lease = up(hub, "fill", memory="128MiB")
    tell(hub, "fill", "fill")
    end = hub.until_ended("fill", "failed", WAIT_SECONDS)
    assert end["id"] == lease["id"]
    words = "than it may (evicted): Usage of EmptyDir volume"
    assert words in end["end"]["message"]
    eventually(lambda: hub.pod("fill") is None, WAIT_SECONDS, "its pod is gone")
    assert words in told(hub, "fill")


def answers(address):
    try:
        return requests.get(address, timeout=2).ok
    except requests.RequestException:
        return False


def test_promise_5_a_server_that_a_drain_ends_is_kept_until_the_end_that_its_user_reads(hub):
    up(hub, "drained")
    pod = hub.pod("drained")
    hub.cluster.core.create_namespaced_pod_eviction(
        pod.metadata.name, hub.namespace, {"metadata": {"name": pod.metadata.name}}
    )
    warning = eventually(lambda: hub.lease("drained")["warning"], WAIT_SECONDS, "its user is told while it runs")
    assert warning["text"].startswith("Its node is being drained, for example for maintenance. This workspace ends at ")
    assert 5 < warning["ends_at"] - time.time() <= 15, "of 20 s of grace five are left to the server itself"
    read = "cat ~/.gpuspawner/notice.json 2>/dev/null || true"
    notice = eventually(
        lambda: hub.cluster.run_in(hub.namespace, pod.metadata.name, "sh", "-c", read)[1], 5, "programs are told"
    )
    assert json.loads(notice)["kind"] == "preempted"
    address, answered_at = f"http://{pod.status.pod_ip}:8888/", 0.0
    while answers(address):
        answered_at = time.time()
        time.sleep(0.1)
    assert answered_at == pytest.approx(warning["ends_at"], abs=2.5)
    assert hub.until_ended("drained", "preempted", WAIT_SECONDS)["end"]["by"] == "cluster"


def test_a_server_that_its_user_stops_is_not_kept_for_that_time(hub):
    up(hub, "quits")
    begun = time.monotonic()
    hub.stop("quits")
    eventually(lambda: hub.pod("quits") is None, WAIT_SECONDS, "its pod is gone")
    assert time.monotonic() - begun < 10, "the service says that nobody announced an end"
