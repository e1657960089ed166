"""The installation of the project's requirements."""

import sys
from pathlib import Path

import pytest

from tools import install
from tools.progress import StepError

PYTHON = Path("/venv/bin/python")
UV = "/venv/bin/uv"


@pytest.fixture
def commands(monkeypatch):
    """The commands that an installation runs. Commands that begin like one of ``fail`` fail."""
    ran, fail = [], []

    def run(command, log, remedy, env=None):
        ran.append([str(part) for part in command])
        if any(str(command[0]) == name for name in fail):
            raise StepError(remedy)

    monkeypatch.setattr(install, "run_logged", run)
    monkeypatch.setattr(install, "_pip_has_an_index", lambda python: False)
    return ran, fail


def test_uv_installs_and_copies_what_changed_of_the_project(commands):
    install.install(PYTHON, ["--editable", "."])
    ran, _ = commands
    assert [command[0] for command in ran] == [str(PYTHON), UV]
    assert ran[1][1:] == [
        *("pip", "install", "--python", str(PYTHON), "--reinstall-package=gpuspawner"),
        *("--editable", "."),
    ]


def test_pip_installs_where_uv_cannot(commands):
    ran, fail = commands
    fail.append(UV)
    install.install(PYTHON, ["--editable", "."])
    assert ran[2] == [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--editable", "."]


def test_pip_alone_installs_where_it_has_an_index_of_its_own(commands, monkeypatch):
    monkeypatch.setattr(install, "_pip_has_an_index", lambda python: True)
    install.install(PYTHON, ["six"])
    ran, _ = commands
    assert ran == [[str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "six"]]


@pytest.mark.parametrize(("variable", "has"), [("PIP_INDEX_URL", True), ("PIP_EXTRA_INDEX_URL", True), (None, False)])
def test_an_index_of_pips_own_is_seen_in_its_settings(monkeypatch, variable, has):
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    if variable:
        monkeypatch.setenv(variable, "http://packages.invalid/simple")
    assert install._pip_has_an_index(Path(sys.executable)) is has
