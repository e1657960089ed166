"""Counters and histograms that go on where the service before ended.

What is told is what is stored: a service that ends without a word takes nothing back that was told, which a reader of
counters would take for a beginning at 0. So they are some seconds old, and stand still while the store takes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric

from gpuspawner.service.clock import Clock
from gpuspawner.service.store import Store
from gpuspawner.service.store.statistics import Series

COUNTED = ("counter", "histogram")
SUFFIXES = ("_total", "_bucket", "_sum", "_count")


class Counted:
    """What this service counts, added to what those before it had counted."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Know of no service before."""
        self._store, self._clock = store, clock
        self._before: dict[Series, float] = {}
        self._told: dict[Series, float] = {}
        self.dropped: Counter[str] = Counter()
        """How many series were left out of answers, by metric, since this service started."""

    async def load(self) -> None:
        """Read what services before had counted."""
        self._before = await self._store.read(self._store.counters.all)
        self._told = dict(self._before)

    async def keep(self, families: Iterable[Metric]) -> None:
        """Store what has been counted so far, and tell it from then on.

        Raises:
            Unavailable: what was told before is told on.
        """
        counted = (sample for one in families if one.type in COUNTED for sample in one.samples)
        now = {
            series: self._before.get(series, 0.0) + sample.value
            for sample in counted
            if (series := (sample.name, tuple(sorted(sample.labels.items())))) and sample.name.endswith(SUFFIXES)
        }
        new = {series: value for series, value in now.items() if self._told.get(series) != value}
        if new:
            await self._store.write(self._store.counters.save, new, self._clock.now())
            self._told |= new

    def told(self, families: Iterable[Metric]) -> Iterator[Metric]:
        """Yield metrics, of those that count what is stored."""
        for one in families:
            yield self._as_stored(one) if one.type in COUNTED else one

    def _as_stored(self, live: Metric) -> Metric:
        names = {f"{live.name}{suffix}" for suffix in SUFFIXES}
        series = {(sample.name, tuple(sorted(sample.labels.items()))): 0.0 for sample in live.samples}
        series |= {key: value for key, value in self._told.items() if key[0] in names}
        told = Metric(live.name, live.documentation, live.type)
        for (name, labels), value in series.items():
            if name in names:
                told.add_sample(name, dict(labels), value)
        return told
