"""Several clusters as one backend: their GPUs, workspaces and samples joined, known or unknown each by itself.

The hub's own cluster is called as before: its GPUs and pods have no cluster in their names. One that does not answer
stops nothing elsewhere: what was last seen there goes on, none of its GPUs is given, and what it runs is unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeVar

from gpuspawner.backends.base import Backend, ProbeResult, Running
from gpuspawner.backends.outages import OutageLog
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Group, NodeName, Slot, group_of_gpu, qualified_node_name
from gpuspawner.core.outages import Outage
from gpuspawner.core.quotas.namespaces import NamespaceBounds

T = TypeVar("T")

TAKEN_IN = 2
"""Looks at what runs in a cluster, one after the other: with the second, what the first showed was taken in."""
LOOK_SECONDS = 1.0
"""How long a look waits for one cluster: what is followed answers at once, and another is not to wait for it."""
FIRST_SECONDS = 10.0
"""For so long, at the start, one is waited for that was never seen: its servers are not to be taken for others' yet."""


class ClusterBackend(Backend, Protocol):
    """The backend of one cluster."""

    @property
    def limits(self) -> tuple[str, ...]:
        """What the service may not see there, each in a sentence for the administrator."""
        ...

    def room(self) -> NamespaceBounds:
        """Return what quotas and limits of the workspaces' namespace say, as they were last seen."""
        ...

    async def close(self) -> None:
        """Follow it no longer."""
        ...


@dataclass
class _Seen:
    """What a cluster last showed; ``log`` has its outage, while it shows nothing.

    ``looks`` counts those at what runs there since it was away, ``answered`` is whether it ever showed anything.
    """

    fleet: Fleet | None = None
    running: tuple[Running, ...] = ()
    log: OutageLog = field(default_factory=OutageLog)
    looks: int = 0
    answered: bool = False

    @property
    def away(self) -> str:
        """Why it shows nothing now, "" while it does."""
        return self.log.outage.why if self.log.outage is not None else ""


class ClustersBackend:
    """The clusters of one hub, by the catalog's names; ``home`` is the one that the hub itself uses."""

    def __init__(self, clusters: Mapping[str, ClusterBackend], home: str, kinds: Iterable[GpuKind]) -> None:
        """Look at nothing yet. Each kind is served by the cluster that it names."""
        self.clusters, self.home = clusters, home
        self._seen = {name: _Seen() for name in clusters}
        self._kinds = tuple(kinds)
        self._first_until: float | None = None

    @property
    def outages(self) -> Mapping[str, Outage]:
        """Which clusters do not answer now, by name; "" is the hub's own."""
        found = (("" if name == self.home else name, seen.log.outage) for name, seen in self._seen.items())
        return {name: outage for name, outage in found if outage is not None}

    @property
    def limits(self) -> tuple[str, ...]:
        """What the service may not see of each cluster."""
        return tuple(f"Cluster {name}: {words}" for name, one in self.clusters.items() for words in one.limits)

    def use_kinds(self, kinds: Iterable[GpuKind]) -> None:
        """Match the GPUs of each cluster to its own kinds."""
        self._kinds = tuple(kinds)
        for name, one in self.clusters.items():
            one.use_kinds(kinds_in("" if name == self.home else name, self._kinds))

    async def fleet(self) -> Fleet:
        """Return the GPUs of all clusters; of one that does not answer those seen last, which are not given.

        Nor are those of one that answers again, before what runs there was seen: it may run on them.

        Raises:
            Unavailable: none of them answers.
        """
        for name, fleet in (await self._look(lambda one: one.fleet())).items():
            self._seen[name].fleet = fleet
        found = [self._named(name, seen.fleet, _lost(name, seen)) for name, seen in self._seen.items() if seen.fleet]
        return Fleet(
            tuple(chain.from_iterable(fleet.gpus for fleet in found)),
            complete=any(fleet.complete for fleet in found),
            age_seconds=min((fleet.age_seconds for fleet in found), default=0.0),
            host_resources={node: has for fleet in found for node, has in fleet.host_resources.items()},
            outages=self.outages,
        )

    async def workspaces(self) -> tuple[Running, ...]:
        """Return what runs in all clusters; what ran in one that does not answer is taken to go on.

        Raises:
            Unavailable: none of them answers.
        """
        for name, running in (await self._look(lambda one: one.workspaces())).items():
            own = name == self.home
            self._seen[name].looks += 1
            self._seen[name].running = running if own else tuple(map(partial(_running_in, name), running))
        found = chain.from_iterable(seen.running for seen in self._seen.values())
        return tuple(sorted(found, key=lambda one: (one.lease_id, one.attempt)))

    async def probe(self, lease_id: str, attempt: int, leased: tuple[str, ...], deadline_seconds: float) -> ProbeResult:
        """Run the probe where the workspace was last seen."""
        return await self._asked(lease_id, attempt, lambda one: one.probe(lease_id, attempt, leased, deadline_seconds))

    async def run_script(self, lease_id: str, attempt: int, script: bytes, deadline_seconds: float) -> ProbeResult:
        """Run a script where the workspace was last seen."""
        return await self._asked(
            lease_id, attempt, lambda one: one.run_script(lease_id, attempt, script, deadline_seconds)
        )

    async def end(self, lease_id: str, attempts: frozenset[int] | None = None, slots: tuple[Slot, ...] = ()) -> bool:
        """End it in each cluster where it holds GPUs or was seen; in the hub's own where nothing tells.

        Raises:
            Unavailable: one of these does not answer: it is not known to be gone.
        """
        seen = {name for name, one in self._seen.items() if any(x.lease_id == lease_id for x in one.running)}
        where = seen | {self._cluster_of(slot) for slot in slots} or {self.home}
        ended = [await self._cluster(name).end(lease_id, attempts, slots) for name in sorted(where)]
        return all(ended)

    def patch(self, slots: tuple[Slot, ...], instead: tuple[GpuKind, ...] = ()) -> dict[str, Any]:
        """Return the patch of the cluster that has these slots, with its name where it is not the hub's own."""
        name = self._cluster_of(slots[0]) if slots else self.home
        patch = self._cluster(name).patch(tuple(Slot(_local(slot.gpu), slot.share) for slot in slots), instead)
        return patch if name == self.home else {**patch, "cluster": name}

    def room(self) -> NamespaceBounds:
        """Return what binds in each cluster, by its name, and the sizes of the nodes of all."""
        rooms = {"" if name == self.home else name: one.room() for name, one in self.clusters.items()}
        return NamespaceBounds(
            tuple(replace(limit, cluster=name) for name, room in rooms.items() for limit in room.limits),
            tuple(replace(quota, cluster=name) for name, room in rooms.items() for quota in room.quotas),
            frozenset(chain.from_iterable(room.counted for room in rooms.values())),
            frozenset(chain.from_iterable(room.nodes for room in rooms.values())),
        )

    async def close(self) -> None:
        """Follow none of them any longer."""
        await asyncio.gather(*(one.close() for one in self.clusters.values()))

    async def _look(self, ask: Callable[[ClusterBackend], Awaitable[T]]) -> dict[str, T]:
        """Ask all clusters at once; return what those say that answer. Raises Unavailable where none does."""
        now = time.monotonic()
        self._first_until = now + FIRST_SECONDS if self._first_until is None else self._first_until
        patience = [0.0 if seen.answered else self._first_until - now for seen in self._seen.values()]
        asked = (ask(one) for one in self.clusters.values())
        answers = await asyncio.gather(*map(self._within, asked, (max(LOOK_SECONDS, x) for x in patience)))
        found: dict[str, T] = {}
        for (name, seen), answer in zip(self._seen.items(), answers, strict=True):
            if isinstance(answer, Unavailable):
                seen.log.begin(f"Cluster {name}", str(answer), time.time())
                seen.looks = 0
            else:
                seen.log.end(time.time())
                seen.answered, found[name] = True, answer
        if not found:
            away = " ".join(f"Cluster {name}: {seen.away}" for name, seen in self._seen.items())
            raise Unavailable(away, "Each of the clusters")
        return found

    @staticmethod
    async def _within(asked: Awaitable[T], seconds: float) -> T | Unavailable:
        try:
            return await asyncio.wait_for(asked, seconds)
        except Unavailable as error:
            return error
        except (TimeoutError, asyncio.TimeoutError):
            return Unavailable("It has not answered yet.")

    def _named(self, name: str, fleet: Fleet, lost: Mapping[str, Any]) -> Fleet:
        """Return a cluster's fleet with its name in it, and what is ``lost`` of its GPUs."""
        where = "" if name == self.home else name
        gpus = tuple(replace(_gpu_in(where, gpu), cluster=name, **lost) for gpu in fleet.gpus)
        host_resources = {
            NodeName(name, qualified_node_name(where, node.node)): has for node, has in fleet.host_resources.items()
        }
        return replace(fleet, gpus=gpus, host_resources=host_resources)

    def _cluster(self, name: str) -> ClusterBackend:
        if name not in self.clusters:
            raise Unavailable(f"Cluster {name} is not in the catalog any more: what runs there is not known.")
        return self.clusters[name]

    def _cluster_of(self, slot: Slot) -> str:
        """Return the cluster of a slot; of one on a node that is coming, that of the kind it starts for."""
        group = slot.group
        if group is None:
            return self.home
        if group.is_coming:
            return next((kind.cluster for kind in self._kinds if kind.name == group.coming_kind), "") or self.home
        return group.cluster or self.home

    async def _asked(
        self, lease_id: str, attempt: int, ask: Callable[[ClusterBackend], Awaitable[ProbeResult]]
    ) -> ProbeResult:
        for name, seen in self._seen.items():
            if any((one.lease_id, one.attempt) == (lease_id, attempt) for one in seen.running):
                if seen.away:
                    return ProbeResult(problem=f"its cluster {name} does not answer: {seen.away}")
                return await ask(self.clusters[name])
        return ProbeResult(problem="no running pod of the workspace was found in any cluster")


def kinds_in(cluster: str, kinds: Iterable[GpuKind]) -> tuple[GpuKind, ...]:
    """Return the kinds of one cluster; "" is the hub's own."""
    return tuple(kind for kind in kinds if kind.cluster == cluster)


def _lost(name: str, seen: _Seen) -> dict[str, Any]:
    """Return what lets no GPU of a cluster be given; nothing where they may be."""
    if seen.away:
        return {"healthy": False, "reachable": False, "note": f"cluster {name} does not answer"}
    if seen.looks < TAKEN_IN:
        return {"healthy": False, "note": f"what runs in cluster {name} is not known yet"}
    return {}


def _gpu_in(cluster: str, gpu: Gpu) -> Gpu:
    if not cluster or gpu.group is None:
        return gpu
    group = gpu.group._replace(cluster=cluster)
    return replace(gpu, id=group.gpu(gpu.index), group=group, node=qualified_node_name(cluster, gpu.node))


def _running_in(cluster: str, one: Running) -> Running:
    """Return what runs in a cluster, with what it was given there by that cluster's name."""
    if one.given is None:
        return one
    return replace(one, given=tuple((group._replace(cluster=cluster), count) for group, count in one.given))


def _local(gpu: str) -> str:
    """Return the name by which its own cluster knows a GPU."""
    group = group_of_gpu(gpu)
    return Group(group.node, group.resource).gpu(int(gpu.rpartition("/")[2])) if group else gpu
