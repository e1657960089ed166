"""An upgrade tried with wheels: a hub of an earlier commit, then this checkout's on the same folder, then back.

    python -m tools.upgrade COMMIT     the versions of both must be installable; .venv has the hub's proxy

One workspace runs and one waits all the time. The output is each version's report on both workspaces.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from tools import main_job
from tools.install import LOG, ROOT, VENV, install
from tools.package import new_environment
from tools.progress import StepError, Steps, report_failure, run_logged, say

CATALOG = main_job.CATALOG.replace("mode: enforce", "mode: observe")
KEPT = ("id", "phase", "asked_at", "ends_at", "started_at", "gpus")
USERS = ("ada", "bob")
EXTRAS = "hub,workspace"


def main(arguments: list[str]) -> int:
    """Go there and back; 0 where all was kept, or refused in words."""
    steps, (commit,) = Steps(), arguments or ["HEAD"]
    with tempfile.TemporaryDirectory(prefix="gpuspawner-upgrade-") as name:
        try:
            with steps.step("Both versions, as wheels"):
                old, new = (_installed(Path(name) / which, which, commit) for which in ("old", "new"))
            with steps.step(f"From {commit} to this checkout, and back", streams=True):
                folder = Path(name) / "hub"
                folder.mkdir()
                try:
                    _there_and_back(folder, old, new)
                finally:
                    _end_servers(folder)
        except StepError as error:
            report_failure(error)
            return 1
    return 0


def _there_and_back(folder: Path, old: Path, new: Path) -> None:
    url, store = main_job.configured(folder, ends_servers=False, catalog=CATALOG), folder / "gpuspawner-data"
    with _hub(old, folder) as ask:
        ask.until(f"{url}/services/gpu/api/v1/", lambda answer: bool(answer["version"]))
        for user, phase in zip(USERS, ("running", "queued"), strict=True):
            ask.send(f"{url}/hub/api/users/{user}")
            ask.send(f"{url}/hub/api/users/{user}/server", {"template": "lab"})
            ask.until(_workspaces(url), lambda answer, phase=phase: phase in _phases(answer))
        before = _told(ask, url)
    schema = _schema(store)
    say(f"     old: {_words(before)}; schema {schema}")
    say(_indented(_said(new, "server", "store", "check", "--data", store)))
    backup = folder / "before.tar"
    _said(old, "server", "store", "backup", backup, "--data", store)
    with _hub(new, folder) as ask:
        _compare("new", _told(ask, url), before)
    if _schema(store) != schema:
        with _hub(old, folder):
            refused = _line_of(folder / "hub.log", "another version")
        say(f"     old, on the new schema: {refused}")
        say(_indented(_said(old, "server", "store", "restore", backup, "--data", store)))
    with _hub(old, folder) as ask:
        _compare("old again", _told(ask, url), before)


def _installed(folder: Path, which: str, commit: str) -> Path:
    """Build the wheel of a commit, or of this checkout, and install it; return its Python."""
    folder.mkdir()
    source = ROOT
    if which == "old":
        source = folder / "source"
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=False, capture_output=True)
        if archive.returncode:
            raise StepError(f"There is no commit {commit}: git log names them.")
        source.mkdir()
        # Python's own tarfile asks for a filter from 3.12 on, and older ones know none.
        subprocess.run(["tar", "--extract"], cwd=source, input=archive.stdout, check=True)
        (source / ".git").mkdir()  # so that it is built by itself, and by no ignore file above it
    build: list[str | Path] = [
        "env",
        f"--chdir={source}",
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        folder / "dist",
    ]
    run_logged(build, LOG, "The package is not built.")
    (wheel,) = (folder / "dist").glob("*.whl")
    python = new_environment(folder / "venv", sys.executable, f"{wheel}[{EXTRAS}]")
    install(python, ["jupyter-server"])  # which the extras of early commits do not have
    return python


def _hub(python: Path, folder: Path) -> Any:
    return main_job.started(python, folder, f"{python.parent}:{VENV / 'bin'}:{os.environ.get('PATH', os.defpath)}")


def _workspaces(url: str) -> str:
    return f"{url}/services/gpu/api/v1/workspaces?all=1"


def _phases(answer: dict[str, Any]) -> list[str]:
    return [one["phase"] for one in answer["workspaces"]]


def _told(ask: main_job.Asker, url: str) -> list[dict[str, Any]]:
    """Return both workspaces once they have their old phases. A new service first looks at running workspaces."""
    found = ask.until(
        _workspaces(url), lambda answer: {*_phases(answer)} in ({"running", "queued"}, {"running", "parked"})
    )
    return sorted(found["workspaces"], key=lambda one: str(one["user"]))


def _compare(which: str, now: list[dict[str, Any]], before: list[dict[str, Any]]) -> None:
    say(f"     {which}: {_words(now)}")
    for is_now, was in zip(now, before, strict=True):
        for name in KEPT:
            if _lasting(is_now.get(name)) != _lasting(was.get(name)):
                raise StepError(f"{which}: {name} of {was['user']} was {was.get(name)} and is {is_now.get(name)}")


def _lasting(value: object) -> object:
    """Return the part of a value that an upgrade must keep. A parked lease counts as queued until the hub listens."""
    if isinstance(value, list):
        return [gpu["id"] for gpu in value]
    return "queued" if value == "parked" else value


def _words(told: list[dict[str, Any]]) -> str:
    return ", ".join(f"{one['user']} {one['phase']} {one['id'][:6]} until {one['ends_at']}" for one in told)


def _schema(store: Path) -> str:
    with closing(sqlite3.connect(store / "gpuspawner.sqlite")) as database:
        return str(database.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def _said(python: Path, *words: str | Path) -> str:
    done = subprocess.run(
        [python, "-m", "gpuspawner.cli", *words], check=False, capture_output=True, text=True, cwd="/"
    )
    if done.returncode:
        raise StepError(f"gpuspawner {' '.join(map(str, words))}: {done.stdout}{done.stderr}")
    return done.stdout


def _indented(text: str) -> str:
    return "".join(f"     | {line}\n" for line in text.splitlines()).rstrip()


def _line_of(log: Path, part: str) -> str:
    until = time.monotonic() + main_job.WITHIN_SECONDS
    while time.monotonic() < until:
        if found := [line for line in log.read_text(errors="replace").splitlines() if part in line]:
            return found[0].strip()
        time.sleep(0.5)
    raise StepError(f"Nothing says {part!r}.", log)


def _end_servers(folder: Path) -> None:
    """End the workspaces, which outlive their hub. Finds all processes that know the hub's address."""
    written = re.search(r'hub_bind_url = "(.*)"', (folder / "jupyterhub_config.py").read_text())
    api = f"{written[1] if written else folder}/hub/api".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if api in (process / "environ").read_bytes() and int(process.name) != os.getpid():
                os.kill(int(process.name), signal.SIGTERM)
        except OSError:
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
