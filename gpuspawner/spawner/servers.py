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
from typing import Any, TypeVar
from urllib.parse import urlsplit

from jupyterhub.spawner import LocalProcessSpawner

from gpuspawner.core.leases.reports import KEPT_SECONDS, likely_cause, mask_output
from gpuspawner.core.units import show_duration
from gpuspawner.spawner.attempts import Attempt
from gpuspawner.spawner.progress import ended_start
from gpuspawner.spawner.web.options import FormOptions

T = TypeVar("T")


async def within(step: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return what ``step`` returns, ended after so many seconds. A cancellation goes through, whatever came of it.

    A start that the hub cancels would otherwise go on where a step ended in the same moment.

    Raises:
        asyncio.TimeoutError: it took longer.
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
            task.exception()  # seen, also where nobody takes it any more
    return task.result()


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


LISTEN_SECONDS = 0.1
POLL_SECONDS = 0.5
"""How often a server that does not listen yet is asked whether it lives: for some spawners that is a process."""
CONNECT_SECONDS = 1.0


class ServerOutput(FormOptions):
    """The part of the mixin that looks at a server between its start and its first answer, and after its end."""

    _gpu_attempt = Attempt()
    """All that is known of this start; a new start replaces it as a whole."""

    async def _gpu_start_server(self) -> Any:
        """Start the server by the class below, its output kept where that is a process of this machine."""
        if not isinstance(self, LocalProcessSpawner) or not self._gpu_attempt.lease:
            return await super().start()
        own = self.popen_kwargs
        try:
            with self._gpu_output_file().kept(own) as self.popen_kwargs:
                return await super().start()
        finally:
            self.popen_kwargs = own

    def _gpu_output_file(self) -> Output:
        folder = self.gpu_folder / FOLDER
        return Output(folder / "{}-{}.txt".format(*self._gpu_attempt.key))

    async def _gpu_until_up(self, started: Any) -> None:
        """Return once the server listens. One that ends before is told at once: the hub would ask it all its time."""
        url, begun, polled_at = _url_of(started), time.monotonic(), 0.0
        while not await listens(url):
            now = time.monotonic()
            if now - polled_at >= POLL_SECONDS:
                polled_at, status = now, await self.poll()
                if status is not None:
                    cause = likely_cause(await self._gpu_last_output(), status if isinstance(status, int) else None)
                    words = f"Its server ended before it answered{f': {cause}' if cause else ''}."
                    raise ended_start(f"{words} Its page shows its last output.", reason="ended", status=409)
            if now - begun > self.http_timeout:
                words = f"Its server runs, but does not answer within {show_duration(self.http_timeout)}."
                raise ended_start(f"{words} Its page shows its last output.", reason="timeout", status=504)
            await asyncio.sleep(LISTEN_SECONDS)

    async def _gpu_last_output(self) -> str:
        """Return the end of the server's output as it is; "" where it is not kept."""
        return await self._gpu_output_file().read() if self._gpu_attempt.lease else ""

    async def _gpu_shown_output(self) -> str:
        """Return the last lines as their user may see them."""
        environment = self._gpu_environment_masked()
        return "" if environment is None else mask_output(await self._gpu_last_output(), environment)

    def _gpu_environment_masked(self) -> Mapping[str, str] | None:
        """Return the server's environment, whose secrets are masked; None where it is not known, to show nothing."""
        return self._gpu_attempt.environment

    async def _gpu_take_end(self, end: str) -> None:
        """Take what is left of a server that ended: its last lines, and its likely cause where nothing else tells."""
        if end == "died" and not self._gpu_attempt.output:
            output = await self._gpu_shown_output()
            self._gpu_attempt = self._gpu_attempt.with_output(output)
        cause = likely_cause(self._gpu_attempt.output)
        if end == "died" and cause and not self._gpu_attempt.message:
            self._gpu_attempt = self._gpu_attempt.died(
                end, f"Its server ended by itself: {cause}. Your files are untouched."
            )
        self._gpu_output_file().forget()


def _url_of(started: Any) -> str:
    """Return the address that ``start()`` gave, which may be in two parts."""
    if isinstance(started, str):
        return started
    ip, port = started
    return f"http://[{ip}]:{port}" if ":" in ip else f"http://{ip}:{port}"


async def listens(url: str) -> bool:
    """Whether something takes connections there: a sixth of a request's work, and nearly all of the looks end so."""
    place = urlsplit(url)
    connecting = asyncio.open_connection(place.hostname, place.port or (443 if place.scheme == "https" else 80))
    try:
        _, writer = await within(connecting, CONNECT_SECONDS)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True


async def is_known(url: str) -> bool:
    """Return whether the host in an address resolves, within the time that a connection may take."""
    resolving = asyncio.get_running_loop().getaddrinfo(urlsplit(url).hostname, None)
    try:
        await within(resolving, CONNECT_SECONDS)
    except (OSError, asyncio.TimeoutError):
        return False
    return True
