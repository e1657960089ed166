"""Programs, files and permissions that tests need on this machine."""

import subprocess
from functools import cache

import pytest

from tools import programs
from tools.install import ROOT

SHARED_DATA = ROOT.parent / "shared" / "data"
"""Outputs of real machines, in a folder next to the checkout."""


def require(name):
    """Return the path of a program, or skip the test and say how to install it."""
    path = programs.find(name)
    if path is None:
        pytest.skip(f"{name} is not installed: {programs.remedy([name])}")
    return path


def needs(name):
    """Return a mark that skips a test, or one parameter of it, if a program is missing."""
    return pytest.mark.skipif(programs.find(name) is None, reason=f"{name}: {programs.remedy([name])}")


def require_shared_data(pattern):
    """Return the matching files next to the checkout. Without a match, skip the test and name the expected folder."""
    found = sorted(SHARED_DATA.glob(pattern))
    if not found:
        pytest.skip(f"outputs of real machines are missing: {SHARED_DATA / pattern}")
    return found


@cache
def _can_make_namespaces():
    command = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "true"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def require_namespaces():
    """Skip the test where this user may make no user, mount and process namespaces."""
    if not _can_make_namespaces():
        pytest.skip("this user may make no namespaces of its own: run it as root, outside a chroot")
