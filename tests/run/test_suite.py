"""The runner of the test suite: parallel stages, a visible second run of a failed test, and the report."""

import json
import os
import sys
import time

import pytest

from tools.progress import StepError
from tools.suite import (
    RERUN_AT_MOST,
    UNSTABLE_SECONDS,
    Stage,
    note_durations,
    read_durations,
    read_progress,
    run_stages,
    slowest_tests,
)

STAGE = Stage("Tests", ("--cov=test_good", "--cov-report=", "--ignore=beside"), 1, ("--cov-append",))
BESIDE = Stage("Tests beside", ("beside",), 0)

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
    stages = [STAGE]
    if beside:
        (folder / "beside").mkdir()
        (folder / "beside" / "test_beside.py").write_text(beside)
        stages.append(BESIDE)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    plugins = ["-p", "xdist.plugin", "-p", "pytest_cov.plugin"]  # no others: they start slowly
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "GPUSPAWNER_TEST_UNSTABLE": "fails" * strict}
    return run_stages(stages, [sys.executable, "-m", "pytest", *plugins], env, folder)


def test_results_have_the_summary_the_durations_and_the_cpu_seconds_of_each_stage(tmp_path, capfd):
    results = run(tmp_path, good=GOOD, beside=GOOD)
    assert set(results) == {"Tests", "Tests beside"}
    assert set(results["Tests"].tests) == {"test_good::test_that_passes"}
    assert set(results["Tests beside"].tests) == {"beside.test_beside::test_that_passes"}
    assert all(result.cpu_seconds > 0 for result in results.values())
    assert "Tests beside: 1 passed" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("output", "progress"),
    [
        ("", "starting"),
        ("bringing up nodes...\n", "starting"),
        ("..s.x..", "7 tests"),
        (f"{'.' * 72} [  5%]\n{'.' * 72} [ 11%]\n...", "11 %"),
    ],
)
def test_progress_is_a_percentage_or_the_number_of_tests(output, progress):
    assert read_progress(output) == progress


def test_a_test_that_passes_alone_passes_and_is_named(tmp_path, capfd):
    run(tmp_path, good=GOOD, once=ONCE)
    printed = capfd.readouterr().out
    assert "Unstable" in printed
    assert printed.rstrip().endswith("test_once.py::test_that_passes_when_alone")


def test_a_test_that_is_unstable_twice_in_two_weeks_fails_the_run(tmp_path, capfd):
    run(tmp_path, once=ONCE)
    (tmp_path / "was-here").unlink()
    with pytest.raises(StepError, match="Unstable tests: mend them"):
        run(tmp_path, once=ONCE)
    assert "test_once.py::test_that_passes_when_alone (also " in capfd.readouterr().out
    old = dict.fromkeys(json.loads((tmp_path / ".run/unstable.json").read_text()), time.time() - UNSTABLE_SECONDS)
    (tmp_path / ".run/unstable.json").write_text(json.dumps(old))
    (tmp_path / "was-here").unlink()
    run(tmp_path, once=ONCE)


def test_a_failure_of_an_earlier_run_whose_test_is_gone_is_not_named(tmp_path, capfd):
    with pytest.raises(StepError, match="failed twice"):
        run(tmp_path, never=NEVER)
    (tmp_path / "test_never.py").unlink()
    capfd.readouterr()
    run(tmp_path, once=ONCE)
    assert "test_that_never_passes" not in capfd.readouterr().out


def test_with_strict_runs_an_unstable_test_fails_at_once(tmp_path):
    with pytest.raises(StepError, match="Unstable tests: mend them"):
        run(tmp_path, once=ONCE, strict=True)


def test_a_parallel_stage_has_its_own_second_run(tmp_path, capfd):
    run(tmp_path, good=GOOD, beside=ONCE)
    printed = capfd.readouterr().out
    assert "Tests beside: 1 failed. They run once more, alone." in printed
    assert printed.rstrip().endswith("beside/test_beside.py::test_that_passes_when_alone")


def test_a_parallel_stage_that_fails_twice_fails_the_run(tmp_path):
    with pytest.raises(StepError, match="Tests beside: failed twice"):
        run(tmp_path, good=GOOD, beside=NEVER)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"never": NEVER, "once": ONCE}, "failed twice"),
        ({"broken": "def"}, "failed twice"),
        ({f"never{number}": NEVER for number in range(RERUN_AT_MOST + 1)}, r"failed\. The output"),
    ],
    ids=["one of two", "a file that cannot be read", "too many"],
)
def test_a_failed_test_fails_the_run_and_only_a_few_run_again(tmp_path, files, message):
    with pytest.raises(StepError, match=f"Tests: {message}"):
        run(tmp_path, good=GOOD, **files)


def test_durations_are_noted_by_module_for_the_order_of_the_next_run(tmp_path):
    classes = "class TestThing:\n    def test_in_a_class(self):\n        pass\n"
    note_durations(run(tmp_path, good=GOOD + classes), tmp_path)
    assert set(json.loads((tmp_path / ".run/durations.json").read_text())) == {"test_good"}


def test_the_slowest_tests_come_first(tmp_path):
    results = run(tmp_path, good=GOOD)
    results["Tests"].tests |= {f"test_slow::test_{number}": float(number) for number in range(12)}
    lines = slowest_tests(results)
    assert (len(lines), lines[0]) == (10, "  11.0 s  test_slow::test_11")


def test_a_report_that_is_cut_off_has_no_durations(tmp_path):
    (tmp_path / "cut.xml").write_text('<testsuites><testcase classname="a"')
    assert read_durations(tmp_path / "cut.xml") == read_durations(tmp_path / "missing.xml") == {}
