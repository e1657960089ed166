"""Volcano and KAI as the seam has them: who asks is granted at once, so that the pod waits in their queue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from itertools import count
from typing import Any

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.catalog import PodQueues
from gpuspawner.core.gpus.fleet import Fleet, GpuKind, Group, Slot, coming_group
from gpuspawner.core.gpus.placement import kinds_of, place
from gpuspawner.core.gpus.pools import resource_of
from gpuspawner.core.leases.lease import Lease, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.estimates import Place
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.units import show_duration
from gpuspawner.schedulers.base import Answer, Capabilities, Grant, PassingOn, Preview
from gpuspawner.schedulers.base import Scheduler as Seam
from gpuspawner.schedulers.own_queue import without_gpus
from gpuspawner.schedulers.pod_queues import SYSTEMS, PodGroups, beside, queue_of, why_it_waits

Given = tuple[GpuKind, tuple[Slot, ...]]


class PodQueueScheduler(PassingOn):
    """Grants what asks for GPUs at once; ``mine`` sees the GPUs, and grants what takes none.

    A grant is of GPUs that are free, else of ones that are coming: its pod waits until it is given some. Which it was
    given is seen then, and corrected in the lease. Nobody but the cluster's scheduler knows who is next.
    """

    def __init__(self, backend: KubernetesBackend, groups: PodGroups, mine: Seam, queues: PodQueues) -> None:
        """Ask nothing yet."""
        super().__init__(mine)
        self._backend, self._groups, self._queues = backend, groups, queues
        self._system = SYSTEMS[queues.system]

    @property
    def capabilities(self) -> Capabilities:
        """What is known of them: places and estimates are not."""
        return Capabilities(
            name=self._queues.system,
            owns_queue=True,
            tells_positions=False,
            pod_waits_seconds=self._queues.wait_seconds,
            substitutes=True,
            keeps_from_all=False,
            title=self._system.title,
            version=self._system.group_version.rpartition("/")[2],
        )

    @property
    def unseen(self) -> tuple[str, ...]:
        """Why the GPUs are not seen, or the PodGroups."""
        return (*super().unseen, *self._groups.unseen)

    async def meet(self) -> None:
        """See that the cluster has it. Raises Unfit, Unavailable."""
        await self._groups.meet()

    async def close(self) -> None:
        """Follow no more."""
        await self._groups.close()

    async def observe(self, now: float) -> Fleet:
        """Look at the GPUs."""
        self._groups.follow()
        return await self._mine.observe(now)

    def listen(self, told: Callable[[], None]) -> None:
        """Tell nothing: it answers at once."""

    async def extend(self, lease: Lease, until: float) -> None:
        """Allow it: they bound no time."""

    async def sync(self, seen: Snapshot) -> Answer:
        """Grant to all who wait, so that their pods are made. What takes no GPU is ``mine`` to grant."""
        without = await self._mine.sync(without_gpus(seen))
        return Answer(
            seen.now,
            lambda: [*without.grants(), *self._grants(seen)],
            lambda: {**without.places(), **{x.id: self._place(x.request) for x in seen.claims if x.request.gpu}},
            without.held_back,
        )

    async def offers(self, seen: Snapshot, claim: Claim) -> Preview:
        """Return what is known before the request is made: no more than which kind is free, and where it would wait."""
        if claim.request.gpu is None:
            return await self._mine.offers(without_gpus(seen), claim)
        free = _free(seen, claim, seen.used)
        instead = "" if free is None or free[0].name == claim.request.gpu else free[0].name
        most = show_duration(self._queues.wait_seconds)
        says = f"Its pod waits there for {most} at most at a time; then it is made anew, behind who came meanwhile."
        return Preview(self._place(claim.request), kind=instead, says=says)

    def _place(self, request: Request) -> Place:
        """Return where a claim stands: their queues tell no place."""
        where = self._system.where(queue_of(request, self._queues))
        return Place(None, None, None, None, says=f"{self._system.title} decides when it starts, {where}.")

    def _grants(self, seen: Snapshot) -> list[Grant]:
        found, used = list[Grant](), dict(seen.used)
        taken = {slot.group for lease in seen.leases for slot in lease.slots if slot.group}
        for claim in seen.claims:
            if claim.request.gpu is None or not seen.may_grant(claim):
                continue
            given = _free(seen, claim, used) or _coming(seen, claim, taken)
            if given is None:
                continue
            kind, slots = given
            found.append(Grant(claim, slots, kind="" if kind.name == claim.request.gpu else kind.name))
            for slot in slots:
                used[slot.gpu] = used.get(slot.gpu, Fraction(0)) + slot.share
            taken |= {slot.group for slot in slots if slot.group}
        return found

    def patch(
        self,
        lease: Lease,
        off: Collection[str] = (),
        instead: Sequence[GpuKind] = (),  # noqa: ARG002 - which kind it gives, that scheduler decides
    ) -> dict[str, Any]:
        """Return the pod's patch, with its queue and, as ``waits_in``, what that is called."""
        patch = self._mine.patch(lease, off)
        if not patch.get("pod"):
            return patch
        where = self._system.where(queue_of(lease.request, self._queues))
        pod = {**patch["pod"], "beside": beside(lease.request, self._queues)}
        return {**patch, "pod": pod, "waits_in": where}

    def start_words(self, lease: Lease) -> str:
        """Return where the pod of a start waits, and why, by its PodGroup and by its own condition."""
        pods = [x for x in self._backend.pods_of(lease.id) if x.attempt == lease.attempt and not x.ended]
        if lease.phase is not Phase.STARTING or not pods or any(pod.node for pod in pods):
            return ""
        status = self._groups.status_of(pod.uid for pod in pods)
        why = why_it_waits(self._system, status, pods[0].refusal)
        waits = f"it waits {self._system.where(queue_of(lease.request, self._queues))}."
        return f"{waits} {why}".rstrip()


def _takes(seen: Snapshot, claim: Claim) -> list[GpuKind]:
    return [kind for kind in kinds_of(claim.request, seen.kinds) if not seen.paused_words(kind.name)]


def _free(seen: Snapshot, claim: Claim, used: Mapping[str, Fraction]) -> Given | None:
    """Return the first kind that it takes of which enough is free, with those GPUs."""
    for kind in _takes(seen, claim):
        slots = place(kind, claim.request.count, seen.gpus_as_held, used, claim.tried_nodes)
        if slots is not None:
            return kind, slots
    return None


def _coming(seen: Snapshot, claim: Claim, taken: Collection[Group]) -> Given | None:
    """Return GPUs that its pod is to wait for, of the kind that it asked for; None where the cluster has none of it."""
    kind = next((kind for kind in _takes(seen, claim) if kind.name == claim.request.gpu), None)
    if kind is None or not any(not gpu.is_coming for gpu in seen.fleet.of_pool.get(kind.pool, ())):
        return None
    groups = (coming_group(kind.name, number, resource_of(kind, seen.fleet)) for number in count())
    group = next(group for group in groups if group not in taken)
    return kind, tuple(Slot(group.gpu(index), kind.share) for index in range(claim.request.count))
