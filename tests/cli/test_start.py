"""`gpuspawner start` from a user's own machine against a real hub, proxy, service and single-user server."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests

sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))
sys.path.insert(0, str(Path(__file__).parents[1] / "workspace"))

from a_wheel import make_wheel
from editor import SERVER, USE
from harness.fork_server import start_python
from harness.hub import REPO, RealHub, eventually

DONE, REFUSED, AWAY = 0, 2, 3
INTERRUPTED = 130


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub with two GPUs. The template `editor` is a real Jupyter server with a tool that pip finds in a folder."""
    jupyter, wheels = tmp_path_factory.mktemp("jupyter"), tmp_path_factory.mktemp("wheels")
    installed = jupyter / "jupyter_server_config.d"  # where a wheel lays it
    shutil.copytree(REPO / "gpuspawner" / "workspace" / "jupyter-config", installed)
    make_wheel(wheels, "atool", "1.0", "ANSWER = 42")
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    environment = {"JUPYTER_CONFIG_PATH": str(jupyter), **pip}
    hub = RealHub(tmp_path_factory.mktemp("start"), extra=SERVER.format(environment=environment))
    editor = "  editor: {extends: cpu, opens: [lab], tools: {mine: [atool]}}\n"
    hub.catalog.write_text(hub.catalog.read_text().replace("policies:\n", f"{editor}policies:\n"))
    try:
        hub.start()
        hub.add_user("alice", "bob", "carol")
        yield hub
    finally:
        hub.close()


class Command:
    """Runs ``gpuspawner`` with a token of a user."""

    def __init__(self, hub, user):
        token = hub.api("POST", f"/users/{user}/tokens", {"scopes": USE}).json()["token"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUSPAWNER_", "JUPYTERHUB_", "XDG_"))}
        own = {"PYTHONPATH": str(REPO), "GPUSPAWNER_URL": f"{hub.url}/services/gpu", "GPUSPAWNER_TOKEN": token}
        self.environment = {**kept, **own, "PYTHONUNBUFFERED": "1"}

    def begin(self, *arguments, **environment):
        program = [sys.executable, "-m", "gpuspawner.cli", *arguments]
        pipe, variables = subprocess.PIPE, {**self.environment, **environment}
        return start_python(program, env=variables, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments, code=DONE, **environment):
        out, err = (process := self.begin(*arguments, **environment)).communicate(timeout=180)
        assert process.returncode == code, (out, err)
        return out, err


def test_start_waits_in_the_queue_tells_its_place_and_ends_once_it_runs(hub):
    alice, bob = Command(hub, "alice"), Command(hub, "bob")
    out, err = alice.run("start", "lab", "--count", "2")
    assert re.search(r"Running on 2 simulated A100\. It ends .+\.\n", out), (out, err)
    assert "Starts now" in err.partition("\n")[0], "what the form says before Start"
    assert out.endswith(f"{hub.url}/user/alice/\n")
    assert hub.lease("alice")["phase"] == "running"
    waits = bob.begin("start", "lab")
    try:
        assert waits.stderr.readline().startswith("All 2 simulated A100 are in use. You are ")
        assert waits.poll() is None
        assert "bob" not in Command(hub, "alice").run("queue")[0]
        alice.run("stop", "-")
        out, err = waits.communicate(timeout=180)
        assert (waits.returncode, "Running on 1 simulated A100." in out) == (DONE, True), (out, err)
    finally:
        waits.kill()
    bob.run("stop", "-")
    hub.until_ended("bob", "stopped")


def test_ctrl_c_leaves_it_its_place_and_detached_it_is_not_waited_for(hub):
    alice, carol = Command(hub, "alice"), Command(hub, "carol")
    alice.run("start", "lab", "--count", "2", "--name", "train")
    waits = carol.begin("start", "lab")
    assert "in use" in waits.stderr.readline()
    waits.send_signal(signal.SIGINT)
    _, err = waits.communicate(timeout=60)
    lease = hub.lease("carol")
    assert (waits.returncode, lease["phase"]) == (INTERRUPTED, "parked")
    assert f"keeps its place in the queue. See gpuspawner show {lease['id'][:8]}" in err
    told = json.loads(carol.run("start", "lab", "--detach", "--json")[0])
    assert (told["id"], told["queue"]["place"]) == (lease["id"], 1), "it is the one that waits already"
    alice.run("stop", "train")
    hub.until("carol", "running")
    carol.run("stop", "-")
    hub.until_ended("carol", "stopped")


def test_a_detached_start_says_that_it_must_be_opened_for_its_gpu(hub):
    alice = Command(hub, "alice")
    assert "Open it soon after it starts, or you may lose its GPU." in alice.run("start", "lab", "--detach")[0]
    alice.run("stop", "-")
    hub.until_ended("alice", "stopped")


def test_a_failed_start_exits_with_2_and_an_absent_service_with_3(hub):
    bob = Command(hub, "bob")
    assert "GPUs: You asked for '9'. Allowed: 1 to 8" in bob.run("start", "lab", "--count", "9", code=REFUSED)[1]
    out, err = bob.run("start", "lab", "--tool", "mine", code=REFUSED)
    assert (out, "Tools: You asked for 'mine'. Allowed: none." in err) == ("", True)
    full = Command(hub, "alice")
    full.run("start", "lab", "--count", "2")
    waits = bob.begin("start", "lab")
    assert "in use" in waits.stderr.readline()
    hub.end(hub.lease("bob")["id"])
    _, err = waits.communicate(timeout=60)
    assert (waits.returncode, "did not start." in err) == (REFUSED, True), err
    full.run("stop", "-")
    bob.run("start", "lab", code=AWAY, GPUSPAWNER_URL="http://127.0.0.1:9/services/gpu")


def test_login_leads_to_the_page_behind_the_hub_s_own_address(hub):
    login = Command(hub, "bob").begin("login", "--no-browser")
    try:
        assert login.stderr.readline() == f"Open {hub.url}/services/gpu/login-code\n"
    finally:
        login.kill()
        login.communicate()


def test_a_hub_without_named_servers_is_told_at_once_and_nothing_waits_on(tmp_path):
    hub = RealHub(tmp_path, extra="c.JupyterHub.allow_named_servers = False")
    try:
        hub.start().add_user("alice")
        _, err = Command(hub, "alice").run("start", "cpu", "--name", "train", code=REFUSED)
        assert "Allowed: no name, because this hub has no named servers. Leave the name out" in err
        assert hub.workspaces() == []
    finally:
        hub.close()


def test_a_ticked_tool_is_a_kernel_of_the_real_workspace(hub):
    alice = Command(hub, "alice")
    alice.run("start", "editor", "--tool", "mine", "--name", "tools")
    token = hub.api("POST", "/users/alice/tokens", {"scopes": ["access:servers!user=alice"]}).json()["token"]

    def kernels():
        url, headers = f"{hub.url}/user/alice/tools/api/kernelspecs", {"Authorization": f"token {token}"}
        return requests.get(url, headers=headers, timeout=30).json()["kernelspecs"]

    found = eventually(lambda: kernels().get("mine"), 120, "the kernel is there")
    assert found["spec"]["display_name"].startswith("mine (Python 3.")
    assert hub.lease("alice", "tools")["options"]["tools"] == ["mine"]
    python = found["spec"]["argv"][0]
    assert python.startswith(f"{hub.folder}/homes/alice/.gpuspawner/tools/editor/python3.")
    code = "import atool, ipykernel; print(atool.ANSWER)"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout == "42\n"
    alice.run("stop", "tools")
