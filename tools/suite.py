"""Runs the tests: some files at once, and what failed once more, alone.

They start hubs, proxies, browsers, services and clusters in real processes, and a test that shares two cores with
others can be too slow for itself. What fails alone too has failed. What passes then is unstable: it is named and noted,
and the run fails where it was so before, or where GPUSPAWNER_TEST_UNSTABLE=fails, as on a machine of one's own.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.install import ROOT
from tools.progress import StepError, say

AGAIN_AT_MOST = 40
"""More failures than a slow file has tests are no accident."""
LOOK_SECONDS = 0.5
NOTED_SECONDS = 14 * 86400.0
"""For so long an unstable test is remembered. Arbitrary: one slow moment is forgiven, a second in two weeks is not."""
STRICT = "GPUSPAWNER_TEST_UNSTABLE"
TESTS_FAILED = 1
"""pytest's exit code for that alone: 2 and above are an interrupt, a file that cannot be read, or a wrong command."""


@dataclass(frozen=True)
class Suite:
    """Tests that run as one: ``arguments`` are pytest's, ``files_at_once`` how many processes share them.

    ``again`` is added where what failed runs once more. Its cache and its log are named for ``name``.
    """

    name: str
    arguments: tuple[str, ...]
    files_at_once: int
    again: tuple[str, ...] = ()

    def failed(self, folder: Path) -> list[str]:
        """Return the tests that failed last."""
        found = folder / self._cache / "v/cache/lastfailed"
        return sorted(json.loads(found.read_text())) if found.exists() else []

    def command(self, pytest: Sequence[str | Path]) -> list[str | Path]:
        """Return the command that runs all of them."""
        # A file's tests share a hub: they stay together, in the order of their names.
        together = ["-n", str(self.files_at_once), "--dist=loadfile", "--no-loadscope-reorder"]
        return [*self._alone(pytest), *together]

    def command_again(self, pytest: Sequence[str | Path]) -> list[str | Path]:
        """Return the command that runs once more, one by one, what failed."""
        return [*self._alone(pytest), "--last-failed", *self.again]

    def _alone(self, pytest: Sequence[str | Path]) -> list[str | Path]:
        slowest = ("--durations=40", "--durations-min=5")
        return [*pytest, "-o", f"cache_dir={self._cache}", *slowest, *self.arguments]

    @property
    def _cache(self) -> str:
        return f".pytest_cache/{self.name.replace(' ', '-').lower()}"


def run_tests(
    pytest: Sequence[str | Path], env: Mapping[str, str], suites: Sequence[Suite], folder: Path = ROOT
) -> None:
    """Run every suite by ``pytest`` in ``folder``, beside each other; what fails is run again, one by one.

    The first prints as it goes; each other prints, from its log, once those before it are done.

    Raises:
        StepError: a test failed both times, or too many the first time, or one is unstable that was so before.
    """
    first, *others = suites
    beside = [(suite, *_start(suite, pytest, env, folder)) for suite in others]
    try:
        codes = [subprocess.run(first.command(pytest), check=False, cwd=folder, env=env).returncode]
        codes += [_follow(suite, process, log) for suite, process, log in beside]
    finally:
        for _, process, _ in beside:
            process.wait()  # Ctrl-C reaches them too, and what they started is theirs to end
    unstable: list[str] = []
    try:
        for suite, code in zip(suites, codes, strict=True):
            if code:
                unstable += _run_again(suite, code, pytest, env, folder)
    finally:  # also where a later suite failed
        if unstable:
            _tell_unstable(unstable, folder / ".run" / "unstable.json", strict=env.get(STRICT) == "fails")


def _start(
    suite: Suite, pytest: Sequence[str | Path], env: Mapping[str, str], folder: Path
) -> tuple[subprocess.Popen[bytes], Path]:
    log = folder / ".run" / "logs" / f"tests-{suite.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        command = suite.command(pytest)
        return subprocess.Popen(command, cwd=folder, env=env, stdout=stream, stderr=stream), log


def _follow(suite: Suite, process: subprocess.Popen[bytes], log: Path) -> int:
    """Print what a suite has said and says, until it ends; return its exit code."""
    say(f"\n     Beside them, {suite.name}:\n")
    with log.open(errors="replace") as stream:
        while process.poll() is None:
            say(stream.read(), end="")
            time.sleep(LOOK_SECONDS)
        say(stream.read())
    return process.returncode


def _run_again(
    suite: Suite, code: int, pytest: Sequence[str | Path], env: Mapping[str, str], folder: Path
) -> list[str]:
    """Return the tests that failed beside others and passed alone."""
    failed = suite.failed(folder) if code == TESTS_FAILED else []
    if not 0 < len(failed) <= AGAIN_AT_MOST:
        raise StepError(f"{suite.name}: failed. What was found stands above.")
    say(f"\n     {suite.name}: {len(failed)} failed beside others: once more, alone\n")
    if subprocess.run(suite.command_again(pytest), check=False, cwd=folder, env=env).returncode:
        raise StepError(f"{suite.name}: failed, beside others and alone. What was found stands above.")
    return failed


def _tell_unstable(names: Sequence[str], noted: Path, *, strict: bool) -> None:
    """Name unstable tests, note them, and raise StepError where one was noted before, or ``strict``."""
    now = time.time()
    found = json.loads(noted.read_text()) if noted.exists() else {}
    before: dict[str, float] = {name: at for name, at in found.items() if now - at < NOTED_SECONDS}
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(json.dumps({**before, **dict.fromkeys(names, now)}, indent=1))
    say("\n     Unstable: these failed beside others and passed alone. They wait for too little, or share something:")
    for name in names:
        again = f" (also {time.strftime('%d %b %H:%M', time.localtime(before[name]))})" if name in before else ""
        say(f"       {name}{again}")
    if strict or before.keys() & set(names):
        raise StepError(
            "Unstable tests: mend them. They pass only by being run again" + ("." if strict else ", twice.")
        )
