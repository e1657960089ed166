"""The reference scheduler as a process next to a real hub."""

import os
import sys

import requests
from harness.fork_server import start_python
from harness.hub import REPO, eventually

from demo.ports import pick_free

TOKEN = "a-token-of-the-tests"
NAME = "Reference scheduler"


class Batch:
    """The reference server as a process, which may be killed and restarted."""

    def __init__(self, folder, inventory):
        self.folder = folder
        (self.port,) = pick_free(1)
        self.url = f"http://127.0.0.1:{self.port}"
        (folder / "token").write_text(TOKEN)
        (folder / "inventory.yaml").write_text(inventory)
        self.process = None

    def start(self):
        command = [sys.executable, "-m", "demo.scheduler", "--port", str(self.port)]
        command += ["--token-file", str(self.folder / "token"), "--inventory", str(self.folder / "inventory.yaml")]
        command += ["--notice-seconds", "8", "--settle-seconds", "3"]
        with (self.folder / "batch.log").open("ab") as log:
            self.process = start_python(
                command, cwd=self.folder, env={**os.environ, "PYTHONPATH": str(REPO)}, stdout=log, stderr=log
            )
        eventually(lambda: self.ask("GET", "/v1/capabilities").ok, what="the scheduler answers")

    def named(self, callback):
        """The catalog's entry of it."""
        where = f"url: '{self.url}', token_file: {self.folder}/token, timeout: 3s, callback: '{callback}'"
        return f"scheduler: {{http: {{{where}}}}}\n"

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ask(self, method, path, body=None):
        return requests.request(
            method, f"{self.url}{path}", json=body, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30
        )

    def states(self, hub):
        name = (hub.folder / "gpu" / "hub-id").read_text().strip()
        return {one["id"]: one for one in self.ask("GET", f"/v1/hubs/{name}/claims").json()["claims"]}

    def train(self, **job):
        assert self.ask("POST", "/admin/jobs", job).status_code == 204
