"""Runs a script beside a workspace's process, the probe or another, whatever the script and its tools do."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Any

from gpuspawner.backends.base import PROBE, ProbeResult
from gpuspawner.backends.local import processes
from gpuspawner.backends.local.processes import kill_group
from gpuspawner.backends.probes.script import script
from gpuspawner.core.errors import quoted

MAX_OUTPUT_BYTES = 1024 * 1024
"""More output than this is a fault: 16 GPUs and 1,000 processes print a tenth of it."""


class _TooMuchOutputError(Exception):
    pass


async def run_probe(pid: int, parameters: Mapping[str, str], deadline_seconds: float) -> ProbeResult:
    """Run the probe as the user of process ``pid`` and with its environment. Never raises for a bad probe."""
    return await run_script(pid, script(), parameters, deadline_seconds)


async def run_script(
    pid: int, text: bytes, parameters: Mapping[str, str], deadline_seconds: float, what: str = "the probe"
) -> ProbeResult:
    """Run a script as :func:`run_probe` does; ``what`` it is called where it fails."""
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
        return ProbeResult(problem=f"{what} could not be started: {error}")
    try:
        printed, said = await asyncio.wait_for(_talk(process, text), deadline_seconds)
    except asyncio.TimeoutError:
        return ProbeResult(problem=f"{what} did not end within {deadline_seconds:g} s")
    except _TooMuchOutputError:
        return ProbeResult(problem=f"{what} printed more than {MAX_OUTPUT_BYTES} bytes")
    finally:
        await kill_group(process)
    if process.returncode != 0:
        return ProbeResult(problem=f"{what} failed with exit code {process.returncode}: {quoted(said.strip())}")
    return ProbeResult(text=printed)


async def _talk(process: asyncio.subprocess.Process, text: bytes) -> tuple[str, str]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(text)
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
