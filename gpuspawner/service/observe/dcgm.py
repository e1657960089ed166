"""What DCGM exporter saw of the GPUs, from a Prometheus that scrapes it. One question serves all workspaces.

The exporter tells of each GPU and each MIG instance:

- its engine activity (``DCGM_FI_PROF_GR_ENGINE_ACTIVE``): the part of the exporter's interval in which its graphics or
  compute engine was active, as a ratio. It is an average, so it has no gaps.
- its utilization, and that of its encoder and decoder, in percent: of an instant, once in the interval. The exporter
  tells none of MIG instances.
- the energy used: a counter that stands still shows that the exporter, or DCGM, is frozen.

Labels are those of NVIDIA's exporter: ``UUID``, ``GPU_I_ID`` of a MIG instance, ``pod`` and ``namespace``, which
Prometheus calls ``exported_pod`` and ``exported_namespace`` unless it honours them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from gpuspawner.backends.base import PodName, ProbeResult
from gpuspawner.catalog import Exporter
from gpuspawner.catalog.file import InForce
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.idle.sources import Measure, Source, SourceReading
from gpuspawner.service.clock import Clock

log = logging.getLogger("gpuspawner.dcgm")

SOURCE = Source.EXPORTER.value
LOOK_SECONDS = 30.0
"""How often Prometheus is asked: exporters are scraped every 15 to 60 s."""
WINDOW_SECONDS = 150
"""How far back it is asked about: a scrape may be a minute late, and a gap is seen from the value before it."""
KEPT_SECONDS = 900.0
"""Values are kept for so long: for policies that sample every 15 minutes."""
READ_SECONDS = 1.0
"""The time that a value of an instant covers at most."""
JITTER = 1.2
"""Values that are this much further apart than the exporter's interval have no gap between them."""
FROZEN_SECONDS, FROZEN_INTERVALS = 90.0, 3
"""An energy counter that stands still for so long, and for so many of the exporter's intervals, is frozen: an idle GPU
uses some watts."""
HIGHEST_RATIO = 1.5
"""A higher value is no ratio. Rounding may make one a little higher than 1."""
HIGHEST = 1e9
"""DCGM writes a number far above this where it has no value."""
ANSWER_SECONDS = 20.0
LONGEST_ANSWER_BYTES = 256 * 1024 * 1024
"""40,000 GPUs are half of it."""
LONGEST_TOKEN_BYTES = 64 * 1024


class Metric(NamedTuple):
    """What one metric tells: its unit in percent, and what it measures. ``measure`` is None for the energy counter."""

    factor: float
    measure: Measure | None
    engine: str = ""


@dataclass
class Series:
    """The values of one metric of one GPU, or of one MIG instance (``instance`` is its id).

    ``values`` are by their time: percent, and when they were learned. Both times are the service's own clock.
    """

    metric: Metric
    uuid: str
    instance: str
    pod: PodName | None
    values: dict[float, tuple[float, float]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Metric, str, str, PodName | None]:
        """What tells it from other series."""
        return self.metric, self.uuid, self.instance, self.pod


def metrics_of(exporter: Exporter) -> dict[str, Metric]:
    """Return the metrics that the exporter is asked for, by the names that the catalog gives them."""
    named = {
        exporter.activity: Metric(100.0, Measure.ENGINE),
        exporter.utilization: Metric(1.0, Measure.UTILIZATION),
        exporter.encoder: Metric(1.0, Measure.UTILIZATION, "encoder"),
        exporter.decoder: Metric(1.0, Measure.UTILIZATION, "decoder"),
        exporter.energy: Metric(1.0, None),
    }
    return {name: metric for name, metric in named.items() if name}


def query_of(exporter: Exporter) -> str:
    """Return the question, in PromQL: all values of the window, with their times."""
    return f'{{__name__=~"{"|".join(metrics_of(exporter))}"}}[{WINDOW_SECONDS}s]'


def read(body: bytes, exporter: Exporter, ahead_seconds: float, learned_at: float) -> tuple[list[Series], str]:
    """Return the series of an answer, and in a sentence which metrics are not what the catalog says; "" for none.

    Args:
        body: the answer of Prometheus.
        exporter: which metric is which.
        ahead_seconds: how far the clock of Prometheus is ahead of ours.
        learned_at: now, by our clock.

    Raises:
        Unavailable: it is no answer of Prometheus.
    """
    metrics, found = metrics_of(exporter), dict[tuple[Any, ...], Series]()
    try:
        for one in json.loads(body)["data"]["result"]:
            labels, name = one["metric"], one["metric"]["__name__"]
            pod = labels.get("exported_pod") or labels.get("pod")
            namespace = labels.get("exported_namespace") or labels.get("namespace") or ""
            uuid, instance = labels.get("UUID", ""), labels.get("GPU_I_ID", "")
            new = Series(metrics[name], uuid, instance, PodName(namespace, pod) if pod else None)
            series = found.setdefault((name, *new.key), new)
            for at, text in one["values"]:
                if 0 <= (value := float(text)) < HIGHEST or new.metric.measure is None:
                    series.values[float(at) - ahead_seconds] = value, learned_at
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Unavailable(f"What Prometheus answered is not understood ({type(error).__name__}).") from error
    by_name: dict[str, list[Series]] = {}
    for (name, *_), series in found.items():
        by_name.setdefault(name, []).append(series)
    wrong = {name: sentence for name, all_of_it in by_name.items() if (sentence := _refusal(name, all_of_it))}
    kept = [series for name, all_of_it in by_name.items() if name not in wrong for series in all_of_it]
    for series in kept:
        scale = series.metric.factor
        series.values = {at: (value * scale, learned) for at, (value, learned) in series.values.items()}
    return kept, " ".join(wrong.values())


def _refusal(name: str, series: Sequence[Series]) -> str:
    """Return why a metric is not what the catalog says that it is, judged by all of its values; "" where it is."""
    metric, values = series[0].metric, [value for one in series for value, _ in one.values.values()]
    highest = max(values, default=0.0)
    if metric.measure is Measure.ENGINE and highest > HIGHEST_RATIO:
        return (
            f"The metric {name} has the value {highest:g}, so it is no ratio and does not count. Set readings.activity "
            "to a ratio such as DCGM_FI_PROF_GR_ENGINE_ACTIVE."
        )
    if metric.measure is Measure.UTILIZATION and highest > 100:  # noqa: PLR2004 - a percentage
        return f"The metric {name} has the value {highest:g}, so it is no percentage and does not count."
    if metric.measure is Measure.UTILIZATION and highest <= 1 and any(value % 1 for value in values):
        return (
            f"The metric {name} has the value {highest:g}, so it is a ratio, not a percentage, and does not count. Set "
            "readings.activity to it if it is an average over time."
        )
    return ""


class Dcgm:
    """Asks the catalog's Prometheus, and keeps what it told."""

    def __init__(self, in_force: InForce, clock: Clock) -> None:
        """Ask nothing yet."""
        self._in_force, self._clock = in_force, clock
        self._series: dict[tuple[Any, ...], Series] = {}
        self._by_uuid: dict[str, list[Series]] = {}
        self._by_pod: dict[PodName | None, list[Series]] = {}
        self._stuck: set[str] = set()
        """GPUs whose activity stays 0 while their utilization shows work, until it is above 0 again."""
        self._looked_at = 0.0
        self.trouble = ""
        """Why it tells nothing, or less than it could, in sentences for administrators; "" where all is well."""

    async def look(self) -> None:
        """Ask once, if the catalog names a Prometheus."""
        exporter = self._in_force.catalog.exporter
        if exporter is None:
            self._series, self._by_uuid, self._by_pod, self._stuck, self.trouble = {}, {}, {}, set(), ""
            return
        now, before = self._clock.now(), self.trouble
        try:
            body, ahead_seconds = await _ask(exporter, self._clock)
            # Thousands of GPUs would hold up the loop.
            found, refused = await asyncio.to_thread(read, body, exporter, ahead_seconds, now)
            trouble = refused or _missing(exporter, found)
        except Unavailable as error:
            found = []
            trouble = f"{error} Work that only {SOURCE} sees does not count meanwhile."
        self._keep(found, now)
        self.trouble = " ".join(filter(None, (trouble, self._stuck_sentence())))
        if self.trouble and self.trouble != before:
            log.warning(self.trouble)

    def _keep(self, found: Iterable[Series], now: float) -> None:
        """Add what is new, and forget what is old."""
        self._looked_at = now
        for series in found:
            kept = self._series.setdefault(series.key, series)
            if kept is not series:
                kept.values = {**series.values, **kept.values}  # what was learned before stays so
        for key, series in list(self._series.items()):
            series.values = {at: value for at, value in series.values.items() if at > now - KEPT_SECONDS}
            if not series.values:
                del self._series[key]
        self._by_uuid, self._by_pod = {}, {}
        for series in self._series.values():
            self._by_uuid.setdefault(series.uuid, []).append(series)
            self._by_pod.setdefault(series.pod, []).append(series)
        for uuid, of_gpu in self._by_uuid.items():
            self._find_stuck(uuid, of_gpu, now)

    def _find_stuck(self, uuid: str, of_gpu: Iterable[Series], now: float) -> None:
        """Note whether a GPU's profiling counters are stuck at 0, as after some faults (NVIDIA/DCGM#303)."""
        highest: dict[Measure | None, float] = {}
        for series in of_gpu:
            if not series.instance and not series.metric.engine:
                recent = [value for at, (value, _) in series.values.items() if at > now - WINDOW_SECONDS]
                highest[series.metric.measure] = max(recent, default=0.0)
        if highest.get(Measure.ENGINE, 0.0) > 0:
            self._stuck.discard(uuid)
        elif Measure.ENGINE in highest and highest.get(Measure.UTILIZATION, 0.0) >= 1:
            self._stuck.add(uuid)

    def _stuck_sentence(self) -> str:
        stuck = sorted(self._stuck & self._by_uuid.keys())
        if not stuck:
            return ""
        more = f" and {len(stuck) - 1} more" if len(stuck) > 1 else ""
        return (
            f"{SOURCE} tells no activity of {stuck[0]}{more}, though its utilization shows work, so short work is "
            "missed there. Restart DCGM on the node."
        )

    def readings(
        self, leased: Iterable[str], result: ProbeResult, shared: Collection[str], since: float
    ) -> tuple[SourceReading, ...]:
        """Return what was learned of a workspace's GPUs since then, or at the last look where that was before.

        1. A GPU, by its UUID. That of a whole device that others use too is not the workspace's own.
        2. Its pod. Nothing tells which of its GPUs a value is of, so it is for all of them. It covers nothing where
           fewer GPUs are told than are leased.
        """
        names = tuple(dict.fromkeys(leased))
        found: list[SourceReading] = []
        for gpu in names:
            device = result.devices.get(gpu, gpu)
            is_own = gpu == device and gpu not in shared
            told = [one for one in self._by_uuid.get(device, ()) if not (is_own and one.instance)]
            found += self._joined(gpu, told, since, is_own=is_own)
        of_pod = self._by_pod.get(result.pod, ()) if result.pod is not None else ()
        for instances in (True, False):
            is_own = not result.divided and (instances or not result.shared)
            told = [one for one in of_pod if bool(one.instance) is instances]
            found += self._joined("", told, since, is_own=is_own, gpus=len(names))
        return tuple(found)

    def _joined(
        self, gpu: str, told: Iterable[Series], since: float, *, is_own: bool, gpus: int = 1
    ) -> Iterable[SourceReading]:
        """Yield a reading for each metric of some series."""
        by_metric: dict[Metric, list[Series]] = {}
        for series in told:
            if series.metric.measure is not None:
                by_metric.setdefault(series.metric, []).append(series)
        for metric, all_of_it in by_metric.items():
            parts = [self._of_one(gpu, series, since, is_own=is_own) for series in all_of_it]
            known = [part for part in parts if part is not None]
            if not known:
                continue
            is_whole = len(known) == len(parts) and len({(one.uuid, one.instance) for one in all_of_it}) >= gpus
            yield SourceReading(
                gpu,
                Source.EXPORTER,
                known[0].measure,
                percent=max(part.percent for part in known),
                begin_seconds=min(part.begin_seconds for part in known),
                end_seconds=max(part.end_seconds for part in known),
                coverage=min(part.coverage for part in known) if is_whole else 0.0,
                is_own=is_own,
                engine=metric.engine,
            )

    def _of_one(self, gpu: str, series: Series, since: float, *, is_own: bool) -> SourceReading | None:
        """Return the reading of one series; None where nothing was learned.

        A value may be as old as the exporter's interval when it is scraped, and is of the interval before. So the
        values tell of all work up to one interval before the newest.
        """
        exporter = self._in_force.catalog.exporter
        since = min(since, self._looked_at)
        new = sorted(at for at, (_, learned_at) in series.values.items() if learned_at >= since)
        if exporter is None or not new:
            return None
        interval, now = exporter.interval_seconds, self._clock.now()
        before = max((at for at in series.values if at < new[0]), default=new[0] - interval)
        seconds = new[-1] - before
        each = interval if series.metric.measure is Measure.ENGINE else READ_SECONDS
        gaps = [later - earlier for earlier, later in pairwise((before, *new))]
        covered = sum(gap if gap <= each * JITTER else each for gap in gaps)
        return SourceReading(
            gpu,
            Source.EXPORTER,
            series.metric.measure or Measure.UTILIZATION,
            percent=min(100.0, max(series.values[at][0] for at in new)),
            begin_seconds=max(0.0, now - before) + interval,
            end_seconds=max(0.0, now - new[-1]) + interval,
            coverage=0.0 if self._is_wrong(series.uuid) else min(1.0, covered / seconds),
            is_own=is_own,
        )

    def _is_wrong(self, uuid: str) -> bool:
        """Whether the values of a GPU can't be right.

        Its activity is stuck at 0, or its energy counter has stood still for long. A GPU may have no such counter, or
        one that stays 0.
        """
        if uuid in self._stuck:
            return True
        exporter = self._in_force.catalog.exporter
        interval = exporter.interval_seconds if exporter else 0.0
        for series in self._by_uuid.get(uuid, ()):
            if series.metric.measure is None and not series.instance:
                newest, *older = sorted(series.values, reverse=True)
                joules = series.values[newest][0]
                same = [at for at in older if series.values[at][0] == joules]
                seconds = newest - min(same, default=newest)
                if joules and seconds >= max(FROZEN_SECONDS, FROZEN_INTERVALS * interval):
                    return True
        return False


def _missing(exporter: Exporter, found: Sequence[Series]) -> str:
    """Return a sentence where the exporter tells utilization and not the engine activity that is asked for."""
    measures = {series.metric.measure for series in found}
    if not exporter.activity or Measure.UTILIZATION not in measures or Measure.ENGINE in measures:
        return ""
    return (
        f"{SOURCE} tells no {exporter.activity}, so it sees an instant of each interval only, and short "
        "work is missed. Export it, or set readings.activity to none."
    )


async def _ask(exporter: Exporter, clock: Clock) -> tuple[bytes, float]:
    """Return the answer of Prometheus, and how far its clock is ahead of ours."""
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
        response = await client.fetch(request)
    except HTTPClientError as error:
        raise Unavailable(f"Prometheus answered {error.code} at {exporter.url}.") from error
    except OSError as error:
        raise Unavailable(f"Prometheus does not answer at {exporter.url} ({error}).") from error
    finally:
        client.close()
    return response.body, _its_time(response.headers, clock) - clock.now()


def _its_time(headers: Mapping[str, str], clock: Clock) -> float:
    """Return the time at the server that answered, in seconds since the epoch; ours where it tells none."""
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
        raise Unavailable(f"What stands in {path} is no token.")
    return token
