"""This machine as a hub and its service use it: the folder ``data_dir`` with the hub's ID and secret, and TCP ports.

It uses only the standard library.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import secrets
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SECRET_BYTES = 32


def data_folder(data: Path) -> Path:
    """Return the folder's absolute path. Create the folder if it does not exist."""
    data = data.absolute()
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"gpuspawner: data_dir {data} cannot be made ({error.strerror}). Name another.") from None
    return data


def write_whole(path: Path, content: bytes) -> None:
    """Write a file with mode 0600 whole or not at all. Raises OSError."""
    half = path.with_name(f"{path.name}.{os.getpid()}.half")
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    half.replace(path)


def write_once(path: Path, make: Callable[[], str]) -> str:
    """Return the text of a 0600 file. The first start writes it whole, or not at all."""
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip() if path.exists() else ""
        if not text:  # new, or left empty when the disk was full
            text, half = make(), path.with_name(f"{path.name}.{os.getpid()}.half")
            with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(text + "\n")
            try:
                os.link(half, path)  # hub and service may write at once: the first one counts
            except FileExistsError:
                if path.stat().st_size:
                    text = path.read_text(encoding="ascii", errors="replace").strip()
                else:
                    half.replace(path)
            half.unlink(missing_ok=True)
    except OSError as error:
        raise SystemExit(
            f"gpuspawner: {path} cannot be read or written ({error.strerror}). Give data_dir to the hub's user."
        ) from None
    return text


def make_identity(data: Path, hub_id: str | None = None) -> tuple[str, str]:
    """Return the secret and the hub ID of a folder. Make those that do not exist."""
    set_hub_id(data, hub_id)
    found = write_once(data / "hub-id", lambda: uuid.uuid4().hex)
    secret = write_once(data / "secret", lambda: secrets.token_hex(SECRET_BYTES))
    check_secret(data / "secret", secret)
    return secret, found


def set_hub_id(data: Path, hub_id: str | None) -> None:
    """Give a new folder the hub's ID. A folder with another ID is unchanged, because its leases carry that one."""
    if hub_id is None:
        return
    if not isinstance(hub_id, str) or not re.fullmatch("[0-9a-f]{32}", hub_id):
        raise SystemExit(
            f"gpuspawner: configure(hub_id={hub_id!r}) is not a hub ID. Give the 32 hexadecimal digits from the "
            "service's log or from the label gpuspawner.io/hub of its pods. For a new ID, remove hub_id."
        )
    found = write_once(data / "hub-id", lambda: hub_id)
    if found != hub_id:
        raise SystemExit(
            f"gpuspawner: configure(hub_id={hub_id!r}), but data_dir {data} belongs to the hub id {found}. If that one "
            "was created after data_dir was lost, name a new, empty data_dir. Otherwise remove hub_id."
        )


def check_secret(path: Path, text: str) -> None:
    """Refuse a secret that is too short. With the secret one can act for every user."""
    if not re.fullmatch(f"[0-9a-f]{{{2 * SECRET_BYTES},}}", text):
        raise SystemExit(
            f"gpuspawner: {path} holds no secret of {SECRET_BYTES} bytes in hexadecimal. Remove it: the next start "
            "makes a new one, and workspaces that run go on."
        )


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
