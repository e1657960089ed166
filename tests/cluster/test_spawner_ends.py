"""Why a workspace ended is known by its reason, and its user reads it at the hub, whatever ended it."""

import pytest
from ends import SERVER, tell, told
from kube_hub import KubeHub, eventually

WAIT_SECONDS = 300
BRIEF = "  brief: {extends: cpu, title: Brief, policy: brief, default: {memory: 128MiB, lifetime: 10s}}\n"
SCRATCH = """
c.KubeSpawner.volumes = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]
c.KubeSpawner.volume_mounts = [{"name": "scratch", "mountPath": "/scratch"}]
"""
POLICY = "  brief: {mode: observe, lifetime: 1s-24h, extend: {each: 1h, total: 1h, warn: [5s]}}\n"


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    extra = f"c.KubeSpawner.cmd = ['python3', '-c', {SERVER!r}]\n{SCRATCH}"
    with one_machine.namespace() as namespace:
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=extra)
        text = hub.catalog.read_text().replace("policies:\n", f"{BRIEF}policies:\n")
        hub.catalog.write_text(text + POLICY)
        try:
            yield hub.start()
        finally:
            hub.close()


def up(hub, user, **options):
    hub.add_user(user)
    hub.begin(user, **{"template": "cpu", **options})
    return hub.until(user, "running", WAIT_SECONDS)


@pytest.mark.parametrize(
    ("word", "reason", "words"),
    [
        pytest.param("eat", "failed", "It used more memory than 128Mi and was ended. Start it with more", id="memory"),
        pytest.param("quit", "stopped", "It was shut down from inside, for example from JupyterLab", id="shut down"),
        pytest.param("crash", "failed", "Its server ended by itself with exit code 3.", id="crash"),
        pytest.param("fill", "failed", "than it may (evicted): Usage of EmptyDir volume", id="evicted"),
    ],
)
def test_how_a_server_ended_by_itself_is_told(hub, word, reason, words):
    lease = up(hub, word, memory="128MiB")
    tell(hub, word, word)
    end = hub.until_ended(word, reason, WAIT_SECONDS)
    assert end["id"] == lease["id"]
    assert words in end["end"]["message"]
    eventually(lambda: hub.pod(word) is None, WAIT_SECONDS, "its pod is gone")
    assert words in told(hub, word)


def test_a_lifetime_that_is_over_is_told(hub):
    up(hub, "brief", template="brief")
    end = hub.until_ended("brief", "expired", WAIT_SECONDS)["end"]
    assert end["message"] == "Its lifetime was 10 s."
    eventually(lambda: hub.server("brief") is None, WAIT_SECONDS, "the hub has no server of it")
    assert "Its time was over. Its lifetime was 10 s." in told(hub, "brief")
