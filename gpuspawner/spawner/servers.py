"""Local servers: whether they listen and run, their output, and a time limit that keeps cancellations."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from gpuspawner.core.leases.reports import KEPT_SECONDS, likely_cause, mask_output
from gpuspawner.core.units import show_duration
from gpuspawner.spawner.waiting import StartEnded

if TYPE_CHECKING:
    from gpuspawner.spawner.mixin import GPUSpawnerMixin

T = TypeVar("T")


async def with_time_limit(step: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return the result of ``step``, cancelled after these seconds. A cancellation of the caller is never lost.

    ``asyncio.wait_for`` of Python 3.10 and 3.11 can lose it if the step ends at the same moment. Then a start that the
    hub cancelled would continue.

    Raises:
        asyncio.TimeoutError: It took longer.
    """
    task = asyncio.ensure_future(step)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # mark it as retrieved
    return task.result()


FOLDER = "output"
"""A folder in the service's data folder with one file of each start, 0600, removed once its end is reported."""
LATE_SECONDS = 0.5
"""Maximum wait after a server's end until its last output is saved."""
LOOK_SECONDS = 0.02

_keepers: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True)
class Output:
    """The file of one start."""

    path: Path

    @contextlib.contextmanager
    def kept(self, popen_kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the arguments with which a server in this block writes to the file.

        The administrator's own take precedence.
        """
        if {"stdout", "stderr"} & popen_kwargs.keys():
            yield popen_kwargs
            return
        _forget_old(self.path.parent)
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        script = Path(__file__).with_name("keep_output.py")
        command = [sys.executable, "-I", "-S", str(script), str(self.path)]
        # Without environment: processes of workspaces are recognized by theirs.
        keeper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env={})  # noqa: S603
        _keepers.difference_update([one for one in _keepers if one.poll() is not None])
        _keepers.add(keeper)  # to be reaped once it ends
        with contextlib.closing(keeper.stdin) as pipe:  # type: ignore[type-var]  # there is one: PIPE
            yield {**popen_kwargs, "stdout": pipe, "stderr": pipe}

    async def read(self) -> str:
        """Return the end of the output, or "", once its writers have ended or after half a second."""
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
    """Remove files of a killed hub whose ends were never reported."""
    before = time.time() - KEPT_SECONDS
    for file in folder.glob("*.txt"):
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < before:
                file.unlink()


LISTEN_SECONDS = 0.1
POLL_SECONDS = 0.5
"""Interval between checks whether a starting server still lives. For some spawners each check is a process."""
CONNECT_SECONDS = 1.0


class LocalServer:
    """The server of a spawner on this machine, between its start and its first answer and after its end."""

    def __init__(self, spawner: GPUSpawnerMixin) -> None:
        """Follow the servers of this spawner."""
        self._spawner = spawner

    @property
    def output(self) -> Output:
        """The file with the output of this start."""
        return Output(self._spawner.gpu_folder / FOLDER / "{}-{}.txt".format(*self._spawner._gpu_attempt.key))

    async def wait_until_up(self, started: Any) -> None:
        """Return once the server listens. Raise at once if it ended: the hub would wait for its whole timeout."""
        spawner, url, begun, polled_at = self._spawner, _url_of(started), time.monotonic(), 0.0
        while not await listens(url):
            now = time.monotonic()
            if now - polled_at >= POLL_SECONDS:
                polled_at, status = now, await spawner.poll()
                if status is not None:
                    cause = likely_cause(await self.last_output(), status if isinstance(status, int) else None)
                    words = f"Its server ended before it answered{f': {cause}' if cause else ''}."
                    raise StartEnded(f"{words} Its page shows its last output.", reason="ended", status=409)
            if now - begun > spawner.http_timeout:
                words = f"Its server runs, but does not answer within {show_duration(spawner.http_timeout)}."
                raise StartEnded(f"{words} Its page shows its last output.", reason="timeout", status=504)
            await asyncio.sleep(LISTEN_SECONDS)

    async def last_output(self) -> str:
        """Return the end of the server's output, or ""."""
        return await self.output.read() if self._spawner._gpu_attempt.lease else ""

    def environment(self) -> Mapping[str, str] | None:
        """Return the server's environment, whose secrets are masked. None if it is unknown: then no output is shown."""
        return self._spawner._gpu_attempt.environment

    async def save_output(self) -> None:
        """Record the last lines as their user may see them."""
        environment = self.environment()
        output = "" if environment is None else mask_output(await self.last_output(), environment)
        self._spawner._gpu_change(output=output)

    async def save_end(self, end: str) -> None:
        """Record the last lines of a server that ended, and its likely cause if nothing else explains the end."""
        spawner = self._spawner
        if end == "died" and not spawner._gpu_attempt.output:
            await self.save_output()
        cause = likely_cause(spawner._gpu_attempt.output)
        if end == "died" and cause and not spawner._gpu_attempt.message:
            message = f"Its server ended by itself: {cause}. Your files are untouched."
            spawner._gpu_change(died_as=end, message=message)
        self.output.forget()


def _url_of(started: Any) -> str:
    """Return the address from ``start()``, which may be a pair."""
    if isinstance(started, str):
        return started
    ip, port = started
    return f"http://[{ip}]:{port}" if ":" in ip else f"http://{ip}:{port}"


async def listens(url: str) -> bool:
    """Return whether the address accepts connections: a sixth of a request's work, and mostly the answer is no."""
    place = urlsplit(url)
    connecting = asyncio.open_connection(place.hostname, place.port or (443 if place.scheme == "https" else 80))
    try:
        _, writer = await with_time_limit(connecting, CONNECT_SECONDS)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True


async def is_known(url: str) -> bool:
    """Return whether the host of an address resolves within the connection timeout."""
    resolving = asyncio.get_running_loop().getaddrinfo(urlsplit(url).hostname, None)
    try:
        await with_time_limit(resolving, CONNECT_SECONDS)
    except (OSError, asyncio.TimeoutError):
        return False
    return True
