"""Fixtures for tests of the command line."""

import logging

import pytest


@pytest.fixture(autouse=True)
def restored_log():
    """Commands of the service replace the handlers of the process's log. Later tests get theirs back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
