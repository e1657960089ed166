"""Runs a program of the user's beside the server, for a bounded time, its output in a file of theirs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

LONGEST_SECONDS = 600.0
"""How long a clone or a script may take. Arbitrary: what takes longer belongs into an image."""
LONGEST_LINE = 200


class Outcome(NamedTuple):
    """Why a program failed, "" where it did not, and the last line of what it printed."""

    failure: str
    last_line: str


async def run(
    program: Sequence[str],
    folder: Path,
    output: Path,
    environ: Mapping[str, str],
    longest_seconds: float = LONGEST_SECONDS,
) -> Outcome:
    """Run a program in a folder to its end, or end it and all that it started after ``longest_seconds``."""
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        return Outcome(f"{output.name} can't be written ({error.strerror})", "")
    try:
        started = await asyncio.create_subprocess_exec(
            *program,
            cwd=folder,
            env=dict(environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    except OSError as error:
        return Outcome(f"{program[0]} can't be started ({error.strerror})", "")
    finally:
        os.close(descriptor)
    try:
        code = await asyncio.wait_for(started.wait(), longest_seconds)
    except (TimeoutError, asyncio.TimeoutError):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        await started.wait()
        return Outcome(f"it took longer than {longest_seconds:g} s and was ended", _last_line(output))
    return Outcome(f"exit code {code}" if code else "", _last_line(output))


def _last_line(output: Path) -> str:
    try:
        with output.open("rb") as opened:
            opened.seek(max(0, output.stat().st_size - 4096))
            lines = opened.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return "".join(c if c.isprintable() else "?" for c in last)[:LONGEST_LINE]
