"""Reads what the spawner could not tell while the service was away (see ``core.release``)."""

from __future__ import annotations

import logging
from pathlib import Path

from gpuspawner.core.release import UNHEARD, Release
from gpuspawner.service.allocator import Allocator

log = logging.getLogger("gpuspawner")


def hear_late(data: Path, allocator: Allocator) -> None:
    """Note every release that lies beside the service's data, the oldest first, and remove its file.

    Raises:
        Unavailable: the store does not answer; what is not noted stays for the next time.
    """
    try:
        for file in sorted((data / UNHEARD).glob("*.json"), key=lambda file: file.stat().st_mtime):
            _hear(file, allocator)
            file.unlink()
    except OSError as error:
        log.warning("what the hub left for this service can't be read: %s", error)


def _hear(file: Path, allocator: Allocator) -> None:
    try:
        release = Release.from_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        log.error("%s says nothing of a workspace's end and is removed: %s", file, error)  # noqa: TRY400
    else:
        allocator.release(release.lease, release.attempt, release.outcome, release.message)
