"""One hub for each ``data_dir``: a lock that the hub's process holds for its life."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path

from traitlets.config import Application

LOCK = "hub.lock"
NOT_LOCKABLE = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""What file systems answer that have no locks, as some network volumes."""

_held: dict[tuple[int, int], int] = {}
"""The locks of this process, by device and inode: a configuration may be read more than once."""


def hub_starts() -> bool:
    """Whether this process is a hub that will serve, not a command that only reads its configuration.

    ``jupyterhub token`` and ``jupyterhub upgrade-db`` are such commands, and so is ``jupyterhub --show-config``.
    """
    app = Application.instance() if Application.initialized() else None
    if app is None or app.name != "jupyterhub":
        return False
    return not any(getattr(app, name, None) for name in ("subapp", "generate_certs", "show_config", "show_config_json"))


def hold(data: Path, hub_url: str) -> None:
    """Lock ``data`` until this process ends. What it starts does not inherit the lock.

    ``hub_url`` is told to the hub that comes second.

    Raises:
        SystemExit: another hub holds it, with which one; or the file cannot be written.
    """
    try:
        descriptor = os.open(data / LOCK, os.O_RDWR | os.O_CREAT, 0o600)  # Python has programs that it starts close it
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) in _held:
            os.close(descriptor)
            return
        _lock(descriptor, data)
        own = {"pid": os.getpid(), "machine": socket.gethostname(), "since": time.time(), "folder": str(Path.cwd())}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(own | {"url": hub_url}).encode(), 0)
    except OSError as error:
        raise SystemExit(
            f"gpuspawner: {data / LOCK} cannot be written ({error.strerror}). Give data_dir to the hub's user."
        ) from None
    _held[found.st_dev, found.st_ino] = descriptor


def holder(data: Path) -> str:
    """Return in words which hub holds the lock of ``data``, "" where none does, or none can."""
    try:
        descriptor = os.open(data / LOCK, os.O_RDWR)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(descriptor)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return ""


def _lock(descriptor: int, data: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(
            f"gpuspawner: another hub uses data_dir {data}: {_holder(descriptor)}. Two hubs would end each other's GPU "
            "service. End that one first, or give this one another data_dir."
        ) from None
    except OSError as error:
        if error.errno not in NOT_LOCKABLE:
            raise
        print(  # noqa: T201 - the hub has no log yet
            f"gpuspawner: the file system of data_dir {data} has no locks ({error.strerror}): see to it that one hub "
            "alone uses it.",
            file=sys.stderr,
        )


def _holder(descriptor: int) -> str:
    """Say which hub wrote the lock's file."""
    try:
        told = json.loads(os.pread(descriptor, 4096, 0))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(told["since"]))
        where = f"on {told['machine']}, started {since} in {told['folder']}"
        return f"process {told['pid']} {where}, which serves {told['url']}"
    except (ValueError, KeyError, TypeError):
        return "one that starts just now"
