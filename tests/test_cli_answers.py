"""What a workspace or another host answers to a command is not believed: it stands in their users' hands."""

import threading
from argparse import Namespace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpuspawner.cli import ssh
from gpuspawner.cli.asking import RefusedError, call

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEzO"


@pytest.mark.parametrize(
    "answer",
    [
        {"user": 'jovyan\nMatch all exec "touch owned"', "host_key": HOST_KEY},
        {"user": "-oProxyCommand=x", "host_key": HOST_KEY},
        {"user": "jovyan", "host_key": f"{HOST_KEY}\n* {HOST_KEY}"},
        {"user": "jovyan"},
        ["jovyan", HOST_KEY],
    ],
    ids=["a line more", "an option", "two keys", "none", "a list"],
)
def test_what_a_workspace_says_of_its_ssh_adds_no_lines(monkeypatch, tmp_path, answer):
    monkeypatch.setattr(ssh, "call", lambda url, *_: {"user": "alice", "workspaces": []})
    monkeypatch.setattr(ssh, "_send", lambda *_, **__: answer)
    monkeypatch.setattr(ssh, "public_keys", lambda _: [HOST_KEY])
    monkeypatch.setattr(ssh, "_known_hosts", lambda *_: tmp_path / "known_hosts")
    with pytest.raises(RefusedError, match="did not say whom"):
        ssh.reach(Namespace(url="http://127.0.0.1:9/services/gpu", name="bob/train", key=None), "token")


@pytest.fixture
def hosts():
    """Two servers: the first sends everybody to the second, which notes who came with what."""
    heard = []

    class Second(BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    class First(Second):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{second.server_port}/")
            self.end_headers()

    first, second = (ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in (First, Second))
    threads = [threading.Thread(target=one.serve_forever) for one in (first, second)]
    for thread in threads:
        thread.start()
    yield f"http://127.0.0.1:{first.server_port}/", heard
    for one, thread in zip((first, second), threads, strict=True):
        one.shutdown()
        one.server_close()
        thread.join()


def test_a_token_follows_no_redirect_to_another_host(hosts):
    url, heard = hosts
    with pytest.raises(RefusedError, match="302"):
        call(url, "SECRET")
    assert heard == []
