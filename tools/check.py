"""`make test` and `make test-cluster`: install what the tests need and run them, up to the first step that fails.

The first does lint, types and every test; the second those on a real Kubernetes alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.install import LOG, ROOT, VENV, VENV_HUB5, ensure, ensure_environment
from tools.progress import StepError, Steps, report_failure, run_logged, say
from tools.suite import Suite, run_tests

TYPES_LOG = LOG.with_name("types.log")
NAMED_CLUSTER = "GPUSPAWNER_TEST_KUBECONFIG"
KUBERNETES = "tests/cluster"
DECISIONS = "tests/core"
ON_THIS_MACHINE = Suite("Tests", (f"--ignore={KUBERNETES}", f"--ignore={DECISIONS}"), files_at_once=3)
"""Their servers mostly wait: three files fill two cores."""
ON_DECISIONS = Suite(
    "Tests of the decisions", (DECISIONS, "--cov", "--cov-report="), files_at_once=2, again=("--cov-append",)
)
"""Before the others: telling which branches are tried takes longer than these tests, and theirs do not need it."""
ON_KUBERNETES = Suite("Tests on Kubernetes", (KUBERNETES,), files_at_once=1 if os.environ.get(NAMED_CLUSTER) else 2)
"""Two clusters of their own, a file at a time on each; a cluster that is named is one."""
WALLS = ("unshare", "--mount", "--net", "--pid", "--fork", "test", "-w", "/sys/fs/cgroup")
NO_KUBERNETES = (
    "the tests on Kubernetes start a cluster, as root and with namespaces and control groups of its own; or name one "
    "by GPUSPAWNER_TEST_KUBECONFIG."
)
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Where it is set, as in images of containers, each of the hundreds of processes would compile all that it imports."""
CORE_BRANCH_COVERAGE_PERCENT = 98
"""Of the decisions and of what replays them, by their own tests: every other room is tested through them."""
PROGRAMS = {
    "chromium-headless-shell": ["chromium-headless-shell", "fonts-dejavu-core"],
    "busybox": ["busybox"],
    "ssh": ["openssh-client"],
    "sshd": ["openssh-server"],
    "docker-registry": ["docker-registry"],
    "prometheus": ["prometheus"],
    "pg_ctlcluster": ["postgresql"],
    "buildah": ["buildah"],
    "mmdebstrap": ["mmdebstrap"],
    "ipset": ["ipset", "iptables"],
}
"""What the tests run besides, and its packages: a browser, the smallest shell of images, SSH, a registry of images,
Prometheus with promtool, PostgreSQL, what builds images, and what kube-router enforces network policies by."""
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where daemons lie, which is seldom on a user's PATH."""
KEEP_STOPPED = """
test -e /usr/sbin/policy-rc.d || {
    printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    trap 'rm /usr/sbin/policy-rc.d' EXIT
}
"$@"
"""
"""Run a command as root that installs packages: no service of theirs starts, by Debian's own means."""
HUB5 = ("jupyterhub==5.5.*", "jupyterhub-kubespawner==7.1.*", "jupyter_server>=2.14", "jsonschema<4.25")
"""The oldest hub that is supported, with the workspaces' server and nothing else."""


def main() -> int:
    """Run every step; 0 when all passed, 1 at the first that did not."""
    steps = Steps()
    cluster_alone = sys.argv[1:] == ["cluster"]
    try:
        python = ensure(steps, ["run", "test", "kubernetes", "devices", "docs"])
        tools = python.parent
        env = {
            **{name: value for name, value in os.environ.items() if name != NO_BYTECODE},
            "VIRTUAL_ENV": str(VENV),
            "PATH": f"{tools}:{os.environ.get('PATH', os.defpath)}",
        }
        suites = _on_kubernetes(required=cluster_alone)
        if cluster_alone:
            env |= _prepare(steps, python, env, suites)
            with steps.step("Tests on Kubernetes", streams=True):
                run_tests([python, "-m", "pytest"], env, suites)
            return 0
        with _beside([tools / "mypy"], env) as types:
            check(steps, "Lint", [tools / "ruff", "check"], env)
            check(steps, "Format", [tools / "ruff", "format", "--check"], env)
            check(steps, "Rooms import one way", [tools / "lint-imports"], env)
            env |= _prepare(steps, python, env, suites)
            with steps.step("Types", streams=True):
                _ends_well("Types", types)
        with steps.step("Tests of the decisions", streams=True):
            run_tests([python, "-m", "pytest"], env, [ON_DECISIONS])
        bound = f"--fail-under={CORE_BRANCH_COVERAGE_PERCENT}"
        coverage: list[str | Path] = [python, "-m", "coverage", "report", bound]
        check(steps, "Branch coverage of core", coverage, env)
        with steps.step("Tests", streams=True):
            if not suites:
                say(f"     Left out: {NO_KUBERNETES}")
            run_tests([python, "-m", "pytest"], env, [ON_THIS_MACHINE, *suites])
    except StepError as error:
        report_failure(error)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _prepare(steps: Steps, python: Path, env: Mapping[str, str], suites: Sequence[Suite]) -> dict[str, str]:
    """Install and build what the tests need besides; return the variable that tells them of the oldest hub.

    Raises:
        StepError: it could not be.
    """
    with steps.step("JupyterHub 5.5, for the tests on it"):
        hub5 = ensure_environment(VENV_HUB5, ["hub", "workspace"], requirements=HUB5)
    with steps.step("Chromium and others, from Debian"):
        ensure_debian_packages()
    if suites and not os.environ.get(NAMED_CLUSTER):
        check(steps, "Programs of the cluster", [python, "-m", "tools.cluster", "build"], env)
    return {"GPUSPAWNER_HUB5_PYTHON": str(hub5)}


@contextmanager
def _beside(command: Sequence[str | Path], env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run what takes one core a minute beside what mostly waits for the network; its output goes to TYPES_LOG."""
    TYPES_LOG.parent.mkdir(parents=True, exist_ok=True)
    with TYPES_LOG.open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _ends_well(title: str, process: subprocess.Popen[bytes]) -> None:
    """Wait for what runs beside, and say what it said. Raises StepError where it found something."""
    code = process.wait()
    say(TYPES_LOG.read_text())
    if code:
        raise StepError(f"{title}: failed. What was found stands above.")


def _on_kubernetes(*, required: bool) -> list[Suite]:
    """Return the suite on Kubernetes, or none where there can be no cluster: not root, or a container without rights.

    Raises:
        StepError: it is ``required``, and there can be none.
    """
    if os.environ.get(NAMED_CLUSTER):
        return [ON_KUBERNETES]
    if os.geteuid() == 0 and subprocess.run(WALLS, check=False, capture_output=True).returncode == 0:
        return [ON_KUBERNETES]
    if required:
        raise StepError(f"Not run: {NO_KUBERNETES}")
    return []


def check(steps: Steps, title: str, command: Sequence[str | Path], env: Mapping[str, str]) -> None:
    """Run one check as a step, its output shown as it comes.

    Raises:
        StepError: it found something.
    """
    with steps.step(title, streams=True):
        if subprocess.run(command, check=False, cwd=ROOT, env=env).returncode:
            raise StepError(f"{title}: failed. What was found stands above.")


def ensure_debian_packages() -> None:
    """Install, as Debian's packages, the programs of PROGRAMS that are not there.

    Raises:
        StepError: one is missing and could not be installed.
    """
    path = f"{os.environ.get('PATH', os.defpath)}:{SBIN}"
    missing = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if not missing:
        return
    remedy = f"The tests need {' and '.join(missing)}: install it, so that it is on the PATH."
    if not shutil.which("apt-get"):
        raise StepError(remedy)
    as_root = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = [package for name in missing for package in PROGRAMS[name]]
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    commands = [["apt-get", "update"], ["sh", "-ec", KEEP_STOPPED, "sh", *install]]
    if "sshd" in missing and shutil.which("systemctl"):
        commands.append(["systemctl", "disable", "ssh.service"])  # the program is wanted, and no service at a reboot
    for command in commands:
        run_logged([*as_root, *command], LOG, remedy, env=env)


if __name__ == "__main__":
    sys.exit(main())
