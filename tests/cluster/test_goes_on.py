"""On the real cluster: without a GPU and back, with the same home in a new pod, and what was open comes back."""

import json

import pytest
import requests
from gpus import simulated
from kube_hub import KubeHub, eventually

pytestmark = pytest.mark.slow

SECONDS = 300
EXTRA = """
c.KubeSpawner.volumes = {"home": {"name": "home", "persistentVolumeClaim": {"claimName": "home-{username}"}}}
c.KubeSpawner.volume_mounts = {"home": {"name": "home", "mountPath": "/home/jovyan"}}
c.KubeSpawner.http_timeout = 300
c.KubeSpawner.http_timeout = c.KubeSpawner.start_timeout = 300
"""
NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    folder.chmod(0o777)  # the image's own user writes there
    for above in folder.parents[:2]:
        above.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory, home):
    """Alice's home is a volume that the node's pods mount one after the other."""
    core, modes, size = one_machine.core, ["ReadWriteOnce"], {"storage": "1Gi"}
    with simulated(one_machine, 2), one_machine.namespace() as namespace:
        name, where = f"{namespace}-home", {"path": str(home), "type": "Directory"}
        ref = {"namespace": namespace, "name": "home-alice"}
        spec = {"capacity": size, "accessModes": modes, "hostPath": where, "claimRef": ref}
        core.create_persistent_volume({"metadata": {"name": name}, "spec": spec})
        claim = {"accessModes": modes, "storageClassName": "", "volumeName": name, "resources": {"requests": size}}
        core.create_namespaced_persistent_volume_claim(namespace, {"metadata": {"name": "home-alice"}, "spec": claim})
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=EXTRA)
        try:
            yield hub.start()
        finally:
            hub.close()
            core.delete_persistent_volume(name)


def ask(hub, path, body=None):
    answer = hub.api("POST", "/users/alice/tokens", {"scopes": ["access:servers!user=alice"]})
    headers = {"Authorization": f"token {answer.json()['token']}"}
    method = "GET" if body is None else "POST"
    told = requests.request(method, f"{hub.url}/user/alice/{path}", headers=headers, json=body, timeout=60)
    told.raise_for_status()
    return told.json()


def goes_on(hub, lease, way):
    hub.act("alice", lease["id"], way)
    return eventually(lambda: (one := hub.until("alice", "running", SECONDS))["id"] != lease["id"] and one, SECONDS)


def gpus_of_pod(hub):
    return (hub.pod("alice").spec.containers[0].resources.limits or {}).get("nvidia.com/gpu")


def test_a_workspace_goes_on_without_a_gpu_and_back_and_what_was_open_is_told_in_each_new_pod(hub, home):
    hub.add_user("alice")
    hub.begin("alice", template="lab", gpu="a100", count=1)
    first = hub.until("alice", "running", SECONDS)
    assert gpus_of_pod(hub) == "1"
    (home / "work.ipynb").write_text(json.dumps(NOTEBOOK))
    session = {"path": "work.ipynb", "name": "", "type": "notebook", "kernel": {"name": "python3"}}
    ask(hub, "api/sessions", session)
    kept = home / ".gpuspawner" / "session.json"
    eventually(lambda: kept.exists() and "work.ipynb" in kept.read_text(), SECONDS, "what is open is kept")
    uid = hub.pod("alice").metadata.uid
    without = goes_on(hub, first, "without-gpu")
    assert (gpus_of_pod(hub), without["gpus"]) == (None, [])
    assert hub.pod("alice").metadata.uid != uid
    told = "Open in your last session: work.ipynb. Their kernels are new: run the cells again."
    eventually(lambda: told in ask(hub, "gpuspawner/home")["notes"], SECONDS)
    back = goes_on(hub, without, "with-gpu")
    assert (gpus_of_pod(hub), back["request"]) == ("1", first["request"])
    eventually(lambda: told in ask(hub, "gpuspawner/home")["notes"], SECONDS)
