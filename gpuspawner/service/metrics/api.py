"""Where Prometheus reads metrics, and how counters are kept for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from tornado.web import HTTPError

from gpuspawner.core.authentication import proofs_match
from gpuspawner.service.api.base import ADMIN, ApiHandler
from gpuspawner.service.metrics.collector import ServiceCollector
from gpuspawner.service.metrics.per_user import PeopleCollector, capped
from gpuspawner.service.parts import Parts

READ_METRICS = "read:metrics"
"""The scope by which JupyterHub protects its own metrics: one scrape configuration serves both."""


async def keep(parts: Parts) -> None:
    """Store what all metrics have counted so far.

    Raises:
        Unavailable: the store does not answer; they stand still until it does.
    """
    await parts.counted.keep([*ServiceCollector(parts).collect(), *PeopleCollector(parts).collect()])


class _Told(Collector):
    """What was collected already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        yield from self._families


class Metrics(ApiHandler):
    """GET: the metrics, for a hub token with the scope read:metrics or custom:gpu:admin, or for the chart's token."""

    async def prepare(self) -> None:
        """Refuse whoever has neither scope nor the token that was made for Prometheus."""
        scheme, credential = self._authorization()
        own = self.parts.metrics_token
        if own and scheme == "bearer" and proofs_match(credential, own):
            return
        await self.find_person()
        if not self.hub_model or not self.hub_auth.check_scopes({READ_METRICS, ADMIN}, self.hub_model):
            raise HTTPError(403, reason=f"Send a hub token with the scope {READ_METRICS} or {ADMIN}.")

    def get(self) -> None:
        """Answer in Prometheus' text format."""
        registry = CollectorRegistry()
        self.collect(registry)
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest(registry))

    def collect(self, registry: CollectorRegistry) -> None:
        """Register what is told here."""
        registry.register(_Told(self.parts.counted.told(ServiceCollector(self.parts).collect())))
        ProcessCollector(registry=registry)


class MetricsOfPeople(Metrics):
    """GET: the metrics by user and workspace, for the same."""

    def collect(self, registry: CollectorRegistry) -> None:
        """Register what is told here."""
        counted = self.parts.counted
        registry.register(_Told(capped(counted.told(PeopleCollector(self.parts).collect()), counted.dropped)))


ROUTES: list[Any] = [(r"/metrics", Metrics), (r"/metrics/people", MetricsOfPeople)]
