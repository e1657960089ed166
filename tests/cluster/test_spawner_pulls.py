"""Pulling images as containerd does, from a registry that lacks, refuses, is busy, or slow."""

import sys

import pytest
import registry
from kube_hub import KubeHub, eventually

from tools.cluster.workspace import ensure_image

PORT = 5999
EXTRA = """
c.KubeSpawner.image_pull_policy = "IfNotPresent"
c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]
"""
NAMES = ("absent", "private", "busy", "slow")
TEMPLATES = "".join(f"  {name}: {{extends: cpu, image: 'localhost:{PORT}/{name}/lab:1'}}\n" for name in NAMES)


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    """The file without which the slow image comes whole."""
    path = tmp_path_factory.mktemp("registry") / "gate"
    path.touch()
    return path


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory, gate):
    own, folder = one_machine.own, tmp_path_factory.mktemp("hub")
    known = own.folder / "registries" / f"localhost:{PORT}"
    known.mkdir(parents=True, exist_ok=True)
    (known / "hosts.toml").write_text(f'server = "http://localhost:{PORT}"\n')
    with one_machine.namespace() as namespace:
        hub = KubeHub(folder, cluster=one_machine, namespace=namespace, extra=EXTRA)
        hub.catalog.write_text(hub.catalog.read_text().replace("policies:\n", f"{TEMPLATES}policies:\n"))
        _, archive = ensure_image(folder)
        own.start_process("registry", [sys.executable, registry.__file__, str(PORT), str(archive), str(gate)])
        try:
            yield hub.start()
        finally:
            hub.close()
            own.stop_process("registry")
            archive.unlink()


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("absent", f"The image localhost:{PORT}/absent/lab:1 does not exist in its registry. Tell your administrator"),
        ("private", f"The registry does not let this cluster pull localhost:{PORT}/private/lab:1"),
    ],
)
def test_an_image_that_cannot_be_had_is_told_at_once(hub, template, words):
    hub.add_user(template)
    hub.begin(template, template=template)
    assert words in hub.failure(template)


def test_a_registry_that_is_busy_is_waited_for_and_told(hub):
    hub.add_user("busy")
    hub.begin("busy", template="busy")
    lease = eventually(lambda: hub.lease("busy"), 20, "busy has a lease")
    words = f"The image localhost:{PORT}/busy/lab:1 cannot be pulled yet"
    eventually(lambda: words in hub.first_steps("busy", words), 30, "the trouble is told")
    assert hub.lease("busy")["phase"] == "starting"
    assert hub.stop("busy").status_code in {202, 204, 500}  # before JupyterHub 6.2 the answer to a cancel may be late
    eventually(lambda: hub.last_end("busy")["id"] == lease["id"], 30, "its lease has ended")


def test_promise_2_a_hub_that_dies_during_a_pull_does_not_kill_it(hub, gate):
    hub.add_user("slow")
    hub.begin("slow", template="slow")
    words = f"Pulling the image localhost:{PORT}/slow/lab:1 on gpu-node."
    eventually(lambda: words in hub.first_steps("slow", words), 30, "the pull is told")
    pod, lease = hub.pod("slow"), hub.lease("slow")
    hub.kill_hub()
    hub.start_hub()
    assert hub.pod("slow").status.phase == "Pending"
    gate.unlink()
    eventually(lambda: (server := hub.server("slow")) and server["ready"], 90, "slow's server is ready")
    assert hub.until("slow", "running", 60)["id"] == lease["id"]
    assert hub.pod("slow").metadata.uid == pod.metadata.uid
    events = hub.cluster.core.list_namespaced_event(hub.namespace).items
    pulls = [e for e in events if e.involved_object.uid == pod.metadata.uid and e.reason == "Pulling"]
    assert [pull.count for pull in pulls] == [1]
    hub.stop("slow")
    hub.until_ended("slow", "stopped")
