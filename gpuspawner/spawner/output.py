"""The end of a local server's output: kept while it runs, read when it failed."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuspawner.core.leases.reports import KEPT_SECONDS

FOLDER = "output"
"""Beside the service's data: one file of each start, 0600, removed once its end is told."""
LATE_SECONDS = 0.5
"""How long to wait, after a server's end, until the last that it wrote is kept."""
LOOK_SECONDS = 0.02

_keepers: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True)
class Output:
    """The file of one start."""

    path: Path

    @contextlib.contextmanager
    def kept(self, popen_kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Give the arguments by which a server started in the block writes to it; the administrator's own win."""
        if {"stdout", "stderr"} & popen_kwargs.keys():
            yield popen_kwargs
            return
        _forget_old(self.path.parent)
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        script = Path(__file__).with_name("keep_output.py")
        command = [sys.executable, "-I", "-S", str(script), str(self.path)]
        # With the environment of nobody: it belongs to no workspace, whose processes are known by theirs.
        keeper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env={})  # noqa: S603
        _keepers.difference_update([one for one in _keepers if one.poll() is not None])
        _keepers.add(keeper)  # to be waited for once it ends
        with contextlib.closing(keeper.stdin) as pipe:  # type: ignore[type-var]  # there is one: PIPE
            yield {**popen_kwargs, "stdout": pipe, "stderr": pipe}

    async def read(self) -> str:
        """Return the end of the output, "" where none was kept, once nobody writes to it any more, or half a second."""
        until = time.monotonic() + LATE_SECONDS
        mine = [one for one in _keepers if one.args[-1] == str(self.path)]  # type: ignore[index]
        while any(one.poll() is None for one in mine) and time.monotonic() < until:  # noqa: ASYNC110 - a process
            await asyncio.sleep(LOOK_SECONDS)
        try:
            return self.path.read_bytes().decode("utf-8", "replace")
        except OSError:
            return ""

    def forget(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)


def _forget_old(folder: Path) -> None:
    """Remove what a killed hub left, whose end nobody told."""
    before = time.time() - KEPT_SECONDS
    for file in folder.glob("*.txt"):
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < before:
                file.unlink()
