"""Debian's programs that the tests use: which are missing, and their installation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from tools.install import LOG
from tools.progress import run_logged

PACKAGES = {
    "firefox-esr": ["firefox-esr"],
    "chromium-headless-shell": ["chromium-headless-shell", "fonts-dejavu-core"],
    "busybox": ["busybox"],
    "ssh": ["openssh-client"],
    "sshd": ["openssh-server"],
    "prometheus": ["prometheus"],
    "pg_ctlcluster": ["postgresql"],
}
"""Debian's packages for each program: a browser, the smallest shell of images, SSH, Prometheus and PostgreSQL."""
CLUSTER_PACKAGES = {
    "docker-registry": ["docker-registry"],
    "buildah": ["buildah"],
    "mmdebstrap": ["mmdebstrap"],
    "ipset": ["ipset", "iptables"],
}
"""The same for the tests on Kubernetes: a registry of images, what builds images, and network policies."""
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
"""Daemons are in these folders, which are seldom on a user's PATH."""
KEEP_STOPPED = """
test -e /usr/sbin/policy-rc.d || {
    printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    trap 'rm /usr/sbin/policy-rc.d' EXIT
}
"$@"
"""
"""Run a command as root that installs packages without starting their services, as Debian's policy describes."""


def find(program: str) -> str | None:
    """Return the path of a program, also of a daemon outside of PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}")


def remedy(programs: Iterable[str]) -> str:
    """Return the command that installs these programs on Debian."""
    packages = [package for name in programs for package in {**PACKAGES, **CLUSTER_PACKAGES}[name]]
    return f"sudo apt-get install --no-install-recommends {' '.join(packages)}"


def ensure(programs: Iterable[str]) -> list[str]:
    """Install the programs that are missing, if root can do that by apt-get. Return those that are still missing.

    Raises:
        StepError: apt-get failed.
    """
    missing = [name for name in programs if not find(name)]
    if not missing or os.geteuid() != 0 or not shutil.which("apt-get"):
        return missing
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = [package for name in missing for package in {**PACKAGES, **CLUSTER_PACKAGES}[name]]
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    commands = [["apt-get", "update"], ["sh", "-ec", KEEP_STOPPED, "sh", *install]]
    if "sshd" in missing and shutil.which("systemctl"):
        commands.append(["systemctl", "disable", "ssh.service"])  # the tests need the program, not the service
    for command in commands:
        run_logged(command, LOG, f"apt-get failed. Try it yourself: {remedy(missing)}", env=env)
    return [name for name in missing if not find(name)]
