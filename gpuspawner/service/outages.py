"""The outages of the parts around the service, and which requests they hold up."""

from __future__ import annotations

from collections.abc import Iterator

from gpuspawner.core.outages import Outage
from gpuspawner.schedulers.base import Scheduler
from gpuspawner.service.engine.allocation.observed_state import ObservedState
from gpuspawner.service.engine.allocation.scheduler_sync import SchedulerSync
from gpuspawner.service.store import Store


class Outages:
    """Reads the outages from the parts that notice them: database, clusters, scheduler and hub."""

    def __init__(self, store: Store, scheduler: Scheduler, observed: ObservedState, syncs: SchedulerSync) -> None:
        """Take the parts. Their outages are read at each call."""
        self._store, self._scheduler, self._observed, self._syncs = store, scheduler, observed, syncs

    def of_kind(self, gpu: str | None) -> Outage | None:
        """Return the outage that holds up a request for this kind of GPU now. ``gpu`` is None without a GPU.

        The first of database, cluster, scheduler and hub: each needs those before it.
        """
        cluster = self._scheduler.fleet.outage_of_kind(self._scheduler.kinds.get(gpu or ""))
        found = (self._store.outage, cluster, self._syncs.outage, self._observed.hub_outage)
        return next((outage for outage in found if outage is not None), None)

    def under_way(self) -> Iterator[Outage]:
        """Yield each outage."""
        fleet = self._scheduler.fleet
        found = (self._store.outage, self._observed.hub_outage, self._syncs.outage, fleet.outage)
        yield from (outage for outage in found if outage is not None)
        if fleet.outage is None:
            yield from fleet.outages.values()
