"""Several clusters, some of which have a scheduler that owns their queue: ours is the queue of all others.

Each lease is told to exactly one of them, by the cluster of the kind that it asks for; what takes no GPU is ours. The
schedulers of clusters are asked side by side, and waited for a moment: one that is away stops no grant elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet, GpuKind, Kinds
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.schedulers.base import Answer, Capabilities, PassingOn, Preview, Scheduler
from gpuspawner.schedulers.clusters import Asked


class ByClusterScheduler(PassingOn):
    """Gives each scheduler its part of what is claimed, and joins their answers; ``mine`` sees the GPUs of all."""

    def __init__(self, mine: Scheduler, home: str, others: Mapping[str, Asked]) -> None:
        """Ask nothing yet. ``others`` are those of clusters, by the catalog's names; ``home`` is the hub's own."""
        super().__init__(mine)
        self._home, self._others = home, others
        self._parts: tuple[Fleet, Kinds, dict[str, tuple[Fleet, Kinds]]] | None = None
        self._of: tuple[Any, ...] = ()
        """What the last answer was made of, but for the time and the GPUs, of which others tell."""
        self._changed_at = 0.0

    @property
    def capabilities(self) -> Capabilities:
        """What all of them can. What is asked for is granted once they were asked, and not at once."""
        found = [self._mine.capabilities, *(one.scheduler.capabilities for one in self._others.values())]
        return Capabilities(
            name="clusters",
            tells_positions=all(one.tells_positions for one in found),
            substitutes=all(one.substitutes for one in found),
            answers_at_once=False,
            keeps_from_all=all(one.keeps_from_all for one in found),
        )

    def capabilities_of(self, kind: str | None) -> Capabilities:
        """Return what the one can whose kind it is."""
        cluster = self._of_kind(self.kinds.get(kind or ""))
        return (self._others[cluster].scheduler if cluster else self._mine).capabilities_of(kind)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Why the GPUs are not seen, and which clusters' schedulers do not answer."""
        return (*super().unseen, *chain.from_iterable(one.unseen for one in self._others.values()))

    def listen(self, told: Callable[[], None]) -> None:
        """Have ``told`` called whenever what stands in one of the clusters may have changed."""
        for one in self._others.values():
            one.listen(told)

    async def close(self) -> None:
        """Ask no more."""
        await asyncio.gather(*(one.close() for one in self._others.values()))

    async def observe(self, now: float) -> Fleet:
        """Look at the GPUs of all clusters, once."""
        fleet = await self._mine.observe(now)
        for one in self._others.values():
            await one.scheduler.observe(now)
        return fleet

    async def sync(self, seen: Snapshot) -> Answer:
        """Give each its part, and return what stands in all. What takes longer than a moment counts later."""
        asked = (one.standing(self.part(seen, cluster)) for cluster, one in self._others.items())
        theirs = await asyncio.gather(*asked)
        ours = await self._mine.sync(self.part(seen, ""))
        answers = (ours, *theirs)
        of = (seen.leases, seen.hub_answers, *(one.heard for one in self._others.values()))
        if of != self._of:
            self._of, self._changed_at = of, seen.now
        return Answer(
            ours.as_of,
            lambda: [grant for one in answers for grant in one.grants()],
            lambda: {name: place for one in answers for name, place in one.places().items()},
            lambda: {name: held for one in answers for name, held in one.held_back().items()},
            tuple(chain.from_iterable(one.refused for one in answers)),
            ours.reservations,
            tuple(chain.from_iterable(one.preempted for one in answers)),
            self._changed_at,
        )

    async def offers(self, seen: Snapshot, claim: Claim) -> Preview:
        """Ask the one whose kind it is. Raises Unavailable where that one does not answer."""
        cluster = self._of_kind(seen.kinds.get(claim.request.gpu or ""))
        if not cluster:
            return await self._mine.offers(self.part(seen, ""), claim)
        one = self._others[cluster]
        if one.away:
            raise Unavailable(one.away)
        return await one.scheduler.offers(self.part(seen, cluster), claim)

    async def extend(self, lease: Lease, until: float) -> None:
        """Ask the one that has it."""
        await self._one(lease).extend(lease, until)

    def patch(self, lease: Lease, off: Collection[str] = (), instead: Sequence[GpuKind] = ()) -> dict[str, Any]:
        """Return what the one says that has it. Raises Unavailable where that is not known."""
        return self._one(lease).patch(lease, off, instead)

    def start_words(self, lease: Lease) -> str:
        """Return what the one says that has it."""
        return self._one(lease).start_words(lease)

    def part(self, seen: Snapshot, cluster: str) -> Snapshot:
        """Return what the scheduler of a cluster is told of a snapshot; "" is ours.

        Ours is told who holds GPUs elsewhere too, whom quotas count, and not who waits for them.
        """
        fleet, kinds = self._split(seen.fleet, seen.kinds)[cluster]
        told = ((lease, self.cluster_of(lease, seen.kinds)) for lease in seen.leases)
        leases = tuple(x for x, has in told if has == cluster or (not cluster and x.phase not in WAITING))
        return replace(seen, leases=leases, fleet=fleet, kinds=kinds)

    def cluster_of(self, lease: Lease, kinds: Kinds) -> str:
        """Return the cluster whose scheduler is told of a lease: "" where the queue is ours.

        Of a kind that left the catalog, the GPUs that it holds tell.
        """
        kind = lease.request.gpu
        if kind is None or kind in kinds:
            return self._of_kind(kinds.get(kind or ""))
        groups = [slot.group for slot in lease.slots if slot.group and not slot.is_coming]
        return self._of_cluster(groups[0].cluster) if groups else ""

    def _one(self, lease: Lease) -> Scheduler:
        cluster = self.cluster_of(lease, self.kinds)
        return self._others[cluster].scheduler if cluster else self._mine

    def _of_kind(self, kind: GpuKind | None) -> str:
        return "" if kind is None else self._of_cluster(kind.cluster)

    def _of_cluster(self, name: str) -> str:
        """Return the cluster's name where its scheduler owns its queue, else ""; kinds call the hub's own ""."""
        name = name or self._home
        return name if name in self._others else ""

    def _split(self, fleet: Fleet, kinds: Kinds) -> Mapping[str, tuple[Fleet, Kinds]]:
        """Return the GPUs and kinds that each is told of: they are sorted once for each look.

        Ours knows the kinds of all, which quotas count, and starts no node for those that others give.
        """
        if self._parts is not None and self._parts[0] is fleet and self._parts[1] is kinds:
            return self._parts[2]
        names = ("", *self._others)
        gpus = {name: tuple(x for x in fleet.gpus if self._of_cluster(x.cluster) == name) for name in names}
        of: dict[str, Kinds] = {}
        for name in names:
            of[name] = {x.name: x for x in kinds.values() if self._of_kind(x) == name}
        of[""] = {x.name: replace(x, autoscale=None) if self._of_kind(x) else x for x in kinds.values()}
        found = {name: (replace(fleet, gpus=own), of[name]) for name, own in gpus.items()}
        self._parts = fleet, kinds, found
        return found
