"""Commands do not trust the answers of workspaces and other hosts, which their users control."""

import os
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpuspawner.cli import main, ssh
from gpuspawner.cli.client import call
from gpuspawner.cli.errors import RefusedError

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEzO"
TRAIN = {"id": "a" * 32, "server": "train", "phase": "running", "opens": ["ssh"]}


@pytest.mark.parametrize(
    "answer",
    [
        {"user": 'jovyan\nMatch all exec "touch owned"', "host_key": HOST_KEY},
        {"user": "-oProxyCommand=x", "host_key": HOST_KEY},
        {"user": "jovyan", "host_key": f"{HOST_KEY}\n* {HOST_KEY}"},
        {"user": "jovyan"},
    ],
    ids=["a line more", "an option", "two keys", "none"],
)
def test_ssh_information_of_a_workspace_adds_no_lines(monkeypatch, tmp_path, answer):
    monkeypatch.setattr(ssh, "call", lambda url, *_: {"user": "alice", "workspaces": [TRAIN]})
    monkeypatch.setattr(ssh, "_send", lambda *_, **__: answer)
    monkeypatch.setattr(ssh, "public_keys", lambda _: [HOST_KEY])
    monkeypatch.setattr(ssh, "_write_known_hosts", lambda *_: tmp_path / "known_hosts")
    with pytest.raises(RefusedError, match="did not name the user"):
        ssh.reach(ssh.Target("http://127.0.0.1:9/services/gpu", "alice/train"), "token")


@pytest.fixture
def hosts():
    """Two servers. The first redirects to the second, or to a user of its own. ``heard`` are the tokens that arrive."""
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
            if self.path == "/user/mallory/":
                super().do_GET()
                return
            self.send_response(302)
            other = f"http://127.0.0.1:{second.server_port}/"
            self.send_header("Location", "/user/mallory/" if self.path == "/same-host" else other)
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


@pytest.mark.parametrize("path", ["", "same-host"])
def test_a_token_follows_no_redirect(hosts, path):
    url, heard = hosts
    with pytest.raises(RefusedError, match="302"):
        call(f"{url}{path}", "SECRET")
    assert heard == []


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:abc",
        "http://127.0.0.1:8000/a b",
        "http://[",
        "http://",
        "http://127.0.0.1:99999",
        "ftp://x",
        "",
    ],
)
def test_an_invalid_address_is_refused_with_an_example(monkeypatch, capsys, url):
    monkeypatch.setenv("GPUSPAWNER_TOKEN", "abc")
    assert main(["list", "--url", url]) == 2
    assert (
        f"{url.rstrip('/')!r} is not an http address. Set --url or GPUSPAWNER_URL, for example"
        in capsys.readouterr().err
    )


def test_an_invalid_address_is_reported_before_sign_in_too(monkeypatch, capsys):
    monkeypatch.delenv("GPUSPAWNER_TOKEN", raising=False)
    assert main(["list", "--url", "notaurl"]) == 2
    assert "'notaurl' is not an http address." in capsys.readouterr().err


def test_text_of_a_terminal_with_another_encoding_is_refused_in_words(monkeypatch, capsys):
    monkeypatch.setenv("GPUSPAWNER_TOKEN", "t")
    assert (
        main(["admin", "audit", "--who", "m\udcfcller", "--url", "http://127.0.0.1:9"]) == 1
    )  # as Python reads a byte 0xfc
    assert "ller' is not text in UTF-8. Write it again." in capsys.readouterr().err


@pytest.mark.parametrize("token", ["t\u00f6ken", "one\ntwo", "a b"])
def test_an_invalid_token_is_named_and_the_service_is_not(monkeypatch, capsys, token):
    monkeypatch.setenv("GPUSPAWNER_TOKEN", token)
    assert main(["list", "--url", "http://127.0.0.1:9"]) == 2
    assert "GPUSPAWNER_TOKEN holds no token" in capsys.readouterr().err


def test_an_answer_that_is_no_http_is_told_in_words(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("GPUSPAWNER_TOKEN", "abc")
        assert main(["list", "--url", f"http://127.0.0.1:{server.getsockname()[1]}"]) == 3
        thread.join()
    assert "No GPU service answers at" in capsys.readouterr().err


@pytest.fixture
def proxy():
    """Run an HTTP server that answers like the hub's proxy while the service is away. Yield its address."""

    class Away(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(503)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Away) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/services/gpu"
        server.shutdown()


def test_while_the_service_is_away_a_command_says_what_goes_on_and_what_to_do(proxy, monkeypatch, capsys):
    monkeypatch.setenv("GPUSPAWNER_TOKEN", "abc")
    assert main(["list", "--url", proxy]) == 3
    said = capsys.readouterr().err
    assert "The GPU service is away (status 503). Your workspaces keep running" in said
    assert "Try again in a minute." in said


def test_ctrl_c_ends_a_command_without_a_traceback():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        command = subprocess.Popen(
            [sys.executable, "-m", "gpuspawner.cli", "list", "--url", url],
            env={**os.environ, "GPUSPAWNER_TOKEN": "abc"},
            stderr=subprocess.PIPE,
            text=True,
        )
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)  # it waits for the answer now
            command.send_signal(signal.SIGINT)
            _, said = command.communicate(timeout=60)
    assert (command.returncode, said) == (130, "")


HEAVY = {"jupyterhub", "sqlalchemy", "pydantic", "yaml", "tornado", "gpuspawner.service", "gpuspawner.catalog"}


def loaded_by(*words):
    """Return the exit code of a command, and all that its process has imported."""
    run = f"import sys; from gpuspawner.cli import main; code = main({list(words)!r}); sys.stdout = sys.stderr"
    command = [sys.executable, "-c", f"{run}; print(code, *sys.modules)"]
    env = {**os.environ, "GPUSPAWNER_TOKEN": "x"}
    code, *names = (
        subprocess.run(command, check=True, capture_output=True, text=True, env=env).stderr.split("\n")[-2].split()
    )
    return int(code), set(names)


def test_the_list_of_commands_imports_click_and_no_command():
    code, names = loaded_by("--help")
    assert (code, "click" in names, names & {*HEAVY, "rich", "urllib.request", "gpuspawner.cli.client"}) == (
        0,
        True,
        set(),
    )


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["start"],
        ["queue"],
        ["offers"],
        ["schedule"],
        ["login"],
        ["tokens"],
        ["stop", "x"],
        ["admin", "audit"],
        ["admin", "report"],
        ["admin", "drain", "--list"],
        ["admin", "preempt", "list"],
    ],
    ids=" ".join,
)
def test_commands_that_ask_the_service_import_neither_pydantic_nor_the_service(words):
    code, names = loaded_by(*words, "--url", "http://127.0.0.1:9")
    assert (code, names & HEAVY) == (3, set())
    heavy_of_core = {name for name in names if name.startswith("gpuspawner.core.")}
    assert heavy_of_core <= {"gpuspawner.core.errors", "gpuspawner.core.units", "gpuspawner.core.leases"} | {
        "gpuspawner.core.leases.exits"
    }


def listed(environment=None, **streams):
    """Run ``gpuspawner list`` with an answer in which a workspace has any names."""
    one = {"id": "c5a3a2fb0", "user": "é李", "server": "new\\nline\\x1b[31m", "words": "Running", "queue": None}
    rest = "'end': None, 'ends_at': None, 'idle': None, 'warning': None, 'now': 0.0}"
    answer = f"{{'workspaces': [{ascii(one)[:-1]}, {rest}]}}".replace("\\\\", "\\")
    asks = (
        f"from gpuspawner.cli import client, main; client.call = lambda *_: {answer}; raise SystemExit(main(['list']))"
    )
    env = {**os.environ, "GPUSPAWNER_TOKEN": "x", **(environment or {})}
    return subprocess.run(
        [sys.executable, "-c", asks], check=False, text=True, env=env, stderr=subprocess.PIPE, **streams
    )


def test_names_move_no_cursor_and_add_no_rows():
    said = listed(stdout=subprocess.PIPE)
    assert len(said.stdout.splitlines()) == 2, said.stderr
    assert "new\\nline\\x1b[31m" in said.stdout


def test_a_terminal_of_one_script_shows_names_of_others_escaped():
    said = listed({"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}, stdout=subprocess.PIPE)
    assert (said.returncode, said.stderr) == (0, "")
    assert "\\xe9\\u674e" in said.stdout


def test_output_that_cannot_be_written_is_told_without_a_traceback():
    with Path("/dev/full").open("w") as full:
        said = listed(stdout=full)
    assert (said.returncode, said.stderr) == (1, "gpuspawner: [Errno 28] No space left on device\n")


def test_a_closed_output_is_no_error():
    said = listed(preexec_fn=lambda: os.close(1))
    assert (said.returncode, said.stderr) == (0, "")


def test_a_password_in_the_address_is_refused_and_not_repeated(monkeypatch, capsys):
    monkeypatch.setenv("GPUSPAWNER_TOKEN", "abc")
    assert main(["list", "--url", "http://me:hunter2@127.0.0.1/services/gpu"]) == 2
    said = "Write the address without a name and a password. Your token says who you are.\n"
    assert capsys.readouterr().err == said
