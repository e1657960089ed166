"""TCP ports of this machine: free ones, and the process that listens on a port. Uses only the standard library."""

from __future__ import annotations

import errno
import pwd
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
LISTENING = "0A"  # the state column of /proc/net/tcp
SERVICE = ["-m", "gpuspawner.cli", "server", "serve", "--data"]
"""Arguments of a GPU service between its Python and its folder, by which its process is recognized."""
SHOWN_CHARACTERS = 120


def is_free(port: int, host: str = HOST) -> bool:
    """Return whether a server could listen on ``port`` now, on all addresses if ``host`` is not one of this machine."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # Like servers: connections left from an earlier run do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            return is_free(port, "") if elsewhere and host else error.errno != errno.EADDRINUSE
        return True


def is_own_address(host: str) -> bool:
    """Return whether a host name or address is one of this machine."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
        return True


def first_free_after(port: int, host: str = HOST) -> int:
    """Return the lowest free port above ``port``."""
    return next(candidate for candidate in range(port + 1, 65536) if is_free(candidate, host))


@dataclass(frozen=True)
class Listener:
    """The process that listens, in words. ``data`` is the ``data_dir`` of a GPU service. None means not visible."""

    words: str
    data: Path | None = None
    pid: int | None = None


def find_listener(port: int) -> Listener:
    """Return the process that listens on ``port``, as far as this user may see it."""
    inodes, users = set(), set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with suppress(OSError):
            rows = [line.split() for line in table.read_text().splitlines()[1:]]
            found = [row for row in rows if row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port]
            inodes |= {f"socket:[{row[9]}]" for row in found}
            users |= {int(row[7]) for row in found}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or gone meanwhile
            if any(_target(link) in inodes for link in (process / "fd").iterdir()):
                return _describe(process)
    return Listener(
        f"a process of the user {_name(users.pop())}" if users else "a process that can't be seen from here"
    )


def _target(link: Path) -> str:
    """Return the target of an open file of a process, "" if it was closed meanwhile."""
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _describe(process: Path) -> Listener:
    pid = int(process.name)
    words = (process / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    if words[1 : 1 + len(SERVICE)] == SERVICE:
        data = Path(words[1 + len(SERVICE)])
        return Listener(f"the GPU service of the hub whose data_dir is {data} (process {process.name})", data, pid)
    return Listener(f"process {process.name}: {' '.join(words)[:SHOWN_CHARACTERS]}", pid=pid)


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
