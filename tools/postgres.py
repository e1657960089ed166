"""A PostgreSQL server for tests and measurements: Debian's, in a folder of its own, gone when it is closed.

PostgreSQL refuses to run as root, so root starts it as the user ``nobody``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from demo.ports import pick_free

DEBIAN = "/usr/lib/postgresql"
USER, PASSWORD = "gpuspawner", "not-in-any-log"
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=32MB")
"""Settings without durability: a crash of the machine loses data, a crash of the server does not."""
_START_SECONDS = 60.0


def programs() -> Path:
    """Return the folder of PostgreSQL's programs, the newest that Debian installed."""
    found = sorted(Path(DEBIAN).glob("*/bin"), key=lambda one: int(one.parent.name))
    if not found:
        raise FileNotFoundError("There is no PostgreSQL: apt-get install postgresql")
    return found[-1]


class Server:
    """One server on a port of 127.0.0.1, which asks for a password."""

    def __init__(self, *settings: str, of: Server | None = None) -> None:
        """Make and start it, with settings written as ``name=value``; or as the standby ``of`` another."""
        self.folder = Path(tempfile.mkdtemp(prefix="gpuspawner-postgres-"))
        self.data, self.log = self.folder / "data", self.folder / "log"
        self.password_file = self.folder / "password"
        self.password_file.write_text(PASSWORD)
        self.password_file.chmod(0o600)
        self.port, self._settings = pick_free(1)[0], settings
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            for path in (self.folder, self.password_file):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None
        if of is not None:
            where = f"host=127.0.0.1 port={of.port} user={USER} password={PASSWORD}"
            self._run("pg_basebackup", "-D", self.data, "-d", where, "-R", "--checkpoint=fast", "--no-sync")
            self.start()
            return
        self._run("initdb", "-D", self.data, "-U", USER, f"--pwfile={self.password_file}", "-A", "scram-sha-256",
                  "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = [part for one in self._settings for part in ("-c", one)]
        command: list[str | Path] = [programs() / "postgres", "-D", self.data, "-p", str(self.port), "-k", self.folder]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-h", "127.0.0.1", *settings],
                cwd=self.folder, stdout=log, stderr=log, **self._as,
            )  # fmt: skip
        until = time.monotonic() + _START_SECONDS
        while self._ready() != 0:
            if time.monotonic() > until or self._process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log.read_text()}")
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: by default as Debian restarts it, ending every connection; with SIGQUIT as a crash does."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it for good."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, port: int | None = None) -> str:
        """Return the address of a database; ``port`` is that of who passes on what is sent."""
        return f"postgresql://{USER}@127.0.0.1:{port or self.port}/{database}"

    def sql(self, statement: str, database: str = "postgres") -> list[list[str]]:
        """Run one statement; return its rows."""
        text = self._run("psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port),
                         "-U", USER, "-d", database, "-c", statement)  # fmt: skip
        return [line.split("|") for line in text.splitlines()]

    def _ready(self) -> int:
        command: list[str | Path] = [programs() / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode

    def _run(self, program: str, *arguments: str | Path) -> str:
        done = subprocess.run(
            [programs() / program, *arguments],
            cwd=self.folder, env={**os.environ, "PGPASSWORD": PASSWORD}, capture_output=True, text=True, check=False,
            **self._as,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {done.stderr.strip() or done.stdout.strip()}")
        return str(done.stdout)
