"""The service as a process: it waits for its store, yields to a newer one, and ends with its hub."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tornado.testing import bind_unused_port

SERVE = """
import asyncio, logging, os, sys
from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.catalog import load_catalog
from gpuspawner.service.app import Options, Service
from gpuspawner.service.settings import Settings

store, port, hub = sys.argv[1], sys.argv[2], sys.argv[3] == "hub"
for name in ("API_URL", "API_TOKEN", "CLIENT_ID", "BASE_URL", "SERVICE_PREFIX", "OAUTH_CALLBACK_URL"):
    os.environ["JUPYTERHUB_" + name] = "http://127.0.0.1:9/hub/api"
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
catalog = load_catalog({"version": 1, "gpus": {"a100": {"memory": "80GiB", "match": "*"}},
                        "templates": {"lab": {"gpus": {"a100": 1}}}})
url = f"http://127.0.0.1:{port}"
options = Options(f"sqlite:///{store}", b"s" * 32, "hub-1", "http://127.0.0.1:9/hub/api", "t", url, "/services/gpu/",
                  os.getppid() if hub else None)
asyncio.run(Service(options, catalog, FakeBackend(fake_gpus("a100", 1)), Settings()).run())
print("ended", flush=True)
"""
HUB = """
import subprocess, sys
process = subprocess.Popen([sys.executable, *sys.argv[1:]])
print(process.pid, flush=True)
process.wait()
"""


def wait_for(condition, seconds=40.0, what=""):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, what or "it did not happen in time"
        time.sleep(0.05)
    return found


class Process:
    """A service, with all that it has logged so far."""

    def __init__(self, folder, port, *, hub=False):
        self.log = folder / f"log-{time.monotonic()}.txt"
        command = [sys.executable, "-c", *([HUB, "-c"] if hub else []), SERVE]
        command += [str(folder / "service.sqlite"), str(port), "hub" if hub else "alone"]
        with self.log.open("w") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)

    @property
    def text(self):
        return self.log.read_text()

    def says(self, text, seconds=40.0):
        wait_for(lambda: text in self.text, seconds, f"{text!r} is not in:\n{self.text}")

    def ends(self, seconds=40.0):
        return wait_for(lambda: self.process.poll() is not None, seconds) and self.process.returncode


@pytest.fixture
def port():
    socket, port = bind_unused_port()
    socket.close()
    return port


@pytest.fixture
def serve(tmp_path, port):
    started = []

    def start(**which):
        started.append(Process(tmp_path, port, **which))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()


def answers(port):
    """The status of a call that needs the store."""
    url = f"http://127.0.0.1:{port}/services/gpu/internal/leases/x/heartbeat?attempt=1"
    request = urllib.request.Request(url, b"{}", {"Authorization": "spawner " + (b"s" * 32).hex()})
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


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


def test_it_waits_while_the_store_is_away_and_serves_once_it_is_back(serve, tmp_path, port):
    folder = tmp_path / "service.sqlite"
    folder.mkdir()  # nothing can be opened there
    service = serve()
    service.says("The store does not answer")
    time.sleep(1.5)
    assert service.process.poll() is None
    folder.rmdir()
    service.says("serving")
    assert wait_for(lambda: answers(port)) == 410


def test_it_ends_in_order_when_it_is_told_to_also_while_it_waits_for_the_store(serve, tmp_path):
    (tmp_path / "service.sqlite").mkdir()
    service = serve()
    service.says("The store does not answer")
    service.process.send_signal(signal.SIGTERM)
    assert service.ends() == 0
    assert service.text.endswith("ended\n")


def test_a_locked_store_is_answered_by_503_and_does_not_end_it(serve, tmp_path, port):
    service = serve()
    service.says("serving")
    other = block(tmp_path)
    assert wait_for(lambda: answers(port)) == 503
    other.execute("ROLLBACK")
    other.close()
    wait_for(lambda: answers(port) == 410)
    assert service.process.poll() is None


def test_of_two_services_at_once_the_newer_serves_and_the_older_ends(serve, port):
    older = serve()
    older.says("serving")
    newer = serve()
    newer.says("serving")
    assert older.ends() == 0
    assert "A newer service owns the store" in older.text
    assert answers(port) == 410
    assert "epoch 2" in newer.text


@pytest.mark.parametrize("store_is", ["there", "away", "locked"])
def test_it_ends_when_its_hub_is_gone_even_while_the_store_is_away(serve, tmp_path, port, store_is):
    if store_is == "away":
        (tmp_path / "service.sqlite").mkdir()
    hub = serve(hub=True)
    pid = int(wait_for(lambda: hub.text.partition("\n")[0] if "\n" in hub.text else ""))
    hub.says("The store does not answer" if store_is == "away" else "serving")
    other = block(tmp_path) if store_is == "locked" else None
    hub.process.kill()
    wait_for(lambda: not alive(pid))
    assert "its hub is gone" in hub.text
    if other is not None:
        other.close()
