"""A home that one pod alone may mount: a second workspace of its user says which one has it, and goes on after it."""

import json

import pytest
import requests
from harness.hub import ADMIN_TOKEN
from kube_hub import KubeHub, eventually
from playwright.sync_api import expect

pytestmark = pytest.mark.slow

EXTRA = """
c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]
c.KubeSpawner.volumes = [{"name": "home", "persistentVolumeClaim": {"claimName": "home-{username}"}}]
c.KubeSpawner.volume_mounts = [{"name": "home", "mountPath": "/data"}]
"""


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    with one_machine.namespace() as namespace:
        folder = tmp_path_factory.mktemp("hub")
        with KubeHub(
            folder, cluster=one_machine, namespace=namespace, extra=EXTRA, settings={"no_room_seconds": 5.0}
        ) as hub:
            yield hub


@pytest.fixture(scope="module")
def home(hub):
    """Alice's claim and its volume."""
    core, name = hub.cluster.core, f"{hub.namespace}-home"
    modes, size = ["ReadWriteOncePod"], {"storage": "1Gi"}
    spec = {
        "capacity": size,
        "accessModes": modes,
        "hostPath": {"path": f"/var/lib/{hub.namespace}", "type": "DirectoryOrCreate"},
        "claimRef": {"namespace": hub.namespace, "name": "home-alice"},
    }
    core.create_persistent_volume({"metadata": {"name": name}, "spec": spec})
    claim = {"accessModes": modes, "storageClassName": "", "volumeName": name, "resources": {"requests": size}}
    core.create_namespaced_persistent_volume_claim(hub.namespace, {"metadata": {"name": "home-alice"}, "spec": claim})
    yield
    core.delete_persistent_volume(name)


def told(hub, server):
    """The steps of a start that the progress page tells in a few seconds."""
    url, steps = f"{hub.url}/hub/api/users/alice/servers/{server}/progress", []
    with requests.get(url, headers={"Authorization": f"token {ADMIN_TOKEN}"}, stream=True, timeout=15) as answer:
        try:
            for line in answer.iter_lines(decode_unicode=True):
                if line.startswith("data:"):
                    steps.append(json.loads(line.removeprefix("data:")))
                if steps and "one workspace at a time" in steps[-1].get("message", ""):
                    break
        except requests.RequestException:
            pass
    return steps


def test_a_second_workspace_says_which_one_has_the_home_and_goes_on_once_it_has_ended(hub, home):
    hub.add_user("alice")
    hub.begin("alice", "train", template="cpu")
    first = hub.until("alice", "running", 120, server="train")
    hub.begin("alice", "second", template="cpu")
    step = eventually(lambda: [x for x in told(hub, "second") if "your workspace train has it" in x["message"]], 120)[0]
    assert f"workspaces/{first['id']}" in step["html_message"]
    pods = hub.cluster.core.list_namespaced_pod(hub.namespace).items
    assert len(pods) == 1, "no pod that would wait without end"
    hub.end(first["id"])
    hub.until("alice", "running", 120, server="second")
    hub.stop("alice", "second")


def test_the_page_of_a_start_that_another_one_blocks_offers_to_stop_that_one(hub, home, browser):
    hub.add_user("alice")
    eventually(lambda: not hub.workspaces(), 120, "what was before has ended")
    hub.begin("alice", "train", template="cpu")
    first = hub.until("alice", "running", 120, server="train")
    hub.begin("alice", "second", template="cpu")
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(120_000)
    try:
        page.goto(f"{hub.url}/hub/login?next=/hub/spawn-pending/alice/second")
        page.fill("#username_input", "alice")
        page.fill("#password_input", "x")
        page.click("#login_submit")
        offered = page.locator("#gs-blocked")
        expect(offered).to_contain_text("your workspace train has it since", timeout=120_000)
        expect(offered).to_contain_text("You lose its running kernels. Your files stay.")
        assert hub.lease("alice", "train")["id"] == first["id"], "it runs until somebody says so"
        offered.get_by_role("button", name="Stop that one").click()
        hub.until("alice", "running", 120, server="second")
        page.wait_for_url("**/user/alice/second/**")
    finally:
        context.close()
    eventually(lambda: hub.last_end("alice")["id"] == first["id"], 120, "the other one has ended")
    assert hub.last_end("alice")["end"]["reason"] == "stopped"
    hub.stop("alice", "second")
