"""Counters and histograms that continue after a restart of the service.

The answer has the stored values. A service that ends suddenly would otherwise answer with lower values after its
restart, and Prometheus would take that for a reset. So values are some seconds old, and do not change while the store
does not answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import Histogram
from prometheus_client.core import Metric

from gpuspawner.core.leases.lease import Lease, Phase
from gpuspawner.service.clock import Clock
from gpuspawner.service.store import Store
from gpuspawner.service.store.history import Series

COUNTED = ("counter", "histogram")
SUFFIXES = ("_total", "_bucket", "_sum", "_count")


class StoredCounters:
    """The counters of this service, added to the stored values of earlier ones."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Start at 0. :meth:`load` reads the stored values."""
        self._store, self._clock = store, clock
        self._before: dict[Series, float] = {}
        self._stored: dict[Series, float] = {}
        self.dropped: Counter[str] = Counter()
        """The number of series that were left out of answers, by metric, since this service started."""

    async def load(self) -> None:
        """Read the stored values of earlier services."""
        self._before = await self._store.read(self._store.counters.all)
        self._stored = dict(self._before)

    def forget(self, user: str) -> None:
        """Leave out the series of a user from now on. Their stored values are deleted by the caller."""
        for known in (self._before, self._stored):
            for series in [one for one in known if ("user", user) in one[1]]:
                del known[series]

    async def save(self, families: Iterable[Metric]) -> None:
        """Store the present values. Answers have them from then on.

        Raises:
            Unavailable: the store does not answer. Answers keep the values from before.
        """
        counted = (sample for one in families if one.type in COUNTED for sample in one.samples)
        now = {
            series: self._before.get(series, 0.0) + sample.value
            for sample in counted
            if (series := (sample.name, tuple(sorted(sample.labels.items())))) and sample.name.endswith(SUFFIXES)
        }
        new = {series: value for series, value in now.items() if self._stored.get(series) != value}
        if new:
            await self._store.write(self._store.counters.save, new, self._clock.now())
            self._stored |= new

    def as_stored(self, families: Iterable[Metric]) -> Iterator[Metric]:
        """Yield metrics. Counters and histograms have their stored values."""
        for one in families:
            yield self._as_stored(one) if one.type in COUNTED else one

    def _as_stored(self, live: Metric) -> Metric:
        names = {f"{live.name}{suffix}" for suffix in SUFFIXES}
        series = {(sample.name, tuple(sorted(sample.labels.items()))): 0.0 for sample in live.samples}
        series |= {key: value for key, value in self._stored.items() if key[0] in names}
        stored = Metric(live.name, live.documentation, live.type)
        for (name, labels), value in series.items():
            if name in names:
                stored.add_sample(name, dict(labels), value)
        return stored


START_BOUNDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
"""Seconds. A start should take 30 s. It may take ten minutes if a node is added first."""
WAIT_BOUNDS = (1, 10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600)


class StartTimes:
    """Measures starts and waits from every change of a lease."""

    def __init__(self) -> None:
        """Start without measurements."""
        self._starts = Histogram(
            "gpuspawner_start_seconds",
            "From the grant to a workspace that answers.",
            buckets=START_BOUNDS,
            registry=None,
        )
        self._waits = Histogram(
            "gpuspawner_queue_wait_seconds",
            "From Start to the first grant, of workspaces that were started.",
            buckets=WAIT_BOUNDS,
            registry=None,
        )

    def note(self, before: Lease | None, after: Lease) -> None:
        """Count a finished start. Adopted workspaces did not wait here."""
        started = before is not None and before.phase is Phase.STARTING and after.phase is Phase.RUNNING
        if not started or after.adopted or after.granted_at is None or after.running_at is None:
            return
        self._starts.observe(max(0.0, after.running_at - after.granted_at))
        if after.first_granted_at is not None:  # unknown for rebuilt leases
            self._waits.observe(max(0.0, after.first_granted_at - after.asked_at))

    def collect(self) -> Iterator[Metric]:
        """Yield both histograms."""
        yield from self._starts.collect()
        yield from self._waits.collect()
