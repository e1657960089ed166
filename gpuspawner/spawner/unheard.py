"""What the service did not hear: left as a file beside its data, for its next round or its next start."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

from gpuspawner.core.leases.release import UNHEARD, Release


def leave(data: Path, release: Release) -> None:
    """Write a release as a file that only this user may read, whole or not at all. Raises OSError where it can't."""
    folder = data / UNHEARD
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{uuid.uuid4().hex}.json"
    half = path.with_suffix(".half")
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(release.to_json())
    half.replace(path)


def hub_shuts_down() -> bool:
    """Whether the hub is ending. It tells its spawners by nothing but this task, and has ended the service before."""
    names = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return any(name.endswith(".shutdown_cancel_tasks") for name in names)
