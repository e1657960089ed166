"""Try an upgrade with wheels: a hub of an earlier release, then this checkout's on the same folder, then back.

    python -m tools.upgrade COMMIT     the earlier release, by default HEAD; .venv has the hub's proxy

One workspace runs and one waits all the time. Each release reports both workspaces.
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
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

from tools import main_job
from tools.install import LOG, ROOT, VENV
from tools.package import new_environment
from tools.progress import StepError, Steps, report_failure, run_logged, say
from tools.versions import write_version

CATALOG = main_job.CATALOG.replace("mode: enforce", "mode: observe")
KEPT = ("id", "phase", "asked_at", "ends_at", "started_at", "gpus")
USERS = ("ada", "bob")
EXTRAS = "hub,workspace"


def main(arguments: list[str]) -> int:
    """Upgrade and go back. Return 0 if everything was kept, or refused with a sentence."""
    steps, (commit,) = Steps(), arguments or ["HEAD"]
    with tempfile.TemporaryDirectory(prefix="gpuspawner-upgrade-") as name:
        folder = Path(name)
        try:
            with steps.step("Both releases, as wheels"):
                old = install_release(folder / "old", extract_commit(folder / "source", commit))
                new = install_release(folder / "new", ROOT)
            with steps.step(f"From {commit} to this checkout, and back", streams=True):
                for line in try_upgrade(folder / "hub", old, new):
                    say(f"     {line}")
        except StepError as error:
            report_failure(error)
            return 1
    return 0


def try_upgrade(folder: Path, old: Path, new: Path) -> list[str]:
    """Start a hub of the old release in a new folder, then of the new one, then of the old one again.

    Args:
        folder: the hub's folder, which does not exist yet.
        old: the Python that has the old release.
        new: the Python that has the new release.

    Returns:
        What the releases reported, a line each. If the schema changed, one line is the refusal of the old release.

    Raises:
        StepError: a workspace was lost or changed, or a release did not start.
    """
    folder.mkdir()
    try:
        return _there_and_back(folder, old, new)
    finally:
        _end_servers(folder)


def _there_and_back(folder: Path, old: Path, new: Path) -> list[str]:
    url, store = main_job.configured(folder, ends_servers=False, catalog=CATALOG), folder / "gpuspawner-data"
    with _hub(old, folder) as ask:
        version = _version(ask, url)
        for user, phase in zip(USERS, ("running", "queued"), strict=True):
            ask.send(f"{url}/hub/api/users/{user}")
            ask.send(f"{url}/hub/api/users/{user}/server", {"template": "lab"})
            ask.until(_address(url), partial(_has_phase, phase))
        before = _workspaces(ask, url)
    schema = _schema(store)
    report = [f"old, {version}: {_summary(before)}; schema {schema}", *_run_cli(new, "check", "--data", store)]
    backup = folder / "before.tar"
    _run_cli(old, "backup", backup, "--data", store)
    with _hub(new, folder) as ask:
        report.append(_compare(f"new, {_version(ask, url)}", _workspaces(ask, url), before))
    if _schema(store) != schema:
        with _hub(old, folder):
            report.append(f"old, on the new schema: {_line_of(folder / 'hub.log', 'another version')}")
        report += _run_cli(old, "restore", backup, "--data", store)
    with _hub(old, folder) as ask:
        report.append(_compare(f"old again, {_version(ask, url)}", _workspaces(ask, url), before))
    return report


def extract_commit(folder: Path, commit: str, version: str = "") -> Path:
    """Write the files of a commit into a new folder, with another version if one is given. Return the folder.

    Raises:
        StepError: there is no such commit.
    """
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=False, capture_output=True)
    if archive.returncode:
        raise StepError(f"There is no commit {commit}: git log names them.")
    folder.mkdir()
    # Python's own tarfile asks for a filter from 3.12 on, and older ones know none.
    subprocess.run(["tar", "--extract"], cwd=folder, input=archive.stdout, check=True)
    if version:
        write_version(version, folder)
    return folder


def install_release(folder: Path, source: Path) -> Path:
    """Build the wheel of a source folder and install it into a new environment. Return its Python.

    Raises:
        StepError: it is not built or not installed.
    """
    folder.mkdir()
    python: list[str | Path] = ["env", f"--chdir={source}", sys.executable, "-m", "hatchling"]
    run_logged([*python, "build", "-t", "wheel", "-d", folder / "dist"], LOG, "The package is not built.")
    (wheel,) = (folder / "dist").glob("*.whl")
    return new_environment(folder / "venv", sys.executable, f"{wheel}[{EXTRAS}]")


def _hub(python: Path, folder: Path) -> AbstractContextManager[main_job.Asker]:
    return main_job.started(python, folder, f"{python.parent}:{VENV / 'bin'}:{os.environ.get('PATH', os.defpath)}")


def _address(url: str) -> str:
    return f"{url}/services/gpu/api/v1/workspaces?all=1"


def _has_phase(phase: str, answer: dict[str, Any]) -> bool:
    return phase in _phases(answer)


def _phases(answer: dict[str, Any]) -> list[str]:
    return [one["phase"] for one in answer["workspaces"]]


def _version(ask: main_job.Asker, url: str) -> str:
    return str(ask.until(f"{url}/services/gpu/api/v1/", lambda answer: bool(answer["version"]))["version"])


def _workspaces(ask: main_job.Asker, url: str) -> list[dict[str, Any]]:
    """Return both workspaces once they have their old phases. A new service first looks at running workspaces."""
    found = ask.until(
        _address(url), lambda answer: {*_phases(answer)} in ({"running", "queued"}, {"running", "parked"})
    )
    return sorted(found["workspaces"], key=lambda one: str(one["user"]))


def _compare(release: str, now: list[dict[str, Any]], before: list[dict[str, Any]]) -> str:
    for is_now, was in zip(now, before, strict=True):
        for name in KEPT:
            if _lasting(is_now.get(name)) != _lasting(was.get(name)):
                raise StepError(f"{release}: {name} of {was['user']} was {was.get(name)} and is {is_now.get(name)}")
    return f"{release}: {_summary(now)}"


def _lasting(value: object) -> object:
    """Return the part of a value that an upgrade must keep. A parked lease counts as queued until the hub listens."""
    if isinstance(value, list):
        return [gpu["id"] for gpu in value]
    return "queued" if value == "parked" else value


def _summary(workspaces: list[dict[str, Any]]) -> str:
    return ", ".join(f"{one['user']} {one['phase']} {one['id'][:6]} until {one['ends_at']}" for one in workspaces)


def _schema(store: Path) -> str:
    with closing(sqlite3.connect(store / "gpuspawner.sqlite")) as database:
        return str(database.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def _run_cli(python: Path, *words: str | Path) -> list[str]:
    command = [python, "-m", "gpuspawner.cli", "server", "store", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/")
    if done.returncode:
        raise StepError(f"gpuspawner server store {' '.join(map(str, words))}: {done.stdout}{done.stderr}")
    return done.stdout.splitlines()


def _line_of(log: Path, part: str) -> str:
    until = time.monotonic() + main_job.WITHIN_SECONDS
    while time.monotonic() < until:
        if found := [line for line in log.read_text(errors="replace").splitlines() if part in line]:
            return found[0].strip()
        time.sleep(0.5)
    raise StepError(f"Nothing says {part!r}.", log)


def _end_servers(folder: Path) -> None:
    """End the workspaces, which outlive their hub: all processes that know the hub's address."""
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
