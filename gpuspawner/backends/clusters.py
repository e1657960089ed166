"""Optional: several clusters as one backend, with their GPUs, workspaces and samples joined.

GPUs and pods of the hub's own cluster have no cluster in their names. An outage of one cluster stops nothing elsewhere:
its workspaces are assumed to continue, and none of its GPUs is granted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeVar

from gpuspawner.backends.base import Backend, OutageLog, ProbeResult
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Group, NodeName, Slot, group_of_gpu, qualified_node_name
from gpuspawner.core.leases.observations import Running
from gpuspawner.core.outages import GpuHealth, Outage
from gpuspawner.core.quotas.namespaces import NamespaceBounds

T = TypeVar("T")

LOOKS_BEFORE_GRANTS = 2
"""Looks at a cluster's workspaces before its GPUs are granted. The service has processed the first by the second."""
LOOK_SECONDS = 1.0
"""How long a look waits for one cluster. A watched cluster answers at once, and others must not wait for it."""
FIRST_SECONDS = 10.0
"""How long the first look waits for a cluster. Before its answer, nothing is known about its servers."""


class ClusterBackend(Backend, Protocol):
    """The backend of one cluster."""

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences for the administrator about objects that the service may not observe."""
        ...

    def room(self) -> NamespaceBounds:
        """Return the quotas and limits of the workspaces' namespace, as last observed."""
        ...

    async def close(self) -> None:
        """Stop watching the cluster."""
        ...


@dataclass
class _ClusterState:
    """The last observation of a cluster. ``log`` has its outage.

    ``looks`` counts the looks at its workspaces since the last outage. ``answered`` is whether it ever answered.
    ``unanswered`` has the questions without an answer: the outage ends when both have one.
    """

    fleet: Fleet | None = None
    running: tuple[Running, ...] = ()
    log: OutageLog = field(default_factory=OutageLog)
    looks: int = 0
    answered: bool = False
    unanswered: set[str] = field(default_factory=set)

    @property
    def away(self) -> str:
        """Why it does not answer now, "" if it does."""
        return self.log.outage.why if self.log.outage is not None else ""


class ClustersBackend:
    """The clusters of one hub by catalog name. ``home`` is the hub's own cluster."""

    def __init__(self, clusters: Mapping[str, ClusterBackend], home: str, kinds: Iterable[GpuKind]) -> None:
        """Each kind is served by the cluster that it names."""
        self.clusters, self.home = clusters, home
        self._states = {name: _ClusterState() for name in clusters}
        self._kinds = tuple(kinds)
        self._first_until: float | None = None

    @property
    def outages(self) -> Mapping[str, Outage]:
        """Outages by cluster. "" is the hub's own cluster."""
        found = (("" if name == self.home else name, state.log.outage) for name, state in self._states.items())
        return {name: outage for name, outage in found if outage is not None}

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences about objects that the service may not observe, for all clusters."""
        return tuple(f"Cluster {name}: {words}" for name, one in self.clusters.items() for words in one.limits)

    def use_kinds(self, kinds: Iterable[GpuKind]) -> None:
        """Match the GPUs of each cluster to its own kinds."""
        self._kinds = tuple(kinds)
        for name, one in self.clusters.items():
            one.use_kinds(kinds_in("" if name == self.home else name, self._kinds))

    async def fleet(self) -> Fleet:
        """Return the GPUs of all clusters, including the last ones of a cluster that does not answer.

        GPUs of a cluster are not granted during its outage, nor before its workspaces have been observed again.

        Raises:
            Unavailable: No cluster answers.
        """
        for name, fleet in (await self._ask_all("fleet", lambda one: one.fleet())).items():
            self._states[name].fleet = fleet
            found = [
                self._with_cluster_name(name, state.fleet, _blocking_fields(name, state))
                for name, state in self._states.items()
                if state.fleet
            ]
        return Fleet(
            tuple(chain.from_iterable(fleet.gpus for fleet in found)),
            complete=any(fleet.complete for fleet in found),
            age_seconds=min((fleet.age_seconds for fleet in found), default=0.0),
            host_resources={node: has for fleet in found for node, has in fleet.host_resources.items()},
            outages=self.outages,
        )

    async def workspaces(self) -> tuple[Running, ...]:
        """Return the workspaces of all clusters. In an outage they are assumed to continue.

        Raises:
            Unavailable: No cluster answers.
        """
        for name, running in (await self._ask_all("workspaces", lambda one: one.workspaces())).items():
            own = name == self.home
            self._states[name].looks += 1
            self._states[name].running = running if own else tuple(map(partial(_qualify_running, name), running))
        found = chain.from_iterable(state.running for state in self._states.values())
        return tuple(sorted(found, key=lambda one: (one.lease_id, one.attempt)))

    async def probe(self, lease_id: str, attempt: int, leased: tuple[str, ...], deadline_seconds: float) -> ProbeResult:
        """Run the probe in the workspace's cluster."""
        return await self._ask_cluster(
            lease_id, attempt, lambda one: one.probe(lease_id, attempt, leased, deadline_seconds)
        )

    async def gpu_health(self) -> Mapping[str, GpuHealth]:
        """Return nothing: only an exporter reads the health of GPUs on nodes."""
        return {}

    async def run_script(self, lease_id: str, attempt: int, script: bytes, deadline_seconds: float) -> ProbeResult:
        """Run a script in the workspace's cluster."""
        return await self._ask_cluster(
            lease_id, attempt, lambda one: one.run_script(lease_id, attempt, script, deadline_seconds)
        )

    async def end(self, lease_id: str, attempts: frozenset[int] | None = None, slots: tuple[Slot, ...] = ()) -> bool:
        """End it in each cluster where it holds GPUs or was observed, by default in the hub's own.

        Raises:
            Unavailable: One of these clusters does not answer.
        """
        observed = {name for name, one in self._states.items() if any(x.lease_id == lease_id for x in one.running)}
        where = observed | {self._cluster_of(slot) for slot in slots} or {self.home}
        ended = [await self._cluster(name).end(lease_id, attempts, slots) for name in sorted(where)]
        return all(ended)

    def patch(
        self, slots: tuple[Slot, ...], instead: tuple[GpuKind, ...] = (), *, one_domain: bool = False
    ) -> dict[str, Any]:
        """Return the pod patch for these slots. It names their cluster if that is not the hub's own."""
        name = self._cluster_of(slots[0]) if slots else self.home
        local = tuple(Slot(_local_name(slot.gpu), slot.share) for slot in slots)
        patch = self._cluster(name).patch(local, instead, one_domain=one_domain)
        return patch if name == self.home else {**patch, "cluster": name}

    def room(self) -> NamespaceBounds:
        """Return the quotas and limits of each cluster by name, and the node sizes of all clusters."""
        rooms = {"" if name == self.home else name: one.room() for name, one in self.clusters.items()}
        return NamespaceBounds(
            tuple(replace(limit, cluster=name) for name, room in rooms.items() for limit in room.limits),
            tuple(replace(quota, cluster=name) for name, room in rooms.items() for quota in room.quotas),
            frozenset(chain.from_iterable(room.counted for room in rooms.values())),
            frozenset(chain.from_iterable(room.nodes for room in rooms.values())),
        )

    async def close(self) -> None:
        """Stop watching all clusters."""
        await asyncio.gather(*(one.close() for one in self.clusters.values()))

    async def _ask_all(self, question: str, ask: Callable[[ClusterBackend], Awaitable[T]]) -> dict[str, T]:
        """Ask all clusters concurrently and return the answers. Raises Unavailable without any answer."""
        now = time.monotonic()
        self._first_until = now + FIRST_SECONDS if self._first_until is None else self._first_until
        patience = [0.0 if state.answered else self._first_until - now for state in self._states.values()]
        calls = (ask(one) for one in self.clusters.values())
        answers = await asyncio.gather(*map(self._with_deadline, calls, (max(LOOK_SECONDS, x) for x in patience)))
        found: dict[str, T] = {}
        for (name, state), answer in zip(self._states.items(), answers, strict=True):
            if isinstance(answer, Unavailable):
                state.unanswered.add(question)
                state.log.begin(f"Cluster {name}", str(answer), time.time())
                state.looks = 0
            else:
                state.unanswered.discard(question)
                if not state.unanswered:
                    state.log.end(time.time())
                state.answered, found[name] = True, answer
        if not found:
            away = " ".join(f"Cluster {name}: {state.away}" for name, state in self._states.items())
            raise Unavailable(away, "Each of the clusters")
        return found

    @staticmethod
    async def _with_deadline(call: Awaitable[T], seconds: float) -> T | Unavailable:
        try:
            return await asyncio.wait_for(call, seconds)
        except Unavailable as error:
            return error
        except (TimeoutError, asyncio.TimeoutError):
            return Unavailable("It has not answered yet.")

    def _with_cluster_name(self, name: str, fleet: Fleet, unusable: Mapping[str, Any]) -> Fleet:
        """Return a cluster's fleet with the cluster's name. ``unusable`` are fields of GPUs that cannot be granted."""
        where = "" if name == self.home else name
        gpus = tuple(replace(_qualify_gpu(where, gpu), cluster=name, **unusable) for gpu in fleet.gpus)
        host_resources = {
            NodeName(name, qualified_node_name(where, node.node)): has for node, has in fleet.host_resources.items()
        }
        return replace(fleet, gpus=gpus, host_resources=host_resources)

    def _cluster(self, name: str) -> ClusterBackend:
        if name not in self.clusters:
            raise Unavailable(f"Cluster {name} is not in the catalog any more, so its workspaces are unknown.")
        return self.clusters[name]

    def _cluster_of(self, slot: Slot) -> str:
        """Return the cluster of a slot, or that of its kind if its node does not exist yet."""
        group = slot.group
        if group is None:
            return self.home
        if group.is_coming:
            return next((kind.cluster for kind in self._kinds if kind.name == group.coming_kind), "") or self.home
        return group.cluster or self.home

    async def _ask_cluster(
        self, lease_id: str, attempt: int, ask: Callable[[ClusterBackend], Awaitable[ProbeResult]]
    ) -> ProbeResult:
        for name, state in self._states.items():
            if any((one.lease_id, one.attempt) == (lease_id, attempt) for one in state.running):
                if state.away:
                    return ProbeResult(problem=f"its cluster {name} does not answer: {state.away}")
                return await ask(self.clusters[name])
        return ProbeResult(problem="the workspace has no running pod in any cluster")


def kinds_in(cluster: str, kinds: Iterable[GpuKind]) -> tuple[GpuKind, ...]:
    """Return the kinds of one cluster, "" for the hub's own."""
    return tuple(kind for kind in kinds if kind.cluster == cluster)


def _blocking_fields(name: str, state: _ClusterState) -> dict[str, Any]:
    """Return the fields of a cluster's GPUs that prevent grants, {} if they may be granted."""
    if state.away:
        return {"healthy": False, "reachable": False, "note": f"cluster {name} does not answer"}
    if state.looks < LOOKS_BEFORE_GRANTS:
        return {"healthy": False, "note": f"the workspaces of cluster {name} are not known yet"}
    return {}


def _qualify_gpu(cluster: str, gpu: Gpu) -> Gpu:
    if not cluster or gpu.group is None:
        return gpu
    group = gpu.group._replace(cluster=cluster)
    return replace(gpu, id=group.gpu(gpu.index), group=group, node=qualified_node_name(cluster, gpu.node))


def _qualify_running(cluster: str, one: Running) -> Running:
    """Return a workspace with the cluster's name in its GPU groups."""
    if one.given is None:
        return one
    return replace(one, given=tuple((group._replace(cluster=cluster), count) for group, count in one.given))


def _local_name(gpu: str) -> str:
    """Return a GPU's name in its own cluster."""
    group = group_of_gpu(gpu)
    return Group(group.node, group.resource).gpu(int(gpu.rpartition("/")[2])) if group else gpu
