"""The values of DCGM exporter's metrics: parsed strictly, kept for some minutes, and converted to readings of GPUs.

The exporter has, for each GPU and each MIG instance:

- its engine activity (``DCGM_FI_PROF_GR_ENGINE_ACTIVE``): the part of the exporter's interval in which its graphics or
  compute engine was active, as a ratio. An average has no gaps.
- its utilization, and that of its encoder and decoder, in percent: of an instant, once in the interval. MIG instances
  have none.
- the energy used. If this counter does not change, the exporter or DCGM is frozen.

Labels are those of NVIDIA's exporter: ``UUID``, ``GPU_I_ID`` of a MIG instance, ``pod`` and ``namespace``, which
Prometheus calls ``exported_pod`` and ``exported_namespace`` unless it honours them. Pure: no clock, no request.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from gpuspawner.backends.base import PodName, ProbeResult
from gpuspawner.catalog import Exporter
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.idle.readings import Measure, Source, SourceReading

SOURCE = Source.EXPORTER.value
WINDOW_SECONDS = 150
"""The period of a query. A scrape may be a minute late, and a gap is measured from the value before it."""
KEPT_SECONDS = 900.0
"""How long values are kept: policies may sample every 15 minutes."""
READ_SECONDS = 1.0
"""The longest time that a value of an instant covers."""
JITTER = 1.2
"""Values that are this much further apart than the exporter's interval have no gap between them."""
FROZEN_SECONDS, FROZEN_INTERVALS = 90.0, 3
"""An energy counter that does not change for this time and this number of the exporter's intervals is frozen: an idle
GPU uses some watts."""
HIGHEST_RATIO = 1.5
"""A higher value is no ratio. Rounding may make one a little higher than 1."""
LONGEST_TITLE = 200
"""Characters of the labels that a sentence repeats."""
HIGHEST = 1e9
"""DCGM writes a number far above this where it has no value."""


class Metric(NamedTuple):
    """One metric: its unit in percent, and the measured quantity. ``measure`` is None for the energy counter."""

    factor: float
    measure: Measure | None
    engine: str = ""


@dataclass(frozen=True)
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
        """The labels that distinguish it from other series."""
        return self.metric, self.uuid, self.instance, self.pod


def metrics_of(exporter: Exporter) -> dict[str, Metric]:
    """Return the requested metrics, by their names in the catalog."""
    named = {
        exporter.activity: Metric(100.0, Measure.ENGINE),
        exporter.utilization: Metric(1.0, Measure.UTILIZATION),
        exporter.encoder: Metric(1.0, Measure.UTILIZATION, "encoder"),
        exporter.decoder: Metric(1.0, Measure.UTILIZATION, "decoder"),
        exporter.energy: Metric(1.0, None),
    }
    return {name: metric for name, metric in named.items() if name}


def query_of(exporter: Exporter) -> str:
    """Return the query in PromQL: all values of the window, with their times."""
    return f'{{__name__=~"{"|".join(metrics_of(exporter))}"}}[{WINDOW_SECONDS}s]'


def read(body: bytes, exporter: Exporter, ahead_seconds: float, learned_at: float) -> tuple[list[Series], str]:
    """Return the series that count, and a sentence on each metric with series that do not, or "".

    Args:
        body: the answer of Prometheus.
        exporter: the names of the metrics.
        ahead_seconds: by how much the clock of Prometheus is ahead of the service's.
        learned_at: now, by the service's clock.

    Raises:
        Unavailable: the body is not an answer of Prometheus.
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
    kept: list[Series] = []
    sentences: list[str] = []
    for name, of_metric in by_name.items():
        is_ratio = _is_ratio(of_metric)
        reasons = [(one, _refusal(one, is_ratio=is_ratio)) for one in of_metric]
        kept += [_scaled(one) for one, reason in reasons if not reason]
        if refused := [(one, reason) for one, reason in reasons if reason]:
            more = "" if len(refused) == 1 else f" {len(refused)} of its {len(of_metric)} series do not count."
            sentences.append(f"The metric {name} of {_title_of(refused[0][0])} {refused[0][1]}{more}")
    return kept, " ".join(sentences)


def _scaled(series: Series) -> Series:
    factor = series.metric.factor
    return replace(series, values={at: (value * factor, learned) for at, (value, learned) in series.values.items()})


def _title_of(series: Series) -> str:
    """Return the GPU and the pod of a series. Both are labels, which a pod may choose, so they are escaped."""
    instance = f" instance {series.instance}" if series.instance else ""
    pod = f" in the pod {series.pod.namespace}/{series.pod.name}" if series.pod else ""
    text = f"{series.uuid or 'a GPU without a UUID'}{instance}{pod}"
    return "".join(one if one.isprintable() else "?" for one in text[:LONGEST_TITLE])


def _is_ratio(of_metric: Iterable[Series]) -> bool:
    """Return whether all values of a metric are from 0 to 1, and some are fractions."""
    values = [value for one in of_metric for value, _ in one.values.values()]
    return max(values, default=0.0) <= 1 and any(value % 1 for value in values)


def _refusal(series: Series, *, is_ratio: bool) -> str:
    """Return why a series does not count, after the name of its metric, or "".

    A series is judged by its own values, so that one GPU or pod cannot take a metric away from others. ``is_ratio``
    says that all series of the metric look like ratios. Then a constant 1 of this series is probably 100 %. It does not
    count, but a constant 0 does, because 0 is idle in both units.
    """
    highest = max((value for value, _ in series.values.values()), default=0.0)
    if series.metric.measure is Measure.ENGINE and highest > HIGHEST_RATIO:
        return (
            f"has the value {highest:g}, so it is no ratio and does not count. Set readings.activity to a ratio such "
            "as DCGM_FI_PROF_GR_ENGINE_ACTIVE."
        )
    if series.metric.measure is not Measure.UTILIZATION:
        return ""
    if highest > 100:  # noqa: PLR2004 - a percentage
        return f"has the value {highest:g}, so it is no percentage and does not count."
    if highest > 0 and (is_ratio or _is_ratio([series])):
        return (
            f"has the value {highest:g}, so it is a ratio, not a percentage, and does not count. Set readings.activity "
            "to it if it is an average over time."
        )
    return ""


def _of_pod(series: Iterable[Series], pod: PodName | None) -> list[Series]:
    """Return the series of a pod. Return all series if the exporter names no pods.

    A pod may write metrics under the UUID of any GPU, and Prometheus may scrape them. So what another pod says of this
    pod's GPU does not count.
    """
    all_of_it = list(series)
    return [one for one in all_of_it if one.pod == pod] or all_of_it


@dataclass(frozen=True)
class ExporterValues:
    """All values that are known, after some looks at Prometheus.

    Attributes:
        exporter: how the catalog describes the exporter.
        by_uuid: the series of each GPU, with those of its MIG instances.
        by_pod: the series of each pod.
        stuck: GPUs whose activity stays 0 while their utilization shows work, until it is above 0 again. Each with the
            pod that its series name.
        looked_at: when Prometheus was last asked.
    """

    exporter: Exporter
    by_uuid: Mapping[str, Sequence[Series]] = field(default_factory=dict)
    by_pod: Mapping[PodName | None, Sequence[Series]] = field(default_factory=dict)
    stuck: frozenset[tuple[str, PodName | None]] = frozenset()
    looked_at: float = 0.0

    def with_look(self, found: Iterable[Series], now: float) -> ExporterValues:
        """Return the values with those of a new look, without those that are too old."""
        kept = {series.key: series for of_gpu in self.by_uuid.values() for series in of_gpu}
        for series in found:
            before = kept.get(series.key)
            # Earlier values stay.
            kept[series.key] = replace(series, values={**series.values, **before.values}) if before else series
        by_uuid: dict[str, list[Series]] = {}
        by_pod: dict[PodName | None, list[Series]] = {}
        for series in kept.values():
            values = {at: value for at, value in series.values.items() if at > now - KEPT_SECONDS}
            if values:
                recent = replace(series, values=values)
                by_uuid.setdefault(series.uuid, []).append(recent)
                by_pod.setdefault(series.pod, []).append(recent)
        by_both: dict[tuple[str, PodName | None], list[Series]] = {}
        for one in (one for of_gpu in by_uuid.values() for one in of_gpu):
            by_both.setdefault((one.uuid, one.pod), []).append(one)
        stuck = {both for both, told in by_both.items() if _is_stuck(told, now, before=both in self.stuck)}
        return ExporterValues(self.exporter, by_uuid, by_pod, frozenset(stuck), now)

    @property
    def stuck_sentence(self) -> str:
        """A sentence for administrators about the GPUs that are stuck, "" without any."""
        names = sorted({uuid for uuid, _ in self.stuck})
        if not names:
            return ""
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return (
            f"{SOURCE} reports no activity of {names[0]}{more}, although the utilization shows work. Short work is "
            "missed there. Restart DCGM on the node."
        )

    def readings(
        self, leased: Iterable[str], result: ProbeResult, shared: Collection[str], since: float, now: float
    ) -> tuple[SourceReading, ...]:
        """Return the readings of a workspace's GPUs since then, or of the last look if that was earlier.

        1. By the UUID of a GPU. If others use the whole device too, its values are not the workspace's own.
        2. By the pod. The GPU of such a value is unknown, so it counts for all GPUs of the workspace. It covers
           nothing if the exporter has values of fewer GPUs than are leased.
        """
        names, since = tuple(dict.fromkeys(leased)), min(since, self.looked_at)
        found: list[SourceReading] = []
        for gpu in names:
            device = result.devices.get(gpu, gpu)
            is_own = gpu == device and gpu not in shared
            told = _of_pod((x for x in self.by_uuid.get(device, ()) if not (is_own and x.instance)), result.pod)
            found += [replace(one, gpu=gpu, is_own=is_own) for one in self._joined(told, since, now)]
        of_pod = self.by_pod.get(result.pod, ()) if result.pod is not None else ()
        for instances in (True, False):
            is_own = not result.divided and (instances or not result.shared)
            told = [one for one in of_pod if bool(one.instance) is instances]
            found += [replace(one, is_own=is_own) for one in self._joined(told, since, now, len(names))]
        return tuple(found)

    def _joined(self, told: Iterable[Series], since: float, now: float, gpus: int = 1) -> Iterator[SourceReading]:
        """Yield a reading for each metric of some series, which should cover ``gpus`` GPUs."""
        by_metric: dict[Metric, list[Series]] = {}
        for series in told:
            if series.metric.measure is not None:
                by_metric.setdefault(series.metric, []).append(series)
        for all_of_it in by_metric.values():
            parts = [self._of_one(series, since, now) for series in all_of_it]
            known = [part for part in parts if part is not None]
            if not known:
                continue
            is_whole = len(known) == len(parts) and len({(one.uuid, one.instance) for one in all_of_it}) >= gpus
            yield replace(
                known[0],
                percent=max(part.percent for part in known),
                begin_seconds=min(part.begin_seconds for part in known),
                end_seconds=max(part.end_seconds for part in known),
                coverage=min(part.coverage for part in known) if is_whole else 0.0,
            )

    def _of_one(self, series: Series, since: float, now: float) -> SourceReading | None:
        """Return the reading of one series, None without a new value.

        A value may be as old as the exporter's interval when it is scraped, and covers the interval before. So the
        values cover all work up to one interval before the newest.
        """
        new = sorted(at for at, (_, learned_at) in series.values.items() if learned_at >= since)
        if not new:
            return None
        interval = self.exporter.interval_seconds
        before = max((at for at in series.values if at < new[0]), default=new[0] - interval)
        each = interval if series.metric.measure is Measure.ENGINE else READ_SECONDS
        gaps = [later - earlier for earlier, later in pairwise((before, *new))]
        covered = sum(gap if gap <= each * JITTER else each for gap in gaps)
        is_wrong = (series.uuid, series.pod) in self.stuck or self._is_frozen(series)
        return SourceReading(
            "",
            Source.EXPORTER,
            series.metric.measure or Measure.UTILIZATION,
            percent=min(100.0, max(series.values[at][0] for at in new)),
            begin_seconds=max(0.0, now - before) + interval,
            end_seconds=max(0.0, now - new[-1]) + interval,
            coverage=0.0 if is_wrong else min(1.0, covered / (new[-1] - before)),
            engine=series.metric.engine,
        )

    def _is_frozen(self, series: Series) -> bool:
        """Return whether all energy counters of a series' GPU and pod have not changed for long.

        A GPU may have no counter, or one that stays 0. The counter of a MIG device does not name the pods of its
        instances, so for an instance the counters of all pods count.
        """
        told = [one for one in self.by_uuid.get(series.uuid, ()) if one.metric.measure is None and not one.instance]
        counters = told if series.instance else [one for one in told if one.pod == series.pod]
        still = [seconds for one in counters if (seconds := _still_seconds(one)) is not None]
        longest = max(FROZEN_SECONDS, FROZEN_INTERVALS * self.exporter.interval_seconds)
        return bool(still) and min(still) >= longest


def _still_seconds(counter: Series) -> float | None:
    """Return how long a counter has had its newest value; None if that is 0 or there is no counter."""
    newest, *older = sorted(counter.values, reverse=True)
    joules = counter.values[newest][0]
    return newest - min((at for at in older if counter.values[at][0] == joules), default=newest) if joules else None


def _is_stuck(of_gpu: Iterable[Series], now: float, *, before: bool) -> bool:
    """Return whether the profiling counters of a GPU are stuck at 0, as after some faults (NVIDIA/DCGM#303)."""
    highest: dict[Measure | None, float] = {}
    for series in of_gpu:
        if not series.instance and not series.metric.engine:
            recent = [value for at, (value, _) in series.values.items() if at > now - WINDOW_SECONDS]
            highest[series.metric.measure] = max(recent, default=0.0)
    if highest.get(Measure.ENGINE, 0.0) > 0:
        return False
    return before or (Measure.ENGINE in highest and highest.get(Measure.UTILIZATION, 0.0) >= 1)


def missing_activity(exporter: Exporter, found: Sequence[Series]) -> str:
    """Return a sentence if the exporter has utilization but not the requested engine activity, else ""."""
    measures = {series.metric.measure for series in found}
    if not exporter.activity or Measure.UTILIZATION not in measures or Measure.ENGINE in measures:
        return ""
    return (
        f"{SOURCE} does not report {exporter.activity}. So it sees one instant of each interval, and misses short "
        "work. Export it, or set readings.activity to none."
    )
