"""Reads the values of DCGM exporter from Prometheus, once for all workspaces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlencode

from tornado.httpclient import HTTPClientError, HTTPRequest

from gpuspawner.backends.base import ProbeResult
from gpuspawner.catalog import Exporter
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.idle.readings import SourceReading
from gpuspawner.http_client import send
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.sampling.dcgm_values import SOURCE, ExporterValues, missing_activity, query_of, read

log = logging.getLogger("gpuspawner.dcgm")

LOOK_SECONDS = 30.0
"""How often Prometheus is asked. It scrapes exporters every 15 to 60 s."""
ANSWER_SECONDS = 20.0
LONGEST_ANSWER_BYTES = 256 * 1024 * 1024
"""The values of 40,000 GPUs are half as long."""
LONGEST_TOKEN_BYTES = 64 * 1024


class Dcgm:
    """Asks the catalog's Prometheus, and keeps the values."""

    def __init__(self, in_force: InForce, clock: Clock) -> None:
        """Ask nothing yet."""
        self._in_force, self._clock = in_force, clock
        self.values: ExporterValues | None = None
        """The newest values; None if the catalog names no Prometheus."""
        self.trouble = ""
        """Why values are missing, in sentences for administrators; "" if all is well."""

    async def look(self) -> None:
        """Ask once, if the catalog names a Prometheus."""
        exporter = self._in_force.catalog.exporter
        if exporter is None:
            self.values, self.trouble = None, ""
            return
        same = self.values is not None and self.values.exporter == exporter
        values = self.values if self.values is not None and same else ExporterValues(exporter)
        now = self._clock.now()
        try:
            body, ahead_seconds = await ask(exporter, self._clock, query_of(exporter))
            # The values of thousands of GPUs would block the event loop.
            values, trouble = await asyncio.to_thread(_with_answer, values, body, ahead_seconds, now)
        except Unavailable as error:
            values = values.with_look((), now)
            trouble = f"{error} Work that only {SOURCE} sees does not count meanwhile."
        if trouble and trouble != self.trouble:
            log.warning(trouble)
        self.values, self.trouble = values, trouble

    def readings(
        self, leased: Iterable[str], result: ProbeResult, shared: Collection[str], since: float
    ) -> tuple[SourceReading, ...]:
        """Return the readings of a workspace's GPUs since then, or since the last look if that was earlier."""
        if self.values is None:
            return ()
        return self.values.readings(leased, result, shared, since, self._clock.now())


def _with_answer(values: ExporterValues, body: bytes, ahead_seconds: float, now: float) -> tuple[ExporterValues, str]:
    """Return the values with those of an answer, and the faults of the answer in sentences."""
    found, refused = read(body, values.exporter, ahead_seconds, now)
    after = values.with_look(found, now)
    return after, " ".join(filter(None, (refused or missing_activity(values.exporter, found), after.stuck_sentence)))


async def ask(exporter: Exporter, clock: Clock, query: str) -> tuple[bytes, float]:
    """Return the answer of Prometheus to a query, and by how many seconds its clock is ahead of the service's."""
    headers = {}
    if exporter.token_file:
        headers["Authorization"] = f"Bearer {await asyncio.to_thread(_token, exporter.token_file)}"
    request = HTTPRequest(
        f"{exporter.url}/api/v1/query",
        method="POST",
        body=urlencode({"query": query, "timeout": f"{ANSWER_SECONDS:g}s"}),
        headers={**headers, "Content-Type": "application/x-www-form-urlencoded"},
        request_timeout=ANSWER_SECONDS,
        connect_timeout=5.0,
        follow_redirects=False,
    )
    try:
        response = await send(request, most_bytes=LONGEST_ANSWER_BYTES)
    except HTTPClientError as error:
        raise Unavailable(f"Prometheus answered {error.code} at {exporter.url}.") from error
    except OSError as error:
        raise Unavailable(f"Prometheus does not answer at {exporter.url} ({error}).") from error
    return response.body, _its_time(response.headers, clock) - clock.now()


def _its_time(headers: Mapping[str, str], clock: Clock) -> float:
    """Return the time of the server that answered, in seconds since the epoch; our own time if it sends none."""
    try:
        return parsedate_to_datetime(headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return clock.wall()


def _token(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            token = file.read(LONGEST_TOKEN_BYTES).strip()
    except (OSError, ValueError) as error:
        raise Unavailable(f"The token for Prometheus can't be read from {path} ({type(error).__name__}).") from error
    if not token.isascii() or not token.isprintable():
        raise Unavailable(f"The file {path} does not contain a token.")
    return token
