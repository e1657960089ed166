"""The metrics of the service, and those by user and workspace, from the same state that pages and API show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuspawner import __version__
from gpuspawner.core.idle.verdicts import SampleKind
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import HOLDING, UP, WAITING, Lease, Phase
from gpuspawner.core.leases.lifetimes import CARRIED_OUT
from gpuspawner.core.leases.lifetimes import OUTCOMES as OUTCOMES_OF_WARNINGS
from gpuspawner.core.queue.preemption import PreemptionState
from gpuspawner.service.engine.allocation.scheduler_sync import ERRORS
from gpuspawner.service.engine.registry import MISMATCHES
from gpuspawner.service.engine.sampling.gpu_states import NO_KIND, STATES, count_gpu_states
from gpuspawner.service.notifications.sender import RESULTS
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.snapshot import used_ratios
from gpuspawner.version import commit

SOURCES = ("claim", "make_room")
OUTCOMES = (PreemptionState.CLAIMED.value, PreemptionState.GIVEN_UP.value, PreemptionState.LAPSED.value)
NO_TEAM = "none"
HEALTH_METRICS = (
    ("temperature_celsius", "Temperature of a GPU.", "celsius"),
    ("power_watts", "Power of a GPU.", "watts"),
    ("clock_hertz", "Clock of the processors of a GPU.", "clock_hertz"),
    ("corrected_errors", "Corrected memory errors of a GPU since its driver was loaded.", "corrected_errors"),
    ("uncorrected_errors", "Uncorrected memory errors of a GPU since its driver was loaded.", "uncorrected_errors"),
    ("last_xid", "Xid code of the last error of a GPU, 0 without one.", "xid"),
)
"""Metrics of the health of GPUs: name, words and field."""
MAX_SERIES = 2000
"""The most series of one metric, the highest values first. Arbitrary: 1,000 workspaces with two GPUs each fit."""
DROPPED = "gpuspawner_series_dropped"
DEFAULT = "default"
"""The label of a workspace without a name. To Prometheus, an empty label is a missing one."""

Rows = Iterable[tuple[Iterable[str], float]]
"""The values of the labels of each series, and its value."""


def _counter(name: str, words: str, labels: str, rows: Rows) -> Metric:
    return _filled(CounterMetricFamily(f"gpuspawner_{name}", words, labels=labels.split()), rows)


def _gauge(name: str, words: str, labels: str, rows: Rows) -> Metric:
    return _filled(GaugeMetricFamily(f"gpuspawner_{name}", words, labels=labels.split()), rows)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, rows: Rows) -> Metric:
    for values, value in rows:
        family.add_metric(list(values), value)
    return family


def _value(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(f"gpuspawner_{name}", words, value=value)


class ServiceCollector(Collector):
    """Collects from the present state at each scrape. An unknown value has no series, never 0."""

    def __init__(self, parts: Parts) -> None:
        """Collect from ``parts``."""
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        """Yield every metric from memory, also while the store does not answer."""
        yield from self._gpus()
        yield from self._leases()
        yield from self._rules()
        yield from self._parts.registry.start_times.collect()
        yield from self._parts.allocator.estimate_records.collect()
        yield from self._messages_and_samples()
        yield _gauge(
            "build_info", "1, with the version of the service.", "version commit", [((__version__, commit()), 1)]
        )
        yield from self._health()
        yield from self._failures()

    def _gpus(self) -> Iterator[Metric]:
        counted, cluster = count_gpu_states(self._parts), self._parts.settings.cluster
        each = product(sorted({kind for kind, _ in counted}), STATES)
        rows: Rows = (((cluster, *key), counted[key]) for key in each)
        yield _gauge("gpus", "GPUs by kind and state.", "cluster kind state", rows)
        readings = self._parts.gpu_health.readings()
        for name, words, field in HEALTH_METRICS:
            known = [(one, value) for one in readings if (value := getattr(one.health, field)) is not None]
            rows = [((cluster, one.node, str(one.index)), value) for one, value in known]
            yield _gauge(f"gpu_{name}", words, "cluster node gpu", rows)

    def _leases(self) -> Iterator[Metric]:
        counted = Counter((x.phase, x.kind or NO_KIND, x.request.team) for x in self._parts.registry)
        kinds = sorted({*self._parts.catalog.gpus, NO_KIND, *(kind for _, kind, _ in counted)})
        teams = sorted({"", *self._parts.catalog.rules.teams, *(team for _, _, team in counted)})
        yield _gauge(
            "leases",
            "Workspaces and waiting requests by phase, kind and team.",
            "phase kind team",
            [
                ((phase.value, kind, team or NO_TEAM), counted[phase, kind, team])
                for kind, phase, team in product(kinds, Phase, teams)
                if phase is not Phase.ENDED
            ],
        )
        waiting = {kind: sum(counted[phase, kind, team] for phase in WAITING for team in teams) for kind in kinds}
        yield _gauge("queue_length", "Waiting requests, by kind.", "kind", [((x,), waiting[x]) for x in kinds])

    def _rules(self) -> Iterator[Metric]:
        parts, ends, over = self._parts, self._parts.registry.ends, self._parts.preemptions.outcomes
        teams = sorted({"", *parts.catalog.rules.teams, *(team for _, team in ends)})
        yield _counter(
            "ends",
            "Workspaces that ended, by reason and team.",
            "reason team",
            [((reason.value, team or NO_TEAM), ends[reason, team]) for reason, team in product(ExitReason, teams)],
        )
        seconds = sorted(parts.allocator.accounting.gpu_seconds.items())
        yield _counter(
            "lease_gpu_seconds",
            "Allocated time of GPUs, by team, kind and state: active, idle or not measured.",
            "team kind state",
            [((team or NO_TEAM, kind or NO_KIND, state), value) for (team, kind, state), value in seconds],
        )
        yield _counter(
            "substitutions",
            "GPUs of another kind, given with consent.",
            "asked given",
            sorted(parts.allocator.granting.substitutions.items()),
        )
        yield _gauge(
            "quota_used_ratio",
            "The used part of a quota, from 0 to 1. For a quota of each user, of the user with most.",
            "quota limit",
            sorted(used_ratios(parts).items()),
        )
        yield _counter(
            "preemptions",
            "Finished claims on GPUs in use, by source and outcome.",
            "source outcome",
            [(key, over[key]) for key in product(SOURCES, OUTCOMES)],
        )

    def _messages_and_samples(self) -> Iterator[Metric]:
        samples, sent = self._parts.sampler.counts, self._parts.notifier.counts
        yield _counter(
            "samples", "Samples, by their result.", "result", [((x.value,), samples[x.value]) for x in SampleKind]
        )
        yield _counter("notifications", "Messages, by their result.", "result", [((x,), sent[x]) for x in RESULTS])
        yield _value("notifications_waiting", "Messages that wait in the store.", self._parts.notifier.waiting)

    def _health(self) -> Iterator[Metric]:
        parts, now, fleet = self._parts, self._parts.clock.now(), self._parts.scheduler.fleet
        yield _value(
            "catalog_reload_success",
            "1 if the catalog in force is the one in its file, else 0.",
            0 if parts.in_force.problem else 1,
        )
        yield _value("hub_reachable", "1 if the hub answers, else 0.", int(parts.allocator.observed.hub_answers))
        yield _value("store_writable", "1 if the database takes writes, else 0.", 0 if parts.store.trouble else 1)
        sampled = [x.sampled_at or x.running_at or x.phase_since for x in parts.registry if x.phase in UP and x.slots]
        if sampled:
            yield _value(
                "sample_age_seconds",
                "Time since the last sample of the workspace that was sampled longest ago.",
                now - min(sampled),
            )
        if fleet.complete:
            age = [((parts.settings.cluster,), now - fleet.observed_at)]
            yield _gauge("fleet_age_seconds", "Age of the list of GPUs.", "cluster", age)

    def _failures(self) -> Iterator[Metric]:
        registry, errors = self._parts.registry, self._parts.allocator.syncs.errors
        yield _counter(
            "warnings",
            "Finished warnings, by reason and outcome.",
            "reason outcome",
            [(key, registry.warnings[key]) for key in product(CARRIED_OUT, OUTCOMES_OF_WARNINGS)],
        )
        yield _counter(
            "lease_mismatches",
            "Differences between leases and what runs.",
            "found",
            [((found,), registry.mismatches[found]) for found in MISMATCHES],
        )
        yield _counter(
            "step_failures",
            "Steps of the service that failed by a defect of its own.",
            "step",
            [((step,), count) for step, count in sorted(registry.failures.counts.items())],
        )
        adapter = self._parts.scheduler.capabilities.name
        rows = [((adapter, why), errors[why]) for why in ERRORS]
        yield _counter("scheduler_errors", "Failures of the scheduler.", "adapter reason", rows)


class PerUserCollector(Collector):
    """Collects metrics by user and workspace. They have an address of their own: they name people, and are many."""

    def __init__(self, parts: Parts) -> None:
        """Collect from ``parts``."""
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        parts = self._parts
        held = [lease for lease in parts.registry if lease.phase in HOLDING]
        up = [lease for lease in held if lease.phase in UP]
        yield _gauge(
            "workspace_gpus",
            "GPUs of a workspace, as shares of whole GPUs.",
            "user workspace team kind",
            [((*_name(x), x.request.team or NO_TEAM, x.kind or NO_KIND), _shares(x)) for x in held],
        )
        yield _gauge(
            "workspace_idle_seconds",
            "The idle time of a workspace.",
            "user workspace",
            [(_name(x), x.streak.idle_seconds) for x in up],
        )
        read = [((*_name(x), row.gpu), row) for x in up for row in parts.sampler.newest(x.id).values()]
        yield _gauge(
            "workspace_gpu_utilization_percent",
            "The utilization of a GPU in its newest sample.",
            "user workspace gpu",
            [(labels, row.utilization_percent) for labels, row in read if row.utilization_percent is not None],
        )
        yield _gauge(
            "workspace_gpu_memory_used_bytes",
            "Memory of a GPU in use, as the newest sample read it.",
            "user workspace gpu",
            [(labels, row.memory_used_bytes) for labels, row in read if row.memory_used_bytes is not None],
        )
        seconds = sorted(parts.allocator.accounting.user_gpu_seconds.items())
        yield _counter(
            "user_gpu_seconds",
            "Time of GPUs that were allocated to a user, by kind and state: active, idle or not measured.",
            "user kind state",
            [((user, kind or NO_KIND, state), value) for (user, kind, state), value in seconds],
        )
        dropped = [((metric,), count) for metric, count in sorted(parts.counters.dropped.items())]
        yield _counter(
            DROPPED.removeprefix("gpuspawner_"),
            "Series that were left out, since there were too many.",
            "metric",
            dropped,
        )


def capped(families: Iterable[Metric], dropped: Counter[str]) -> Iterator[Metric]:
    """Yield metrics with at most MAX_SERIES series each. Count in ``dropped`` the series that are left out."""
    for one in families:
        if len(one.samples) > MAX_SERIES and one.name != DROPPED:
            dropped[one.name] += len(one.samples) - MAX_SERIES
            one.samples = sorted(one.samples, key=lambda sample: -sample.value)[:MAX_SERIES]
        yield one


def _name(lease: Lease) -> tuple[str, str]:
    return lease.user, lease.key.server or DEFAULT


def _shares(lease: Lease) -> float:
    return float(sum(slot.share for slot in lease.slots))
