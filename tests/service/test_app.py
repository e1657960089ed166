"""The service as a process: it waits for its store, yields to a newer one, and ends with its hub."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness.waiting import eventually
from service_process import SERVE, call

from gpuspawner.service.loops import cancel_all
from gpuspawner.service.store.store import THREADS


def answers(port):
    """Return the status of a call that needs the store, or 0 without an answer."""
    answer = call(port, "internal/leases/x/heartbeat?attempt=1")
    return 0 if answer is None else answer.status_code


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def block(folder):
    other = sqlite3.connect(folder / "service.sqlite", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    return other


@contextlib.contextmanager
def nothing_can_be_opened(folder):
    (folder / "service.sqlite").mkdir()
    yield
    (folder / "service.sqlite").rmdir()


@contextlib.contextmanager
def locked(folder):
    other = block(folder)
    yield
    other.close()


@contextlib.contextmanager
def full(folder):
    with contextlib.suppress(OSError), (folder / "much").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    yield
    (folder / "much").unlink()


@pytest.fixture
def disk(tmp_path):
    """A small disk. Mounting it needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=False).returncode:
        pytest.skip("this user may mount no small disk: run it as root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


TROUBLES = {
    "away": (nothing_can_be_opened, "unable to open database file"),
    "locked": (locked, "database is locked"),
    "full": (full, "disk is full"),
}


def test_the_service_listens_on_all_addresses_if_its_own_is_a_cluster_service(serve, port):
    serve(address="192.0.2.1")  # as the hub's Service, behind which its pod is
    eventually(lambda: answers(port), what="it answers")


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_service_answers_503_with_the_reason_until_the_store_is_back(serve, disk, port, trouble):
    make, reason = TROUBLES[trouble]
    with make(disk):
        service = serve(folder=disk)
        tells_why(service, port, reason)
        assert service.text.count(reason) == 1, "its log says it once"
    service.says("serving")
    assert answers(port) == 410


def tells_why(service, port, reason):
    service.says(reason)
    for path in ("internal/leases/x/heartbeat?attempt=1", "internal/acquire", "api/v1/workspaces", "metrics"):
        answer = call(port, path)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        message = answer.json()["error"]["message"]
        assert reason in message
        assert "nothing is lost" not in message, "nobody knows that yet"
    signs_in = call(port, "", "GET")
    assert signs_in.status_code == 302, "the hub gives up a service that answers its look at it by a 503"
    assert "/oauth2/authorize" in signs_in.headers["Location"]
    assert call(port, "static/gs.css", "GET").status_code == 200
    assert service.process.poll() is None


def test_sigterm_ends_the_service_also_while_it_waits_for_the_store(serve, tmp_path):
    (tmp_path / "service.sqlite").mkdir()
    service = serve()
    service.says("The store does not answer")
    service.process.send_signal(signal.SIGTERM)
    assert service.ends() == 0
    assert service.text.endswith("ended\n")


ASK = {"hub": "hub-1", "user": "anna", "user_created": "born", "server": ""}
ASK |= {"options": {}, "start_id": "start", "boot_id": "boot"}


def test_a_locked_store_serves_reads_refuses_writes_by_503_quickly_and_keeps_running(serve, tmp_path, port):
    service = serve()
    service.says("serving")
    with locked(tmp_path):
        began = time.monotonic()
        for _ in range(20):
            refused = call(port, "internal/acquire", body=ASK)
            assert refused.status_code == 503
            assert "database is locked" in refused.json()["error"]["message"]
            assert answers(port) == 410, "a read"
        assert time.monotonic() - began < 10
    assert call(port, "internal/acquire", body=ASK).status_code == 200
    assert service.process.poll() is None


def test_a_full_disk_is_logged_without_a_request(serve, disk):
    soon = "import gpuspawner.service.store.store as stores\nstores.WRITE_CHECK_SECONDS = 0.5\n"
    service = serve(folder=disk, script=soon + SERVE)
    service.says("serving")
    with full(disk):
        service.says("disk is full")


def test_a_newer_service_on_the_same_store_ends_the_older_one(serve, port):
    older = serve()
    older.says("serving")
    newer = serve()
    newer.says("serving")
    assert older.ends() == 0
    assert "A newer service owns the store" in older.text
    assert answers(port) == 410
    assert "epoch 2" in newer.text


GIVES_NO_ANSWER = """
import pathlib, threading, time
import sqlalchemy as sa
from gpuspawner.service.process import service as service_module

service_module.END_SECONDS = 1.0

@sa.event.listens_for(sa.engine.Engine, "before_cursor_execute")
def hang(*_):
    while pathlib.Path({file!r}).exists() and threading.current_thread().name.startswith({threads!r}):
        print("no answer", flush=True)
        time.sleep(0.2)
"""
"""A store that gives no answer to some threads while a file exists, like a disk or a server that hangs."""


@pytest.mark.parametrize(("at", "what"), [("its start", ""), ("its work", "-reads_0"), ("its work", "-writes")])
def test_the_service_ends_although_its_store_gives_no_answer(serve, tmp_path, at, what):
    hangs = tmp_path / "hangs"
    if at == "its start":
        hangs.touch()
    service = serve(script=GIVES_NO_ANSWER.format(file=str(hangs), threads=f"{THREADS}{what}") + SERVE)
    if at == "its work":
        service.says("serving")
        hangs.touch()
    service.says("no answer")
    service.process.terminate()
    assert service.ends() == 1
    assert "The service ends without its last changes" in service.text


@pytest.mark.parametrize("store_is", ["there", "away", "locked", "hangs"])
def test_the_service_ends_with_its_hub_even_without_its_store(serve, tmp_path, port, store_is):
    if store_is == "away":
        (tmp_path / "service.sqlite").mkdir()
    hangs = tmp_path / "hangs"
    script = GIVES_NO_ANSWER.format(file=str(hangs), threads=THREADS) if store_is == "hangs" else ""
    hub = serve(hub=True, script=script + SERVE)
    pid = int(eventually(lambda: hub.text.partition("\n")[0] if "\n" in hub.text else ""))
    hub.says("The store does not answer" if store_is == "away" else "serving")
    other = block(tmp_path) if store_is == "locked" else None
    if store_is == "hangs":
        hangs.touch()
        hub.says("no answer")
    hub.process.kill()
    eventually(lambda: not alive(pid))
    assert "its hub is gone" in hub.text
    if other is not None:
        other.close()


async def test_a_task_that_catches_a_cancellation_is_cancelled_again():
    tries = []

    async def stubborn():
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                tries.append(1)
                if len(tries) > 1:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await asyncio.wait_for(cancel_all([task]), 10)
    assert task.cancelled()


HANGS = """
import time
import sqlalchemy as sa

@sa.event.listens_for(sa.engine.Engine, "before_cursor_execute")
def hang(connection, cursor, statement, parameters, context, executemany):
    if statement.startswith("INSERT INTO leases"):
        print("a lease is written", flush=True)
        time.sleep(60)
"""


def test_a_service_killed_between_a_change_and_its_write_loses_only_unreported_changes(serve, tmp_path, port):
    first = serve(script=HANGS + SERVE)
    first.says("serving")
    with ThreadPoolExecutor(1) as beside:
        asks = beside.submit(call, port, "internal/acquire", body=ASK)
        first.says("a lease is written")
        assert answers(port) == 410, "others are answered meanwhile"
        assert not asks.done()
        first.process.kill()
        assert asks.result(20) is None
    second = serve()
    second.says("serving")
    with contextlib.closing(sqlite3.connect(tmp_path / "service.sqlite")) as store:
        assert store.execute("SELECT count(*) FROM leases").fetchone() == (0,)
        told = call(port, "internal/acquire", body=ASK)
        assert told.status_code == 200
        second.process.kill()
        second.process.wait()
        assert store.execute("SELECT id FROM leases").fetchall() == [(told.json()["lease"]["id"],)]
