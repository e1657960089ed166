"""A new user's volume is claimed by their first start: it is waited for, and never called missing."""

import time

import pytest
from kube_hub import KubeHub, eventually

from gpuspawner.spawner.kubernetes.pod_states import SETTLED_SECONDS

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300
EXTRA = """
import asyncio

from kubernetes_asyncio.client import ApiException


async def unseen(spawner, pod):
    # A scheduler that hears of the claim after the pod: it is taken away, until the test makes it again.
    while spawner.user.name == "unseen":
        try:
            await spawner.api.delete_namespaced_persistent_volume_claim(spawner.pvc_name, spawner.namespace)
        except ApiException as error:
            assert error.status == 404, error
            break
        await asyncio.sleep(0.2)
    return pod


c.KubeSpawner.modify_pod_hook = unseen
c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]
c.KubeSpawner.storage_pvc_ensure = True
c.KubeSpawner.pvc_name_template = "claim-{username}"
c.KubeSpawner.storage_class = ""
c.KubeSpawner.storage_capacity = "1Gi"
c.KubeSpawner.volumes = [{"name": "home", "persistentVolumeClaim": {"claimName": "claim-{username}"}}]
c.KubeSpawner.volume_mounts = [{"name": "home", "mountPath": "/data"}]
"""
CLAIM = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    # A start without room goes back to the queue. A late volume must not count as missing room.
    impatient = {"no_room_seconds": 5.0}
    with one_machine.namespace() as namespace:
        folder = tmp_path_factory.mktemp("hub")
        with KubeHub(folder, cluster=one_machine, namespace=namespace, extra=EXTRA, settings=impatient) as hub:
            yield hub


@pytest.fixture
def volume(hub):
    """Make a volume that a claim of the hub's is bound to, by the claim's name; it goes with the test."""
    made = []

    def make(claim):
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": f"/var/lib/{hub.namespace}", "type": "DirectoryOrCreate"},
            "claimRef": {"namespace": hub.namespace, "name": claim},
        }
        made.append(f"{hub.namespace}-{claim}")
        hub.cluster.core.create_persistent_volume({"metadata": {"name": made[-1]}, "spec": spec})

    yield make
    for name in made:
        hub.cluster.core.delete_persistent_volume(name)


@pytest.mark.parametrize(
    ("user", "words"),
    [
        pytest.param(
            "unseen", "Its volume claim-unseen was made just now; the cluster has yet to see it.", id="unseen"
        ),
        pytest.param("unbound", "Its volume is not ready yet: the cluster's storage is making it.", id="unbound"),
    ],
)
def test_a_claim_that_the_start_made_is_waited_for_however_late_it_is_seen_and_bound(hub, volume, user, words):
    hub.add_user(user)
    hub.begin(user, template="cpu")
    eventually(lambda: words in hub.first_steps(user, words), WAIT_SECONDS, "it is told as on its way")
    pod, claims = hub.pod(user).metadata, hub.cluster.core
    made_at = pod.creation_timestamp.timestamp()
    eventually(lambda: time.time() - made_at > 2 * SETTLED_SECONDS, WAIT_SECONDS, "another's claim is called missing")
    assert hub.server(user)["pending"] == "spawn", "the start goes on"
    if user == "unseen":
        claims.create_namespaced_persistent_volume_claim(
            hub.namespace, {"metadata": {"name": "claim-unseen"}, "spec": CLAIM}
        )
    volume(f"claim-{user}")
    hub.until(user, "running", WAIT_SECONDS)
    assert hub.pod(user).metadata.uid == pod.uid
    hub.stop(user)
