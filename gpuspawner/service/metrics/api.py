"""The addresses that Prometheus scrapes, and the step that stores the counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from tornado.web import HTTPError

from gpuspawner.core.authentication import proofs_match
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.metrics.collector import PerUserCollector, ServiceCollector, capped
from gpuspawner.service.parts import Parts
from gpuspawner.service.web.permissions import SCOPES, Role

READ_METRICS, ADMIN = "read:metrics", SCOPES[Role.ADMINISTRATOR]
"""The scope by which JupyterHub protects its own metrics: one scrape configuration serves both."""


async def store_counters(parts: Parts) -> None:
    """Store the counters of all metrics.

    Raises:
        Unavailable: the store does not answer. The counters do not change until it does.
    """
    await parts.counters.save([*ServiceCollector(parts).collect(), *PerUserCollector(parts).collect()])


class _FixedCollector(Collector):
    """Metrics that were collected before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        yield from self._families


class Metrics(ApiHandler):
    """GET: the metrics, for a hub token with the scope read:metrics or custom:gpu:admin, or for the chart's token."""

    async def prepare(self) -> None:
        """Raise 403 without one of the scopes or the token for Prometheus."""
        scheme, credential = self._authorization()
        own = self.parts.metrics_token
        if own and scheme == "bearer" and proofs_match(credential, own):
            return
        await self.find_person()
        if not self.hub_model or not self.hub_auth.check_scopes({READ_METRICS, ADMIN}, self.hub_model):
            raise HTTPError(403, reason=f"Send a hub token with the scope {READ_METRICS} or {ADMIN}.")

    def get(self) -> None:
        """Answer in the text format of Prometheus."""
        registry = CollectorRegistry()
        self.collect(registry)
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest(registry))

    def collect(self, registry: CollectorRegistry) -> None:
        """Register the metrics of this address."""
        registry.register(_FixedCollector(self.parts.counters.as_stored(ServiceCollector(self.parts).collect())))
        ProcessCollector(registry=registry)


class PerUserMetrics(Metrics):
    """GET: the metrics by user and workspace, with the same rights."""

    def collect(self, registry: CollectorRegistry) -> None:
        """Register the metrics of this address."""
        counters = self.parts.counters
        registry.register(
            _FixedCollector(capped(counters.as_stored(PerUserCollector(self.parts).collect()), counters.dropped))
        )


ROUTES: list[Any] = [(r"/metrics", Metrics), (r"/metrics/people", PerUserMetrics)]
