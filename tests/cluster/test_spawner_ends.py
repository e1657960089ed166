"""A workspace that the kubelet evicted: its user reads why at the hub."""

import pytest
from ends import SERVER, tell, told
from kube_hub import KubeHub, eventually

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300
SCRATCH = """
c.KubeSpawner.volumes = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]
c.KubeSpawner.volume_mounts = [{"name": "scratch", "mountPath": "/scratch"}]
"""


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    extra = f"c.KubeSpawner.cmd = ['python3', '-c', {SERVER!r}]\n{SCRATCH}"
    with one_machine.namespace() as namespace:
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=extra)
        try:
            yield hub.start()
        finally:
            hub.close()


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
