"""Secrets that the service's log must not contain."""

import logging
from types import SimpleNamespace

import pytest
from jupyterhub._xsrf_utils import _set_xsrf_cookie

from gpuspawner.service.log import JSON, TEXT, set_up_log


@pytest.fixture(autouse=True)
def _restored_log():
    """Log as before after the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize("form", [TEXT, JSON])
def test_no_session_id_of_jupyterhub_is_in_the_log(capfd, form):
    set_up_log(form)
    handler = SimpleNamespace(settings={}, current_user="alice", set_cookie=lambda *_, **__: None)
    _set_xsrf_cookie(handler, b"0123456789abcdef:alice", xsrf_token=b"token")
    logging.getLogger("tornado.application").info("Logged-in user alice")
    written = capfd.readouterr().err
    assert "Logged-in user alice" in written
    assert "0123456789abcdef" not in written
