"""Reads what the spawner could not tell while the service was away (see ``core.leases.release``)."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from gpuspawner.core.leases.reports import RELEASE_SPOOL, ReleaseReport
from gpuspawner.service.engine.allocator import Allocator

log = logging.getLogger("gpuspawner")

LONGEST_BYTES = 65536
"""Of a file. Arbitrary: several times what the longest message takes in JSON."""


async def read_release_spool(data: Path, allocator: Allocator) -> None:
    """Note every release that lies beside the service's data, the oldest first, and remove its file.

    What can't be read or removed is passed over: it keeps nobody else's end from being heard.

    Raises:
        Unavailable: the store does not answer; what is not noted stays for the next time.
    """
    for file in _left(data / RELEASE_SPOOL):
        try:
            await _hear(file, allocator)
            file.unlink()
        except OSError as error:
            log.warning("what the hub left for this service can't be read: %s", error)


def _left(folder: Path) -> list[Path]:
    """Return the files, the oldest first. Pipes, links and folders nobody left: to open one may take for ever."""
    found = []
    for file in folder.glob("*.json"):
        status = file.lstat()
        if stat.S_ISREG(status.st_mode):
            found.append((status.st_mtime, file))
    return [file for _, file in sorted(found)]


async def _hear(file: Path, allocator: Allocator) -> None:
    try:
        with file.open("rb") as opened:
            release = ReleaseReport.from_json(opened.read(LONGEST_BYTES).decode())
    except ValueError as error:
        log.error("%s says nothing of a workspace's end and is removed: %s", file, error)  # noqa: TRY400
    else:
        await allocator.release(release.lease, release.attempt, release.outcome, release.message, release.output)
