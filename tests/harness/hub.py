"""A real JupyterHub with a real proxy in processes of its own, to be asked, killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import requests
from harness.fork_server import fork_server, start_python
from harness.hub_configuration import BEFORE_CONFIGURE, CATALOG, CONFIG, CONFIGURE, FAST
from harness.waiting import eventually
from typing_extensions import Self

from demo.ports import pick_free
from gpuspawner.core.authentication import RequestTarget, new_nonce, request_headers, sign_ticket

REPO = Path(__file__).parents[2]
TINY = Path(__file__).parent / "tiny_server.py"
ADMIN_TOKEN = "test-admin-token-0123456789"


@dataclass
class RealHub:
    """One hub and its proxy. ``folder`` holds everything that survives a restart."""

    folder: Path
    gpus: int = 2
    python: str = sys.executable
    wait: float = 60.0
    idle: str = "1h"
    sample: str = "1m"
    """Each probe runs five processes, so it is short only where a test needs readings."""
    grace: str = "1m"
    warn: str = "10m"
    lifetime: str = "8h"
    quota: int = 8
    cleanup_servers: bool | None = None
    """None for the value that configure() sets."""
    slow_spawn_timeout: float = 1.0
    failure_limit: int = 3
    fast: float | None = None
    service_poll: float = 1.0
    """Seconds between the hub's checks of its service. JupyterHub's default of 30 s would delay each test."""
    configured: bool = True
    """False for a hub without configure()."""
    extra: str = ""
    planted: str = ""
    """Python code that each service process runs first: a test plants a fault with it."""
    settings: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    """Further arguments of configure()."""
    times: dict[str, Any] = field(default_factory=FAST.copy)
    """Settings of the service with short times. {} for the defaults."""
    environment_of_hub: dict[str, str] = field(default_factory=dict)
    real: bool = False
    """Whether hub and service execute Python instead of being forked: see harness.fork_server."""
    proxy_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.port, self.hub_port, self.proxy_port, self.service_port = pick_free(4)
        self.url = f"http://127.0.0.1:{self.port}"
        self.hub: subprocess.Popen[bytes] | None = None
        self.proxy: subprocess.Popen[bytes] | None = None
        self.log = self.folder / "hub.log"
        self.catalog = self.folder / "catalog.yaml"
        self.catalog.write_text(CATALOG % vars(self))

    # --- processes

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> RealHub:
        self.start_proxy()
        self.start_hub()
        return self

    def start_proxy(self) -> None:
        environment = {**os.environ, "CONFIGPROXY_AUTH_TOKEN": "proxy-token"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"  # where `make` puts it
        command = ["configurable-http-proxy", "--ip", "127.0.0.1", "--port", str(self.port)]
        command += ["--api-ip", "127.0.0.1", "--api-port", str(self.proxy_port)]
        command += ["--error-target", f"http://127.0.0.1:{self.hub_port}/hub/error"]
        command += self.proxy_options
        with (self.folder / "proxy.log").open("ab") as log:
            self.proxy = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def config(self) -> str:
        """Write the configuration of the hub, which ends with configure()."""
        homes = str(self.folder / "homes" / "{username}")
        settings = {**self.times, **self.settings}
        values = {**vars(self), "repo": str(REPO), "tiny": str(TINY), "homes": homes, "token": ADMIN_TOKEN}
        ends = "" if self.cleanup_servers is None else f"c.JupyterHub.cleanup_servers = {self.cleanup_servers}"
        values |= {"catalog": str(self.catalog), "settings": settings, "extra": textwrap.dedent(self.extra)}
        values |= {"ends_with_hub": ends, "fork_server": "" if self.real else fork_server(self.python).address}
        return (CONFIG + (CONFIGURE if self.configured else BEFORE_CONFIGURE)).format(**values)

    def start_hub(self) -> None:
        config = self.folder / "jupyterhub_config.py"
        (self.folder / "homes").mkdir(exist_ok=True)
        config.write_text(self.config())
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB_", "GPUSPAWNER_"))}
        environment |= self.environment_of_hub
        environment |= {"PYTHONPATH": f"{self.folder / 'planted'}:{REPO}", "PYTHONWARNINGS": "default"}
        self.plant(self.planted)
        command = [self.python, "-m", "jupyterhub", "-f", str(config)]
        for tries_left in (2, 1, 0):
            with self.log.open("ab") as log:
                self.hub = hub = start_python(
                    command, real=self.real, cwd=self.folder, env=environment, stdout=log, stderr=subprocess.STDOUT
                )
            eventually(
                lambda hub=hub: hub.poll() is not None or self.api("GET", "/users").status_code == 200,
                120,  # a busy machine is no failure
                f"the hub answers; see {self.log}",
            )
            if hub.poll() is None:
                return
            said = self.log.read_text()[-2000:]
            # JupyterHub 5.5 waits 10 s for a service, then exits. On a busy machine it must be started again.
            assert "Cannot connect to gpu service" in said, said
            assert tries_left, said

    def plant(self, code: str) -> None:
        """Run ``code`` first in each service process that starts from now on."""
        (self.folder / "planted").mkdir(exist_ok=True)
        body = "import sys\nif 'gpuspawner.cli' in sys.orig_argv:\n" + textwrap.indent(textwrap.dedent(code), "    ")
        (self.folder / "planted" / "sitecustomize.py").write_text(f"{body}\n    pass\n")

    def kill_hub(self) -> None:
        """Kill the hub, so that it cleans up nothing."""
        assert self.hub is not None
        self.hub.kill()
        self.hub.wait()
        self.hub = None

    def terminate_hub(self) -> None:
        """Shut the hub down by SIGTERM."""
        assert self.hub is not None
        self.hub.terminate()
        self.hub.wait(120)  # a busy machine is no failure
        self.hub = None

    def service_pids(self) -> list[int]:
        """Return the processes of the service, found by their folder.

        Their children are left out: a probe looks like the service until it runs its own program.
        """
        mark = f"{self.folder}/gpu".encode()
        found = {pid for pid, line in _command_lines() if b"gpuspawner.cli" in line and mark in line}
        return sorted(pid for pid in found if _parent(pid) not in found)

    def kill_service(self) -> None:
        for pid in self.service_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def workspace_pids(self, lease: str = "") -> list[int]:
        """Return the live processes of this hub's workspaces, found by the hub's id in their environment."""
        marks = [b"GPUSPAWNER_HUB_ID=" + (self.folder / "gpu" / "hub-id").read_bytes().strip()]
        if lease:
            marks.append(f"GPUSPAWNER_LEASE_ID={lease}".encode())
        return [pid for pid, environ in _environments() if all(mark in environ.split(b"\0") for mark in marks)]

    def environment(self, lease: str) -> dict[str, str]:
        """Return the environment of a workspace's server, as /proc shows it."""
        text = Path(f"/proc/{min(self.workspace_pids(lease))}/environ").read_text()
        return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)

    def server_pids(self, lease: str = "") -> list[int]:
        """Return the servers among these processes, without their children and probes."""
        servers = {pid for pid, line in _command_lines() if str(TINY).encode() in line}
        return sorted(servers.intersection(self.workspace_pids(lease)))

    def clear(self) -> None:
        """End every workspace and reset every spawner."""
        for asked in (self.folder / "homes").glob("*.*"):
            asked.unlink()
        for lease in self.workspaces():
            with contextlib.suppress(requests.HTTPError):  # it may end by itself meanwhile
                self.end(lease["id"])
        eventually(lambda: not self.workspaces() and not self.server_pids(), 60, "nothing is left")

    def close(self) -> None:
        if self.hub is not None:
            self.kill_hub()
        if self.proxy is not None:
            os.killpg(self.proxy.pid, signal.SIGKILL)  # Node of a PyPI package is a child of a script of that name
            self.proxy.wait()
        self.kill_service()
        for pid in self.workspace_pids() if (self.folder / "gpu" / "hub-id").exists() else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # --- the hub's and the service's REST API

    def api(self, method: str, path: str, body: Any = None, token: str = ADMIN_TOKEN, seconds: float = 30):
        return requests.request(
            method,
            f"{self.url}/hub/api{path}",
            headers={"Authorization": f"token {token}"},
            data=None if body is None else json.dumps(body),
            timeout=seconds,
        )

    def gpu(self, path: str, method: str = "GET", body: Any = None, token: str = ADMIN_TOKEN) -> dict[str, Any]:
        response = requests.request(
            method,
            f"{self.url}/services/gpu/api/v1{path}",
            headers={"Authorization": f"token {token}"},
            data=json.dumps(body or {}) if method == "POST" or body else None,
            timeout=30,
        )
        response.raise_for_status()
        return response.json()

    def end(self, lease: str) -> None:
        """End a workspace at once, as an administrator."""
        self.gpu("/admin/workspaces/stop", "POST", {"ids": [lease], "reason": "A test needs its GPU", "now": True})

    def act(self, user: str, lease: str, action: str) -> None:
        """Act on a workspace as its user does on a page of the hub."""
        address = f"{self.url}/services/gpu/api/v1/workspaces/{lease}/{action}"
        headers = {"Authorization": f"ticket {self.ticket(user)}"}
        requests.post(address, headers=headers, timeout=30).raise_for_status()

    def internal(self, path: str, method: str = "POST", body: Any = None, **arguments: Any) -> requests.Response:
        """Send a request of the hub's spawner to the port of the service."""
        secret = bytes.fromhex((self.folder / "gpu" / "secret").read_text().strip())
        target = f"/services/gpu/internal{path}{'?' if arguments else ''}{urlencode(arguments)}"
        sent = json.dumps(body or {}) if method == "POST" else ""
        url = f"http://127.0.0.1:{self.service_port}{target}"
        headers = request_headers(secret, new_nonce(), time.time(), RequestTarget(method, target), sent.encode())
        return requests.request(method, url, headers=headers, data=sent or None, timeout=30)

    def ticket(self, user: str) -> str:
        """Return the ticket that a hub page's JavaScript would send."""
        secret = bytes.fromhex((self.folder / "gpu" / "secret").read_text().strip())
        return sign_ticket(secret, user, self.api("GET", f"/users/{user}").json()["created"], time.time())

    def add_user(self, *names: str) -> None:
        for name in names:
            response = self.api("POST", f"/users/{name}")
            assert response.status_code in {201, 409}, response.text

    def begin(self, user: str, server: str = "", **options: Any):
        """Request a start by the REST API, and return the answer."""
        path = f"/users/{user}/servers/{server}" if server else f"/users/{user}/server"
        return self.api("POST", path, options)

    def stop(self, user: str, server: str = ""):
        return self.api("DELETE", f"/users/{user}/servers/{server}" if server else f"/users/{user}/server")

    def server(self, user: str, server: str = "") -> dict[str, Any] | None:
        return self.api("GET", f"/users/{user}").json().get("servers", {}).get(server)

    def workspaces(self, ended: int = 0) -> list[dict[str, Any]]:
        return self.gpu(f"/workspaces?all=1&ended={ended}")["workspaces"]

    def lease(self, user: str, server: str = "") -> dict[str, Any]:
        """Return the stored live lease of a user. Raise KeyError without one."""
        for lease in self.workspaces():
            if lease["user"] == user and lease["server"] == server:
                self.gpu(f"/workspaces/{lease['id']}")  # this answer waits for the database, a list does not
                return lease
        raise KeyError(user)

    def last_end(self, user: str) -> dict[str, Any]:
        """Return the workspace of this user that ended last. Raise KeyError without an ended workspace."""
        for lease in self.workspaces(ended=50):
            if lease["user"] == user and lease["phase"] == "ended":
                return lease
        raise KeyError(user)

    def until(self, user: str, phase: str, seconds: float = 60.0, server: str = "") -> dict[str, Any]:
        """Wait until a user's lease is in a phase."""
        return eventually(
            lambda: (lease := self.lease(user, server))["phase"] == phase and lease, seconds, f"{user} is {phase}"
        )

    def audit(self, lease: str, action: str = "") -> list[dict[str, Any]]:
        """Return the audited actions on a workspace, the oldest first."""
        lines = reversed(self.gpu(f"/workspaces/{lease}/audit")["audit"])
        return [line for line in lines if action in {"", line["action"]}]

    def until_ended(self, user: str, reason: str, seconds: float = 60.0) -> dict[str, Any]:
        return eventually(
            lambda: (end := self.last_end(user))["end"]["reason"] == reason and end,
            seconds,
            f"{user} ended by {reason}",
        )

    def delay(self, user: str, step: str, seconds: float | None) -> None:
        """Delay this user's spawner at a step: ``before-start``, ``after-start`` or ``before-stop``."""
        path = self.folder / "homes" / f"{user}.{step}"
        path.unlink(missing_ok=True) if seconds is None else path.write_text(str(seconds))

    def login(self, user: str) -> requests.Session:
        """Return the session of a browser."""
        session = requests.Session()
        page = session.get(f"{self.url}/hub/login", timeout=20)
        token = re.search(r'name="_xsrf" value="([^"]+)"', page.text)
        data = {"username": user, "password": "x", "_xsrf": token.group(1) if token else ""}
        session.post(f"{self.url}/hub/login", data=data, timeout=20).raise_for_status()
        return session

    def submit(self, session: requests.Session, user: str, server: str = "", **fields: Any) -> requests.Response:
        """Send the form of a user's server to its action. Redirects are not followed."""
        return self.send(session, self.form_url(session, user, server), **fields)

    def form_url(self, session: requests.Session, user: str, server: str = "") -> str:
        """Open the form of a user's server, and return the address of its action."""
        path = f"/hub/spawn/{user}" + (f"/{server}" if server else "")
        page = session.get(f"{self.url}{path}", timeout=20)
        action = re.search(r'id="spawn_form"\s+action="([^"]+)"', page.text)
        assert action is not None, f"no form at {page.url}"
        return f"{self.url}{unescape(action[1])}"

    def send(self, session: requests.Session, url: str, **fields: Any) -> requests.Response:
        """Send a form to the address of its action."""
        files = {name: (None, value) for name, value in fields.items()}  # as its enctype says: multipart/form-data
        return session.post(url, files=files, timeout=30, allow_redirects=False)


def _command_lines():
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield int(folder.name), (folder / "cmdline").read_bytes()


def _parent(pid):
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _environments():
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield int(folder.name), (folder / "environ").read_bytes()
