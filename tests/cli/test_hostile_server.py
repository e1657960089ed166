"""Each command that asks a service, with the answers of another or a hostile server."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import click
import pytest

from gpuspawner.cli import main
from gpuspawner.cli.base import LazyGroup
from gpuspawner.cli.main import gpuspawner

ESCAPES = "\x1b]0;owned\x07\x1b[2J"
DONE, INVALID, REFUSED, AWAY = 0, 1, 2, 3
REASON = ("--reason", "a test")
ARGUMENTS = {
    "done": ("train", "--in", "30"),
    "keep": ("train",),
    "extend": ("train",),
    "stop": ("train",),
    "change": ("train", "--cpu", "2"),
    "rename": ("train", "Run"),
    "with-gpu": ("train",),
    "without-gpu": ("train",),
    "ssh": ("train",),
    "login": ("--no-browser",),
    "admin move": ("train", *REASON),
    "admin reorder": ("train", "--place", "1", *REASON),
    "admin drain": ("node-1", *REASON),
    "admin quarantine": ("gpu-1", *REASON),
    "admin pause": ("a100", *REASON),
    "admin reserve": ("a100", *REASON),
    "admin exempt": ("train", *REASON),
    "admin grant": ("--list",),
    "request": ("2 GPUs", "--until", "2h", *REASON),
    "admin correct": ("alice", "-1h", *REASON),
    "admin catalog restore": ("1", *REASON),
    "admin catalog save": (__file__, "--base", "1", *REASON),
    "admin export": ("alice",),
    "admin forget": ("alice", *REASON),
    "admin announce send": ("a text", "--to", "all", "--until", "2h"),
    "admin announce withdraw": ("3f",),
    "admin preempt take": ("a100", "1", "--user", "alice"),
    "admin preempt show": ("3f",),
    "admin preempt cancel": ("3f",),
    "admin preempt claimed": ("3f",),
}
"""Arguments that a command needs in addition to the address."""
WITHOUT_AN_ANSWER = {"logout"}
"""Commands that send no request before the user has signed in."""


def commands_with_a_service(group=gpuspawner, above=()):
    """Yield the names of all commands with the option --url, groups in front."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            if not isinstance(command, LazyGroup) or name == "admin":
                yield from commands_with_a_service(command, (*above, name))
        elif any(one.name == "url" for one in command.params):
            yield " ".join((*above, name))


COMMANDS = sorted(commands_with_a_service())


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A server whose answers a test chooses by path. ``heard`` has the paths and tokens of all requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            one.heard.append((self.path, self.headers.get("Authorization")))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = one.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - names that http.server calls

        def log_message(self, *_):
            pass

    one = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    one.heard = []
    keys = tmp_path / ".ssh"
    keys.mkdir()
    (keys / "id_ed25519.pub").write_text("ssh-ed25519 AAAA x\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("GPUSPAWNER_TOKEN", "token-of-the-hub")
    monkeypatch.setenv("GPUSPAWNER_URL", f"http://127.0.0.1:{one.server_port}/services/gpu")
    thread = threading.Thread(target=one.serve_forever, args=(0.01,))
    thread.start()
    yield one
    one.shutdown()
    one.server_close()
    thread.join()


def test_the_walk_has_all_commands():
    assert {"list", "ssh", "login", "admin report", "admin preempt take"} <= set(COMMANDS)
    assert set(ARGUMENTS) | WITHOUT_AN_ANSWER <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_that_a_server_words_moves_no_cursor(server, capsys, command):
    server.answer = lambda _: (409, json.dumps({"error": {"message": f"no{ESCAPES}"}}).encode())
    assert main([*command.split(), *ARGUMENTS.get(command, ())]) == REFUSED
    said = "".join(capsys.readouterr())
    assert "\x1b" not in said
    assert ("no\\x1b]0;owned\\x07" in said) is (command not in WITHOUT_AN_ANSWER)


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - WITHOUT_AN_ANSWER))
def test_an_answer_that_is_not_the_service_s_is_told_in_a_sentence(server, capsys, command):
    for body in (b"{}", b"[]", b"null", b"<p>Hi", b'{"workspaces": [5], "queue": [5], "next": null}'):
        server.answer = lambda _, body=body: (200, body)
        assert main([*command.split(), *ARGUMENTS.get(command, ())]) == AWAY, body
        said = capsys.readouterr().err
        assert "GPUSPAWNER_URL" in said, said
        assert len(said.splitlines()) == 1, said


WORKSPACE = {
    "id": "a" * 32,
    "user": f"alice{ESCAPES}",
    "server": f"train{ESCAPES}",
    "phase": "running",
    "words": f"Running{ESCAPES}",
    "queue": None,
    "end": None,
    "ends_at": None,
    "warning": None,
    "idle": None,
    "now": 1.0,
    "opens": ["lab"],
    "request": {"template": f"t{ESCAPES}"},
    "explained": [f"GPU 0 is busy.{ESCAPES}"],
}
ANSWER = {"user": "alice", "admin": True, "workspaces": [WORKSPACE], "next": None, "tokens": [], "rows": []}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list"], DONE),
        (["explain"], DONE),
        (["open", "--print"], DONE),
        (["ssh", WORKSPACE["server"]], REFUSED),
        (["ssh", "other"], REFUSED),
        (["show", f"none{ESCAPES}"], REFUSED),
        (["tokens", "--revoke", f"none{ESCAPES}"], REFUSED),
        (["admin", "move", f"none{ESCAPES}", *REASON], REFUSED),
    ],
)
def test_names_in_answers_move_no_cursor(server, capsys, words, code):
    server.answer = lambda _: (200, json.dumps(ANSWER).encode())
    assert main(words) == code
    said = "".join(capsys.readouterr())
    assert "\x1b" not in said
    assert "owned" in said, "it is shown, escaped"


def test_a_table_for_spreadsheets_moves_no_cursor(server, capsys):
    server.answer = lambda _: (200, f"name,hours\r\nalice{ESCAPES},1\r\n\xff".encode("latin-1"))
    assert main(["admin", "report", "--csv"]) == DONE
    said = capsys.readouterr().out
    assert said.startswith("name,hours\nalice\\x1b]0;owned\\x07")


def test_completion_offers_no_name_that_moves_the_cursor(server):
    listed = {**ANSWER, "workspaces": [WORKSPACE, {**WORKSPACE, "server": "trained"}]}
    server.answer = lambda _: (200, json.dumps(listed).encode())
    stop = gpuspawner.get_command(click.Context(gpuspawner), "stop")
    name = next(one for one in stop.params if one.name == "name")
    found = [one.value for one in name.shell_complete(click.Context(stop), "tra")]
    assert found == ["trained"]
    server.answer = lambda _: (200, b"null")
    assert name.shell_complete(click.Context(stop), "tra") == []


@pytest.mark.parametrize("token", ["token-of-the-hub", "gpucli-of-a-login"])
def test_promise_9_no_token_is_sent_to_the_workspace_of_another_user(server, monkeypatch, capsys, token):
    server.answer = lambda _: (200, json.dumps(ANSWER).encode())
    monkeypatch.setenv("GPUSPAWNER_TOKEN", token)
    assert main(["ssh", "mallory/ws"]) == REFUSED
    said = capsys.readouterr().err
    assert said.startswith("You are alice, and workspace `mallory/ws` is another user's: your token is not sent there.")
    assert "gpuspawner login" in said
    assert [path for path, _ in server.heard] == ["/services/gpu/api/v1/"]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"tokens": []}', '{"tokens": {"SERVICE": 5}}', '{"last": 5}', '{"tokens": {"SERVICE": {}}}', "\udcff"],
)
def test_a_damaged_file_of_logins_is_named_and_a_login_replaces_it(server, monkeypatch, tmp_path, capsys, text):
    monkeypatch.delenv("GPUSPAWNER_TOKEN")
    url = f"http://127.0.0.1:{server.server_port}/services/gpu"
    file = tmp_path / ".config" / "gpuspawner" / "tokens.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(text.replace("SERVICE", url).encode(errors="surrogateescape"))
    file.chmod(0o600)
    assert main(["list"]) == INVALID
    assert capsys.readouterr().err == f"{file} is damaged. Remove it, then sign in again with gpuspawner login.\n"
    about = {"id": "3f", "until": 2.0, "admin_until": None, "now": 1.0}
    begun = {"page": url, "code": "AB", "secret": "s", "seconds": 9, "ask_every_seconds": 0}
    taken = {"token": "gpucli-x", "user": "alice", "about": about}
    server.answer = lambda path: (200, json.dumps(taken if path.endswith("/token") else begun).encode())
    assert main(["login", "--no-browser"]) == DONE
    assert json.loads(file.read_text())["tokens"][url] == {"token": "gpucli-x", "id": "3f", "user": "alice"}
