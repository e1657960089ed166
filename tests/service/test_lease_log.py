"""The log of leases: one line for each grant, wait, stop, end and refusal, for people and as JSON."""

import json
import logging
from dataclasses import replace
from types import SimpleNamespace

import page_world
import pytest
from jupyterhub._xsrf_utils import _set_xsrf_cookie
from page_world import NOW

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.transitions import set_wait_reason
from gpuspawner.service.log import JSON, TEXT, log_step, refusals_logged, set_up_log
from gpuspawner.service.settings import Settings, SettingsError, change_settings

WAITS = page_world.waiting("waits", user="alice", count=1, asked_at=NOW - 90)
GRANTED = replace(WAITS, phase=Phase.RESERVED, slots=(Slot("a100-0"),), granted_at=NOW)
RUNS = replace(GRANTED, phase=Phase.RUNNING)
STOPS = replace(RUNS, phase=Phase.STOPPING, reason=ExitReason.IDLE, ended_by="gpuspawner", message="It did nothing.")
ENDED = replace(STOPS, phase=Phase.ENDED, slots=(), ended_at=NOW)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [one.getMessage() for one in caplog.records if one.name == "gpuspawner.leases"]


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (None, WAITS, "wait: lease waits of alice, 1 a100: for its turn"),
        (
            WAITS,
            set_wait_reason(WAITS, "quota vision", "8 of 8 GPUs are held.", NOW),
            "quota vision: 8 of 8 GPUs are held.",
        ),
        (WAITS, GRANTED, "grant: lease waits of alice, 1 a100 on a100-0: after 1 min 30 s"),
        (RUNS, STOPS, "stop: lease waits of alice, 1 a100 on a100-0: idle (by gpuspawner): It did nothing."),
        (STOPS, ENDED, "end: lease waits of alice, 1 a100 on a100-0: idle (by gpuspawner): It did nothing."),
        (GRANTED, replace(WAITS, message="There was no room.\nNone"), "1 a100 on a100-0: There was no room. None"),
    ],
)
def test_each_step_that_matters_is_one_line_with_lease_user_gpu_and_reason(lines, before, after, line):
    log_step(before, after, after)
    (found,) = lines()
    assert found.endswith(line)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (GRANTED, replace(GRANTED, phase=Phase.STARTING)),
        (RUNS, replace(RUNS, keeps_used=1)),
        (STOPS, STOPS),
        (None, ENDED),
    ],
)
def test_other_steps_are_not_logged(lines, before, after):
    log_step(before, after, after)
    assert lines() == []


def test_a_wait_that_ends_before_it_is_stored_is_not_recorded(lines):
    log_step(None, WAITS, GRANTED)
    assert lines() == []


def test_a_service_logs_what_is_stored_and_what_it_refuses(make_web_world, lines):
    world = make_web_world()
    world.observe()
    asked = {"template": "pytorch", "gpu": "a100", "count": 2}
    answer = page_world.api(world, "alice", "workspaces", "POST", asked)
    assert answer.status_code == 202
    lease = answer.json()
    assert [one for one in lines() if lease["id"] in one][-1].startswith(
        f"grant: lease {lease['id']} of alice, 2 a100 on "
    )
    answer = page_world.api(world, "alice", "workspaces", "POST", {**asked, "count": 99, "server": "big"})
    assert answer.status_code == 400
    assert lines()[-1].startswith("refusal: a request of alice/big, a100: GPUs: You asked for 99. Allowed: 1 to 4.")


def test_as_json_each_line_is_one_object_with_its_fields(monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    set_up_log("json")
    log_step(WAITS, GRANTED, GRANTED)
    with pytest.raises(RequestRefused), refusals_logged("bob", "", "h100\n"):
        raise RequestRefused("gpu", "'h100'", "a100", "Take another.")
    logging.getLogger("gpuspawner").error("it failed", exc_info=ValueError("a fault"))
    granted, refused, failed = map(json.loads, capsys.readouterr().err.splitlines())
    assert granted["event"] == "grant"
    assert (granted["lease"], granted["user"], granted["gpu"], granted["gpus"]) == (
        "waits",
        "alice",
        "a100",
        ["a100-0"],
    )
    assert granted["time"].endswith("+00:00")
    assert (refused["event"], refused["user"], refused["gpu"]) == ("refusal", "bob", "h100")
    assert "ValueError: a fault" in failed["traceback"]
    assert (failed["level"], failed["logger"]) == ("ERROR", "gpuspawner")


def test_the_form_is_a_setting_and_another_one_is_refused_by_name():
    assert change_settings(Settings(), {"log_format": "json"}).log_format == "json"
    with pytest.raises(SettingsError, match=r"service_settings\.log_format: 'xml' is not right; write text or json"):
        change_settings(Settings(), {"log_format": "xml"})


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
