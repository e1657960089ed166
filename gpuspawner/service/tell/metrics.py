"""Prometheus metrics, counted at each scrape from the same state that pages and API show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from tornado.web import HTTPError

from gpuspawner.core.idle.evidence import SampleKind
from gpuspawner.core.leases.endings import Reason
from gpuspawner.core.leases.lease import UP, WAITING, Phase
from gpuspawner.core.queue.preemption import State
from gpuspawner.service.api.base import ADMIN, ApiHandler
from gpuspawner.service.observe.gpu_states import NO_KIND, STATES, gpu_states
from gpuspawner.service.parts import Parts
from gpuspawner.service.tell.notifier import RESULTS

SOURCES = ("claim", "make_room")
OUTCOMES = (State.CLAIMED, State.GIVEN_UP, State.LAPSED)
READ_METRICS = "read:metrics"
"""The scope by which JupyterHub protects its own metrics: one scrape configuration serves both."""


class ServiceCollector(Collector):
    """Reads the parts anew each time. What is unknown has no series: never a 0 for it."""

    def __init__(self, parts: Parts) -> None:
        """Collect from ``parts``."""
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, from memory: also while the store does not answer."""
        yield from self._gpus()
        yield from self._leases()
        ends = CounterMetricFamily(
            "gpuspawner_ends", "Workspaces that ended since the service started, by reason.", labels=["reason"]
        )
        for reason in Reason:
            ends.add_metric([reason.value], self._parts.book.ends[reason])
        yield ends
        over = CounterMetricFamily(
            "gpuspawner_preemptions",
            "Stronger claims that are over, since the service started, by source and outcome.",
            labels=["source", "outcome"],
        )
        for source in SOURCES:
            for outcome in OUTCOMES:
                over.add_metric([source, outcome.value], self._parts.preemptions.outcomes[source, outcome.value])
        yield over
        yield from self._parts.book.start_times.collect()
        yield from self._parts.allocator.foretold.collect()
        samples = CounterMetricFamily(
            "gpuspawner_samples", "Samples since the service started, by what they proved.", labels=["result"]
        )
        for kind in SampleKind:
            samples.add_metric([kind.value], self._parts.sampler.counts[kind.value])
        yield samples
        told = CounterMetricFamily(
            "gpuspawner_notifications", "Messages since the service started, by what came of them.", labels=["result"]
        )
        for result in RESULTS:
            told.add_metric([result], self._parts.notifier.counts[result])
        yield told
        yield GaugeMetricFamily(
            "gpuspawner_catalog_reload_success",
            "1 while the catalog in force is as its file says, 0 while what was written there cannot be used.",
            value=0 if self._parts.in_force.problem else 1,
        )
        yield GaugeMetricFamily(
            "gpuspawner_hub_reachable",
            "1 while the hub answers, 0 while it does not: who waits then goes on waiting.",
            value=1 if self._parts.allocator.observed.hub_answers else 0,
        )
        yield GaugeMetricFamily(
            "gpuspawner_store_writable",
            "1 while the database takes what is written, 0 while it does not: nothing is granted then.",
            value=0 if self._parts.store.trouble else 1,
        )
        yield from self._ages()

    def _gpus(self) -> Iterator[Metric]:
        gpus = GaugeMetricFamily("gpuspawner_gpus", "GPUs by kind and state.", labels=["kind", "state"])
        counted = gpu_states(self._parts)
        for kind in sorted({kind for kind, _ in counted}):
            for state in STATES:
                gpus.add_metric([kind, state], counted[kind, state])
        yield gpus

    def _leases(self) -> Iterator[Metric]:
        live = list(self._parts.book)
        counted = Counter((lease.phase, lease.kind or NO_KIND) for lease in live)
        kinds = sorted({*self._parts.catalog.gpus, NO_KIND, *(kind for _, kind in counted)})
        leases = GaugeMetricFamily("gpuspawner_leases", "Live leases by phase and kind.", labels=["phase", "kind"])
        queue = GaugeMetricFamily("gpuspawner_queue_length", "Workspaces that wait, by kind.", labels=["kind"])
        for kind in kinds:
            for phase in Phase:
                if phase is not Phase.ENDED:
                    leases.add_metric([phase.value, kind], counted[phase, kind])
            queue.add_metric([kind], sum(counted[phase, kind] for phase in WAITING))
        yield leases
        yield queue

    def _ages(self) -> Iterator[Metric]:
        now = self._parts.clock.now()
        sampled = [x.sampled_at or x.running_at or x.phase_since for x in self._parts.book if x.phase in UP and x.slots]
        if sampled:
            yield GaugeMetricFamily(
                "gpuspawner_sample_age_seconds",
                "Age of the newest sample of the workspace that was sampled longest ago.",
                value=now - min(sampled),
            )
        if self._parts.scheduler.fleet.complete:
            yield GaugeMetricFamily(
                "gpuspawner_fleet_age_seconds",
                "Age of the view of the GPUs.",
                value=now - self._parts.scheduler.fleet.observed_at,
            )


class Metrics(ApiHandler):
    """GET: the metrics, for a hub token with the scope read:metrics or custom:gpu:admin."""

    async def prepare(self) -> None:
        """Refuse whoever has neither scope."""
        await self.find_person()
        if not self.hub_model or not self.hub_auth.check_scopes({READ_METRICS, ADMIN}, self.hub_model):
            raise HTTPError(403, reason=f"Send a hub token with the scope {READ_METRICS} or {ADMIN}.")

    def get(self) -> None:
        """Answer in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(ServiceCollector(self.parts))
        ProcessCollector(registry=registry)
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest(registry))


ROUTES: list[Any] = [(r"/metrics", Metrics)]
