"""A real Jupyter server with the extension as a wheel installs it, and a small stand-in for the service."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from demo.ports import pick_free

REPOSITORY = Path(__file__).parents[2]
TOKEN = "workspace-token-that-nobody-else-may-see"
BOBS_TOKEN = "another-persons-token"
LEASE = "lease-7"
STARTS_WITHIN_SECONDS = 120
"""It takes 3 s on an idle machine, but other tests start servers at the same time."""
ATTEMPT = str(os.getpid())
"""Another run of these tests on this machine has another one: a probe of this lease's processes tells them apart."""


def workspace_document(**changes):
    """Build a workspace document as the service gives it: one simulated A100, busy, four hours to go."""
    now = time.time()
    gpu = {
        "index": 0,
        "name": "A100 80 GB (simulated)",
        "utilization_percent": 78.4,
        "memory_used_bytes": 3 * 2**30,
        "memory_total_bytes": 80 * 2**30,
        "problem": "",
    }
    idle = {"state": "busy", "idle_seconds": 0, "for_seconds": 60, "because": "GPU 0 at 78 %", "grace_ends_at": None}
    return {
        "id": LEASE,
        "user": "alice",
        "server": "",
        "phase": "running",
        "words": "Running on 1 A100",
        "ends_at": now + 4 * 3600,
        "simulated": True,
        "fast": True,
        "gpus": [gpu],
        "idle": idle,
        "keep": {"left": 2, "each_seconds": 7200},
        "extend": {"left_seconds": 86400, "each_seconds": 14400},
        "warning": None,
        "now": now,
        "page": f"/services/gpu/workspaces/{LEASE}",
        **changes,
    }


def warning_of_idleness(seconds=120, actions=("keep",), text="The GPU has been idle for 30 minutes. Files stay."):
    return {"kind": "idle", "text": text, "ends_at": time.time() + seconds, "actions": list(actions)}


class FakeService:
    """The service's workspace API over real HTTP, and as much of the hub's as a single-user server needs to start.

    ``document`` is what it answers; ``received`` holds (method, path below the lease, Authorization) of each call;
    ``answer`` replaces the answer to every call with (status, body bytes).
    """

    def __init__(self):
        self.port = pick_free(1)[0]
        self.url = f"http://127.0.0.1:{self.port}/services/gpu"
        self.reset()
        self._loop = asyncio.new_event_loop()
        self._server = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.listen()

    def reset(self):
        self.document = workspace_document()
        self.received = []
        self.answer = None
        self.delay_seconds = 0.0

    def listen(self):
        self._call(self._listen())

    def close(self):
        """Stop listening: connections are refused from now on."""
        self._call(self._close())

    def end(self):
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def posts(self):
        return [call for call in self.received if call[0] == "POST"]

    def _call(self, coroutine):
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _listen(self):
        routes = [
            (rf"/services/gpu/api/v1/workspaces/{LEASE}(.*)", FakeWorkspaceHandler, {"service": self}),
            (r"/hub/api(.*)", FakeHubHandler),
        ]
        self._server = HTTPServer(Application(routes, log_function=lambda handler: None))
        self._server.listen(self.port, "127.0.0.1")

    async def _close(self):
        self._server.stop()
        await self._server.close_all_connections()


class FakeWorkspaceHandler(RequestHandler):
    def initialize(self, service):
        self.service = service

    async def get(self, path):
        await self._answer(path)

    async def post(self, path):
        if path == "/lacking":  # as each server tells at its start
            self.finish({"lacks": []})
            return
        if path == "/secrets" and self.service.answer is None:  # as each server asks at its start
            self.finish({"values": {}, "unreadable": []})
            return
        if self.service.answer is None:
            if path == "/keep":
                keep = self.service.document["keep"]
                self.service.document = workspace_document(keep={**keep, "left": keep["left"] - 1})
            else:
                self.service.document = workspace_document(ends_at=time.time() + 8 * 3600 + 30)
        await self._answer(path)

    async def _answer(self, path):
        authorization = self.request.headers.get("Authorization")
        self.service.received.append((self.request.method, path, authorization))
        await asyncio.sleep(self.service.delay_seconds)
        if authorization != f"token {TOKEN}":
            self.set_status(403)
            self.finish({"error": {"message": "this token is not this workspace's"}})
        elif self.service.answer is not None:
            status, body = self.service.answer
            self.set_status(status)
            if 300 <= status < 400:
                self.set_header("Location", f"{self.service.url}/elsewhere")
            self.finish(body)
        else:
            self.finish(json.dumps({**self.service.document, "now": time.time()}))


class FakeHubHandler(RequestHandler):
    def get(self, path):
        self.set_header("X-JupyterHub-Version", "6.1.1")
        name = "bob" if self.request.headers.get("Authorization") == f"token {BOBS_TOKEN}" else "alice"
        scopes = [f"access:servers!server={name}/"]
        self.finish({"kind": "user", "name": name, "scopes": scopes} if path == "/user" else {"version": "6.1.1"})


class JupyterServer:
    """One Jupyter server in a process of its own. ``url`` ends in a slash; ``log()`` is all that it has said."""

    def __init__(self, folder, module, base_url="/", arguments=(), home=None, **environment):
        self.port = pick_free(1)[0]
        self.home = home or folder / "home"
        self.url = f"http://127.0.0.1:{self.port}{base_url}"
        self.token = "the-persons-own-token"
        self._log_path = folder / "server.log"
        self.home.mkdir(exist_ok=True)
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "PYTHONPATH": str(REPOSITORY),
            "JUPYTER_TOKEN": self.token,
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "JUPYTER_PATH": str(folder / "share" / "jupyter"),
            "JUPYTER_CONFIG_PATH": str(folder / "etc" / "jupyter"),
            **{name: value.format(port=self.port) for name, value in environment.items()},
        }
        install(folder)
        command = [sys.executable, "-m", module, "--allow-root", f"--ServerApp.root_dir={self.home}", *arguments]
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [part.format(port=self.port) for part in command], env=variables, stdout=log, stderr=log
            )

    @property
    def pid(self):
        return self._process.pid

    def log(self):
        return self._log_path.read_text()

    def wait(self, path):
        """Wait until ``path`` answers: then the server runs. Fail if it does not start."""
        deadline = time.monotonic() + STARTS_WITHIN_SECONDS
        try:
            while not self._answers(path):
                assert self._process.poll() is None, self.log()
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.1)
        except BaseException:
            self.end()
            raise

    def _answers(self, path):
        try:
            return self.get(path)
        except OSError:
            return None

    def get(self, path):
        """GET with the person's token; return (status, JSON)."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)

    def post(self, path):
        """POST with the person's token and no body; return the JSON."""
        request = urllib.request.Request(
            self.url + path, data=b"", headers={"Authorization": f"token {self.token}"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    def end(self):
        self._process.terminate()
        self._process.wait(20)


def install(folder):
    """Lay the data files where a wheel lays them (pyproject.toml, shared-data), and keep JupyterLab off the network.

    jupyter-lsp runs `npm prefix -g` in a thread when a server starts, and Python waits for that thread when it ends: a
    server that ends soon after its start took 20 s on a busy machine.
    """
    source = REPOSITORY / "gpuspawner" / "workspace"
    shutil.copytree(source / "labextension", folder / "share" / "jupyter" / "labextensions" / "gpuspawner")
    shutil.copytree(source / "jupyter-config", folder / "etc" / "jupyter" / "jupyter_server_config.d")
    lab = {
        "check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "news_url": None,
        "extension_manager": "readonly",
    }
    configuration = folder / "etc" / "jupyter"
    (configuration / "jupyter_lab_config.json").write_text(
        json.dumps({"LabApp": lab, "LanguageServerManager": {"autodetect": False}})
    )
    page = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (configuration / "labconfig").mkdir()
    (configuration / "labconfig" / "page_config.json").write_text(json.dumps(page))
