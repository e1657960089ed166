"""Feasibility: could a request start if all GPUs were free? GPUs that were seen within a day count.

A shortage means to wait: labels vanish for a moment, and nodes take time to join. A request that could never start is
refused. A request that waits already is told, and keeps its place for a day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.fleet import Fleet
from gpuspawner.core.gpus.placement import largest_fit
from gpuspawner.core.gpus.topology import requires_domain
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.leases.steps import note_feasibility
from gpuspawner.schedulers.base import Offer, Scheduler
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.commits import LeaseCommits
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.failures import step_each

REMEMBERED_SECONDS = 86400.0
"""A kind that was there within this is waited for."""
KEPT_SECONDS = 86400.0
"""A request that cannot start as things are keeps its place for this."""
NOTED_SECONDS = 600.0
"""How often the store notes that a kind is there. Arbitrary: far less than a day."""


class Feasibility:
    """Knows the most of each kind that one workspace could have, and when that was last so, across restarts."""

    def __init__(
        self,
        registry: LeaseRegistry,
        scheduler: Scheduler,
        in_force: InForce,
        clock: Clock,
        commits: LeaseCommits,
    ) -> None:
        """Know nothing before :meth:`load`. ``commits`` writes steps of leases."""
        self._commits = commits
        self._registry, self._scheduler, self._in_force, self._clock = registry, scheduler, in_force, clock
        self._seen: dict[str, tuple[int, float]] = {}
        """By kind: how many GPUs one workspace could have, and when."""
        self._fleet: Fleet | None = None

    async def load(self) -> None:
        """Remember what the store says."""
        self._seen = await self._registry.store.read(self._registry.store.kinds_seen.all)

    def check(self, request: Request, offers: Iterable[Offer]) -> None:
        """Raise RequestRefused if neither the backend's limits nor its GPUs of the last day allow the request."""
        self._scheduler.check(request)
        self._check_topology(request)
        offer = next((offer for offer in offers if offer.kind == request.gpu), None)
        if offer is None or offer.largest is None or request.count <= offer.largest:
            return
        if request.count <= self._most_seen(offer.kind):
            return  # it waits
        title = gpu_title(offer.kind, self._in_force.catalog, simulated=offer.simulated)
        limit, remedy = f"at most {offer.largest} {title} in one workspace", "Ask for fewer, or for another GPU."
        if not offer.largest:
            limit = f"no {title} is there now"
            remedy = "Ask for another GPU, or an administrator: the service's page tells them which GPUs it sees."
        raise RequestRefused("count", str(request.count), limit, remedy, status=403)

    def _check_topology(self, request: Request) -> None:
        catalog, fleet = self._in_force.catalog, self._scheduler.fleet
        kind = catalog.gpus.get(request.gpu or "")
        if kind is None or not fleet.complete or not requires_domain(request, kind):
            return
        most, title = largest_fit(kind, fleet, one_domain=True), gpu_title(kind.name, catalog)
        if request.count <= most:
            return
        limit = f"at most {most} {title} in one NVLink or NUMA domain"
        remedy = "Ask for fewer, or for another template."
        if not most:
            limit = f"no NVLink or NUMA domain of {title} is known"
            remedy = "Ask for one GPU, for another template, or an administrator."
        raise RequestRefused("count", str(request.count), limit, remedy, status=403)

    async def look(self, offers: Iterable[Offer]) -> None:
        """Take a new view of the GPUs in: note which kinds are there, and tell who waits for what can't be had now."""
        if self._scheduler.fleet is self._fleet:
            return
        self._fleet = self._scheduler.fleet
        offers = tuple(offers)
        await self._note(offers)
        waiting = [lease for lease in self._registry if lease.phase in WAITING]
        step = "looking whether it could start"
        away = await step_each(step, waiting, lambda lease: self._judge(lease, offers), self._registry.failures)
        if away is not None:
            raise away

    def _most_seen(self, kind: str) -> int:
        most, at = self._seen.get(kind, (0, 0.0))
        return most if self._clock.now() - at <= REMEMBERED_SECONDS else 0

    async def _note(self, offers: Iterable[Offer]) -> None:
        now, seen = self._clock.now(), self._seen
        new = {offer.kind: (offer.largest, now) for offer in offers if offer.largest}
        due = {kind: found for kind, found in new.items() if self._is_news(found[0], seen.get(kind), now)}
        if due:
            await self._registry.store.write(self._registry.store.kinds_seen.save, due)
            seen.update(due)

    @staticmethod
    def _is_news(largest: int, noted: tuple[int, float] | None, now: float) -> bool:
        """Return whether to store the number of GPUs: it rose, its note is old, or the old number has expired."""
        if noted is None or largest > noted[0]:
            return True
        return now - noted[1] > (NOTED_SECONDS if largest == noted[0] else REMEMBERED_SECONDS)

    def _judge(self, lease: Lease, offers: Iterable[Offer]) -> asyncio.Future[None] | None:
        try:
            self.check(lease.request, offers)
            why = ""
        except RequestRefused as error:
            why = str(error)
        found = note_feasibility(lease, why, KEPT_SECONDS, self._clock.now())
        return None if found is None else self._commits.commit(lease, found)
