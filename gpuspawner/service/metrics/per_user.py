"""Metrics by user and workspace. They have an address of their own because they name people, and are many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuspawner.core.leases.lease import HOLDING, UP, Lease
from gpuspawner.service.engine.sampling.gpu_states import NO_KIND
from gpuspawner.service.metrics.collector import NO_TEAM
from gpuspawner.service.parts import Parts

MAX_SERIES = 2000
"""The most series of one metric, the highest values first. Arbitrary: 1,000 workspaces with two GPUs each fit."""
DROPPED = "gpuspawner_series_dropped"
DEFAULT = "default"
"""The label of a workspace without a name. To Prometheus, an empty label is a missing one."""


class PerUserCollector(Collector):
    """Collects from the present state at each scrape."""

    def __init__(self, parts: Parts) -> None:
        """Collect from ``parts``."""
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        held = [lease for lease in self._parts.registry if lease.phase in HOLDING]
        up = [lease for lease in held if lease.phase in UP]
        yield _gauge(
            "workspace_gpus",
            "GPUs of a workspace, as shares of whole GPUs.",
            ("user", "workspace", "team", "kind"),
            [((*_name(x), x.request.team or NO_TEAM, x.kind or NO_KIND), _shares(x)) for x in held],
        )
        yield _gauge(
            "workspace_idle_seconds",
            "The idle time of a workspace.",
            ("user", "workspace"),
            [(_name(x), x.streak.idle_seconds) for x in up],
        )
        read = [(x, row) for x in up for row in self._parts.sampler.newest(x.id).values()]
        yield _gauge(
            "workspace_gpu_utilization_percent",
            "The utilization of a GPU in its newest sample.",
            ("user", "workspace", "gpu"),
            [((*_name(x), row.gpu), row.utilization_percent) for x, row in read if row.utilization_percent is not None],
        )
        yield _gauge(
            "workspace_gpu_memory_used_bytes",
            "Memory of a GPU in use, as the newest sample read it.",
            ("user", "workspace", "gpu"),
            [((*_name(x), row.gpu), row.memory_used_bytes) for x, row in read if row.memory_used_bytes is not None],
        )
        yield self._seconds()
        dropped = CounterMetricFamily(
            DROPPED, "Series that were left out, since there were too many.", labels=["metric"]
        )
        for metric, count in sorted(self._parts.counters.dropped.items()):
            dropped.add_metric([metric], count)
        yield dropped

    def _seconds(self) -> Metric:
        told = CounterMetricFamily(
            "gpuspawner_user_gpu_seconds",
            "Time of GPUs that were allocated to a user, by kind and state: active, idle or not measured.",
            labels=["user", "kind", "state"],
        )
        for (user, kind, state), seconds in sorted(self._parts.allocator.accounting.user_gpu_seconds.items()):
            told.add_metric([user, kind or NO_KIND, state], seconds)
        return told


def capped(families: Iterable[Metric], dropped: Counter[str]) -> Iterator[Metric]:
    """Yield metrics with at most MAX_SERIES series each. Count in ``dropped`` the series that are left out."""
    for one in families:
        if len(one.samples) > MAX_SERIES and one.name != DROPPED:
            dropped[one.name] += len(one.samples) - MAX_SERIES
            one.samples = sorted(one.samples, key=lambda sample: -sample.value)[:MAX_SERIES]
        yield one


def _gauge(name: str, words: str, labels: Sequence[str], rows: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    gauge = GaugeMetricFamily(f"gpuspawner_{name}", words, labels=labels)
    for values, value in rows:
        gauge.add_metric(values, value)
    return gauge


def _name(lease: Lease) -> tuple[str, str]:
    return lease.user, lease.key.server or DEFAULT


def _shares(lease: Lease) -> float:
    return float(sum(slot.share for slot in lease.slots))
