"""What a failed start tells beyond that it failed: soon, with its likely cause and the server's last lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.spawner import LocalProcessSpawner

from gpuspawner.core.leases.reports import likely_cause, mask_output
from gpuspawner.core.units import show_duration
from gpuspawner.spawner.attempt import Attempt
from gpuspawner.spawner.output import FOLDER, Output
from gpuspawner.spawner.refusals import ended_start
from gpuspawner.spawner.web.options import FormOptions
from gpuspawner.spawner.within import within

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
