"""`make run` as a whole starts, prints its messages, and leaves no process behind, however it ends."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
import requests
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from harness.nvidia import require_files
from harness.waiting import eventually
from launcher import ENDS_WITHIN_SECONDS, STARTS_WITHIN_SECONDS, Launcher

from demo import ports, run
from demo.colleagues import Hub
from tools.progress import StepError

STRAY = f"sleep 86398.{os.getpid()}"
"""A job that left its session and its environment behind: only its parentage can find it."""


@pytest.fixture
def launch(tmp_path):
    started = []

    def start(**settings: str) -> Launcher:
        started.append(Launcher(tmp_path / "data", ports.pick_free(1)[0], **settings))
        return started[-1]

    yield start
    for launcher in started:
        if launcher.process.poll() is None:
            launcher.end(signal.SIGTERM)


async def in_terminal(hub: Hub, user: str, line: str) -> str:
    """Type ``line`` into a new terminal of a user's workspace, and return what it shows until ``that``."""
    name = (await hub.ask("POST", f"/user/{user}/api/terminals"))["name"]
    address = f"{hub.url.replace('http', 'ws', 1)}/user/{user}/terminals/websocket/{name}"
    channel = await websocket_connect(HTTPRequest(address, headers=hub.headers))
    await channel.write_message(json.dumps(["stdin", f"{line}\r"]))
    said = ""
    while "that\r\n" not in said:
        kind, *text = json.loads(await asyncio.wait_for(channel.read_message(), ENDS_WITHIN_SECONDS))
        said += text[0] if kind == "stdout" else ""
    channel.close()
    return said


async def test_ctrl_c_ends_workspaces_and_the_jobs_they_left_and_a_second_run_knows_everything(launch):
    launcher = launch()
    launcher.wait_until_it_runs()
    hub = Hub(launcher.url, launcher.token_of("alice"))
    assert await hub.start("alice", {"template": "pytorch", "gpu": "a100", "count": 1})
    outcome = await hub.run(
        "alice", f"import subprocess; subprocess.Popen(['env', '-i', *{STRAY.split()}], start_new_session=True); None"
    )
    assert outcome == "ok"
    assert any(STRAY in line for line in launcher.left(STRAY))
    commands = ("nvidia-smi", "gpuspawner")
    said = await in_terminal(hub, "alice", f"for one in {' '.join(commands)}; do command -v $one; done; echo th''at")
    assert all(f"/{name}\r\n" in said for name in commands), said

    assert launcher.end(signal.SIGINT) == 0
    assert launcher.left(STRAY) == []
    assert "All ended." in launcher.text()

    again = launch()
    again.wait_until_it_runs()
    assert again.sign_in("alice").get(f"{again.url}/hub/home").status_code == 200


async def test_on_nvidias_simulated_driver_a_workspace_has_a_gpu_and_its_monitor_follows_it(launch):
    """Its terminal has NVIDIA's nvidia-smi and the tool that changes the GPU's state, and can hold the device open."""
    require_files("trixie")
    launcher = launch(NVIDIA="l40s")
    launcher.wait_until_it_runs()
    assert "of NVIDIA's simulated driver: 8 NVIDIA L40S" in launcher.text()
    hub = Hub(launcher.url, launcher.token_of("alice"))
    assert await hub.start("alice", {"template": "pytorch", "gpu": "l40s", "count": 1})
    code = (
        "import os, subprocess as s; from gpuspawner.workspace.nvml import Nvml\n"
        "held = open('/dev/nvidia0')\n"
        "listed = s.run(['nvidia-smi', '-L'], capture_output=True, text=True, check=True).stdout\n"
        "assert listed.count('NVIDIA L40S') == 8, listed\n"
        "gpu = os.environ['CUDA_VISIBLE_DEVICES']\n"
        "assert Nvml([gpu]).rate(gpu) == 0\n"
        "s.run(['nvml-mock-ctl', 'util', '--gpu', 'all', '64'], check=True)"
    )
    assert await hub.run("alice", code) == "ok"
    headers = hub.headers

    def told():
        url = f"{launcher.url}/services/gpu/api/v1/workspaces"
        (found,) = requests.get(url, headers=headers, timeout=20).json()["workspaces"]
        return found

    def busy():
        found = told()
        return found["idle"] is not None and found["idle"]["state"] == "busy" and found  # None before the first sample

    workspace = eventually(busy, 60, "it is busy")
    assert "(simulated driver)" in workspace["words"]
    assert "at 64 %" in workspace["idle"]["because"]
    assert launcher.end(signal.SIGINT) == 0
    assert launcher.left() == []


def test_a_simulated_machine_that_is_not_known_is_named_with_those_that_are(launch):
    require_files("trixie")
    launcher = launch(NVIDIA="mars")
    assert launcher.process.wait(STARTS_WITHIN_SECONDS) == 1
    assert "mars is no simulated machine: choose a100, b200" in launcher.text()


@pytest.mark.slow  # tests/hub/test_external_scheduler.py has the same story
async def test_an_external_scheduler_grants_shows_its_queue_and_ends_with_the_rest(launch):
    launcher = launch(SCHEDULER="http")
    launcher.wait_until_it_runs()
    page = re.search(r"Scheduler +(http://\S+/)", launcher.text())[1]
    assert "Nobody does." in requests.get(page, timeout=20).text
    hub = Hub(launcher.url, launcher.token_of("alice"))
    assert await hub.start("alice", {"template": "pytorch", "gpu": "a100", "count": 1})
    shown = requests.get(page, timeout=20).text
    assert "alice, team vision" in shown
    assert "1 a100" in shown

    assert launcher.end(signal.SIGINT) == 0
    assert launcher.left("demo.scheduler --port " + page.split(":")[2].rstrip("/")) == []


def test_a_second_one_in_the_same_data_is_refused_and_told_where_the_first_is_and_its_closed_terminal_ends_all(launch):
    first = launch()
    first.wait_until_it_runs()
    second = launch()
    assert second.process.wait(ENDS_WITHIN_SECONDS) == 1
    assert f"process {first.process.pid}, {first.url}" in second.text()
    assert first.end(signal.SIGHUP) == 0, "its terminal was closed"
    assert first.left() == []


def test_a_launcher_killed_outright_takes_everything_along(launch):
    launcher = launch()
    launcher.wait_until_it_runs()
    launcher.end(signal.SIGKILL)
    eventually(lambda: not launcher.left(), ENDS_WITHIN_SECONDS, "the end of all that it started")


def test_a_launcher_killed_while_its_hub_still_starts_takes_the_proxy_along(launch):
    launcher = launch()

    def proxies() -> list[str]:
        return [line for line in launcher.left() if "/bin/configurable-http-proxy" in line]

    eventually(proxies, STARTS_WITHIN_SECONDS, "a proxy")
    hub_log = launcher.data / "logs" / "hub.log"
    launcher.end(signal.SIGKILL)
    eventually(lambda: not launcher.left(), ENDS_WITHIN_SECONDS, "the end of all that it started")
    assert "initiating shutdown" not in hub_log.read_text(), "the hub handled signals already"


def test_a_hub_that_dies_is_said_with_its_log_and_the_rest_ends(launch):
    launcher = launch()
    launcher.wait_until_it_runs()
    hub = next(line for line in launcher.left() if "-m jupyterhub -f" in line)
    os.kill(int(hub.split(":")[0]), signal.SIGKILL)
    assert launcher.process.wait(ENDS_WITHIN_SECONDS) == 1
    assert "The hub ended by SIGKILL" in launcher.text()
    assert "JupyterHub is now running" in launcher.text()
    assert launcher.left() == []


@pytest.mark.parametrize(
    ("logged", "again"), [("Cannot connect to gpu service managed", True), ("database is locked", False)]
)
def test_a_hub_that_gave_up_on_its_service_says_to_try_again(tmp_path, monkeypatch, logged, again):
    log = tmp_path / "hub.log"
    log.write_text(f"[C 2026-11-26 JupyterHub app:3790] {logged}\n[E] more\n")
    monkeypatch.setattr(os, "waitpid", lambda *_: (7, 1 << 8))
    with pytest.raises(StepError, match="The hub ended with code 1") as failed:
        run.raise_if_ended(7, log)
    assert ("Try again: make run" in str(failed.value)) is again


def test_a_taken_port_is_refused_before_anything_starts_with_its_holder_and_the_remedy(tmp_path):
    with socket.create_server((ports.HOST, 0)) as holder:
        port = holder.getsockname()[1]
        launcher = Launcher(tmp_path / "data", port)
        assert launcher.process.wait(ENDS_WITHIN_SECONDS) == 1
    assert f"Port {port} is taken by process {os.getpid()}: " in launcher.text()
    remedy = re.search(r"PORT=(\d+) make run", launcher.text())
    assert remedy
    assert ports.is_free(int(remedy[1]))
    assert not (tmp_path / "data" / "logs").exists()
