"""`gpuspawner ssh` from a person's machine to a workspace: a real hub, proxy, single-user server, ssh, scp and sshd."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
import requests
from harness.programs import needs

sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))

from editor import SERVER, USE
from harness.fork_server import run_python
from harness.hub import REPO, RealHub

from demo.ports import pick_free

pytestmark = [needs("ssh"), needs("sshd")]
DONE, INVALID, REFUSED, AWAY = 0, 1, 2, 3
LOST = 255
"""The exit code of ssh itself if there is no connection."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub on which alice has a workspace that opens SSH, and one that does not."""
    jupyter = tmp_path_factory.mktemp("jupyter")
    installed = jupyter / "jupyter_server_config.d"  # where a wheel lays it
    shutil.copytree(REPO / "gpuspawner" / "workspace" / "jupyter-config", installed)
    hub = RealHub(
        tmp_path_factory.mktemp("ssh"), extra=SERVER.format(environment={"JUPYTER_CONFIG_PATH": str(jupyter)})
    )
    editor = "  editor: {extends: cpu, opens: [lab, ssh]}\n"
    hub.catalog.write_text(hub.catalog.read_text().replace("policies:\n", f"{editor}policies:\n"))
    try:
        hub.start()
        hub.add_user("alice", "bob")
        hub.begin("alice", template="editor")
        hub.begin("alice", "plain", template="cpu")
        hub.until("alice", "running", 120)
        hub.until("alice", "running", 60, server="plain")
        yield hub
    finally:
        hub.close()


class Person:
    """The machine of a user: a home with a key, a token of the hub, and the programs."""

    def __init__(self, home, hub, user, scopes):
        self.home, self.key = home, home / "id_ed25519"
        token = hub.api("POST", f"/users/{user}/tokens", {"scopes": scopes} if scopes else {}).json()["token"]
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUSPAWNER_", "JUPYTERHUB_", "XDG_"))}
        own = {"HOME": str(home), "PYTHONPATH": str(REPO), "GPUSPAWNER_URL": f"{hub.url}/services/gpu"}
        self.environment = {**kept, **own, "GPUSPAWNER_TOKEN": token}

    def run(self, *command, **environment):
        variables = {**self.environment, **environment}
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)

    def ssh(self, *arguments, **environment):
        program = [sys.executable, "-m", "gpuspawner.cli", "ssh", "--key", str(self.key)]
        return run_python([*program, *arguments], env={**self.environment, **environment}, timeout=120)


@pytest.fixture
def person(hub, tmp_path):
    """Make the machine of a user with a token. Without ``scopes`` it has all scopes of the user."""

    def make(user, *scopes):
        home = tmp_path / f"home of {user}"
        home.mkdir()
        return Person(home, hub, user, list(scopes))

    return make


def test_a_command_runs_there_and_its_exit_code_comes_back(hub, person):
    done = person("alice").ssh("-", "echo $GPUSPAWNER_LEASE_ID; exit 7")
    assert (done.returncode, done.stdout.strip()) == (7, hub.lease("alice")["id"]), done.stderr
    assert "authenticity" not in done.stderr, "the host key came through the hub, so ssh does not ask"


def test_a_token_for_this_alone_is_enough_and_what_follows_the_name_is_ssh_s(person):
    alice = person("alice", *USE, "access:servers!server=alice/")
    done = alice.ssh("alice/-", "-v", "true")
    assert done.returncode == DONE
    assert "debug1: Authentications that can continue" in done.stderr


def test_without_a_named_key_every_key_that_was_sent_ahead_is_tried(person):
    alice = person("alice")
    keys = alice.home / ".ssh"
    keys.mkdir()
    for suffix in ("", ".pub"):
        shutil.move(f"{alice.key}{suffix}", keys / f"id_work{suffix}")
    done = alice.run(sys.executable, "-m", "gpuspawner.cli", "ssh", "-", "exit 7")
    assert done.returncode == 7, done.stderr


def test_the_printed_configuration_serves_ssh_and_scp_without_the_environment(person, tmp_path):
    alice = person("alice")
    token = alice.home / "token"
    token.write_text(alice.environment.pop("GPUSPAWNER_TOKEN") + "\n")
    token.chmod(0o600)
    printed = alice.ssh("--config", "--token-file", str(token), "-")
    assert printed.returncode == DONE, printed.stderr
    assert printed.stdout.splitlines()[0] == "Host gpu-default"
    config = tmp_path / "config"
    config.write_text(printed.stdout)
    alice.environment.pop("GPUSPAWNER_URL")
    (tmp_path / "there").write_bytes(data := os.urandom(3_000_000))
    for source, target in (("there", "gpu-default:copied"), ("gpu-default:copied", "back")):
        files = [name.replace("copied", f"{tmp_path}/copied") for name in (source, target)]
        done = subprocess.run(
            ["scp", "-F", config, *files], env=alice.environment, cwd=tmp_path, timeout=120, check=False
        )
        assert done.returncode == DONE
    assert (tmp_path / "back").read_bytes() == data
    assert alice.run("ssh", "-F", str(config), "gpu-default", "exit 5").returncode == 5


@pytest.fixture
def signed_in(hub, person):
    """Make the machine of a user who signed in with `gpuspawner login`, without a token of the hub."""

    def make(user):
        one = person(user)
        one.environment.pop("GPUSPAWNER_TOKEN")
        command = [sys.executable, "-m", "gpuspawner.cli", "login", "--no-browser"]
        login = subprocess.Popen(command, env=one.environment, stdout=PIPE, stderr=PIPE, text=True)
        page = login.stderr.readline().split()[1]
        code = login.stderr.readline().split()[-1]
        session = hub.login(user)
        assert session.get(page, timeout=20).status_code == 200
        xsrf = session.cookies.get("_xsrf", path="/services/gpu/")
        answer = {"_xsrf": xsrf, "code": code, "answer": "allow"}
        assert "is logged in" in session.post(page, data=answer, timeout=20).text
        out, err = login.communicate(timeout=60)
        assert login.returncode == DONE, (out, err)
        return one

    return make


def test_one_login_serves_ssh_and_scp_and_reaches_no_other_users_workspace(hub, signed_in, tmp_path):
    alice = signed_in("alice")
    done = alice.ssh("-", "echo $GPUSPAWNER_LEASE_ID; exit 7")
    assert (done.returncode, done.stdout.strip()) == (7, hub.lease("alice")["id"]), done.stderr
    printed = alice.ssh("--config", "-")
    assert printed.returncode == DONE, printed.stderr
    (tmp_path / "config").write_text(printed.stdout)
    (tmp_path / "there").write_text("mine")
    copied = alice.run("scp", "-F", str(tmp_path / "config"), str(tmp_path / "there"), "gpu-default:by-login")
    assert copied.returncode == DONE, copied.stderr
    assert (hub.folder / "homes" / "alice" / "by-login").read_text() == "mine"
    other = signed_in("bob").ssh("alice/-", "true")
    assert (other.returncode, "is another user's: your token is not sent there." in other.stderr) == (REFUSED, True)


def test_promise_9_a_ticket_is_for_one_workspace_and_its_user(hub, signed_in):
    files = [signed_in(user).home / ".config/gpuspawner/tokens.json" for user in ("alice", "bob")]
    alice, bob = (next(iter(json.loads(file.read_text())["tokens"].values()))["token"] for file in files)
    lease, plain = (hub.lease("alice", name)["id"] for name in ("", "plain"))

    def ask(token, name):
        address, headers = f"{hub.url}/services/gpu/api/v1/workspaces/{name}/ssh", {"Authorization": f"token {token}"}
        return requests.post(address, headers=headers, timeout=20)

    def send(ticket):
        address, keys = f"{hub.url}/user/alice/gpuspawner/ssh", {"keys": ["ssh-ed25519 x"]}
        return requests.post(address, json=keys, headers={"Authorization": f"ticket {ticket}"}, timeout=20).status_code

    assert (ask(bob, lease).status_code, ask(alice, plain).status_code) == (404, 409)
    ticket = ask(alice, lease).json()["ticket"]
    assert send(ticket) == 400, "it lets in: what is refused is the key"
    assert (send(f"{ticket}x"), send(alice), send("")) == (403, 403, 403)


def test_promise_9_a_token_of_the_hub_is_not_sent_to_another_user_s_workspace(person):
    bob = person("bob")
    done = bob.ssh("alice/-", "true")
    assert (done.returncode, done.stdout) == (REFUSED, "")
    assert "workspace `alice/-` is another user's: your token is not sent there." in done.stderr


def test_a_token_that_may_not_open_the_workspace_is_refused_in_words(person):
    none = person("alice", *USE).ssh("-", "true")
    assert none.returncode == REFUSED
    assert "Run gpuspawner login as its user, or use a token of that user" in none.stderr


def test_a_missing_stopped_or_ssh_less_workspace_is_reported(hub, person):
    alice = person("alice")
    hub.delay("alice", "before-start", 3600)
    hub.begin("alice", "slow", template="cpu")
    hub.until("alice", "starting", 60, server="slow")
    for name, words in (
        ("slow", "Workspace `slow` is not running: "),
        ("plain", "Workspace `plain` does not open SSH: its template cpu has no ssh in `opens`, or its image"),
        ("lost", "You have no workspace `lost`. Your workspaces: -, plain"),
    ):
        done = alice.ssh(name, "true")
        assert done.returncode == REFUSED
        assert done.stderr.startswith(words)
    nobody = person("bob").ssh("-", "true")
    assert (
        nobody.stderr
        == "You have no workspace `-`. Start one with gpuspawner start, or on the hub's page /hub/spawn.\n"
    )


def test_as_proxycommand_it_tells_the_same_and_ssh_ends(person):
    proxy = f"ProxyCommand={sys.executable} -m gpuspawner.cli ssh --proxy lost"
    alice = person("alice")
    (alice.home / ".ssh").mkdir()
    done = alice.run("ssh", "-F", "/dev/null", "-o", proxy, "somewhere", "true")
    assert done.returncode == LOST
    assert "You have no workspace `lost`." in done.stderr


def test_a_service_that_is_away_is_told(person):
    done = person("alice").ssh("-", "true", GPUSPAWNER_URL=f"http://127.0.0.1:{pick_free(1)[0]}/services/gpu")
    assert done.returncode == AWAY
    assert "Is the hub running? Set --url or GPUSPAWNER_URL." in done.stderr


def test_a_machine_without_ssh_without_a_key_or_with_a_token_that_all_may_read_is_told(person, tmp_path):
    alice = person("alice")
    without = alice.ssh("-", "true", PATH=str(tmp_path))
    assert (without.returncode, without.stderr[:36]) == (INVALID, "This machine has no ssh. Install Ope")
    keyless = alice.run(sys.executable, "-m", "gpuspawner.cli", "ssh", "-", "true")
    assert keyless.returncode == REFUSED
    assert keyless.stderr.endswith("Make one with ssh-keygen, or name yours with --key.\n")
    shutil.copy(alice.key, open_to_all := tmp_path / "token")
    open_to_all.chmod(0o644)
    read = alice.ssh("--token-file", str(open_to_all), "-", "true")
    assert (read.returncode, "Run chmod 600" in read.stderr) == (REFUSED, True)
    lost = alice.ssh("--key", str(tmp_path / "none"), "-", "true")
    assert (lost.returncode, "cannot be read as a public key" in lost.stderr) == (REFUSED, True)
