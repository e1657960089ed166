"""The part of Docker's API that DockerSpawner asks for. Its containers are processes of this machine."""

import json
import os
import re
import signal
import subprocess
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from demo.ports import pick_free

IMAGE = {"Id": "sha256:1", "Config": {"Cmd": []}}


@dataclass
class Container:
    """A requested container, and the process that runs in its place."""

    id: str
    name: str
    asked: dict[str, Any]
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.asked["Env"])

    def start(self) -> None:
        inside = self.environment
        inside["JUPYTERHUB_SERVICE_URL"] = re.sub(
            r"//[^/]+/", f"//127.0.0.1:{self.port}/", inside["JUPYTERHUB_SERVICE_URL"]
        )
        self.process = subprocess.Popen(self.asked["Cmd"], env={"HOME": os.devnull, **inside}, start_new_session=True)

    def stop(self) -> None:
        if self.process is not None:
            with_its_children = os.getpgid(self.process.pid) if self.process.poll() is None else 0
            if with_its_children:
                os.killpg(with_its_children, signal.SIGKILL)
            self.process.wait()

    def to_json(self) -> dict[str, Any]:
        code = self.process.poll() if self.process is not None else None
        running = self.process is not None and code is None
        state = {"Running": running, "ExitCode": code or 0, "Error": "", "FinishedAt": ""}
        ports = {"8888/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(self.port)}]}
        return {"Id": self.id, "Name": f"/{self.name}", "State": state, "NetworkSettings": {"Ports": ports}}


class Daemon(ThreadingHTTPServer):
    """Listens at ``address``, which is for DOCKER_HOST. ``made`` has each container that was ever made."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"tcp://127.0.0.1:{self.server_address[1]}"
        self.made: list[Container] = []
        self.kept: list[Container] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def find(self, name: str) -> Container | None:
        return next((one for one in self.kept if name in {one.id, one.name}), None)

    def create(self, name: str, asked: dict[str, Any]) -> Container:
        (port,) = pick_free(1)
        container = Container(f"{len(self.made):064x}", name, asked, port)
        self.made.append(container)
        self.kept.append(container)
        return container

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        for container in self.kept:
            container.stop()


class Handler(BaseHTTPRequestHandler):
    server: Daemon

    def do_GET(self) -> None:
        path, _ = self._asked()
        if path == "/version":
            self._answer(200, {"ApiVersion": "1.44", "Version": "25.0"})
        elif path.startswith("/images/"):
            self._answer(200, IMAGE)
        elif found := self._container(path):
            self._answer(200, found.to_json())

    def do_POST(self) -> None:
        path, arguments = self._asked()
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if path == "/containers/create":
            self._answer(201, {"Id": self.server.create(arguments["name"][0], body).id, "Warnings": []})
        elif found := self._container(path):
            found.start() if path.endswith("/start") else found.stop()
            self._answer(204)

    def do_DELETE(self) -> None:
        path, _ = self._asked()
        if found := self._container(path):
            self.server.kept.remove(found)
            self._answer(204)

    def _asked(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        return re.sub(r"^/v1\.\d+", "", parts.path), parse_qs(parts.query)

    def _container(self, path: str) -> Container | None:
        found = self.server.find(path.split("/")[2])
        if found is None:
            self._answer(404, {"message": "No such container"})
        return found

    def _answer(self, status: int, body: Any = None) -> None:
        sent = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *told: Any) -> None:
        pass
