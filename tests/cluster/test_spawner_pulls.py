"""Pulling images as containerd does, from a registry that lacks, refuses, is busy, or slow."""

import os

import pytest
from kube_hub import KubeHub, eventually
from registry import OPEN, PRIVATE, pull_secret, push, registry

from tools.cluster.layers import ensure_debian, write_image

pytestmark = pytest.mark.slow

EXTRA = """
c.KubeSpawner.image_pull_policy = "IfNotPresent"
c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]
c.KubeSpawner.profile_list = [
    {"display_name": "Plain", "default": True},
    {"display_name": "Known", "slug": "known", "kubespawner_override": {"image_pull_secrets": ["registry"]}}
]
"""
IMAGES = {
    "absent": f"image: '{OPEN}/absent:1'",
    "private": f"image: '{PRIVATE}/private:1'",
    "known": f"image: '{PRIVATE}/private:1', profile: known",
    "busy": f"image: '{OPEN}/busy/lab:1'",
    "slow": f"image: '{OPEN}/slow/lab:1'",
}
TEMPLATES = "".join(f"  {name}: {{extends: cpu, {image}}}\n" for name, image in IMAGES.items())
NEW_BYTES = 2 << 20


@pytest.fixture(scope="module")
def gate(one_machine, tmp_path_factory):
    """The file that keeps the slow image back: with a layer that no node has, as the private one."""
    folder = tmp_path_factory.mktemp("registry")
    new, config = folder / "new", {"User": "1000", "Env": ["PATH=/usr/bin:/bin"]}
    with registry(one_machine.own, folder) as gate:
        for name in ("slow/lab", "private"):
            new.write_bytes(os.urandom(NEW_BYTES))
            _, archive = write_image(folder, "localhost/lab", [ensure_debian()], {"opt/new": new}, config)
            push(one_machine.own, archive, name)
            archive.unlink()
        yield gate


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory, gate):
    with one_machine.namespace() as namespace:
        one_machine.core.create_namespaced_secret(namespace, pull_secret())
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=EXTRA)
        hub.catalog.write_text(hub.catalog.read_text().replace("policies:\n", f"{TEMPLATES}policies:\n"))
        with hub:
            yield hub


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("absent", f"The image {OPEN}/absent:1 does not exist in its registry. Tell your administrator"),
        ("private", f"The registry does not let this cluster pull {PRIVATE}/private:1"),
    ],
)
def test_an_image_that_cannot_be_had_is_told_at_once(hub, template, words):
    hub.add_user(template)
    hub.begin(template, template=template)
    assert words in hub.failure(template)


def test_an_image_behind_a_password_is_pulled_by_who_has_the_secret(hub):
    hub.add_user("known")
    hub.begin("known", template="known")
    hub.until("known", "running", 90)
    hub.stop("known")
    hub.until_ended("known", "stopped")


def test_a_registry_that_is_busy_is_waited_for_and_told(hub):
    hub.add_user("busy")
    hub.begin("busy", template="busy")
    lease = eventually(lambda: hub.lease("busy"), 20, "busy has a lease")
    words = f"The image {OPEN}/busy/lab:1 cannot be pulled yet"
    eventually(lambda: words in hub.first_steps("busy", words), 30, "the trouble is told")
    assert hub.lease("busy")["phase"] == "starting"
    assert hub.stop("busy").status_code in {202, 204, 500}  # before JupyterHub 6.2 the answer to a cancel may be late
    eventually(lambda: hub.last_end("busy")["id"] == lease["id"], 30, "its lease has ended")


def test_promise_2_a_hub_that_dies_during_a_pull_does_not_kill_it(hub, gate):
    gate.touch()
    hub.add_user("slow")
    hub.begin("slow", template="slow")
    words = f"Pulling the image {OPEN}/slow/lab:1 on gpu-node."
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
