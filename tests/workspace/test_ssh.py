"""A real ssh into a real sshd, through a Jupyter server as JupyterHub starts it: who gets in, and what is there."""

import contextlib
import json
import os
import pwd
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from harness.programs import needs
from harness.waiting import eventually

from gpuspawner.workspace.ssh import BadKeyError, NoSshdError, Sshd, public_key, set_env

REPOSITORY = Path(__file__).parents[2]
BOBS_TOKEN = "another-persons-token"
ME = pwd.getpwuid(os.getuid()).pw_name
pytestmark = [needs("ssh"), needs("sshd")]
RELAY = "import asyncio, sys; from gpuspawner.cli.ssh_relay import relay; asyncio.run(relay(*sys.argv[1:]))"


def post(server, body, token=None):
    """POST public keys; return (status, JSON)."""
    headers = {"Authorization": f"token {token or server.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}gpuspawner/ssh", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


class Client:
    """A person's own machine: a key, and a file by which it knows the workspace."""

    def __init__(self, folder, server):
        self.folder, self.server, self.key = folder, server, folder / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        self.public = Path(f"{self.key}.pub").read_text()

    def offer(self):
        """Send the key; keep the host key that comes back."""
        status, answer = post(self.server, {"keys": [self.public]})
        assert (status, answer["user"]) == (200, ME)
        (self.folder / "known_hosts").write_text(f"workspace {answer['host_key']}\n")
        return self

    def command(self, program, *arguments, token=None):
        address = f"{self.server.url}gpuspawner/ssh/connect"
        proxy = shlex.join([sys.executable, "-c", RELAY, address, token or self.server.token])
        options = [
            f"ProxyCommand={proxy}",
            f"UserKnownHostsFile={self.folder}/known_hosts",
            f"IdentityFile={self.key}",
            "GlobalKnownHostsFile=/dev/null",
            "HostKeyAlias=workspace",
            "StrictHostKeyChecking=yes",
            "BatchMode=yes",
        ]
        return [program, "-F", "/dev/null", *(word for option in options for word in ("-o", option)), *arguments]

    def run(self, program, *arguments, token=None):
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = self.command(program, *arguments, token=token)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def client(singleuser, tmp_path_factory):
    singleuser.home.chmod(0o775)  # as a volume's fsGroup leaves it: sshd's own rules would refuse every key
    return Client(tmp_path_factory.mktemp("client"), singleuser).offer()


def test_a_command_runs_in_the_workspace_s_environment_but_for_its_tokens(client):
    done = client.run("ssh", f"{ME}@workspace", "env")
    assert done.returncode == 0, done.stderr
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert variables["GPUSPAWNER_LEASE_ID"] == "lease-7", "by it the GPU service knows whose process it is"
    assert variables["GREETING"] == 'say "hi" \\ # {all} of you'
    assert {*os.environ["PATH"].split(":")} <= {*variables["PATH"].split(":")}, "a login's own file may add to it"
    assert [name for name in variables if "TOKEN" in name] == []


def test_a_terminal_and_the_exit_code_are_those_of_the_workspace(client):
    done = client.run("ssh", "-tt", f"{ME}@workspace", "test -t 0 && exit 7")
    assert done.returncode == 7, done.stderr


def test_files_go_both_ways_whole(client, singleuser, tmp_path):
    data = os.urandom(5_000_000)
    (tmp_path / "there").write_bytes(data)
    target = f"{ME}@workspace:{singleuser.home}/copied"
    assert client.run("scp", str(tmp_path / "there"), target).returncode == 0
    assert client.run("scp", target, str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back").read_bytes() == data == (singleuser.home / "copied").read_bytes()


def test_sessions_and_copies_begin_in_the_workspace_s_home_and_not_in_its_system_user_s(client, singleuser, tmp_path):
    assert Path(pwd.getpwuid(os.getuid()).pw_dir) != singleuser.home
    done = client.run("ssh", f"{ME}@workspace", 'pwd; echo "$HOME"')
    assert done.stdout.split() == [str(singleuser.home)] * 2, done.stderr
    (tmp_path / "there").write_text("mine")
    for way in ([], ["-O"]):  # by sftp, and as it was before
        assert client.run("scp", *way, str(tmp_path / "there"), f"{ME}@workspace:here{len(way)}").returncode == 0
        assert (singleuser.home / f"here{len(way)}").read_text() == "mine"
    command, environment = (
        client.command("ssh", "-tt", f"{ME}@workspace"),
        {**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    shell = subprocess.run(
        command, input="pwd\nexit 7\n", capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert (shell.returncode, str(singleuser.home) in shell.stdout) == (7, True), shell.stderr


def test_promise_9_a_key_that_was_not_sent_opens_nothing(client, singleuser, tmp_path):
    stranger = Client(tmp_path, singleuser)
    (tmp_path / "known_hosts").write_text((client.folder / "known_hosts").read_text())
    done = stranger.run("ssh", f"{ME}@workspace", "true")
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_promise_9_another_user_s_token_sends_no_key_and_connects_nowhere(client, singleuser):
    assert post(singleuser, {"keys": [client.public]}, BOBS_TOKEN)[0] == 403
    done = client.run("ssh", f"{ME}@workspace", "true", token=BOBS_TOKEN)
    assert (done.returncode, "The workspace refused the connection (403)." in done.stderr) == (255, True)


@pytest.mark.parametrize("body", [{}, [], {"keys": "ssh-ed25519"}, {"keys": []}, {"keys": [7]}, {"keys": ["x y"]}])
def test_an_invalid_key_is_refused_in_words(singleuser, body):
    status, answer = post(singleuser, body)
    assert status == 400
    assert "public key" in answer["error"]["message"]


def test_without_ssh_in_the_template_no_user_is_let_in(lab):
    status, answer = post(lab, {"keys": ["ssh-ed25519 AAAA"]})
    assert status == 404
    assert answer["error"]["message"] == "SSH is not on in this workspace: its template does not open it."
    with pytest.raises(urllib.error.HTTPError, match="404"):
        lab.get("gpuspawner/ssh/connect")


def test_a_lost_connection_ends_its_processes_and_its_sshd(client, singleuser):
    mark = singleuser.home / "ran"
    command = client.command("ssh", "-tt", f"{ME}@workspace", f"echo $$ > {mark}.new; mv {mark}.new {mark}; sleep 600")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ssh = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    eventually(mark.exists)
    assert len(children(singleuser.pid, "sshd")) == 1
    shell = Path(f"/proc/{mark.read_text().strip()}")
    ssh.kill()
    ssh.wait()
    ssh.stdin.close()
    eventually(lambda: not shell.exists())
    eventually(lambda: children(singleuser.pid, "sshd") == [])


def test_values_that_do_not_fit_on_a_configuration_line_are_left_out():
    said = {"A": "1", "B": "two\nlines", "JPY_API_TOKEN": "x", "HOME": "/root", "BASH_FUNC_x%%": "()", "C": "'"}
    assert set_env(said) == '"A=1" "C=\'"'


@pytest.mark.parametrize(
    "text", ["", "ssh-ed25519", "ssh-ed25519 !", "ssh-rsa AAAAC3NzaC1lZDI1NTE5", "x" * 20_000, None]
)
def test_a_key_is_one_that_names_its_own_type(text):
    with pytest.raises(BadKeyError, match="is no public key"):
        public_key(text)


def test_more_keys_than_anybody_has_are_refused(client):
    kind, key, *_ = client.public.split()
    many = [f"{kind} {key[:-4]}{number:04d}" for number in range(1000, 1101)]
    with pytest.raises(BadKeyError, match="100 keys are authorized already"):
        Sshd({}).authorize(many)


def test_a_user_without_a_name_and_an_image_without_sshd_are_told(client, monkeypatch):
    monkeypatch.setattr("gpuspawner.workspace.ssh.SBIN", ())
    with pytest.raises(NoSshdError, match="There is no sshd in this workspace"):
        Sshd({"PATH": "/nowhere"}).authorize([client.public])
    monkeypatch.setattr(os, "getuid", lambda: 4_242_424)
    with pytest.raises(NoSshdError, match="User 4242424 of this workspace has no name"):
        Sshd({}).authorize([client.public])


def children(pid, program):
    """The processes of ``program`` that are children of ``pid``."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, rest = stat.read_text().partition("(")[2].rsplit(")", 1)
            if name == program and rest.split()[1] == str(pid):
                found.append(stat.parent.name)
    return found
