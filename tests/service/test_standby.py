"""Two services on one store, each a process of its own; and what an orchestrator asks of them."""

import contextlib
import signal
import sqlite3
import time

import pytest
import requests
from cable import Cable
from databases import Database
from harness.waiting import eventually
from service_process import SERVE, Process

from demo.ports import pick_free
from gpuspawner.core.errors import Conflict
from gpuspawner.service.loops import Health
from gpuspawner.service.process.standby import SILENT_SECONDS

ALONE = SERVE.replace("if hub else None, ", "if hub else None, stands_by=True, ")
TAKEN_OVER_SECONDS = 10.0


@pytest.fixture
def service(tmp_path, database):
    """A function that starts a service on the one store, or on what leads there."""
    started = []

    def start(where=database, **options):
        port = pick_free(1)[0]
        one = Process(tmp_path / f"log-{len(started)}", tmp_path, port, script=ALONE, database=where, **options)
        one.port = port
        started.append(one)
        return one

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


def asked(one, path):
    try:
        return requests.get(f"http://127.0.0.1:{one.port}{path}", timeout=20)
    except requests.ConnectionError:
        return None


def ready(one):
    answer = asked(one, "/readyz")
    return answer is not None and answer.status_code == 200


@contextlib.contextmanager
def no_writer(database):
    """Have nobody write to SQLite's file. A process that is frozen while it writes keeps the file's only lock."""
    path = database.url.removeprefix("sqlite:///")
    with contextlib.ExitStack() as stack:
        if path != database.url:
            lock = stack.enter_context(contextlib.closing(sqlite3.connect(path, timeout=20, isolation_level=None)))
            lock.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.parametrize(
    ("database", "ends_by"),
    [
        ("sqlite", signal.SIGTERM),
        pytest.param("sqlite", signal.SIGKILL, marks=pytest.mark.slow),
        ("postgresql", signal.SIGTERM),
        pytest.param("postgresql", signal.SIGKILL, marks=pytest.mark.postgresql),
    ],
    indirect=["database"],
)
def test_a_standby_service_takes_over(service, ends_by):
    real = ends_by is signal.SIGKILL
    first = service(real=real)
    eventually(lambda: ready(first))
    second = service(real=real)
    second.says("Another GPU service works on this store (epoch 1, as its log says). This one stands by")
    waits = asked(second, "/services/gpu/api/v1/offers")
    assert waits.status_code == 503
    assert "takes over when the other one has ended" in waits.json()["error"]["message"]
    assert (asked(second, "/readyz").status_code, asked(second, "/healthz").status_code) == (503, 200)
    time.sleep(SILENT_SECONDS + 1)  # as long as it takes for dead, if it did not beat
    assert ready(first)
    assert not ready(second)
    first.process.send_signal(ends_by)
    ended = time.monotonic()
    eventually(lambda: ready(second))
    assert time.monotonic() - ended < TAKEN_OVER_SECONDS
    second.says("serving")
    if ends_by is signal.SIGTERM:
        assert (first.ends(), "ended" in first.text) == (0, True)


def test_a_frozen_service_writes_nothing_afterwards_and_ends(service, database):
    first = service()
    eventually(lambda: ready(first))
    second = service()
    second.says("stands by")
    with no_writer(database):
        first.process.send_signal(signal.SIGSTOP)
    eventually(lambda: ready(second))
    first.process.send_signal(signal.SIGCONT)
    first.says("A newer service owns the store (epoch 2; this is 1)")
    assert first.ends() == 0
    assert ready(second)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_service_cut_off_from_the_database_is_replaced(service, postgres):
    way = Cable(postgres.server.port)
    name, password_file = postgres.database(), postgres.server.password_file
    first = service(Database(postgres.server.url(name, way.port), password_file))
    eventually(lambda: ready(first))
    second = service(Database(postgres.server.url(name), password_file))
    second.says("stands by")
    way.cut()
    cut = time.monotonic()
    eventually(lambda: ready(second))
    assert time.monotonic() - cut < TAKEN_OVER_SECONDS
    assert asked(first, "/readyz").text == "waits for its store\n"
    way.mend()
    first.says("A newer service owns the store (epoch 2; this is 1)")
    assert first.ends() == 0
    way.close()


def test_a_standby_service_ends_at_once_on_request(service):
    first = service()
    eventually(lambda: ready(first))
    second = service()
    second.says("stands by")
    second.process.terminate()
    assert second.ends(5) == 0
    assert ready(first)


def test_the_health_port_answers_only_health_and_readiness(service):
    one = service()
    eventually(lambda: ready(one))
    for path in ("/healthz", "/readyz"):
        answer = asked(one, path)
        assert (answer.status_code, answer.text) == (200, "ok\n")
        assert "Server" not in answer.headers
        assert requests.head(f"http://127.0.0.1:{one.port}{path}", timeout=20).status_code == 200
        assert requests.post(f"http://127.0.0.1:{one.port}{path}", timeout=20).text == "405\n"


def test_one_of_two_services_that_open_a_store_at_once_stands_by(database):
    first, second = database.store(), database.store()
    assert first.seen_owner() == second.seen_owner() == (0, 0)
    first.open(0)
    assert first.seen_owner() == (1, 1)
    with pytest.raises(Conflict):
        second.open(0)
    first.beat()
    assert second.seen_owner() == (1, 2)
    first.leave()
    assert second.seen_owner() == (1, 0)
    second.open(1)
    assert second.epoch == 2


def test_a_hanging_loop_is_named():
    now = 0.0
    health = Health(lambda: "", lambda: now)
    health.note_round("round", 1.0)
    health.note_round("observe_fleet", 60.0)
    now = 119.0
    assert health.find_hanging() == []
    now = 121.0
    assert health.find_hanging() == ["round"]
    now = 601.0
    health.note_round("round", 1.0)
    assert health.find_hanging() == ["observe_fleet"]
