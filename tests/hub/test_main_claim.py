"""A GPU becomes free while its user is away. The user is warned, the GPU is given back, and the user asks again."""

import contextlib
import os
import pty
import subprocess
import sys

import pytest
from harness.fork_server import start_python


@pytest.fixture
def hub(shared_hub):
    """Absent users have 16 s to come."""
    idle = {"idle": "4s", "sample": "1s", "grace": "4s", "warn": "1s"}
    return shared_hub(claimed_soon, gpus=1, wait=2.0, **idle)


def claimed_soon(hub):
    text = hub.catalog.read_text()
    assert text.count("keep:") == 1
    hub.catalog.write_text(text.replace("keep:", "claim: 16s\n    keep:"))


def test_an_absent_user_is_warned_loses_the_gpu_and_may_join_the_end_again(hub):
    hub.add_user("holder", "anna", "ben")
    (hub.folder / "homes" / "anna").mkdir(parents=True)
    (hub.folder / "homes" / "anna" / "tells").touch()
    hub.begin("holder", template="lab")
    hub.until("holder", "running")
    hub.begin("anna", template="lab")
    waiting = hub.until("anna", "parked")
    hub.stop("holder")
    came = hub.until("anna", "running")
    assert (came["id"], came["arrival"]["claim_seconds"]) == (waiting["id"], 16.0)
    hub.begin("ben", template="lab")
    ended = hub.until_ended("anna", "nobody came", 90)
    did = [line["action"] for line in hub.audit(ended["id"])]
    assert [one for one in did if one.startswith(("warned", "came", "stop"))] == ["warned nobody came", "stop"]
    assert "Asking again joins the end of the queue." in ended["end"]["why"]
    assert ended["end"]["at"] - ended["running_at"] >= 16.0, "no sooner, though idle for longer than the idle time"
    ben = hub.until("ben", "running")
    hub.begin("anna", template="lab")
    again = hub.until("anna", "parked")
    assert again["id"] != ended["id"]
    assert (again["queue"]["place"], again["asked_at"] > ben["asked_at"]) == (1, True)


def test_a_user_waiting_in_a_terminal_has_arrived_and_a_script_has_not(hub):
    hub.add_user("holder", "dora")
    token = hub.api("POST", "/users/dora/tokens", {}).json()["token"]
    for typed in (True, False):
        hub.begin("holder", template="lab")
        held = hub.until("holder", "running")
        with terminal() if typed else contextlib.nullcontext(subprocess.DEVNULL) as keyboard:
            waits = start_python(
                [sys.executable, "-m", "gpuspawner.cli", "start", "lab", "--url", f"{hub.url}/services/gpu"],
                env={**os.environ, "GPUSPAWNER_TOKEN": token},
                stdin=keyboard,
                stdout=subprocess.DEVNULL,
            )
            hub.until("dora", "parked")
            hub.stop("holder")
            assert waits.wait(90) == 0
        came = hub.until("dora", "running")
        did = [line["action"] for line in hub.audit(came["id"])]
        assert (came["arrival"] is None, "came" in did) == (typed, typed), held["id"]
        hub.stop("dora")
        hub.until_ended("dora", "stopped", 60)


@contextlib.contextmanager
def terminal():
    """Yield the terminal of a command that a person started by hand."""
    ours, theirs = pty.openpty()
    try:
        yield theirs
    finally:
        os.close(theirs)
        os.close(ours)
