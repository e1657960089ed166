"""`make run` and `make run-cluster` as processes, for tests: their output, their end, and what they leave."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import requests

from demo import ports
from tools.install import ROOT

STARTS_WITHIN_SECONDS = 180  # the first run on a machine installs
ENDS_WITHIN_SECONDS = 30


class Launcher:
    """``python -m demo.run``, or another ``module``, its output in a file."""

    def __init__(self, data: Path, port: int, module: str = "demo.run", **settings: str) -> None:
        self.data = data
        self.url = f"http://{ports.HOST}:{port}"
        self.log = data.parent / f"launcher-{port}.log"
        env = {**os.environ, "PORT": str(port), "DATA": str(data), "DEMO": "0", "FAST": "1", **settings}
        command = [sys.executable, "-m", module]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)

    def text(self) -> str:
        return self.log.read_text()

    def wait_until_it_runs(self, seconds: float = STARTS_WITHIN_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while "Ctrl-C     ends everything" not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.1)

    def end(self, number: int, seconds: float = ENDS_WITHIN_SECONDS) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def left(self, *more: str) -> list[str]:
        """Processes with the data directory in their environment or command, or one of ``more`` in their command."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                known = command + (process / "environ").read_bytes()
                if str(self.data).encode() in known or any(word.encode() in command for word in more):
                    found.append(f"{process.name}: {command.decode()}")
        return found

    def sign_in(self, user: str, kept: Path | None = None) -> requests.Session:
        """A browser's session, by the password that was ``kept`` there."""
        password = json.loads(((kept or self.data) / "secrets.json").read_text())["passwords"][user]
        session = requests.Session()
        session.trust_env = False
        session.get(f"{self.url}/hub/login")
        form = {"username": user, "password": password, "_xsrf": session.cookies["_xsrf"]}
        answer = session.post(f"{self.url}/hub/login", data=form, allow_redirects=False)
        assert answer.status_code == 302, answer.text
        return session

    def token_of(self, user: str, kept: Path | None = None) -> str:
        with self.sign_in(user, kept) as session:
            session.get(f"{self.url}/hub/home")
            xsrf = session.cookies.get("_xsrf", path="/hub/")
            answer = session.post(
                f"{self.url}/hub/api/users/{user}/tokens",
                headers={"X-XSRFToken": xsrf, "Referer": f"{self.url}/hub/token"},
                json={},
            )
        assert answer.status_code == 201, answer.text
        return answer.json()["token"]
