"""A test that fails beside others has a second chance alone, and is named; one that fails alone too has failed."""

import os
import sys

import pytest

from tools.progress import StepError
from tools.suite import AGAIN_AT_MOST, run_tests

ONCE = """
from pathlib import Path

def test_that_passes_when_alone():
    marker = Path("was-here")
    first = not marker.exists()
    marker.touch()
    assert not first
"""
NEVER = "def test_that_never_passes():\n    assert False\n"
GOOD = "def test_that_passes():\n    pass\n"


def run(folder, **files):
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    plugins = ["-p", "xdist.plugin", "-p", "pytest_cov.plugin"]  # no others: they start slowly
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run_tests([sys.executable, "-m", "pytest", *plugins, "--cov=test_good", "--cov-report="], env, folder)


def test_all_that_pass_run_once(tmp_path, capfd):
    run(tmp_path, good=GOOD)
    assert "1 passed" in capfd.readouterr().out


def test_what_passes_alone_passes_and_is_named(tmp_path, capfd):
    run(tmp_path, good=GOOD, once=ONCE)
    told = capfd.readouterr().out
    assert "Unstable" in told
    assert told.rstrip().endswith("test_once.py::test_that_passes_when_alone")


@pytest.mark.parametrize(
    "files",
    [
        {"never": NEVER, "once": ONCE},
        {"broken": "def"},
        {f"never{number}": NEVER for number in range(AGAIN_AT_MOST + 1)},
    ],
    ids=["one of two", "a file that cannot be read", "too many"],
)
def test_what_fails_fails(tmp_path, files):
    with pytest.raises(StepError, match="Tests: failed"):
        run(tmp_path, good=GOOD, **files)
