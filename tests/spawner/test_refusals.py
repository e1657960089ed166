"""How the hub's log tells of starts that ended with a reason."""

from __future__ import annotations

import logging

import pytest

from gpuspawner.spawner.waiting import StartEnded, one_line_refusals


def start(error):
    raise error


@pytest.fixture
def log(caplog):
    """A hub's log, as a spawner sets it up."""
    logger = logging.getLogger("hub-of-test-refusals")
    logger.addFilter(one_line_refusals)
    with caplog.at_level(logging.INFO):
        yield logger
    logger.removeFilter(one_line_refusals)


@pytest.mark.parametrize(
    ("status", "level"),
    [
        pytest.param(409, "INFO", id="a place in the queue is no error"),
        pytest.param(400, "INFO", id="nor is a bad value"),
        pytest.param(503, "ERROR", id="a service that is away is one"),
    ],
)
@pytest.mark.parametrize("tell", ["error", "exception"])  # JupyterHub does the one or the other, by version and place
def test_the_hub_logs_a_refusal_in_one_line_at_the_right_level(log, caplog, status, level, tell):
    try:
        start(StartEnded("You are 1st in line.", reason="queued", status=status))
    except Exception as error:  # noqa: BLE001 - as the hub does
        getattr(log, tell)("Not starting ada's server: %s", error)
    (record,) = caplog.records
    assert record.levelname == level
    assert "You are 1st in line." in record.getMessage()
    assert not record.exc_info


def test_an_unrelated_error_stays_unchanged(log, caplog):
    try:
        start(OSError("disk full"))
    except OSError:
        log.exception("Unhandled error")
    assert caplog.records[0].levelname == "ERROR"
    assert caplog.records[0].exc_info


def test_an_error_told_after_it_was_handled_leaves_no_empty_traceback(log, caplog):
    log.exception("Error starting server ada: You are 1st in line.")  # noqa: LOG004 - as JupyterHub 5 does
    assert not caplog.records[0].exc_info
