"""Runs the tests: some files at once, and what failed once more, alone.

They start hubs, proxies, browsers and services in real processes, and a test that shares two cores with others can be
too slow for itself. What fails alone too has failed; what passes then is named, for somebody to mend.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.install import ROOT
from tools.progress import StepError, say

FILES_AT_ONCE = 3
"""Their servers mostly wait: three files fill two cores."""
AGAIN_AT_MOST = 40
"""More failures than a slow file has tests are no accident."""
FAILED = Path(".pytest_cache/v/cache/lastfailed")
TESTS_FAILED = 1
"""pytest's exit code for that alone: 2 and above are an interrupt, a file that cannot be read, or a wrong command."""


def run_tests(pytest: Sequence[str | Path], env: Mapping[str, str], folder: Path = ROOT) -> None:
    """Run ``pytest`` in ``folder`` on several files at once; what fails is run again, one by one.

    Raises:
        StepError: a test failed both times, or too many the first time.
    """
    # A file's tests share a hub: they stay together, in the order of their names.
    together = ["-n", str(FILES_AT_ONCE), "--dist=loadfile", "--no-loadscope-reorder"]
    code = subprocess.run([*pytest, *together], check=False, cwd=folder, env=env).returncode
    if not code:
        return
    cache = folder / FAILED
    failed = sorted(json.loads(cache.read_text())) if code == TESTS_FAILED and cache.exists() else []
    if not 0 < len(failed) <= AGAIN_AT_MOST:
        raise StepError("Tests: failed. What was found stands above.")
    say(f"\n     {len(failed)} failed beside others: once more, alone\n")
    if subprocess.run([*pytest, "--last-failed", "--cov-append"], check=False, cwd=folder, env=env).returncode:
        raise StepError("Tests: failed, beside others and alone. What was found stands above.")
    say("\n     Unstable: these failed beside others and passed alone. They wait for too little, or share something:")
    for name in failed:
        say(f"       {name}")
