"""The metrics of the whole service, from the same state that pages and API show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuspawner import __version__
from gpuspawner.core.idle.verdicts import SampleKind
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import UP, WAITING, Phase
from gpuspawner.core.leases.lifetimes import CARRIED_OUT
from gpuspawner.core.leases.lifetimes import OUTCOMES as OUTCOMES_OF_WARNINGS
from gpuspawner.core.queue.preemption import PreemptionState
from gpuspawner.service.engine.allocation.scheduler_sync import ERRORS
from gpuspawner.service.engine.registry import MISMATCHES
from gpuspawner.service.engine.sampling.gpu_states import NO_KIND, STATES, gpu_states
from gpuspawner.service.notifications.sender import RESULTS
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.snapshot import used_ratios
from gpuspawner.version import commit

SOURCES = ("claim", "make_room")
OUTCOMES = (PreemptionState.CLAIMED, PreemptionState.GIVEN_UP, PreemptionState.LAPSED)
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
        over = CounterMetricFamily(
            "gpuspawner_preemptions",
            "Finished claims on GPUs in use, by source and outcome.",
            labels=["source", "outcome"],
        )
        for source in SOURCES:
            for outcome in OUTCOMES:
                over.add_metric([source, outcome.value], self._parts.preemptions.outcomes[source, outcome.value])
        yield over
        yield from self._parts.registry.start_times.collect()
        yield from self._parts.allocator.estimate_records.collect()
        samples = CounterMetricFamily("gpuspawner_samples", "Samples, by their result.", labels=["result"])
        for kind in SampleKind:
            samples.add_metric([kind.value], self._parts.sampler.counts[kind.value])
        yield samples
        told = CounterMetricFamily("gpuspawner_notifications", "Messages, by their result.", labels=["result"])
        for result in RESULTS:
            told.add_metric([result], self._parts.notifier.counts[result])
        yield told
        yield GaugeMetricFamily(
            "gpuspawner_notifications_waiting",
            "Messages that wait in the store.",
            value=self._parts.notifier.waiting,
        )
        build = GaugeMetricFamily(
            "gpuspawner_build_info", "1, with the version of the service.", labels=["version", "commit"]
        )
        build.add_metric([__version__, commit()], 1)
        yield build
        yield GaugeMetricFamily(
            "gpuspawner_catalog_reload_success",
            "1 if the catalog in force is the one in its file, else 0.",
            value=0 if self._parts.in_force.problem else 1,
        )
        yield GaugeMetricFamily(
            "gpuspawner_hub_reachable",
            "1 if the hub answers, else 0.",
            value=1 if self._parts.allocator.observed.hub_answers else 0,
        )
        yield GaugeMetricFamily(
            "gpuspawner_store_writable",
            "1 if the database takes writes, else 0.",
            value=0 if self._parts.store.trouble else 1,
        )
        yield from self._ages()
        yield from self._failures()

    def _failures(self) -> Iterator[Metric]:
        registry, syncs = self._parts.registry, self._parts.allocator.syncs
        came = CounterMetricFamily(
            "gpuspawner_warnings", "Finished warnings, by reason and outcome.", labels=["reason", "outcome"]
        )
        for reason, outcome in product(CARRIED_OUT, OUTCOMES_OF_WARNINGS):
            came.add_metric([reason, outcome], registry.warnings[reason, outcome])
        yield came
        wrong = CounterMetricFamily(
            "gpuspawner_lease_mismatches", "Differences between leases and what runs.", labels=["found"]
        )
        for found in MISMATCHES:
            wrong.add_metric([found], registry.mismatches[found])
        yield wrong
        failed = CounterMetricFamily(
            "gpuspawner_step_failures", "Steps of the service that failed by a defect of its own.", labels=["step"]
        )
        for step, count in sorted(registry.failures.counts.items()):
            failed.add_metric([step], count)
        yield failed
        errors = CounterMetricFamily(
            "gpuspawner_scheduler_errors", "Failures of the scheduler.", labels=["adapter", "reason"]
        )
        for why in ERRORS:
            errors.add_metric([self._parts.scheduler.capabilities.name, why], syncs.errors[why])
        yield errors

    def _rules(self) -> Iterator[Metric]:
        parts = self._parts
        ends = CounterMetricFamily(
            "gpuspawner_ends",
            "Workspaces that ended, by reason and team.",
            labels=["reason", "team"],
        )
        teams = sorted({"", *parts.catalog.rules.teams, *(team for _, team in parts.registry.ends)})
        for reason, team in product(ExitReason, teams):
            ends.add_metric([reason.value, team or NO_TEAM], parts.registry.ends[reason, team])
        yield ends
        seconds = CounterMetricFamily(
            "gpuspawner_lease_gpu_seconds",
            "Allocated time of GPUs, by team, kind and state: active, idle or not measured.",
            labels=["team", "kind", "state"],
        )
        for (team, kind, state), value in sorted(parts.allocator.accounting.gpu_seconds.items()):
            seconds.add_metric([team or NO_TEAM, kind or NO_KIND, state], value)
        yield seconds
        given = CounterMetricFamily(
            "gpuspawner_substitutions",
            "GPUs of another kind, given with consent.",
            labels=["asked", "given"],
        )
        for names, count in sorted(parts.allocator.granting.substitutions.items()):
            given.add_metric(names, count)
        yield given
        ratios = GaugeMetricFamily(
            "gpuspawner_quota_used_ratio",
            "The used part of a quota, from 0 to 1. For a quota of each user, of the user with most.",
            labels=["quota", "limit"],
        )
        for key, ratio in sorted(used_ratios(parts).items()):
            ratios.add_metric(key, ratio)
        yield ratios

    def _gpus(self) -> Iterator[Metric]:
        gpus = GaugeMetricFamily("gpuspawner_gpus", "GPUs by kind and state.", labels=["cluster", "kind", "state"])
        counted = gpu_states(self._parts)
        for kind in sorted({kind for kind, _ in counted}):
            for state in STATES:
                gpus.add_metric([self._parts.settings.cluster, kind, state], counted[kind, state])
        yield gpus
        yield from self._gpu_health()

    def _gpu_health(self) -> Iterator[Metric]:
        """Yield what the driver reports about each GPU. An unknown value has no series."""
        readings, cluster = self._parts.gpu_health.readings(), self._parts.settings.cluster
        for name, words, field in HEALTH_METRICS:
            told = GaugeMetricFamily(f"gpuspawner_gpu_{name}", words, labels=["cluster", "node", "gpu"])
            for one in readings:
                if (value := getattr(one.health, field)) is not None:
                    told.add_metric([cluster, one.node, str(one.index)], value)
            yield told

    def _leases(self) -> Iterator[Metric]:
        live = list(self._parts.registry)
        counted = Counter((lease.phase, lease.kind or NO_KIND, lease.request.team) for lease in live)
        kinds = sorted({*self._parts.catalog.gpus, NO_KIND, *(kind for _, kind, _ in counted)})
        teams = sorted({"", *self._parts.catalog.rules.teams, *(team for _, _, team in counted)})
        leases = GaugeMetricFamily(
            "gpuspawner_leases",
            "Workspaces and waiting requests by phase, kind and team.",
            labels=["phase", "kind", "team"],
        )
        queue = GaugeMetricFamily("gpuspawner_queue_length", "Waiting requests, by kind.", labels=["kind"])
        for kind in kinds:
            for phase, team in product(Phase, teams):
                if phase is not Phase.ENDED:
                    leases.add_metric([phase.value, kind, team or NO_TEAM], counted[phase, kind, team])
            queue.add_metric([kind], sum(counted[phase, kind, team] for phase in WAITING for team in teams))
        yield leases
        yield queue

    def _ages(self) -> Iterator[Metric]:
        now = self._parts.clock.now()
        sampled = [
            x.sampled_at or x.running_at or x.phase_since for x in self._parts.registry if x.phase in UP and x.slots
        ]
        if sampled:
            yield GaugeMetricFamily(
                "gpuspawner_sample_age_seconds",
                "Time since the last sample of the workspace that was sampled longest ago.",
                value=now - min(sampled),
            )
        if self._parts.scheduler.fleet.complete:
            age = GaugeMetricFamily("gpuspawner_fleet_age_seconds", "Age of the list of GPUs.", labels=["cluster"])
            age.add_metric([self._parts.settings.cluster], now - self._parts.scheduler.fleet.observed_at)
            yield age
