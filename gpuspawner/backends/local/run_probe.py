"""Runs the probe script beside a workspace's process, whatever the script and its tools do."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Any

from gpuspawner.backends.base import PROBE, ProbeResult
from gpuspawner.backends.local import processes
from gpuspawner.backends.local.reap import kill_group
from gpuspawner.backends.probe import script
from gpuspawner.core.errors import quoted

MAX_OUTPUT_BYTES = 1024 * 1024
"""More output than this is a fault: 16 GPUs and 1,000 processes print a tenth of it."""


class _TooMuchOutputError(Exception):
    pass


async def run_probe(pid: int, parameters: Mapping[str, str], deadline_seconds: float) -> ProbeResult:
    """Run the probe as the user of process ``pid`` and with its environment. Never raises for a bad probe."""
    environment, as_user = processes.environment(pid), _as_user(pid)
    if not environment or as_user is None:
        return ProbeResult(problem="the workspace's process has ended, or may not be read")
    try:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-s",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # It keeps the lease's id: what its tools, which are the user's, leave behind ends with the workspace.
            env={**environment, **parameters, PROBE: "1"},
            cwd="/",
            start_new_session=True,
            **as_user,
        )
    except OSError as error:
        return ProbeResult(problem=f"the probe could not be started: {error}")
    try:
        text, said = await asyncio.wait_for(_talk(process), deadline_seconds)
    except asyncio.TimeoutError:
        return ProbeResult(problem=f"the probe did not end within {deadline_seconds:g} s")
    except _TooMuchOutputError:
        return ProbeResult(problem=f"the probe printed more than {MAX_OUTPUT_BYTES} bytes")
    finally:
        await kill_group(process)
    if process.returncode != 0:
        return ProbeResult(problem=f"the probe failed with exit code {process.returncode}: {quoted(said.strip())}")
    return ProbeResult(text=text)


async def _talk(process: asyncio.subprocess.Process) -> tuple[str, str]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(script())
        await process.stdin.drain()
    process.stdin.close()
    output, said = await asyncio.gather(_read(process.stdout), _read(process.stderr))
    await process.wait()
    return output.decode(errors="replace"), said.decode(errors="replace")


async def _read(stream: asyncio.StreamReader) -> bytes:
    chunks, size = [], 0
    while chunk := await stream.read(65536):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_OUTPUT_BYTES:
            raise _TooMuchOutputError
    return b"".join(chunks)


def _as_user(pid: int) -> dict[str, Any] | None:
    """Return how to become the user of a process: its tools are that user's, and must not run as root."""
    identity = processes.identity(pid)
    if identity is None:
        return None
    user, group, groups = identity
    if os.geteuid() != 0 or user == 0:
        return {}
    return {"user": user, "group": group, "extra_groups": groups}
