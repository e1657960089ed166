"""Real single-user servers: notebooks and packages are back after an idle stop and after a preemption; hooks are cut.

Each workspace runs in an image of its own: a Python into which its user installs, and which is new at each start. All
times of the policy are divided by FAST: 15 minutes of idleness and 100 s of grace are 45 and 5 seconds.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import requests
from harness.hub import REPO, RealHub, eventually

FAST = 20
CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100, memory: 80GiB}
simulated: {a100: 2}
templates:
  lab: {gpus: {a100: 1-2}}
  kept: {gpus: {a100: 1-2}, on_stop: {timeout: 3s}, policy: kept}
policies:
  default:
    mode: enforce
    idle: {below: 5%, for: 15m, sample: 20s, grace: 100s}  # on a busy machine what is there is kept after half a minute
  kept:
    extends: default
    idle: {for: 12h}
    preemption: {protected: 1s, grace: 100s, back_in_queue: true}
"""
SERVER = """
import pathlib
import gpuspawner
TinySpawner.cmd = [{python!r}, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root", "--ServerApp.jpserver_extensions=gpuspawner.workspace=True"]
c.Spawner.environment = {{"PYTHONPATH": str(pathlib.Path(gpuspawner.__file__).parents[1]), **{pip!r}}}
c.Spawner.http_timeout = 60
c.Spawner.start_timeout = 60
"""
KEPT_SECONDS = 180


class Image:
    """A Python of its own, with what this one has, and a package that pip finds without a network."""

    def __init__(self, folder):
        self.wheels, prefix = folder / "wheels", folder / "image"
        self.wheels.mkdir()
        self.pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull}
        subprocess.run([sys.executable, "-m", "venv", str(prefix)], check=True, timeout=300)
        self.python = str(prefix / "bin" / "python")
        self.packages = next((prefix / "lib").glob("python3*")) / "site-packages"
        theirs = [path for path in sys.path if path.endswith("site-packages")]
        (self.packages / "tests.pth").write_text("\n".join([*theirs, str(REPO)]))
        info = "mine-1.0.dist-info"
        with zipfile.ZipFile(self.wheels / "mine-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("mine.py", "")
            wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "mine.py,,\n")

    @property
    def has_mine(self) -> bool:
        return (self.packages / "mine.py").exists()

    def install(self, home):
        command = [self.python, "-m", "pip", "install", "-q", "mine"]
        subprocess.run(command, env={**os.environ, "HOME": str(home), **self.pip}, check=True, timeout=300)

    def is_new(self):
        """As a pod on another node has it: what was installed is not there."""
        (self.packages / "mine.py").unlink()
        shutil.rmtree(self.packages / "mine-1.0.dist-info")


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    return Image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory, image):
    extra = SERVER.format(python=image.python, pip=image.pip)
    real = RealHub(tmp_path_factory.mktemp("back"), fast=FAST, extra=extra)
    real.catalog.write_text(CATALOG)
    with real:
        yield real


class Person:
    """Somebody's workspace, as their browser talks to it."""

    def __init__(self, hub, name):
        self.hub, self.name = hub, name
        self.home = Path(hub.folder) / "homes" / name
        hub.add_user(name)
        answer = hub.api("POST", f"/users/{name}/tokens", {"scopes": [f"access:servers!user={name}"]})
        self.headers = {"Authorization": f"token {answer.json()['token']}"}

    def ask(self, path, body=None):
        url = f"{self.hub.url}/user/{self.name}/{path}"
        method = "GET" if body is None else "POST"
        answer = requests.request(method, url, headers=self.headers, json=body, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def works(self, image):
        """Open a notebook with a kernel, install a package, and wait until both are kept."""
        (self.home / "work.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
        kernel = {"path": "work.ipynb", "name": "", "type": "notebook", "kernel": {"name": "python3"}}
        self.ask("api/sessions", kernel)
        image.install(self.home)
        kept = self.home / ".gpuspawner" / "session.json"
        is_kept = lambda: kept.exists() and all(one in kept.read_text() for one in ('"work.ipynb"', '"mine"'))  # noqa: E731
        eventually(is_kept, KEPT_SECONDS, "what is there is kept")

    def finds_it_back(self, image):
        """The notebook is told, and the package is installed once its user says so."""
        told = self.ask("gpuspawner/home")
        assert "Open in your last session: work.ipynb. Their kernels are new: run the cells again." in told["notes"]
        assert told["ask"]["packages"] == ["mine 1.0"]
        assert not image.has_mine
        self.ask("gpuspawner/home", {"install": "once"})
        installed = lambda: any("Installed again: mine 1.0." in one for one in self.ask("gpuspawner/home")["notes"])  # noqa: E731
        eventually(installed, KEPT_SECONDS, "the package is back")
        assert image.has_mine


@pytest.mark.slow  # workspace/test_comes_back.py has each step
def test_notebooks_and_packages_are_back_after_an_idle_stop(hub, image):
    ina = Person(hub, "ina")
    hub.begin("ina")
    hub.until("ina", "running", 60)
    ina.works(image)
    hub.until_ended("ina", "idle", 120)
    image.is_new()
    hub.begin("ina")
    hub.until("ina", "running", 60)
    ina.finds_it_back(image)
    image.is_new()
    hub.stop("ina")


@pytest.mark.slow  # service/test_on_stop.py has the hook's end
def test_they_are_back_after_a_preemption_whose_hook_is_cut_at_its_time_and_its_output_is_on_the_page(hub, image):
    pia = Person(hub, "pia")
    hub.begin("pia", template="kept")
    first = hub.until("pia", "running", 60)
    pia.works(image)
    (pia.home / ".gpuspawner" / "on-stop").write_text("echo step 1200 saved; sleep 600; echo never")
    claim = {"kind": "a100", "external": "Training job train-77", "count": 2}
    eventually(lambda: hub.gpu("/preemptions", "POST", {**claim, "dry_run": True})["victims"], what="no more protected")
    made = hub.gpu("/preemptions", "POST", claim)
    ended = hub.until_ended("pia", "made room", 120)
    assert ended["id"] == first["id"]
    page = hub.login("pia").get(f"{hub.url}/services/gpu/workspaces/{first['id']}", timeout=20).text
    assert "What was to run before the end was ended after 3 s." in page
    assert "step 1200 saved" in page
    assert "never" not in page.partition("Last output of its server")[2].partition("</pre>")[0]
    image.is_new()
    assert hub.gpu(f"/preemptions/{made['id']}", "DELETE")["state"] == "given up"
    back = eventually(lambda: (one := hub.until("pia", "running", 90))["id"] != first["id"] and one, 120)
    assert back["request"] == first["request"]
    pia.finds_it_back(image)
