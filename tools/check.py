"""`make test`, `make test-all` and `make test-cluster`: install what the tests need and run them.

python -m tools.check            lint, types, and every test that is not marked slow
python -m tools.check all        the same with the slow tests, and on every Python that is supported
python -m tools.check cluster    the tests on Kubernetes, with the slow ones
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools import programs
from tools.install import LOG, ROOT, VENV, VENV_HUB5, ensure, ensure_environment
from tools.progress import StepError, Steps, report_failure, say
from tools.suite import Result, Stage, note_durations, run_stages, slowest_tests

TYPES_LOG = LOG.with_name("types.log")
NAMED_CLUSTER = "GPUSPAWNER_TEST_KUBECONFIG"
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""If it is set, as in container images, each of the hundreds of processes compiles all that it imports."""
CAN_NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--fork", "test", "-w", "/sys/fs/cgroup")
NO_CLUSTER = (
    "The tests on Kubernetes do not run: a cluster needs root, namespaces and control groups. "
    f"To use a cluster of yours, set {NAMED_CLUSTER} to its kubeconfig."
)
CORE_BRANCH_COVERAGE_PERCENT = 98
"""Of core and simulate, by the tests of the decisions. Every other package is tested through them."""
DECISIONS = ("tests/core", "tests/catalog")
"""The tests of core, and of the catalog, whose keys core reads."""
JOURNEYS = ("tests/browser", "tests/hub", "tests/run", "tests/workspace", "tests/adopting")
"""Tests in hubs, browsers and servers of their own, which mostly wait."""
CLUSTER = "tests/cluster"
NOT_SLOW = ("-m", "not slow")
THOROUGH = ("--hypothesis-profile=thorough",)
MANY = {"GPUSPAWNER_TEST_REQUESTS": "1000"}
"""How many custom resources tests/cluster/test_requests.py makes at once in `make test-all`."""
ONLY_IN_ALL = (
    "Only `make test-all` runs: both JupyterHub versions in full, every page in both colour schemes, Volcano, network "
    "policies, image builds, 1,000 requests, and Python 3.10 to 3.14."
)
HUB5 = ("jupyterhub==5.5.*", "jupyterhub-kubespawner==7.1.*", "jupyter_server>=2.14", "jsonschema<4.25")
"""The oldest JupyterHub that is supported, with the workspace server's packages."""
OTHER_PYTHONS = ("3.10", "3.12", "3.13")
PORTABLE = ("tests/core", "tests/catalog", "tests/schedulers", "tests/spawner", "tests/cli/test_commands.py")
"""The suites that `make test-all` runs on the other Pythons."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every step. Return 0 if all passed, 1 after the first that failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.check", description=__doc__.partition("\n")[0])
    parser.add_argument("tests", nargs="?", choices=["quick", "all", "cluster"], default="quick", help="default: quick")
    what = parser.parse_args(arguments).tests
    steps, started = Steps(), time.monotonic()
    try:
        python = ensure(steps, ["run", "test", "kubernetes", "devices", "docs"])
        env = _environment(python)
        with_cluster = can_run_cluster(required=what == "cluster")
        results: dict[str, Result] = {}
        if what == "cluster":
            env |= _prepare(steps, python, env, slow=True, with_cluster=True)
            results = _run(steps, "Tests on Kubernetes", python, env, [cluster_stage(slow=True)])
        else:
            results = _check_all(steps, python, env, slow=what == "all", with_cluster=with_cluster)
    except StepError as error:
        report_failure(error)
        return 1
    except KeyboardInterrupt:
        return 130
    _report(results, time.monotonic() - started)
    if what == "quick":
        say(f"\n{ONLY_IN_ALL}")
    return 0


def _check_all(steps: Steps, python: Path, env: dict[str, str], *, slow: bool, with_cluster: bool) -> dict[str, Result]:
    tools = python.parent
    check(steps, "Lint", [tools / "ruff", "check", "--quiet"], env)
    check(steps, "Format", [tools / "ruff", "format", "--check", "--quiet"], env)
    check(steps, "Imports go one way", [tools / "lint-imports"], env)
    with _beside([tools / "mypy"], env) as types:
        env |= _prepare(steps, python, env, slow=slow, with_cluster=with_cluster)
        results = _run(steps, "Tests of the decisions", python, env, [decisions_stage(slow=slow)])
        with steps.step("Types", streams=True):
            _require_success("Types", types)
    bound = f"--fail-under={CORE_BRANCH_COVERAGE_PERCENT}"
    check(steps, "Branch coverage of core", [python, "-m", "coverage", "report", "--skip-covered", bound], env)
    results |= _run(steps, "Tests", python, env, stages(slow=slow, with_cluster=with_cluster))
    if slow:
        results |= _on_other_pythons(steps, env)
    return results


def decisions_stage(*, slow: bool) -> Stage:
    """Return the stage that measures coverage. It runs first: the others do not need what that costs."""
    chosen = THOROUGH if slow else NOT_SLOW
    return Stage("Decisions", (*DECISIONS, "--cov", "--cov-report=", *chosen), 2, ("--cov-append",))


def stages(*, slow: bool, with_cluster: bool) -> list[Stage]:
    """Return the stages that run in parallel. Most of their seven processes wait, so they keep two cores busy."""
    chosen = THOROUGH if slow else NOT_SLOW
    separate = [f"--ignore={folder}" for folder in (CLUSTER, *DECISIONS, *JOURNEYS)]
    return [
        *([cluster_stage(slow=slow)] if with_cluster else []),
        Stage("In process", ("tests", *separate, *chosen), 2),
        Stage("Journeys", (*JOURNEYS, *chosen), 4),
    ]


def cluster_stage(*, slow: bool) -> Stage:
    """Return the stage on Kubernetes: one cluster, or two of which each runs a file at a time."""
    workers = 2 if slow and not os.environ.get(NAMED_CLUSTER) else 0
    return Stage("Kubernetes", (CLUSTER, *(THOROUGH if slow else NOT_SLOW)), workers)


def can_run_cluster(*, required: bool) -> bool:
    """Return whether the tests on Kubernetes can run here.

    Raises:
        StepError: they can't, and they are ``required``.
    """
    if os.environ.get(NAMED_CLUSTER):
        return True
    if os.geteuid() == 0 and subprocess.run(CAN_NAMESPACES, check=False, capture_output=True).returncode == 0:
        return True
    if required:
        raise StepError(NO_CLUSTER)
    say(f"     {NO_CLUSTER}")
    return False


def _environment(python: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    return {**kept, "VIRTUAL_ENV": str(VENV), "PATH": f"{python.parent}:{os.environ.get('PATH', os.defpath)}"}


def _prepare(steps: Steps, python: Path, env: Mapping[str, str], *, slow: bool, with_cluster: bool) -> dict[str, str]:
    """Install and build what the tests need. Return the variables that tell the tests about it."""
    with steps.step("JupyterHub 5.5, the oldest that is supported"):
        hub5 = ensure_environment(VENV_HUB5, ["hub", "workspace"], requirements=HUB5)
    wanted = [*programs.PACKAGES, *(programs.CLUSTER_PACKAGES if with_cluster else ())]
    with steps.step("Programs from Debian"):
        missing = programs.ensure(wanted)
    for name in missing:
        say(f"     Tests that need {name} do not run. To install it: {programs.remedy([name])}")
    if with_cluster and not os.environ.get(NAMED_CLUSTER):
        action = "build-all" if slow else "build"
        check(steps, "Programs of the cluster", [python, "-m", "tools.cluster", action], env)
    return {"GPUSPAWNER_HUB5_PYTHON": str(hub5), **(MANY if slow else {})}


def _run(steps: Steps, title: str, python: Path, env: Mapping[str, str], chosen: Sequence[Stage]) -> dict[str, Result]:
    with steps.step(title, streams=True):
        results = run_stages(chosen, [python, "-m", "pytest"], env)
    note_durations(results)
    return results


def _on_other_pythons(steps: Steps, env: Mapping[str, str]) -> dict[str, Result]:
    """Run the portable suites on each other Python that is installed, and the main job on Debian's next one."""
    results: dict[str, Result] = {}
    for version in OTHER_PYTHONS:
        base = _find_python(version)
        if base is None:
            say(f"     Python {version} is not installed: its tests do not run.")
            continue
        with steps.step(f"Packages for Python {version}"):
            code = f"from tools.install import *; print(ensure_environment(ROOT / '.venv-{version}', ['run', 'test']))"
            python = Path(
                subprocess.run([base, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True).stdout.strip()
            )
        own = {**env, "PATH": f"{python.parent}:{env['PATH']}"}
        results |= _run(steps, f"Tests on Python {version}", python, own, [Stage(f"Python {version}", PORTABLE, 2)])
    if os.geteuid() == 0 and programs.find("mmdebstrap"):
        check(steps, "The main job on Debian's next Python", [VENV / "bin" / "python", "-m", "tools.next_debian"], env)
    return results


def _find_python(version: str) -> str | None:
    own = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for candidate in own:
        command = [str(candidate), "-c", "import ensurepip, venv"]
        if candidate and subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return str(candidate)
    return None


def _report(results: Mapping[str, Result], seconds: float) -> None:
    say("\n     Stage             seconds   CPU seconds")
    for name, result in results.items():
        say(f"     {name:<16} {result.seconds:8.0f}   {result.cpu_seconds:11.0f}")
    say("\n     The slowest tests:")
    for line in slowest_tests(results):
        say(f"     {line}")
    say(f"\nAll passed in {seconds / 60:.1f} min.")


@contextmanager
def _beside(command: Sequence[str | Path], env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in parallel with the rest of the check. Its output goes to TYPES_LOG."""
    TYPES_LOG.parent.mkdir(parents=True, exist_ok=True)
    with TYPES_LOG.open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _require_success(title: str, process: subprocess.Popen[bytes]) -> None:
    code = process.wait()
    say(TYPES_LOG.read_text())
    if code:
        raise StepError(f"{title}: failed. The output is above.")


def check(steps: Steps, title: str, command: Sequence[str | Path], env: Mapping[str, str]) -> None:
    """Run one check as a step and show its output.

    Raises:
        StepError: it found something.
    """
    with steps.step(title, streams=True):
        if subprocess.run(command, check=False, cwd=ROOT, env=env).returncode:
            raise StepError(f"{title}: failed. The output is above.")


if __name__ == "__main__":
    sys.exit(main())
