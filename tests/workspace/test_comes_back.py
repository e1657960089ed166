"""The restored last session: a real Jupyter server twice on one home, with a real venv and pip as its image."""

import errno
import json
import logging
import os
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from a_wheel import make_wheel
from harness.waiting import eventually
from workspace_server import ATTEMPT, LEASE, REPOSITORY, JupyterServer

from gpuspawner.workspace.home import session as module
from gpuspawner.workspace.home.own_files import Notes, NotUsedError
from gpuspawner.workspace.home.session import (
    MOST_PACKAGES,
    LastSession,
    Package,
    Session,
    Terminal,
    file_of,
    read_session,
    write_session,
)

KEPT = Session(("a.ipynb",), (Terminal("1", "/data"),), (Package("pip", "x", "1.0"), Package("conda", "y", "2")))


def test_kept_files_are_private_bounded_and_read_as_written(tmp_path):
    file = file_of(tmp_path / ".gpuspawner", "")
    assert read_session(file) == Session()
    write_session(file, KEPT)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_session(file) == KEPT
    assert file_of(file.parent, "train").name == "session-train.json"
    write_session(file, Session(packages=tuple(Package("pip", f"p{n}", "1") for n in range(1000))))
    assert len(read_session(file).packages) == MOST_PACKAGES
    assert [one.name for one in file.parent.iterdir()] == ["session.json"], "nothing of a write is left over"


@pytest.mark.parametrize(
    "text",
    [
        '{"notebooks": 5, "terminals": [["1"], ["1", 2], 3], "packages": [["npm", "x", "1"], ["pip", "x\\n", "1"]]}',
        "{}",
    ],
)
def test_invalid_entries_are_skipped(tmp_path, text):
    file = tmp_path / "session.json"
    file.write_text(text)
    file.chmod(0o600)
    assert read_session(file) == Session()


def test_a_session_that_is_not_an_object_or_that_others_may_change_is_not_used(tmp_path):
    file = tmp_path / "session.json"
    for text, mode in (("[" * 5000, 0o600), ("7", 0o600), ("{}", 0o644)):
        file.write_text(text)
        file.chmod(mode)
        with pytest.raises(NotUsedError, match="is not used"):
            read_session(file)


async def test_a_list_rejected_by_a_full_home_is_kept_once_it_fits(tmp_path, monkeypatch):
    class Sessions:
        async def list_sessions(self):
            return [{"type": "notebook", "path": "a.ipynb"}]

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    log = logging.getLogger("test")
    server = SimpleNamespace(session_manager=Sessions(), web_app=SimpleNamespace(settings={}), log=log)
    one = LastSession(server, {"HOME": str(tmp_path)}, Notes(log))
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_session", full)
        await one.keep()
    await one.keep()
    assert read_session(file_of(tmp_path / ".gpuspawner", "")).notebooks == ("a.ipynb",)


async def test_an_unreadable_file_is_reported_as_gone_and_the_rest_continues(tmp_path):
    log, opened, unseen = logging.getLogger("test"), [], "n" * 300
    manager = SimpleNamespace(terminals={}, create=lambda **asked: opened.append(asked))
    server = SimpleNamespace(web_app=SimpleNamespace(settings={"terminal_manager": manager}), log=log)
    file = file_of(tmp_path / ".gpuspawner", "")
    write_session(file, Session((f"{unseen}/a.ipynb",), (Terminal("1", f"/{unseen}"),)))
    notes = Notes(log)
    one = LastSession(server, {"HOME": str(tmp_path)}, notes)
    one.start()
    one._callback.stop()
    assert opened == [{"name": "1", "cwd": str(tmp_path)}]
    assert notes.view()["notes"] == [
        f"Not there any more: {unseen}/a.ipynb.",
        "Terminals are open again in your home, as their folders are gone: 1.",
    ]


def workspace(folder, home):
    folder.mkdir()
    arguments = ["--no-browser", "--ServerApp.port={port}"]
    lease = {"GPUSPAWNER_LEASE_ID": LEASE, "GPUSPAWNER_ATTEMPT": ATTEMPT}
    server = JupyterServer(folder, "jupyterlab", arguments=arguments, home=home, **lease)
    server.wait("api/status")
    return server


def send(server, path, body):
    headers = {"Authorization": f"token {server.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_terminals_are_open_again_in_their_folders_and_what_is_gone_is_told(tmp_path):
    home = tmp_path / "home"
    for name in ("work", "other"):
        (home / name).mkdir(parents=True)
    file = file_of(home / ".gpuspawner", "")
    first = workspace(tmp_path / "first", home)
    try:
        assert first.get("gpuspawner/home") == (200, {"busy": "", "notes": [], "ask": None}), "nothing was there before"
        for name in ("work", "other"):
            send(first, "api/terminals", {"name": f"my {name}", "cwd": str(home / name)})
        eventually(lambda: len(read_session(file).terminals) == 2)
    finally:
        first.end()
    kept = read_session(file)
    assert kept.terminals == (Terminal("my other", str(home / "other")), Terminal("my work", str(home / "work")))
    (home / "here.ipynb").write_text("{}")
    write_session(file, Session(("gone.ipynb", "here.ipynb"), kept.terminals, (Package("pip", "not-to-be-had", "1"),)))
    (home / "other").rmdir()
    second = workspace(tmp_path / "second", home)
    try:
        assert {one["name"] for one in second.get("api/terminals")[1]} == {"my work", "my other"}
        told = second.get("gpuspawner/home")[1]
        assert told["notes"] == [
            "Open in your last session: here.ipynb. Their kernels are new: run the cells again.",
            "Not there any more: gone.ipynb.",
            "Terminals are open again: my work in ~/work.",
            "Terminals are open again in your home, as their folders are gone: my other.",
        ]
        assert told["ask"]["packages"] == ["not-to-be-had 1"], "nothing is installed before the user decides"
        with pytest.raises(urllib.error.HTTPError, match="400"):
            send(second, "gpuspawner/home", {"install": "rm -rf"})
        assert send(second, "gpuspawner/home", {"install": "never"})["ask"] is None
        assert read_session(file).install == "never"
    finally:
        second.end()
    assert {one.name for one in read_session(file).terminals} == {"my work", "my other"}, "an end closes no terminal"
    assert read_session(file).packages == (Package("pip", "not-to-be-had", "1"),)


IN_THE_IMAGE = """
import asyncio, json, sys
from pathlib import Path
from gpuspawner.workspace.home.packages import Image, Package, UserPackages, install_packages
home, last, adds = Path(sys.argv[1]), [Package(*one) for one in json.loads(sys.argv[2])], json.loads(sys.argv[3])
image = Image(home)
wanted = UserPackages(image, last)
failed, line = asyncio.run(install_packages(wanted.missing, home, home / "log", __import__("os").environ))
asyncio.run(install_packages([Package(*one) for one in adds], home, home / "log", __import__("os").environ))
print(json.dumps({"missing": wanted.missing, "others": wanted.others, "failed": failed, "kept": wanted.now()}))
"""


def test_image_packages_are_installed_again_and_an_unavailable_one_blocks_no_other(tmp_path):
    image, home, wheels = tmp_path / "image", tmp_path / "home", tmp_path / "wheels"
    home.mkdir()
    wheels.mkdir()
    for name, version in (("mine", "1.0"), ("images", "2.0"), ("later", "3.1")):
        make_wheel(wheels, name, version)
    subprocess.run([sys.executable, "-m", "venv", str(image)], check=True, timeout=300)
    python = str(image / "bin" / "python")
    own = next((image / "lib").glob("python3*")) / "site-packages"
    theirs = [path for path in sys.path if path.endswith("site-packages")]
    (own / "tests.pth").write_text("\n".join([*theirs, str(REPOSITORY)]))
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), **pip}
    subprocess.run([python, "-m", "pip", "install", "-q", "images"], env=environ, check=True, timeout=300)

    def session(last, adds=()):
        command = [python, "-c", IN_THE_IMAGE, str(home), json.dumps(last), json.dumps(adds)]
        return json.loads(subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, timeout=300).stdout)

    last = [["pip", "images", "1.0"], ["pip", "mine", "1.0"], ["pip", "not-to-be-had", "9"]]
    told = session(last, adds=[["pip", "later", "3.1"]])
    assert told["missing"] == last[1:]
    assert told["others"] == last[:1], "what the image has of its own stays"
    assert told["failed"] == last[2:]
    assert told["kept"] == [["pip", "later", "3.1"], ["pip", "mine", "1.0"], ["pip", "not-to-be-had", "9"]]
    assert (own / "mine.py").exists()
    again = session(told["kept"])
    assert again["missing"] == last[2:]
    assert again["kept"] == told["kept"], "on a machine where they stay they stay its user's"
    assert Path(home, "log").exists()


CONDA = """#!{python}
import json, sys
from pathlib import Path
command, yes, quiet, option, prefix, *asked = sys.argv[1:]
assert (command, yes, quiet, option) == ("install", "--yes", "--quiet", "--prefix"), sys.argv
if "not-to-be-had=9" in asked:
    sys.exit("PackagesNotFoundError: not-to-be-had=9")
for name, version in (one.split("=") for one in asked):
    record = {{"name": name, "version": version, "build": "py312h1a2b3c_0", "build_number": 0, "depends": []}}
    Path(prefix, "conda-meta", f"{{name}}-{{version}}-py312h1a2b3c_0.json").write_text(json.dumps(record))
"""
"""Stands for conda, which no registry of Python's packages has: it takes its command, and leaves its records."""


def test_conda_packages_have_their_own_list_and_are_installed_again_where_available(tmp_path):
    image, home = tmp_path / "image", tmp_path / "home"
    home.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(image)], check=True, timeout=300)
    own = next((image / "lib").glob("python3*")) / "site-packages"
    theirs = [path for path in sys.path if path.endswith("site-packages")]
    (own / "tests.pth").write_text("\n".join([*theirs, str(REPOSITORY)]))
    (image / "conda-meta").mkdir()
    (image / "conda-meta" / "history").write_text("")
    (image / "conda-meta" / "images-2.0-0.json").write_text("{}")
    conda = image / "bin" / "conda"
    conda.write_text(CONDA.format(python=sys.executable))
    conda.chmod(0o755)

    def session(last, adds=()):
        command = [str(image / "bin" / "python"), "-c", IN_THE_IMAGE, str(home), json.dumps(last), json.dumps(adds)]
        environ = {"PATH": os.environ["PATH"], "HOME": str(home)}
        return json.loads(subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, timeout=300).stdout)

    mine = ["conda", "two-parts", "2.1.post1"]
    first = session([], adds=[mine, ["conda", "_a_mutex", "4.5"]])
    assert first["kept"] == [["conda", "_a_mutex", "4.5"], mine], "what the image has of conda's is not its user's"
    for record in (image / "conda-meta").glob("*h1a2b3c_0.json"):
        record.unlink()  # as a new pod has it
    gone = ["conda", "not-to-be-had", "9"]
    told = session([*first["kept"], gone])
    assert (told["missing"], told["failed"]) == ([*first["kept"], gone], [gone])
    assert told["kept"] == sorted([*first["kept"], gone])
    assert (image / "conda-meta" / "two-parts-2.1.post1-py312h1a2b3c_0.json").exists()


async def test_an_image_without_conda_is_said_and_nothing_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_conda", lambda: "")
    write_session(file_of(tmp_path / ".gpuspawner", ""), Session(packages=(Package("conda", "y", "2"),)))
    log = logging.getLogger("test")
    server = SimpleNamespace(web_app=SimpleNamespace(settings={}), log=log)
    notes = Notes(log)
    one = LastSession(server, {"HOME": str(tmp_path)}, notes)
    one.start()
    one._callback.stop()
    assert notes.view()["notes"] == ["Not installed again, as this image has no conda: y 2."]
    assert notes.view()["ask"] is None
    assert one.installing is None
