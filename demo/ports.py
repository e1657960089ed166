"""TCP ports of this machine: free ones, and who listens on a taken one."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from pathlib import Path

HOST = "127.0.0.1"
PICKED = range(20_000, 32_768)
"""Above the ports that browsers refuse to visit, below those that Linux gives to outgoing connections: none of these
takes one before its server listens."""
LISTENING = "0A"  # the state column of /proc/net/tcp


def is_free(port: int) -> bool:
    """Tell whether a server could listen on ``port`` now."""
    with socket.socket() as probe:
        # As servers do: connections that linger after an earlier run are no reason to refuse.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def first_free_after(port: int) -> int:
    """Return the lowest free port above ``port``."""
    return next(candidate for candidate in range(port + 1, 65536) if is_free(candidate))


def pick_free(count: int) -> list[int]:
    """Return ``count`` different free ports, chosen at random: who picks at the same moment gets others."""
    picked: set[int] = set()
    while len(picked) < count:
        candidate = secrets.choice(PICKED)
        if is_free(candidate):
            picked.add(candidate)
    return sorted(picked)


def holder_of(port: int) -> str:
    """Say who listens on ``port``: process id and command, as far as this user may see them."""
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with suppress(OSError):
            rows = [line.split() for line in table.read_text().splitlines()[1:]]
            inodes |= {row[9] for row in rows if row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or gone meanwhile
            if any(str(link.readlink()) in wanted for link in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                return f"process {process.name}: {command[:120]}"
    return "a process of another user"
