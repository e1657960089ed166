"""The service as a process of its own, and a client for it."""

import json
import subprocess
import sys
import time

import requests
from harness.fork_server import start_python
from harness.waiting import eventually

from gpuspawner.core.authentication import RequestTarget, new_nonce, request_headers

SERVE = """
import asyncio, logging, os, sys
from pathlib import Path
from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.catalog import load_catalog
from gpuspawner.service.app import Options
from gpuspawner.service.process.service import Service
from gpuspawner.service.settings import Settings

store, port, hub = sys.argv[1], sys.argv[2], sys.argv[3] == "hub"
for name in ("API_URL", "API_TOKEN", "BASE_URL", "SERVICE_PREFIX", "OAUTH_CALLBACK_URL"):
    os.environ["JUPYTERHUB_" + name] = "http://127.0.0.1:9/hub/api"
os.environ["JUPYTERHUB_CLIENT_ID"] = "service-gpu"
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
catalog = load_catalog({"version": 1, "gpus": {"a100": {"memory": "80GiB", "match": "*"}},
                        "templates": {"lab": {"gpus": {"a100": 1}}}})
url = f"http://{sys.argv[4]}:{port}"
options = Options(store, b"s" * 32, "hub-1", "http://127.0.0.1:9/hub/api", "t", url, "/services/gpu/",
                  os.getppid() if hub else None, store_password_file=Path(sys.argv[5]) if sys.argv[5:] else None)
asyncio.run(Service(options, catalog, FakeBackend(fake_gpus("a100", 1)), Settings()).run())
print("ended", flush=True)
"""
HUB = """
import subprocess, sys
process = subprocess.Popen([sys.executable, *sys.argv[1:]])
print(process.pid, flush=True)
process.wait()
"""


class Process:
    """A process of the service, and its log."""

    def __init__(self, log, folder, port, *, hub=False, address="127.0.0.1", script=SERVE, database=None, real=False):
        self.log = log
        store = [database.url if database else f"sqlite:///{folder / 'service.sqlite'}"]
        password = [str(database.password_file)] if database and database.password_file else []
        command = [sys.executable, "-c", *([HUB, "-c"] if hub else []), script]
        command += [*store, str(port), "hub" if hub else "alone", address, *password]
        with self.log.open("w") as file:
            self.process = start_python(command, real=real or hub, stdout=file, stderr=subprocess.STDOUT)

    @property
    def text(self):
        return self.log.read_text()

    def says(self, text, seconds=40.0):
        eventually(lambda: text in self.text, seconds, f"{text!r} is not in:\n{self.text}")

    def kill(self):
        """Kill the process, unless it has ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def ends(self, seconds=40.0):
        return eventually(lambda: self.process.poll() is not None, seconds) and self.process.returncode


def call(port, path, method="POST", body=None):
    """Send a request of the hub's spawner. Return None without an answer. Redirects are not followed."""
    target, text = f"/services/gpu/{path}", json.dumps(body or {}) if method == "POST" else ""
    asked = b"s" * 32, new_nonce(), time.time(), RequestTarget(method, target), text.encode()
    headers = request_headers(*asked) if method == "POST" else {}
    url = f"http://127.0.0.1:{port}{target}"
    try:
        return requests.request(method, url, headers=headers, data=text or None, timeout=20, allow_redirects=False)
    except requests.ConnectionError:
        return None
