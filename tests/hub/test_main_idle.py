"""Real single-user servers: idle ones are reclaimed although their page is polled, busy and unreadable ones live.

All times of the policy are divided by FAST: two minutes of idleness and 100 s of grace are 6 and 5 seconds.
"""

import html
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import requests
from harness.hub import TINY, RealHub, eventually

from gpuspawner.backends.local.nvidia import STAND_IN

FAST = 20
CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100, memory: 80GiB}
simulated: {a100: 6}
templates:
  lab: {gpus: {a100: 1-2}}
  notebook: {policy: cpu}
policies:
  cpu: {extends: default, activity: {none_for: 2m, grace: 100s}}
  default:
    mode: enforce
    idle: {below: 5%, for: 2m, sample: 40s, grace: 100s}
    also_counts: [cpu]
"""
IDLE_AND_GRACE_SECONDS = (120 + 100) / FAST
LONG_ENOUGH_SECONDS = 60 / FAST + IDLE_AND_GRACE_SECONDS + 4
"""A workspace that is judged after its first minute, and idle from then on, has ended by then."""
WORK = "from gpuspawner.backends.local import busy; busy(600, percent=20)"
COMPUTE = """
import time
while True:
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    time.sleep(0.1)
"""
REAL_SERVER = """
import pathlib
import gpuspawner
# What a user's own ~/bin holds comes first, as in a login shell.
TinySpawner.cmd = ["sh", "-c", 'PATH="$HOME/bin:$PATH" exec "$@"', "sh", sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root", "--ServerApp.jpserver_extensions=gpuspawner.workspace=True"]
c.Spawner.environment = {"PYTHONPATH": str(pathlib.Path(gpuspawner.__file__).parents[1])}
c.Spawner.http_timeout = 60
c.Spawner.start_timeout = 60

def choose_server(spawner):
    if spawner.user.name in ("bob", "nan", "cpu"):  # judged by what runs beside the server, and by their GPUs
        spawner.cmd, spawner.args = [*spawner.cmd[:4], sys.executable, %r], []

c.Spawner.pre_spawn_hook = choose_server
"""
NO_ANSWER = f"""#!/bin/sh
# As a board in an odd state answers: no utilization for the second GPU, all else as it is.
second=${{GPUSPAWNER_GPUS#*,}}
"{STAND_IN}/nvidia-smi" "$@" | awk -F', ' -v OFS=', ' -v gpu="$second" '$2 == gpu {{ $5 = "[N/A]" }} {{ print }}'
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """JupyterLab's own server in the workspaces of ina and nina, a tiny one in the others."""
    real = RealHub(tmp_path_factory.mktemp("idle"), fast=FAST, extra=REAL_SERVER % str(TINY))
    real.catalog.write_text(CATALOG)
    with real:
        yield real


class Poller(threading.Thread):
    """A browser that was left open: it asks for the user's page, and the server's status, every second."""

    def __init__(self, hub: RealHub, user: str):
        super().__init__(daemon=True)
        self.session, self.enough, self.answers = hub.login(user), threading.Event(), []
        self.urls = [f"{hub.url}/user/{user}/lab", f"{hub.url}/user/{user}/api/status"]

    def run(self):
        while not self.enough.wait(1.0):
            try:
                self.answers.append([self.session.get(url, timeout=10).status_code for url in self.urls])
            except requests.RequestException as error:
                self.answers.append(error)


def start(hub, user: str, **options):
    hub.add_user(user)
    assert hub.begin(user, **options).status_code in {201, 202}
    return hub.until(user, "running", 60)


def documents(hub, lease):
    path = f"/workspaces/{lease['id']}"
    return hub.gpu(path), hub.gpu(f"{path}/audit")["audit"], hub.gpu(f"{path}/readings")["readings"]


def idle_seconds(readings) -> float:
    """How long one GPU was read as idle, without a busy reading since."""
    total = 0.0
    for reading in readings:
        total = 0.0 if reading["kind"] == "busy" else total + reading["seconds"] * (reading["kind"] == "idle")
    return total


@pytest.fixture
def run_in(hub):
    """Return a function that runs Python as the workspace's own process, with no browser near it."""
    begun = []

    def run(lease, code: str) -> None:
        environment = hub.environment(lease["id"])
        command = [sys.executable, "-c", code]
        begun.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True))

    yield run
    for process in begun:
        process.kill()
        process.wait()


def test_an_idle_workspace_is_reclaimed_although_its_page_is_polled_and_a_busy_and_an_unreadable_one_live(hub, run_in):
    busy = start(hub, "bob")
    run_in(busy, WORK)
    folder = Path(hub.folder) / "homes" / "nan" / "bin"
    folder.mkdir(parents=True)
    (folder / "nvidia-smi").write_text(NO_ANSWER)
    (folder / "nvidia-smi").chmod(0o755)
    blind = start(hub, "nan", count=2)
    lease = start(hub, "ina")  # the last of them: what it has ended for, the others had time for
    home = Path(hub.folder) / "homes" / "ina"
    (home / "thesis.txt").write_text("three years of work")
    (home / ".gpuspawner").mkdir(exist_ok=True)
    script = 'cp thesis.txt kept.txt && echo "kept, as it was $GPUSPAWNER_END_REASON"'
    (home / ".gpuspawner" / "on-stop").write_text(script)
    poller = Poller(hub, "ina")
    poller.start()
    warned = hub.until("ina", "reclaiming", 90)
    assert warned["warning"]["kind"] == "idle"
    assert warned["warning"]["text"].startswith("The GPU has been idle for ")
    assert warned["warning"]["actions"] == ["keep", "without-gpu"]
    ended = hub.until_ended("ina", "idle", 60)
    poller.enough.set()
    poller.join()
    polled = [answer for answer in poller.answers if answer == [200, 200]]
    assert len(polled) >= IDLE_AND_GRACE_SECONDS / 2, "the page was really polled, through the proxy"
    assert hub.server("ina") is None
    assert hub.workspace_pids(lease["id"]) == []
    assert (home / "kept.txt").read_text() == "three years of work", "its user's own script ran before the end"
    assert_the_reason_and_its_readings_are_recorded(hub, lease, ended)
    assert_its_user_reads_why_and_finds_the_files(hub, lease, ended)
    assert_lives_because_it_works(hub, busy)
    assert_lives_because_nobody_knows(hub, blind)


def assert_the_reason_and_its_readings_are_recorded(hub, lease, ended):
    workspace, audit, readings = documents(hub, lease)
    assert workspace["end"]["by"] == "gpuspawner"
    stop = next(line for line in audit if line["action"] == "stop")
    assert (stop["actor"], stop["user"]) == ("gpuspawner", "ina")
    assert stop["why"].startswith("The GPU has been idle for ")
    assert "Nobody kept it in the 5 s after the warning." in stop["why"]
    warning = next(line for line in audit if line["action"] == "warned")
    assert stop["at"] - warning["at"] >= 5, "the whole grace lay between warning and stop"
    before = [reading for reading in readings if reading["at"] <= warning["at"]]
    assert idle_seconds(before) >= 6, "the readings behind it show the policy's idle time"
    assert {reading["gpu"] for reading in readings} == {gpu["id"] for gpu in lease["gpus"]}
    assert max(reading["utilization_percent"] for reading in readings if reading["kind"] == "idle") < 5
    assert ended["end"]["message"] in stop["why"]


def assert_its_user_reads_why_and_finds_the_files(hub, lease, ended):
    session, own_page = hub.login("ina"), f"/services/gpu/workspaces/{lease['id']}"
    page = session.get(f"{hub.url}{own_page}", timeout=20).text
    assert "Last output of its server" in page
    assert "kept, as it was idle" in page
    for path in ("/hub/spawn", own_page, "/user/ina/lab"):
        assert ended["end"]["details"] in session.get(f"{hub.url}{path}", timeout=20).content.decode(), path
    assert session.get(f"{hub.url}/hub/home", timeout=20).status_code == 200

    start(hub, "ina")
    token = hub.api("POST", "/users/ina/tokens", {"scopes": ["access:servers!user=ina"]}).json()["token"]
    contents = requests.get(
        f"{hub.url}/user/ina/api/contents/thesis.txt", headers={"Authorization": f"token {token}"}, timeout=20
    )
    assert contents.json()["content"] == "three years of work"
    hub.stop("ina")


@pytest.mark.slow  # core/test_idleness_perhaps.py has the rule
def test_a_workspace_whose_processes_use_the_cpu_lives(hub, run_in):
    lease = start(hub, "cpu")
    run_in(lease, COMPUTE)
    enough = lease["running_at"] + LONG_ENOUGH_SECONDS
    while (now := hub.lease("cpu"))["now"] < enough:
        assert now["phase"] == "running", now["idle"]
        time.sleep(0.5)
    workspace, audit, readings = documents(hub, lease)
    # On a busy machine the processes may get too little to be counted as at work, and are believed to have worked.
    assert re.search(r"CPU at |processes, of which some may have ended, at ", workspace["idle"]["because"])
    assert max(reading["utilization_percent"] or 0 for reading in readings) < 5
    assert "warned" not in {line["action"] for line in audit}


def assert_lives_because_it_works(hub, lease):
    workspace, audit, _ = documents(hub, lease)
    assert "warned" not in {line["action"] for line in audit}
    assert workspace["gpus"][0]["utilization_percent"] == 20
    assert (workspace["gpus"][0]["state"], workspace["idle"]["idle_seconds"]) == ("busy", 0)
    assert workspace["idle"]["because"] == "GPU 0 at 20 %"
    assert workspace["warning"] is None


def assert_lives_because_nobody_knows(hub, lease):
    def read():
        found = documents(hub, lease)
        return found if [gpu["state"] for gpu in found[0]["gpus"]] == ["idle", "unknown"] else None

    workspace, audit, _ = eventually(read, 60, "a probe that ends in time, on a machine that is busy beside")
    assert workspace["gpus"][1]["utilization_percent"] is None
    assert "utilization: '[N/A]'" in workspace["gpus"][1]["problem"]
    assert "GPU 1 can't be read (utilization: '[N/A]')" in workspace["idle"]["because"]
    assert (workspace["idle"]["idle_seconds"], workspace["warning"]) == (0, None)
    assert "warned" not in {line["action"] for line in audit}
    page = hub.login("nan").get(f"{hub.url}{workspace['page']}", timeout=20)
    assert "GPU 1 can't be read" in html.unescape(page.content.decode())


@pytest.mark.slow  # core/test_activity.py has the rule
def test_a_notebook_without_a_gpu_is_stopped_when_nothing_happens_in_it(hub):
    start(hub, "nina", template="notebook")
    end = hub.until_ended("nina", "idle", 120)["end"]
    for quiet in ("no kernel", "no terminal open", "no SSH session", "no VS Code window", "no activity at the hub for"):
        assert quiet in end["message"]
