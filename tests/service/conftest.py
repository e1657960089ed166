"""Fixtures of the service's tests. The helpers of this folder, core and schedulers are on the import path."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from databases import Database
from harness.programs import require
from pydantic import ValidationError

from demo.ports import pick_free
from gpuspawner.backends.local import nvidia
from gpuspawner.service.api.base import BaseHandler
from gpuspawner.service.api.rest.document import route_of

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("service", "core", "schedulers", "backends")]

import page_world  # noqa: E402 - found only through the path above
from bad_machine import BadMachine  # noqa: E402 - as above
from service_process import Process  # noqa: E402 - as above
from service_world import World  # noqa: E402 - as above

KEPT_IN = os.environ.get("GPUSPAWNER_TEST_STORE", "sqlite")
"""The database of these tests, except the tests in ON_BOTH: sqlite or postgresql."""
ON_BOTH = {
    "admin_lists",
    "adoption",
    "audit",
    "disputes",
    "inbox",
    "presets",
    "ready_api",
    "usage_api",
    "usage_page",
}
"""Files that run over both databases. `make test` does so with the tests that are marked `postgresql`."""
MISSING = [name for name in ON_BOTH if not (Path(__file__).parent / f"test_{name}.py").exists()]
if MISSING:
    raise RuntimeError(f"ON_BOTH names files that are not here: {MISSING}")


def pytest_generate_tests(metafunc):
    """Run the files of ON_BOTH on both databases."""
    has_store = {"make_world", "make_web_world"} & set(metafunc.fixturenames)
    if has_store and KEPT_IN == "sqlite" and metafunc.definition.path.stem.removeprefix("test_") in ON_BOTH:
        metafunc.parametrize("kept_in", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture(autouse=True)
def same_zone():
    """Restore the time zone of the process, which the service sets from its catalog."""
    before = os.environ.get("TZ")
    yield
    if os.environ.get("TZ") != before:
        os.environ.pop("TZ", None) if before is None else os.environ.update(TZ=before)
        time.tzset()


@pytest.fixture(autouse=True)
def kept_in(request, monkeypatch):
    """Choose the database of the test's services, and close it afterwards."""
    kept_in = getattr(request, "param", KEPT_IN)
    if kept_in == "postgresql":
        require("pg_ctlcluster")  # before anything of the test is open
    monkeypatch.setattr(Database, "of_worlds", kept_in)
    yield
    while Database.made_for_worlds:
        Database.made_for_worlds.pop().close()


@pytest.fixture(autouse=True)
def transactions_in_the_loop():
    """Fail a test if the service begins a transaction in the thread of an event loop, which would block all requests.

    The test itself may do so.
    """
    found = []

    def began(_connection):
        if asyncio._get_running_loop() is None:
            return
        frame = sys._getframe(1)
        while frame is not None and not _is_caller(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None and "/gpuspawner/service/" in frame.f_code.co_filename:
            found.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")

    sa.event.listen(sa.engine.Engine, "begin", began)
    yield found
    sa.event.remove(sa.engine.Engine, "begin", began)
    assert found == []


@pytest.fixture(autouse=True)
def answers_as_documented(monkeypatch):
    """Fail a test if an answer of the API differs from the OpenAPI document."""
    wrong = []
    send = BaseHandler.send

    def checked(handler, status, text):
        declared = route_of(type(handler), handler.request.method.lower())
        if declared is not None and status < 400:
            if status not in {declared.status, declared.also}:
                wrong.append(f"{handler.request.uri}: {status}")
            if isinstance(declared.answer, type):
                try:
                    declared.answer.model_validate_json(text)
                except ValidationError as error:
                    wrong.append(f"{handler.request.uri}: {declared.answer.__name__}: {error}")
        send(handler, status, text)

    monkeypatch.setattr(BaseHandler, "send", checked)
    yield
    assert wrong == [], "\n".join(wrong)


def _is_caller(file):
    """Return whether a file contains callers of the store, and not the store itself."""
    is_ours = "/gpuspawner/service/" in file and "/service/store/" not in file
    is_ours &= not file.endswith("/tell/history.py")  # the command line reads it, too
    return is_ours or "/tests/" in file


def _made_by(make, close):
    """Yield a function that makes objects by their number and its arguments, and close them all afterwards."""
    made = []

    def one(*arguments, **named):
        made.append(make(len(made), *arguments, **named))
        return made[-1]

    yield one
    for each in made:
        close(each)


@pytest.fixture
def make_world(tmp_path):
    """Return a function that makes a world with the given GPUs, policy and settings."""
    yield from _made_by(lambda number, **which: World(tmp_path / f"service-{number}.sqlite", **which), World.crash)


@pytest.fixture
def world(make_world):
    """A world with two GPUs. Workspaces are idle after 5 minutes, and end 3 minutes after the warning."""
    return make_world()


@pytest.fixture
def make_web_world(tmp_path, monkeypatch):
    """Return a function that serves the service's pages with a fake hub and the given catalog, or the default one."""
    pages = page_world.World
    yield from _made_by(lambda _number, catalog=None: pages(tmp_path, monkeypatch, catalog), pages.close)


@pytest.fixture
def store(database):
    """An empty, open store on either database."""
    return database.opened()


@pytest.fixture
def make_machine(tmp_path, monkeypatch):
    """Return a function that makes a machine with real processes and probes, and simulated GPUs."""
    monkeypatch.setattr(nvidia, "find", lambda: None)
    monkeypatch.setattr(nvidia, "has_devices", lambda: False)
    yield from _made_by(lambda number, **which: BadMachine(tmp_path / f"machine-{number}", **which), BadMachine.close)


@pytest.fixture
def machine(make_machine):
    """A machine with one GPU. Workspaces are idle after 2 minutes, and end 1 minute after the warning."""
    return make_machine()


@pytest.fixture
def port():
    """The port of the service that `serve` starts."""
    return pick_free(1)[0]


@pytest.fixture
def serve(tmp_path, port):
    """Return a function that starts the service as a process."""

    def start(number, folder=tmp_path, **which):
        return Process(tmp_path / f"log-{number}.txt", folder, port, **which)

    yield from _made_by(start, Process.kill)
