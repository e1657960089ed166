"""A test that fails beside others has a second chance alone, and is noted: it has no third within two weeks."""

import json
import os
import sys
import time

import pytest

from tools.progress import StepError
from tools.suite import AGAIN_AT_MOST, NOTED_SECONDS, Suite, run_tests

SUITE = Suite("Tests", ("--cov=test_good", "--cov-report=", "--ignore=beside"), 1, ("--cov-append",))
BESIDE = Suite("Tests elsewhere", ("beside",), 1)

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


def run(folder, *, beside=None, strict=False, **files):
    suites = [SUITE]
    if beside:
        (folder / "beside").mkdir()
        (folder / "beside" / "test_beside.py").write_text(beside)
        suites.append(BESIDE)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    plugins = ["-p", "xdist.plugin", "-p", "pytest_cov.plugin"]  # no others: they start slowly
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "GPUSPAWNER_TEST_UNSTABLE": "fails" * strict}
    run_tests([sys.executable, "-m", "pytest", *plugins], env, suites, folder)


def test_all_that_pass_run_once(tmp_path, capfd):
    run(tmp_path, good=GOOD)
    assert "1 passed" in capfd.readouterr().out


def test_what_passes_alone_passes_and_is_named(tmp_path, capfd):
    run(tmp_path, good=GOOD, once=ONCE)
    told = capfd.readouterr().out
    assert "Unstable" in told
    assert told.rstrip().endswith("test_once.py::test_that_passes_when_alone")


def test_what_passes_only_alone_a_second_time_fails_the_run(tmp_path, capfd):
    run(tmp_path, once=ONCE)
    (tmp_path / "was-here").unlink()
    with pytest.raises(StepError, match=r"Unstable tests: mend them\. .*, twice\."):
        run(tmp_path, once=ONCE)
    assert "test_once.py::test_that_passes_when_alone (also " in capfd.readouterr().out
    old = dict.fromkeys(json.loads((tmp_path / ".run/unstable.json").read_text()), time.time() - NOTED_SECONDS)
    (tmp_path / ".run/unstable.json").write_text(json.dumps(old))
    (tmp_path / "was-here").unlink()
    run(tmp_path, once=ONCE)


def test_on_a_machine_of_one_s_own_it_fails_at_once(tmp_path):
    with pytest.raises(StepError, match=r"mend them\. .*again\."):
        run(tmp_path, once=ONCE, strict=True)


def test_a_suite_beside_it_is_told_after_it_and_has_its_own_second_chance(tmp_path, capfd):
    run(tmp_path, good=GOOD, beside=ONCE)
    told = capfd.readouterr().out
    own, _, other = told.partition("Beside them, Tests elsewhere:")
    assert ("1 passed" in own, "1 failed" in own) == (True, False)
    assert "1 failed" in other.partition("once more, alone")[0]
    assert told.rstrip().endswith("beside/test_beside.py::test_that_passes_when_alone")


def test_a_suite_beside_it_that_fails_fails(tmp_path, capfd):
    with pytest.raises(StepError, match="Tests elsewhere: failed, beside others and alone"):
        run(tmp_path, good=GOOD, beside=NEVER)


@pytest.mark.parametrize(
    ("files", "tried"),
    [
        ({"never": NEVER, "once": ONCE}, ", beside others and alone."),
        ({"broken": "def"}, ", beside others and alone."),
        ({f"never{number}": NEVER for number in range(AGAIN_AT_MOST + 1)}, r"\. What"),
    ],
    ids=["one of two", "a file that cannot be read", "too many"],
)
def test_what_fails_fails_and_is_tried_again_only_where_that_may_help(tmp_path, files, tried):
    with pytest.raises(StepError, match=f"Tests: failed{tried}"):
        run(tmp_path, good=GOOD, **files)
