"""SSH and VS Code in a pod of the restricted standard, as a user id that the image knows nothing of: the image's own
programs, a home that belongs to a group, the lease's GPU, and everything through hub and proxy."""

import os
import re
import subprocess
import sys

import pytest
from gpus import simulated
from kube_hub import KubeHub, eventually
from nodes import ROOT
from playwright.sync_api import expect

USER_ID = 123_456
SECONDS = 300
"""The longest that anything may take on a busy machine; what is waited for ends it at once."""
POD = f"""
c.KubeSpawner.uid = {USER_ID}
c.KubeSpawner.fs_gid = 100
c.KubeSpawner.volumes = {{"home": {{"name": "home", "emptyDir": {{}}}}}}
c.KubeSpawner.volume_mounts = {{"home": {{"name": "home", "mountPath": "/home/jovyan"}}}}
c.KubeSpawner.http_timeout = {SECONDS}
c.KubeSpawner.start_timeout = {SECONDS}
"""
EDITOR = """
  editor:
    extends: lab
    opens: [vscode, lab, ssh]
    default: {cpu: 1, memory: 2GiB}
"""


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    """alice has a workspace with one of the node's two GPUs."""
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    with simulated(one_machine, 2), one_machine.namespace(**restricted) as namespace:
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=POD)
        hub.catalog.write_text(hub.catalog.read_text().replace("policies:\n", f"{EDITOR}policies:\n"))
        try:
            hub.start()
            hub.add_user("alice", "bob")
            hub.begin("alice", template="editor", gpu="a100", count=1)
            hub.until("alice", "running", SECONDS)
            yield hub
        finally:
            hub.close()


def test_jupyterlab_finds_no_node_which_it_would_ask_for_settings_at_each_start(hub):
    name = hub.pod("alice").metadata.name
    found = "command -v jupyter-lab && ! command -v node"
    assert hub.cluster.run_in(hub.namespace, name, "sh", "-c", found)[:2] == (0, "/opt/workspace/bin/jupyter-lab\n")


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


def in_pod(hub, script):
    code, printed, said = hub.cluster.run_in(hub.namespace, hub.pod("alice").metadata.name, "sh", "-c", script)
    assert code == 0, said
    return printed


def test_by_ssh_nvidia_smi_shows_the_gpu_of_the_lease_to_a_user_without_a_name_of_their_own(hub, machine):
    assert len(hub.lease("alice")["gpus"]) == 1
    done = machine(*machine.ssh, "-", "nvidia-smi -L; id -u; stat -c %A /home/jovyan; pwd")
    assert done.returncode == 0, done.stderr
    board, user_id, mode, home = done.stdout.splitlines()
    assert board == in_pod(hub, "nvidia-smi -L").strip(), "the device that the kubelet gave, and no other"
    assert (user_id, home) == (str(USER_ID), "/home/jovyan")
    assert mode[5] == "w", "the volume's group may write to the home, which sshd's own rules refuse"
    assert machine(*machine.ssh, "-", "-tt", "test -t 0 && exit 7").returncode == 7


def test_50_mb_go_both_ways_by_scp(hub, machine):
    config = machine(*machine.ssh, "--config", "-")
    assert config.returncode == 0, config.stderr
    (machine.folder / "config").write_text(config.stdout)
    data = os.urandom(50_000_000)
    (machine.folder / "there").write_bytes(data)
    for source, target in (("there", "gpu-default:model.pt"), ("gpu-default:model.pt", "back")):
        done = machine("scp", "-F", "config", source, target)
        assert done.returncode == 0, done.stderr
    assert (machine.folder / "back").read_bytes() == data
    assert in_pod(hub, "stat -c %s /home/jovyan/model.pt").strip() == "50000000"


def test_promise_9_another_s_token_is_refused(machine):
    done = machine(*machine.ssh, "alice/-", "true", user="bob")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Refused (403): your token may not open workspace `alice/-`.")


def test_vs_code_is_what_opens_with_its_explorer_and_a_terminal(hub, browser):
    in_pod(hub, "echo 'print(1)' > /home/jovyan/train.py")
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = context.new_page()
        page.goto(f"{hub.url}/hub/login?next=/user/alice/")
        page.fill("#username_input", "alice")
        page.fill("#password_input", "x")
        page.click("#login_submit", no_wait_after=True)
        expect(page).to_have_url(re.compile(r"/user/alice/vscode/"), timeout=SECONDS * 1000)
        file = page.get_by_role("treeitem", name="train.py")
        expect(file).to_be_visible(timeout=SECONDS * 1000)
        file.dblclick()
        expect(page.get_by_role("tab", name="train.py")).to_be_visible(timeout=SECONDS * 1000)
        assert page.get_by_text("Deploy code-server for your team").count() == 0, "no advertisement"
        assert page.get_by_text("Restricted Mode").count() == 0, "the files are the user's own"
        page.keyboard.press("Control+Backquote")
        terminal = page.get_by_role("textbox", name=re.compile("^Terminal [0-9]"))
        terminal.wait_for(state="attached", timeout=SECONDS * 1000)
        board = in_pod(hub, "nvidia-smi -L")

        def typed():
            terminal.focus()
            page.keyboard.insert_text("nvidia-smi -L > seen")  # keys that come while the shell starts may be lost
            page.keyboard.press("Enter")
            page.wait_for_timeout(3000)
            return in_pod(hub, "cat seen 2>/dev/null || true") == board

        eventually(typed, SECONDS, "a command that is typed in the terminal runs")
