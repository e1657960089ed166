"""The commands of the pages run as they are written: for users and administrators on a real hub with simulated GPUs,
for the machine of the hub in a folder. Commands that are not run here are listed, with the test that runs them."""

import os
import re
import shlex
import socket
import subprocess

import pytest
from harness import pages
from harness.hub import ADMIN_TOKEN, RealHub, eventually

from demo import history
from gpuspawner.cli import main

USERS, ADMINISTRATORS = "how-to/users", "how-to/administrators"
OF_HUB = {
    "list", "show", "explain", "open", "keep", "extend", "done", "stop", "change", "with-gpu", "without-gpu", "start",
    "queue", "offers", "calendar", "quota", "usage", "request", "schedule", "secrets", "tokens", "completion", "rename",
    "export-me", "admin",
}  # fmt: skip
"""Commands that run on the hub."""
OF_FOLDER = {("server", "init"), ("server", "import"), ("server", "check"), ("server", "store"), ("server", "simulate"),
             ("kube", "values"), "--version"}  # fmt: skip
"""Commands that run in a folder."""
ELSEWHERE = {
    "login": "tests/service/test_login.py",
    "logout": "tests/service/test_login.py",
    "ssh": "tests/cli/test_ssh.py",
    ("server", "serve"): "tests/adopting/test_tutorials.py",
    ("server", "doctor"): "tests/adopting/test_doctor.py",
    ("kube", "crd"): "tests/cluster/test_crds.py",
    "/jupyter/": "tests/hub/test_prefix.py",
}
"""Commands that need a browser, a cluster or another hub, and the test that runs them."""
CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100, memory: 80GiB}
  h100: {title: H100, match: NVIDIA-H100, memory: 80GiB}
simulated: {a100: 4, h100: 2}
teams: {vision: {title: Vision}}
templates:
  pytorch:
    title: PyTorch
    gpus: {a100: 1-4, h100: 1-2}
    bounds: {cpu: 1-4, memory: 1GiB-8GiB, lifetime: 30m-24h}
    default: {gpu: a100, count: 1, cpu: 1, memory: 1GiB, lifetime: 8h}
    substitutes: {a100: [h100]}
policies:
  default: {mode: enforce, preemption: {protected: 0s}}
quotas:
  each-user: {each: user, gpus: {hard: 8}}
  members: {each: user, group: vision, gpus: {hard: 8}, gpu_hours: {per: week, hard: 500}}
  vision: {group: vision, gpu_hours: {per: day, hard: 80}}
"""
FOR_ALL_USERS = 'c.JupyterHub.load_roles[0]["scopes"].append("admin:groups")'
WORKSPACE, ENTRY, NODE = "7c1d90ab", "3f2a", "node-7"
"""The names that pages use for an ID of a workspace, the beginning of another ID, and a node."""
CATALOG_VERSIONS = {"12": 0, "11": 0, "9": -1}
"""The versions of the catalog that pages name, as numbers after the newest."""
LISTS = {
    ("admin", "grant"): "/quota-grants",
    ("admin", "preempt"): "/preemptions",
    ("admin", "announce"): "/messages",
    ("admin", "requests"): "/quota-requests?all=1&open=1",
    ("request",): "/quota-requests?open=1",
    ("schedule",): "/ready",
}
"""The list of the API whose newest entry a command names by the beginning of its ID."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    real = RealHub(tmp_path_factory.mktemp("pages"), extra=FOR_ALL_USERS, wait=300.0)
    real.catalog.write_text(CATALOG)
    try:
        real.start()
        real.add_user("alice", "bob")
        real.api("POST", "/groups/vision")
        real.api("POST", "/groups/vision/users", {"users": ["bob"]}).raise_for_status()
        yield real
    finally:
        real.close()


def commands_of(path):
    """Return the words of each `gpuspawner` command of a page, without what the shell does with its output."""
    lines = pages.commands((pages.DOCS / path).read_text())
    ours = [line for line in lines if re.match(r"(\.venv/bin/)?gpuspawner ", line)]
    return [shlex.split(re.split(r" >>? ", line)[0])[1:] for line in ours]


def where(words):
    """Return the sets and tables of this file that name a command."""
    keys = (words[0], tuple(words[:2]))
    if any("/jupyter/" in word for word in words):
        return [ELSEWHERE]
    return [one for one in (OF_HUB, OF_FOLDER, ELSEWHERE) if any(key in one for key in keys)]


EVERY = sorted(str(path.relative_to(pages.DOCS)) for path in pages.DOCS.rglob("*.md"))
ON_HUB = [path for path in EVERY if any(where(words) == [OF_HUB] for words in commands_of(path))]
IN_FOLDER = [path for path in EVERY if any(where(words) == [OF_FOLDER] for words in commands_of(path))]


def test_each_command_of_the_pages_is_run_by_a_test():
    for path in EVERY:
        for words in commands_of(path):
            assert len(where(words)) == 1, (path, words)
    assert all((pages.REPO / test).exists() for test in ELSEWHERE.values())


class Page:
    """A page that is followed: by alice if it is for users, else by an administrator."""

    def __init__(self, hub, path, monkeypatch, capsys):
        self.hub, self.capsys, self.is_users = hub, capsys, path.startswith(("how-to/users", "tutorials"))
        self.token = hub.api("POST", "/users/alice/tokens", {}).json()["token"] if self.is_users else ADMIN_TOKEN
        monkeypatch.setenv("GPUSPAWNER_URL", f"{hub.url}/services/gpu")
        monkeypatch.setenv("GPUSPAWNER_TOKEN", self.token)

    def follow(self, commands):
        """Run each command with what the page calls by example names."""
        for words in commands:
            self.hub.api("DELETE", "/groups/vision/users", {"users": ["alice"]}).raise_for_status()
            self.prepare(words)
            shown = [self.named(word, words) for word in words]
            code = main(shown)
            told = self.capsys.readouterr()
            assert code == 0, (words, told.out, told.err)

    def prepare(self, words):
        """Start the workspace that a command needs, and let what a command before began settle."""
        by_name = "train" in words and words[0] not in {"start", "schedule"}
        if words[0] == "start" and "--name" not in words and "--dry-run" not in words:
            self.hub.clear()
        if by_name and words[0] != "show" and not self.lives("train"):
            self.hub.begin("alice", "train", template="pytorch")
        if by_name and (words[0] != "show" or self.lives("train")):
            self.hub.until("alice", "running", server="train")
        if words[:1] in (["explain"], ["stop"]) and "-" in words:
            self.hub.until("alice", "running")
        if WORKSPACE in words:
            if self.lives("") and self.hub.lease("alice")["warning"]:  # a command before announced its end
                self.hub.clear()
            if not self.lives(""):
                self.hub.begin("alice", template="pytorch")
            self.hub.until("alice", "running")
        self.prepare_admin(words)
        if words[:3] == ["admin", "preempt", "take"] and not self.lives("train"):
            self.hub.begin("alice", "train", template="pytorch", count=4)
            self.hub.until("alice", "running", server="train")

    def prepare_admin(self, words):
        """Make the charge or the request that a command answers, or the requests or hours that it moves."""
        if "--from" in words:
            self.hub.api("POST", "/groups/vision/users", {"users": ["alice"]}).raise_for_status()
        if words[:2] == ["admin", "reorder"] and not self.lives("large"):
            for name, count in (("first", 4), ("second", 2), ("large", 2)):  # the first takes all GPUs
                self.hub.begin("alice", name, template="pytorch", count=count)
                self.hub.until("alice", "running" if name == "first" else "queued", server=name)
        if words[:2] == ["admin", "correct"] and words[3].startswith("-"):  # a credit needs a charge
            charge = {"user": words[2], "amount": "+10 GPU h", "team": "vision", "why": "a job outside the hub"}
            self.hub.gpu("/usage/corrections", "POST", charge)
        if words[:2] == ["admin", "requests"] and ENTRY in words:
            alice, asked = self.hub.api("POST", "/users/alice/tokens", {}).json()["token"], ("2 GPUs", "2d", "A paper")
            self.hub.gpu("/quota-requests", "POST", dict(zip(("what", "until", "why"), asked, strict=True)), alice)

    def lives(self, server):
        return any((one["user"], one["server"]) == ("alice", server) for one in self.hub.workspaces())

    def named(self, word, words):
        """Return the real name behind an example name of the pages."""
        if words[:2] == ["admin", "catalog"] and word in CATALOG_VERSIONS:
            newest = self.hub.gpu("/admin/catalog/versions", token=self.token)["versions"][0]["number"]
            return str(max(1, newest + CATALOG_VERSIONS[word]))
        if word == WORKSPACE:
            return self.hub.lease("alice")["id"][:8]
        if word == ENTRY:
            return self.newest(words)
        if word.partition("/")[0] == NODE:
            return word.replace(NODE, socket.gethostname())
        return word

    def newest(self, words):
        path = next(path for start, path in LISTS.items() if tuple(words[: len(start)]) == start)
        answer = self.hub.gpu(path, token=self.token)
        return next(listed for listed in answer.values() if isinstance(listed, list))[0]["id"]


@pytest.mark.parametrize("path", ON_HUB)
def test_the_commands_of_a_page_run_on_a_hub(path, hub, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EDITOR", "true")  # it changes nothing
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text("gpus: {a100: 1}\n")
    hub.clear()
    Page(hub, path, monkeypatch, capsys).follow([words for words in commands_of(path) if where(words) == [OF_HUB]])


@pytest.mark.parametrize("path", [f"{USERS}/api.md", f"{ADMINISTRATORS}/metrics.md"])
def test_the_requests_of_a_page_are_answered_by_a_hub(path, hub):
    lines = [line for line in pages.commands((pages.DOCS / path).read_text()) if line.startswith("curl ")]
    assert lines
    token = hub.api("POST", "/users/alice/tokens", {}).json()["token"] if path.startswith(USERS) else ADMIN_TOKEN
    for line in lines:
        hub.clear()
        here = re.sub(r"https://hub\.example\.org|http://127\.0\.0\.1:8000", hub.url, line)
        command = ["bash", "-c", here.replace("curl ", "curl --fail --silent --show-error ", 1)]
        told = subprocess.run(command, env={**os.environ, "TOKEN": token}, capture_output=True, text=True, check=False)
        assert told.returncode == 0, (line, told.stderr)
        if path.startswith(USERS):
            assert eventually(lambda: hub.lease("alice"), 30, "alice has a workspace")["request"]["gpu"] == "a100"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Go to a folder with what an administrator has there."""
    monkeypatch.chdir(tmp_path)
    catalog = (pages.REPO / "hub_config" / "catalog.yaml").read_text()
    for name in ("catalog.yaml", "draft.yaml"):
        (tmp_path / name).write_text(catalog)
    (tmp_path / "values.yaml").write_text("singleuser: {profileList: [{display_name: Lab}]}\n")
    (tmp_path / "hub.yaml").write_text("hub: {config: {}}\n")
    (tmp_path / "gpuspawner-data").mkdir()
    (tmp_path / "gpuspawner-data" / "secret").write_text("1" * 64)
    (tmp_path / "secret.old").write_text("2" * 64)
    return tmp_path


@pytest.mark.parametrize("path", IN_FOLDER)
def test_the_commands_of_a_page_run_in_a_folder(path, folder, capsys, monkeypatch):
    commands = [one for one in commands_of(path) if where(one) == [OF_FOLDER]]
    commands = [one for one in commands if not {"--store", "--kubernetes"}.intersection(one)]
    # Those two need a database or a cluster: tests/adopting/test_postgresql_document.py and test_init.py.
    monkeypatch.setattr(history, "WEEKS", 1)
    monkeypatch.setattr(history, "HOLDS", {"heidi-demo": ("h100", 1)} if "simulate" in str(commands) else {})
    history.main(folder / "gpuspawner-data", str(pages.REPO / "demo" / "catalog.yaml"))
    for words in commands:
        if words[:2] == ["server", "init"]:
            (folder / words[2]).unlink()
        code = main(words)
        told = capsys.readouterr()
        assert code == 0, (words, told.out, told.err)
