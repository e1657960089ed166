"""Reports of ends that the service did not receive: files that are sent at its next round or its next start.

A service that shares no folder with the hub receives them from the hub.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from pathlib import Path

from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable
from gpuspawner.core.leases.reports import RELEASE_SPOOL, ReleaseReport
from gpuspawner.spawner.client import LeaseClient

log = logging.getLogger("gpuspawner.spawner")

AGAIN_SECONDS = 3.0
_telling: dict[Path, asyncio.Task[None]] = {}
"""The tasks that send spooled reports to the service, one for each folder."""


def leave(data: Path, release: ReleaseReport) -> None:
    """Write a report whole or not at all, as a file that only this user may read. Raises OSError."""
    folder = data / RELEASE_SPOOL
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{uuid.uuid4().hex}.json"
    half = path.with_suffix(".half")
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(release.to_json())
    half.replace(path)


def tell_later(data: Path, client: LeaseClient) -> None:
    """Send the spooled reports once the service answers, for a service that shares no folder with the hub."""
    if data not in _telling and any((data / RELEASE_SPOOL).glob("*.json")):
        task = asyncio.get_running_loop().create_task(_tell(data / RELEASE_SPOOL, client))
        _telling[data] = task
        task.add_done_callback(lambda _: _telling.pop(data, None))


async def _tell(folder: Path, client: LeaseClient) -> None:
    try:
        while left := _left(folder):
            try:
                for file in left:
                    await _tell_one(file, client)
                    file.unlink(missing_ok=True)
            except Unavailable:
                await asyncio.sleep(AGAIN_SECONDS)
    except OSError as error:
        log.warning("reports that the GPU service did not receive cannot be read: %s", error)


def _left(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)


async def _tell_one(file: Path, client: LeaseClient) -> None:
    try:
        release = ReleaseReport.from_json(await asyncio.to_thread(file.read_text, "utf-8", "replace"))
        await client.release(release)
    except (Conflict, RequestRefused, ValueError) as error:
        log.warning("%s, which the GPU service did not receive, is dropped: %s", file.name, error)


def hub_shuts_down() -> bool:
    """Return whether the hub is ending. This task is the only sign of it, and the service has ended before."""
    names = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return any(name.endswith(".shutdown_cancel_tasks") for name in names)
