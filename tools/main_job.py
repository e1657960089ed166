"""The main job of an installation: hub, service and a workspace on a simulated GPU, stopped for being idle.

Only the standard library is used here: what is tried is the environment of the Python that is named.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from demo.ports import pick_free
from tools.progress import StepError

TOKEN = "main-job-token-0123456789"
USER = "ada"
WITHIN_SECONDS = 180.0
"""On a busy machine. A free one takes a tenth."""
CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100, memory: 80GiB}
simulated: {a100: 1}
templates:
  lab: {title: Lab, gpus: {a100: 1}, default: {gpu: a100, count: 1, lifetime: 8h}}
policies:
  default: {mode: enforce, idle: {below: 5%, for: 10m, sample: 60s, grace: 5m}}
"""
CONFIG = """
import sys
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.JupyterHub.cleanup_servers = {ends_servers}
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root"]
c.Spawner.environment = {{"JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp"}}
c.Spawner.http_timeout = 120
c.JupyterHub.services = [{{"name": "tests", "api_token": "{token}"}}]
c.JupyterHub.load_roles = [
    {{"name": "tests", "services": ["tests"],
      "scopes": ["admin:users", "admin:servers", "access:servers", "custom:gpu:admin", "access:services"]}}
]
from gpuspawner.spawner import configure
configure(c, catalog="catalog.yaml", port={service_port}, fast=60)
"""


def run(python: Path, folder: Path, path: str) -> dict[str, Any]:
    """Run it with what ``python`` has, in an empty folder; return how the workspace ended.

    ``path`` is the PATH on which the hub's proxy lies.

    Raises:
        StepError: a step failed. The hub's log is in the folder.
    """
    hub_url = configured(folder, ends_servers=True)
    with started(python, folder, path) as ask:
        ask.until(f"{hub_url}/services/gpu/api/v1/", lambda answer: bool(answer["version"]))
        ask.send(f"{hub_url}/hub/api/users/{USER}")
        ask.send(f"{hub_url}/hub/api/users/{USER}/server", {"template": "lab"})
        ask.until(f"{hub_url}/services/gpu/api/v1/workspaces?all=1", lambda answer: _phases(answer) == ["running"])
        kernels = ask.until(f"{hub_url}/user/{USER}/api/status", lambda answer: "started" in answer)
        ended = f"{hub_url}/services/gpu/api/v1/workspaces?all=1&ended=1"
        found = ask.until(ended, lambda answer: _phases(answer) == ["ended"])
    return {"server": kernels, **found["workspaces"][0]["end"]}


def configured(folder: Path, *, ends_servers: bool, catalog: str = CATALOG) -> str:
    """Write a hub's configuration into a folder; return the hub's address."""
    port, hub_port, proxy_port, service_port = pick_free(4)
    ports = {"port": port, "hub_port": hub_port, "proxy_port": proxy_port, "service_port": service_port}
    (folder / "catalog.yaml").write_text(catalog)
    (folder / "jupyterhub_config.py").write_text(CONFIG.format(token=TOKEN, ends_servers=ends_servers, **ports))
    return f"http://127.0.0.1:{port}"


@contextmanager
def started(python: Path, folder: Path, path: str) -> Iterator[Asker]:
    """Have the hub of a folder run, by the JupyterHub that ``python`` has."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JUPYTER", "GPUSP"))}
    log = folder / "hub.log"
    with log.open("ab") as output:
        hub = subprocess.Popen(
            [python, "-m", "jupyterhub"],
            cwd=folder,
            env={**outside, "PATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield Asker(hub, log)
        finally:
            _end(hub)


class Asker:
    """Asks the hub and its service until what is waited for is there."""

    def __init__(self, hub: subprocess.Popen[bytes], log: Path) -> None:
        self._hub, self._log = hub, log

    def send(self, url: str, body: Mapping[str, Any] | None = None) -> None:
        """Send a POST."""
        request = Request(url, json.dumps(body or {}).encode(), {"Authorization": f"token {TOKEN}"})
        with urlopen(request, timeout=60):
            pass

    def until(self, url: str, good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask until the answer is as it should be; return it. Raises StepError where that never comes."""
        last: object = None
        until = time.monotonic() + WITHIN_SECONDS
        while time.monotonic() < until and self._hub.poll() is None:
            try:
                with urlopen(Request(url, headers={"Authorization": f"token {TOKEN}"}), timeout=20) as answer:
                    last = found = json.load(answer)
                    if good(found):
                        return dict(found)
            except (HTTPError, URLError, OSError, ValueError) as error:
                last = error
            time.sleep(0.5)
        raise StepError(f"{url} does not answer as it should; last: {last}", self._log)


def _phases(answer: Mapping[str, Any]) -> list[str]:
    return [one["phase"] for one in answer["workspaces"]]


def _end(hub: subprocess.Popen[bytes]) -> None:
    hub.send_signal(signal.SIGTERM)
    try:
        hub.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(hub.pid, signal.SIGKILL)  # a session of its own: nothing else is in it
        hub.wait()


if __name__ == "__main__":
    print(run(Path(sys.argv[1]), Path(sys.argv[2]), os.environ["PATH"]))
