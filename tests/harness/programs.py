"""Programs of the machine that tests need."""

import pytest

from tools import programs


def require(name):
    """Return the path of a program, or skip the test and say how to install it."""
    path = programs.find(name)
    if path is None:
        pytest.skip(f"{name} is not installed: {programs.remedy([name])}")
    return path


def needs(name):
    """Return a mark that skips a test, or one parameter of it, if a program is missing."""
    return pytest.mark.skipif(programs.find(name) is None, reason=f"{name}: {programs.remedy([name])}")
