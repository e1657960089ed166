"""The ways into a workspace on a real cluster: SSH, VS Code and JupyterLab, by one hub and two workspaces.

The pods are of the restricted standard and run as a user id that the image does not know. The home belongs to a group.
One workspace works and lives. The other one is started by the form, falls idle, and its user reads why it was stopped.
"""

import os
import re
import subprocess
import sys

import pytest
from gpus import simulated, uuids_in
from kube_hub import KubeHub, eventually
from nodes import ROOT
from playwright.sync_api import expect

USER_ID = 123_456
SECONDS = 300
"""The longest that anything may take on a busy machine; what is waited for ends it at once."""
CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100*, memory: 80GiB}
templates:
  lab:
    title: Lab
    gpus: {a100: 1-4}
    bounds: {cpu: 0.1-2, memory: 128MiB-2GiB, lifetime: 1s-24h}
    default: {gpu: a100, count: 1, cpu: 0.6, memory: 1GiB, lifetime: 8h}
  editor: {extends: lab, title: Editor, opens: [vscode, lab, ssh], default: {cpu: 1, memory: 2GiB}}
policies:
  default: {mode: enforce, lifetime: 1s-24h, idle: {below: 5%, for: 4m, sample: 80s, grace: 4m}}
"""
FAST = 10.0
"""Four minutes are 24 s, and the minute that a workspace has to start up is six seconds."""
EXTRA = f"""
c.KubeSpawner.uid = {USER_ID}
c.KubeSpawner.fs_gid = 100
c.KubeSpawner.volumes = {{"home": {{"name": "home", "emptyDir": {{}}}}}}
c.KubeSpawner.volume_mounts = {{"home": {{"name": "home", "mountPath": "/home/jovyan"}}}}
c.KubeSpawner.http_timeout = {SECONDS}
c.KubeSpawner.http_timeout = c.KubeSpawner.start_timeout = {SECONDS}
c.Spawner.default_url = "/lab"
"""


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    """Alice has a workspace that works on one of the node's three GPUs."""
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    with simulated(one_machine, 3) as gpus, one_machine.namespace(**restricted) as namespace:
        folder = tmp_path_factory.mktemp("hub")
        hub = KubeHub(folder, cluster=one_machine, namespace=namespace, fast=FAST, extra=EXTRA)
        hub.catalog.write_text(CATALOG)
        try:
            hub.start()
            hub.add_user("alice", "bob")
            hub.begin("alice", template="editor", gpu="a100", count=1)
            hub.until("alice", "running", SECONDS)
            hub.gpus = gpus
            set_utilization(hub, "alice", 20)
            yield hub
        finally:
            hub.close()


@pytest.fixture(scope="module")
def machine(hub, tmp_path_factory):
    """A person's own machine: a folder with a key, and what they type there."""
    folder = tmp_path_factory.mktemp("machine")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)

    def type_in(*command, user="alice"):
        token = hub.api("POST", f"/users/{user}/tokens", {}).json()["token"]
        own = {"GPUSPAWNER_TOKEN": token, "GPUSPAWNER_URL": f"{hub.url}/services/gpu"}
        own |= {"HOME": str(folder), "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, env={**os.environ, **own}, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    type_in.folder = folder
    type_in.ssh = [sys.executable, "-m", "gpuspawner.cli", "ssh", "--key", str(folder / "key")]
    return type_in


@pytest.fixture
def sign_in(hub, browser):
    """Open a page as a user, in a browser of their own."""
    contexts = []

    def open_page(user, path):
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 900}))
        page = contexts[-1].new_page()
        page.set_default_timeout(SECONDS * 1000)
        page.goto(f"{hub.url}/hub/login?next={path}")
        page.fill("#username_input", user)
        page.fill("#password_input", "x")
        page.click("#login_submit", no_wait_after=True)
        return page

    yield open_page
    for context in contexts:
        context.close()


def set_utilization(hub, user, percent):
    """Make the GPUs of a user's pod busy to the given percentage."""
    for uuid in uuids_in(hub.cluster, hub.namespace, hub.pod(user).metadata.name):
        hub.gpus.set_utilization(uuid, percent)


def in_pod(hub, user, script):
    """Run a script in a user's pod; return what it prints."""
    code, printed, said = hub.cluster.run_in(hub.namespace, hub.pod(user).metadata.name, "sh", "-c", script)
    assert code == 0, said
    return printed


def test_ssh_shows_the_gpu_of_the_lease_and_scp_copies_50_mb_both_ways(hub, machine):
    assert len(hub.lease("alice")["gpus"]) == 1
    done = machine(*machine.ssh, "-", "nvidia-smi -L; id -u; stat -c %A /home/jovyan; pwd")
    assert done.returncode == 0, done.stderr
    board, user_id, mode, home = done.stdout.splitlines()
    assert board == in_pod(hub, "alice", "nvidia-smi -L").strip(), "the device that the kubelet gave, and no other"
    assert (user_id, home) == (str(USER_ID), "/home/jovyan")
    assert mode[5] == "w", "the volume's group may write to the home, which sshd's own rules refuse"
    assert machine(*machine.ssh, "-", "-tt", "test -t 0 && exit 7").returncode == 7

    config = machine(*machine.ssh, "--config", "-")
    assert config.returncode == 0, config.stderr
    (machine.folder / "config").write_text(config.stdout)
    data = os.urandom(50_000_000)
    (machine.folder / "there").write_bytes(data)
    for source, target in (("there", "gpu-default:model.pt"), ("gpu-default:model.pt", "back")):
        done = machine("scp", "-F", "config", source, target)
        assert done.returncode == 0, done.stderr
    assert (machine.folder / "back").read_bytes() == data
    assert in_pod(hub, "alice", "stat -c %s /home/jovyan/model.pt").strip() == "50000000"


def test_promise_9_another_user_s_token_opens_no_workspace(machine):
    done = machine(*machine.ssh, "alice/-", "true", user="bob")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "You are bob, and workspace `alice/-` is another user's: your token is not sent there."
    )


def test_vs_code_opens_first_with_its_explorer_and_a_terminal(hub, sign_in):
    in_pod(hub, "alice", "echo 'print(1)' > /home/jovyan/train.py")
    page = sign_in("alice", "/user/alice/")
    expect(page).to_have_url(re.compile(r"/user/alice/vscode/"), timeout=SECONDS * 1000)
    file = page.get_by_role("treeitem", name="train.py")
    file.dblclick()
    expect(page.get_by_role("tab", name="train.py")).to_be_visible(timeout=SECONDS * 1000)
    assert page.get_by_text("Deploy code-server for your team").count() == 0, "no advertisement"
    assert page.get_by_text("Restricted Mode").count() == 0, "the files are the user's own"
    page.keyboard.press("Control+Backquote")
    terminal = page.get_by_role("textbox", name=re.compile("^Terminal [0-9]"))
    terminal.wait_for(state="attached", timeout=SECONDS * 1000)
    board = in_pod(hub, "alice", "nvidia-smi -L")

    def typed():
        terminal.focus()
        page.keyboard.insert_text("nvidia-smi -L > seen")  # the shell may lose keys while it starts
        page.keyboard.press("Enter")
        return in_pod(hub, "alice", "cat seen 2>/dev/null || true") == board

    eventually(typed, SECONDS, "a command that is typed in the terminal runs")


def test_promises_3_and_5_from_the_form_by_jupyterlab_to_why_an_idle_workspace_was_stopped(hub, sign_in):
    busy = hub.lease("alice")
    hub.add_user("idle")
    page = sign_in("idle", "/hub/spawn")
    page.fill("#gs-count", "2")
    page.click("button[type=submit]")
    page.wait_for_url("**/hub/spawn-pending/idle**")
    expect(page.locator("#gs-sentence")).to_contain_text("Starting on 2 A100", timeout=SECONDS * 1000)
    expect(page.locator("#gs-log")).to_contain_text("gpu-node. Its pod is ready. Waiting", timeout=SECONDS * 1000)
    eventually(lambda: hub.pod("idle").status.phase == "Running", SECONDS, "its pod runs")
    set_utilization(hub, "idle", 20)  # until its page was used, which takes its time here
    page.wait_for_url("**/user/idle/lab**")
    page.locator(".jp-LauncherCard").first.wait_for()
    both = re.compile(r"GPU 0: NVIDIA A100-SXM4-40GB.*\nGPU 1: NVIDIA A100-SXM4-40GB")
    expect(run(page, "!nvidia-smi -L")).to_contain_text(both, timeout=SECONDS * 1000)
    lease = hub.until("idle", "running", SECONDS)
    assert len(lease["gpus"]) == 2
    found = in_pod(hub, "idle", "command -v jupyter-lab; command -v node || true")
    assert found == "/opt/workspace/bin/jupyter-lab\n", "JupyterLab would ask a node for settings at each start"

    # Its page stays open, and goes on asking its server.
    set_utilization(hub, "idle", 0)
    why = page.get_by_role("dialog", name="This workspace was stopped")
    expect(why).to_contain_text("because its 2 GPUs were idle for", timeout=SECONDS * 1000)
    assert hub.until_ended("idle", "idle", SECONDS)["id"] == lease["id"]
    assert hub.audit(lease["id"], "warned")
    eventually(lambda: hub.pod("idle") is None, SECONDS, "idle's pod is gone")
    with page.context.expect_page() as opened:
        why.get_by_role("link", name="See why and start again").click()
    expect(opened.value.get_by_role("heading", name=re.compile("^We stopped it at "))).to_be_visible(
        timeout=SECONDS * 1000
    )
    chart = opened.value.get_by_role("img", name=re.compile("^GPU 1, "))
    expect(chart).to_be_visible(timeout=SECONDS * 1000)

    # The busy one outlived all of that, with no browser open.
    alive = hub.lease("alice")
    assert (alive["id"], alive["phase"], alive["warning"]) == (busy["id"], "running", None)
    eventually(lambda: hub.lease("alice")["gpus"][0]["utilization_percent"] == 20, SECONDS, "it is seen to work")


def run(page, code):
    """Run code in a new notebook; return the place of its output."""
    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
    cell = page.locator(".jp-Notebook .jp-CodeCell .cm-content").first
    cell.click()
    page.keyboard.insert_text(code)
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for(state="attached")
    page.keyboard.press("Shift+Enter")
    return page.locator(".jp-OutputArea-output").first
