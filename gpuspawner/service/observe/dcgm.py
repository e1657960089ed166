"""What DCGM exporter saw of the GPUs, through a Prometheus that scrapes it: asked once for all workspaces.

It sees all of the time where the probe sees some seconds of each minute, so work that it saw counts. What it did not
see proves nothing: it may be late, frozen or not there. Labels are those of NVIDIA's exporter (``UUID``, ``GPU_I_ID``
of a MIG instance, ``pod`` and ``namespace``, which Prometheus calls ``exported_pod`` and ``exported_namespace`` unless
it honours them).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from gpuspawner.backends.base import PodName, ProbeResult
from gpuspawner.catalog import Exporter
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.idle.readings import OutsideReading
from gpuspawner.service.clock import Clock

log = logging.getLogger("gpuspawner.dcgm")

SOURCE = "DCGM exporter"
LOOK_SECONDS = 30.0
"""How often it is asked: exporters are scraped every 15 to 60 s."""
WINDOW_SECONDS = 90
"""How far back it is asked about: a scrape may be a minute late. Work counts for so long after its end at most."""
KEPT_SECONDS = 900.0
"""What it saw is kept for so long: for policies that sample every 15 minutes."""
ANSWER_SECONDS = 20.0
LONGEST_ANSWER_BYTES = 128 * 1024 * 1024
"""40,000 GPUs are a tenth of it."""
LONGEST_TOKEN_BYTES = 64 * 1024
LEAST_PERCENT = 0.5
"""Less than this is no work by any policy, and is not kept."""
_LABELS = ("UUID", "GPU_I_ID", "exported_namespace", "exported_pod", "namespace", "pod")


@dataclass(frozen=True)
class Seen:
    """The highest utilization that one look told of a GPU, or of a MIG instance (``is_instance``)."""

    at: float
    percent: float
    is_instance: bool


def query_of(exporter: Exporter) -> str:
    """Return the question, in PromQL: the highest of each GPU and each MIG instance, in percent.

    A GPU that is divided by MIG tells no utilization, or 0: there each instance's activity is asked for.
    """
    by = f"max by ({', '.join(_LABELS)})"
    gpus = f'{by} (max_over_time({exporter.utilization}{{GPU_I_ID=""}}[{WINDOW_SECONDS}s]))'
    instances = f'{by} (max_over_time({exporter.instances}{{GPU_I_ID!=""}}[{WINDOW_SECONDS}s]))'
    return f"{gpus} or 100 * {instances}"


def read(body: bytes, at: float) -> dict[str | PodName, list[Seen]]:
    """Return what an answer tells of work: of GPUs by UUID, and of pods by namespace and name.

    Raises:
        Unavailable: it is no answer of Prometheus.
    """
    found: dict[str | PodName, list[Seen]] = {}
    try:
        for one in json.loads(body)["data"]["result"]:
            percent, labels = float(one["value"][1]), one["metric"]
            if not math.isfinite(percent) or not LEAST_PERCENT <= percent <= 100:  # noqa: PLR2004 - a percentage
                continue
            seen = Seen(at, percent, bool(labels.get("GPU_I_ID")))
            pod = labels.get("exported_pod") or labels.get("pod")
            if pod:
                namespace = labels.get("exported_namespace") or labels.get("namespace") or ""
                found.setdefault(PodName(namespace, pod), []).append(seen)
            if labels.get("UUID") and not seen.is_instance:  # that of an instance is its whole device's
                found.setdefault(labels["UUID"], []).append(seen)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Unavailable(f"What Prometheus answered is not understood ({type(error).__name__}).") from error
    return found


class Dcgm:
    """Asks the catalog's Prometheus, and keeps what it told of work."""

    def __init__(self, in_force: InForce, clock: Clock) -> None:
        """Ask nobody yet."""
        self._in_force, self._clock = in_force, clock
        self._seen: dict[str | PodName, list[Seen]] = {}
        self.trouble = ""
        """Why it could not be asked last, in a sentence for administrators; "" where it could, or nobody is named."""

    async def look(self) -> None:
        """Ask once, if the catalog names whom."""
        exporter = self._in_force.catalog.exporter
        if exporter is None:
            self._seen, self.trouble = {}, ""
            return
        now, before = self._clock.now(), self.trouble
        try:
            body = await _ask(exporter)
            told = await asyncio.to_thread(read, body, now)  # thousands of GPUs would hold up the loop
            self.trouble = ""
        except Unavailable as error:
            told, self.trouble = {}, f"{error} Work that only {SOURCE} sees does not count meanwhile."
            if self.trouble != before:
                log.warning(self.trouble)
        kept = {key: [one for one in seen if one.at > now - KEPT_SECONDS] for key, seen in self._seen.items()}
        for key, new in told.items():
            kept.setdefault(key, []).extend(new)
        self._seen = {key: seen for key, seen in kept.items() if seen}

    def outside(
        self, leased: Iterable[str], result: ProbeResult, shared: Collection[str], since: float
    ) -> tuple[OutsideReading, ...]:
        """Return what was seen of a workspace's work since then.

        1. A GPU of its own, by its UUID.
        2. Its pod: of whole GPUs, and of MIG instances also where other pods have the rest of the device.
        3. What others may have caused is nobody's: a GPU that is shared, an instance that is divided once more.
        """
        found = [
            OutsideReading(highest, gpu, SOURCE)
            for gpu in dict.fromkeys(leased)
            if gpu not in shared and (highest := _highest(self._seen.get(gpu, ()), since)) is not None
        ]
        if result.pod is not None and not result.divided:
            of_pod = [one for one in self._seen.get(result.pod, ()) if one.is_instance or not result.shared]
            highest = _highest(of_pod, since)
            if highest is not None:
                found.append(OutsideReading(highest, "", SOURCE))
        return tuple(found)


def _highest(seen: Iterable[Seen], since: float) -> float | None:
    return max((one.percent for one in seen if one.at >= since), default=None)


async def _ask(exporter: Exporter) -> bytes:
    headers = {}
    if exporter.token_file:
        headers["Authorization"] = f"Bearer {await asyncio.to_thread(_token, exporter.token_file)}"
    request = HTTPRequest(
        f"{exporter.url}/api/v1/query",
        method="POST",
        body=urlencode({"query": query_of(exporter), "timeout": f"{ANSWER_SECONDS:g}s"}),
        headers={**headers, "Content-Type": "application/x-www-form-urlencoded"},
        request_timeout=ANSWER_SECONDS,
        connect_timeout=5.0,
        follow_redirects=False,
    )
    size: dict[str, Any] = {"max_body_size": LONGEST_ANSWER_BYTES, "max_buffer_size": LONGEST_ANSWER_BYTES}
    client = SimpleAsyncHTTPClient(force_instance=True, **size)
    try:
        return (await client.fetch(request)).body
    except HTTPClientError as error:
        raise Unavailable(f"Prometheus answered {error.code} at {exporter.url}.") from error
    except OSError as error:
        raise Unavailable(f"Prometheus does not answer at {exporter.url} ({error}).") from error
    finally:
        client.close()


def _token(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            token = file.read(LONGEST_TOKEN_BYTES).strip()
    except (OSError, ValueError) as error:
        raise Unavailable(f"The token for Prometheus can't be read from {path} ({type(error).__name__}).") from error
    if not token.isascii() or not token.isprintable():
        raise Unavailable(f"What stands in {path} is no token.")
    return token
