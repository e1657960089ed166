"""Runs the stages of the test suite in parallel and reports seconds, CPU seconds and the slowest tests.

Tests start hubs, browsers, services and clusters in real processes, and a test that shares two cores with others can be
too slow. A failed test therefore runs once more, alone. If it fails again, the run fails. If it passes, it is unstable:
the run names it, notes it in `.run/unstable.json`, and fails if the test was noted in the last two weeks or if
GPUSPAWNER_TEST_UNSTABLE=fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from tools.install import ROOT
from tools.progress import StepError, say

DURATIONS = Path(".run/durations.json")
"""Seconds of each test file in its last run. tests/conftest.py starts the longest files first."""
SLOWEST_SHOWN = 10
RERUN_AT_MOST = 40
"""More failures than that are not due to a busy machine."""
POLL_SECONDS = 0.2
SAY_SECONDS = 30.0
UNSTABLE_SECONDS = 14 * 86400.0
"""How long an unstable test is remembered. One slow moment is forgiven, a second in two weeks is not."""
STRICT = "GPUSPAWNER_TEST_UNSTABLE"
PYTEST_TESTS_FAILED = 1
PYTEST_NO_TESTS = 5


@dataclass(frozen=True)
class Stage:
    """Tests that one pytest command runs.

    ``arguments`` are pytest's. ``workers`` processes take one file at a time; with 0, pytest itself runs them.
    ``rerun_arguments`` are added when failed tests run again.
    """

    name: str
    arguments: tuple[str, ...]
    workers: int
    rerun_arguments: tuple[str, ...] = ()

    @property
    def slug(self) -> str:
        """The stage's name in file names."""
        return self.name.replace(" ", "-").lower()

    def command(self, pytest: Sequence[str | Path]) -> list[str | Path]:
        """Return the command that runs the stage."""
        # The tests of a file share hubs, so they stay together and in order.
        workers = ["-n", str(self.workers), "--dist=loadfile", "--no-loadscope-reorder"] if self.workers else []
        report = [f"--junit-xml=.run/reports/{self.slug}.xml", "-o", "junit_duration_report=total"]
        return [*self._pytest(pytest), *report, *workers]

    def rerun_command(self, pytest: Sequence[str | Path]) -> list[str | Path]:
        """Return the command that runs the failed tests again, one by one."""
        return [*self._pytest(pytest), "--last-failed", *self.rerun_arguments]

    def failed_tests(self, folder: Path) -> list[str]:
        """Return the ids of the tests that failed in the last run."""
        found = self._last_failed(folder)
        return sorted(json.loads(found.read_text())) if found.exists() else []

    def forget_failures(self, folder: Path) -> None:
        """Forget the failures of earlier runs. pytest keeps those of tests that are gone or renamed for ever."""
        self._last_failed(folder).unlink(missing_ok=True)

    def _last_failed(self, folder: Path) -> Path:
        return folder / self._cache / "v/cache/lastfailed"

    def _pytest(self, pytest: Sequence[str | Path]) -> list[str | Path]:
        return [*pytest, "-q", "-o", f"cache_dir={self._cache}", *self.arguments]

    @property
    def _cache(self) -> str:
        return f".pytest_cache/{self.slug}"


@dataclass
class Result:
    """How a stage ended. ``tests`` maps the id of each test to its seconds."""

    code: int
    seconds: float
    cpu_seconds: float
    summary: str
    tests: dict[str, float] = field(default_factory=dict)


class RunningStage:
    """A started stage. Its output goes to a log."""

    def __init__(self, stage: Stage, pytest: Sequence[str | Path], env: Mapping[str, str], folder: Path) -> None:
        self.stage, self.folder = stage, folder
        self.log = folder / ".run" / "logs" / f"tests-{stage.slug}.log"
        self.report = folder / ".run" / "reports" / f"{stage.slug}.xml"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.report.unlink(missing_ok=True)
        stage.forget_failures(folder)
        self._started = time.monotonic()
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(stage.command(pytest), cwd=folder, env=env, stdout=stream, stderr=stream)

    def poll(self) -> Result | None:
        """Return the result if the stage has ended."""
        pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
        if not pid:
            return None
        self.process.returncode = os.waitstatus_to_exitcode(status)
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return Result(
            0 if self.process.returncode == PYTEST_NO_TESTS else self.process.returncode,
            time.monotonic() - self._started,
            usage.ru_utime + usage.ru_stime,
            lines[-1].strip("= ") if lines else "no output",
            read_durations(self.report),
        )

    def progress(self) -> str:
        """Return the progress of the stage; see `read_progress`."""
        with self.log.open("rb") as stream:
            stream.seek(max(0, self.log.stat().st_size - 4096))
            return read_progress(stream.read().decode(errors="replace"))


def read_progress(output: str) -> str:
    """Return how far pytest is, for example "42 %". Before its first percentage it is a number of tests: "7 tests"."""
    if percentages := re.findall(r"(\d+)%\]", output):
        return f"{percentages[-1]} %"
    marks = re.search(r"^[.sxXFE]+$", output, re.MULTILINE)
    return f"{len(marks[0])} tests" if marks else "starting"


def read_durations(report: Path) -> dict[str, float]:
    """Return the seconds of each test, by id, from a JUnit report; nothing if the report is missing or cut off."""
    try:
        root = ET.parse(report).getroot()
    except (OSError, ET.ParseError):
        return {}
    found: dict[str, float] = defaultdict(float)
    for case in root.iter("testcase"):
        found[f"{case.get('classname')}::{case.get('name')}"] += float(case.get("time", 0))
    return dict(found)


def run_stages(
    stages: Sequence[Stage], pytest: Sequence[str | Path], env: Mapping[str, str], folder: Path = ROOT
) -> dict[str, Result]:
    """Run all stages in parallel, then run failed tests again, one by one. Return the results by stage name.

    Raises:
        StepError: a test failed twice, too many tests failed, or a test is unstable for the second time.
    """
    results = _wait([RunningStage(stage, pytest, env, folder) for stage in stages])
    unstable: list[str] = []
    try:
        for stage in stages:
            if code := results[stage.name].code:
                unstable += _rerun(stage, code, pytest, env, folder)
    finally:
        if unstable:
            _report_unstable(unstable, folder / ".run" / "unstable.json", strict=env.get(STRICT) == "fails")
    return results


def _wait(running: list[RunningStage]) -> dict[str, Result]:
    results: dict[str, Result] = {}
    said = time.monotonic()
    while running:
        try:
            time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            # Ctrl-C reaches the stages too. Each ends what it started.
            for one in running:
                one.process.wait()
            raise
        for one in [*running]:
            if (result := one.poll()) is None:
                continue
            running.remove(one)
            results[one.stage.name] = result
            if result.code:
                say(one.log.read_text(errors="replace"))
            say(f"     {one.stage.name}: {result.summary}; {result.cpu_seconds:.0f} CPU s")
        if running and time.monotonic() - said >= SAY_SECONDS:
            said = time.monotonic()
            say("     " + ", ".join(f"{one.stage.name}: {one.progress()}" for one in running))
    return results


def _rerun(stage: Stage, code: int, pytest: Sequence[str | Path], env: Mapping[str, str], folder: Path) -> list[str]:
    """Return the tests that failed in parallel and passed alone."""
    failed = stage.failed_tests(folder) if code == PYTEST_TESTS_FAILED else []
    if not 0 < len(failed) <= RERUN_AT_MOST:
        raise StepError(f"{stage.name}: failed. The output is above.")
    say(f"\n     {stage.name}: {len(failed)} failed. They run once more, alone.\n")
    if subprocess.run(stage.rerun_command(pytest), check=False, cwd=folder, env=env).returncode:
        raise StepError(f"{stage.name}: failed twice. The output is above.")
    return failed


def _report_unstable(names: Sequence[str], noted: Path, *, strict: bool) -> None:
    now = time.time()
    found = json.loads(noted.read_text()) if noted.exists() else {}
    before: dict[str, float] = {name: at for name, at in found.items() if now - at < UNSTABLE_SECONDS}
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(json.dumps({**before, **dict.fromkeys(names, now)}, indent=1))
    say("\n     Unstable tests. They failed beside others and passed alone:")
    for name in names:
        again = f" (also {time.strftime('%d %b %H:%M', time.localtime(before[name]))})" if name in before else ""
        say(f"       {name}{again}")
    if strict or before.keys() & set(names):
        raise StepError("Unstable tests: mend them. They passed only when they ran again.")


def note_durations(results: Mapping[str, Result], folder: Path = ROOT) -> None:
    """Add the seconds of each test file to DURATIONS, for the order of the next run."""
    noted = folder / DURATIONS
    files: dict[str, float] = json.loads(noted.read_text()) if noted.exists() else {}
    fresh: dict[str, float] = defaultdict(float)
    for result in results.values():
        for name, seconds in result.tests.items():
            fresh[_module(name)] += seconds
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(json.dumps({**files, **{name: round(seconds, 1) for name, seconds in fresh.items()}}, indent=1))


def _module(test: str) -> str:
    """Return the dotted module of a test's id, without its class."""
    parts = test.partition("::")[0].split(".")
    return ".".join(parts[: max((n for n, part in enumerate(parts, 1) if part.startswith("test_")), default=0)])


def slowest_tests(results: Mapping[str, Result]) -> list[str]:
    """Return a line for each of the slowest tests, the slowest first."""
    tests = sorted(((seconds, name) for result in results.values() for name, seconds in result.tests.items()))
    return [f"{seconds:6.1f} s  {name}" for seconds, name in tests[: -SLOWEST_SHOWN - 1 : -1]]
