"""The API server is away: nothing ends for it, whatever is restarted meanwhile, and all goes on once it is back."""

import pytest
from ends import SERVER
from kube_hub import KubeHub, eventually

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    extra = f"c.KubeSpawner.cmd = ['python3', '-c', {SERVER!r}]"
    with one_machine.namespace() as namespace:
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=extra)
        with hub:
            yield hub


@pytest.fixture
def away(one_machine):
    """Take the API server away; returns what brings it back, which happens after the test in any case."""
    own = one_machine.own
    own.stop_process("kube-apiserver")

    def back():
        own.start_process("kube-apiserver")
        own.wait_until_ready()

    yield back
    if "kube-apiserver" not in type(own).load(own.folder).processes:
        back()


def up(hub, user):
    """Start a workspace; return its lease's id and its pod's uid."""
    hub.add_user(user)
    hub.begin(user, template="cpu")
    return hub.until(user, "running", WAIT_SECONDS)["id"], hub.pod(user).metadata.uid


def runs(hub, user):
    lease = hub.lease(user)
    assert lease["phase"] == "running"
    return lease["id"], hub.pod(user).metadata.uid


def test_promise_2_nothing_ends_and_the_hub_watches_on_after_its_watches_gave_up(hub, request):
    alice, _ = up(hub, "alice"), up(hub, "dave")
    given_up = hub.log.read_text().count("giving up")
    back = request.getfixturevalue("away")
    eventually(
        lambda: hub.log.read_text().count("giving up") >= given_up + 2,  # of pods and of events
        WAIT_SECONDS,
        "KubeSpawner's own watches give up",
    )
    assert hub.hub.poll() is None
    assert (hub.lease("alice")["id"], hub.lease("alice")["phase"]) == (alice[0], "running")
    assert hub.server("alice")["ready"]
    hub.add_user("bob")
    hub.begin("bob", template="cpu")
    assert hub.stop("dave").status_code in {202, 204}
    back()
    hub.until_ended("dave", "stopped", WAIT_SECONDS)
    eventually(lambda: hub.pod("dave") is None, WAIT_SECONDS, "dave's pod is gone")
    hub.until("bob", "running", WAIT_SECONDS)
    assert runs(hub, "alice") == alice
    hub.cluster.core.delete_namespaced_pod(hub.pod("bob").metadata.name, hub.namespace)
    end = eventually(lambda: hub.last_end("bob"), WAIT_SECONDS, "the hub sees that bob's pod is gone")["end"]
    assert "Its pod was deleted in the cluster" in end["message"]
